//! Runs of a recurring job: their setting, their end, and their place in the history.

use super::job::Job;
use crate::traces::Epoch;
use wattune_core::bandit::Cost;
use wattune_core::units::{Joules, Seconds, Watts};

/// The batch size and limit of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Setting {
    /// The index of its batch size among the job's arms.
    pub arm: usize,
    /// The index of its limit among the arm's levels.
    pub level: usize,
    /// Energy and time of its first epoch if it profiles the limits.
    pub profiling: Option<(Joules, Seconds)>,
}

/// A run that has ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EndedRun {
    /// Its number, from 1.
    pub number: u32,
    /// Its batch size and limit.
    pub setting: Setting,
    /// Whole epochs; 0 if not even one fitted under the bound.
    pub epochs: u32,
    /// True if it was at its target.
    pub reached: bool,
    /// Its energy, profiling included.
    pub energy: Joules,
    /// Its duration, profiling included.
    pub time: Seconds,
    /// Its cost.
    pub cost: Cost,
    /// An epoch of it.
    pub epoch: Epoch,
}

/// A run in the history.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Run {
    /// Its recurrence, from 1; a run that is repeated has the same.
    pub recurrence: u32,
    /// Its batch size.
    pub batch_size: u64,
    /// Its power limit.
    pub limit: Watts,
    /// True if it was at its target.
    pub reached: bool,
    /// Its energy.
    pub energy: Joules,
    /// Its duration.
    pub time: Seconds,
    /// Its cost.
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

/// All runs of a job under a policy, and its final choice.
#[derive(Clone, Debug, PartialEq)]
pub struct JobRuns {
    /// All runs, in order.
    pub runs: Vec<Run>,
    /// The policy's best batch size at the end.
    pub batch_size: u64,
    /// Its limit.
    pub limit: Watts,
}
