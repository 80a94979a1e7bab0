//! The expected costs of runs, and the choice of least expected cost, computed from the traces.

use super::job::{Arm, Job};
use wattune_core::bandit::{Cost, Knob};

/// The batch size and the power limit with the least expected cost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Best {
    /// Index of the batch size among the job's arms.
    pub arm: usize,
    /// Index of the power limit among the arm's levels.
    pub level: usize,
    /// Expected cost of the runs until one reaches the target.
    pub cost: Cost,
}

/// Returns the expected cost of reaching the target with a batch size at a limit: the mean cost of a run, divided by
/// the fraction of runs that reach the target, because runs that miss it are repeated. `None` if no run reaches the
/// target.
#[expect(clippy::cast_precision_loss, reason = "a count of runs")]
pub fn expected(arm: &Arm, level: usize, max_epochs: u32, knob: &Knob) -> Option<Cost> {
    let reached: Vec<u32> = arm.paths.iter().flatten().copied().filter(|epoch| *epoch <= max_epochs).collect();
    if reached.is_empty() {
        return None;
    }
    let failed = (arm.paths.len() - reached.len()) as f64;
    let epochs = reached.iter().copied().map(f64::from).sum::<f64>() + failed * f64::from(max_epochs);
    Some(arm.levels[level].epoch_cost(knob) * (epochs / reached.len() as f64))
}

/// Returns the batch size and the limit with the least expected cost; `None` if no batch size reaches the target.
pub fn best(job: &Job, knob: &Knob) -> Option<Best> {
    let mut best: Option<Best> = None;
    for (index, arm) in job.arms.iter().enumerate() {
        for level in 0..arm.levels.len() {
            let Some(cost) = expected(arm, level, job.max_epochs, knob) else { break };
            if best.is_none_or(|best| cost < best.cost) {
                best = Some(Best { arm: index, level, cost });
            }
        }
    }
    best
}
