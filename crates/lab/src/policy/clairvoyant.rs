//! Upper bound of what policies can save: the planner with the actual future carbon intensities.

use super::kind::{Policy, RunMode};
use crate::replay::{Decision, View, planned};
use wattune_core::units::Seconds;

pub(super) const POLICY: Policy = Policy {
    name: "clairvoyant",
    about: "the bound: planned once with the actual values",
    mode: RunMode::WithinBudget(decide),
    learns: false,
};

/// Returns the optimal plan for the actual carbon intensities, made once for the rest of the job (`planning.md` §5).
fn decide(view: &View<'_>) -> Decision {
    planned(view, &view.grid.future(view.now), Seconds::ZERO, None)
}
