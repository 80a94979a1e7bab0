//! The best constant mix of two power limits (each for a fixed share of the time), chosen without knowledge of the
//! grid.

use super::kind::{Policy, RunMode};
use crate::replay::{Action, Decision, Step, View};
use wattune_core::plan::Unplannable;
use wattune_core::units::Seconds;

pub(super) const POLICY: Policy = Policy {
    name: "static",
    about: "the constant mix of two limits of least energy within the budget",
    mode: RunMode::WithinBudget(decide),
    learns: false,
};

/// Returns the mix of least energy per sample within the budget of extra time, with both limits interleaved evenly to
/// the end (`planning.md` §5). The mix may leave budget unused: training slower than the most efficient point costs
/// energy.
fn decide(view: &View<'_>) -> Decision {
    let efficient = view.curve.most_efficient().throughput;
    let mix = view.curve.mix_at(efficient.max(view.slowest_allowed())).ok_or(Unplannable::NoUsablePoint)?;
    let shares = mix.parts.iter().map(|(point, share)| (point.index, *share)).collect();
    Ok(vec![Step { action: Action::Train(shares), lasts: Seconds::new(f64::MAX) }])
}
