//! Runs of a recurring job: their settings (batch size and limit), their results, and their entries in the history.

use super::job::Job;
use crate::traces::Epoch;
use wattune_core::bandit::Cost;
use wattune_core::units::{Joules, Seconds, Watts};

/// Batch size and power limit of a run, as a policy chose them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Setting {
    /// Index of the batch size among the job's arms.
    pub arm: usize,
    /// Index of the power limit among the arm's levels.
    pub level: usize,
    /// Energy (first) and time (second) of the run's first epoch if the run profiles power limits in it; else `None`.
    pub profiling: Option<(Joules, Seconds)>,
}

/// Result of a run that has ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EndedRun {
    /// Number of the run, from 1.
    pub number: u32,
    /// Batch size and power limit of the run.
    pub setting: Setting,
    /// Number of whole epochs; 0 if not even one epoch fits under the bound on the run's cost.
    pub epochs: u32,
    /// True if the run reached its target.
    pub reached: bool,
    /// Energy of the run, profiling included.
    pub energy: Joules,
    /// Duration of the run, profiling included.
    pub time: Seconds,
    /// Cost of the run, profiling included.
    pub cost: Cost,
    /// The measured epoch that was drawn for the run; all epochs except the one with profiling have its energy and
    /// time.
    pub epoch: Epoch,
}

/// A run in the history of a job.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Run {
    /// Number of the recurrence, from 1; runs that repeat a failed run have the same number.
    pub recurrence: u32,
    /// Batch size of the run.
    pub batch_size: u64,
    /// Power limit of the run.
    pub limit: Watts,
    /// True if the run reached its target.
    pub reached: bool,
    /// Energy of the run.
    pub energy: Joules,
    /// Duration of the run.
    pub time: Seconds,
    /// Cost of the run.
    pub cost: Cost,
}

impl Run {
    pub(super) fn new(job: &Job, recurrence: u32, ended: &EndedRun, ratio: f64) -> Self {
        let arm = &job.arms[ended.setting.arm];
        Self {
            recurrence,
            batch_size: arm.batch_size,
            limit: arm.levels[ended.setting.level].limit,
            reached: ended.reached,
            energy: ended.energy * ratio,
            time: ended.time * ratio,
            cost: ended.cost * ratio,
        }
    }
}

/// All runs of a job under a policy, and the policy's final choice.
#[derive(Clone, Debug, PartialEq)]
pub struct JobRuns {
    /// All runs, in the order of their ends.
    pub runs: Vec<Run>,
    /// Batch size that the policy considers best at the end.
    pub batch_size: u64,
    /// Power limit that the policy considers best at the end.
    pub limit: Watts,
}
