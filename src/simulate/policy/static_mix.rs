//! The best constant mix of two limits, chosen without knowing the grid.

use crate::simulate::replay::{Act, Decision, Step, View};
use wattune_core::plan::Unplannable;
use wattune_core::units::Seconds;

/// The mix of least energy per sample that keeps the budget, time-shared evenly to the end (`planning.md` §5). Slower
/// than the most efficient point costs energy too, so that it may use less than the budget.
pub(super) fn decide(view: &View<'_>) -> Decision {
    let slowest = view.curve.ceiling().throughput / (1.0 + view.budget.unwrap_or(f64::INFINITY));
    let efficient = view.curve.most_efficient().throughput;
    let mix = view.curve.mix_at(efficient.max(slowest)).ok_or(Unplannable::NoUsablePoint)?;
    let shares = mix.parts.iter().map(|(point, share)| (point.index, *share)).collect();
    Ok(vec![Step { act: Act::Train(shares), lasts: Seconds::new(f64::MAX) }])
}
