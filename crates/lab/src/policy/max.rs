//! The policy that always uses the largest power limit: the reference of all comparisons.

use super::kind::{Policy, RunMode};
use crate::replay::{Decision, Step, View};

pub(super) const POLICY: Policy =
    Policy { name: "max", about: "always the largest limit", mode: RunMode::WithinBudget(decide), learns: false };

/// Returns the first point of the profile, the largest limit's, to the end of the job.
fn decide(_view: &View<'_>) -> Decision {
    Ok(vec![Step::to_the_end(0)])
}
