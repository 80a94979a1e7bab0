//! The bound: the planner with what came.

use super::wattune::carry_out;
use crate::simulate::replay::{Decision, View};

/// The optimum over the actual intensities, planned once (`planning.md` §5).
pub(super) fn decide(view: &View<'_>) -> Decision {
    carry_out(view, &view.grid.future(view.now), false)
}
