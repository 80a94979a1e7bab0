//! The bound: the planner with what came.

use super::wattune::planned;
use crate::simulate::replay::{Decision, View};
use wattune_core::units::Seconds;

/// The optimum over the actual intensities, planned once (`planning.md` §5).
pub(super) fn decide(view: &View<'_>) -> Decision {
    planned(view, &view.grid.future(view.now), Seconds::ZERO, None)
}
