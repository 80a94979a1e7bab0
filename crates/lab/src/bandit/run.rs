//! Runs of a recurring job: batch size and limit, result, and entry in the history.

use super::job::Job;
use crate::traces::Epoch;
use wattune_core::bandit::Cost;
use wattune_core::units::{Joules, Seconds, Watts};

/// Batch size and power limit of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Setting {
    /// Index of the batch size among the job's arms.
    pub arm: usize,
    /// Index of the power limit among the arm's levels.
    pub level: usize,
    /// Energy and time of the first epoch, if the run profiles the power limits in that epoch.
    pub profiling: Option<(Joules, Seconds)>,
}

/// Result of a run that has ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EndedRun {
    /// Number of the run, from 1.
    pub number: u32,
    /// Batch size and power limit of the run.
    pub setting: Setting,
    /// Number of whole epochs; 0 if the bound on the cost does not allow one.
    pub epochs: u32,
    /// True if the run reached its target.
    pub reached: bool,
    /// Energy of the run, profiling included.
    pub energy: Joules,
    /// Duration of the run, profiling included.
    pub time: Seconds,
    /// Cost of the run, profiling included.
    pub cost: Cost,
    /// A measured epoch of the run.
    pub epoch: Epoch,
}

/// A run in the history of a job.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Run {
    /// Number of the recurrence, from 1; repeated runs have the same number.
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
    /// Best batch size of the policy at the end.
    pub batch_size: u64,
    /// Best power limit of the policy at the end.
    pub limit: Watts,
}
