//! Cost of a job's measurements so far, and its budget.

use std::collections::VecDeque;

use crate::profile::slack::Slack;
use crate::profile::steps::Setting;
use crate::time::Monotonic;
use crate::units::Seconds;

/// Cost of profiling in this run.
#[derive(Clone, Debug, Default)]
pub(super) struct Learning {
    /// The job's slack; `None` if it has no time limit.
    pub(super) slack: Option<Slack>,
    /// Time lost by measuring lower settings.
    pub(super) time_lost: Seconds,
    pub(super) current: Option<MeasurementBudget>,
    /// Settings whose budget was spent before they were known well enough.
    pub(super) abandoned: Vec<Setting>,
    /// True if settings wait for more slack.
    pub(super) deferred: bool,
    pub(super) last_observed: Option<Monotonic>,
    /// Times between the latest reports.
    pub(super) spacing: VecDeque<Seconds>,
}

/// Cost and budget of the current measurement below the reference.
#[derive(Clone, Debug)]
pub(super) struct MeasurementBudget {
    pub(super) setting: Setting,
    pub(super) cost: Seconds,
    pub(super) most: Seconds,
}
