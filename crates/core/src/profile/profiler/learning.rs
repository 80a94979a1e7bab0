//! What the measurements of a job cost it so far, and what they may.

use std::collections::VecDeque;

use crate::profile::ladder::Setting;
use crate::profile::slack::Slack;
use crate::time::Monotonic;
use crate::units::Seconds;

/// What learning cost in this run.
#[derive(Clone, Debug, Default)]
pub(super) struct Learning {
    /// What the job may lose; `None` where it promises nothing about time.
    pub(super) slack: Option<Slack>,
    /// Time lost while lower settings were measured.
    pub(super) lost: Seconds,
    pub(super) visit: Option<Visit>,
    /// Settings whose visit cost all that it might before they were known well enough.
    pub(super) left: Vec<Setting>,
    /// Whether settings wait for slack that is not there.
    pub(super) deferred: bool,
    pub(super) seen: Option<Monotonic>,
    /// Time between the newest reports.
    pub(super) spacing: VecDeque<Seconds>,
}

/// A setting below the reference that is being measured.
#[derive(Clone, Debug)]
pub(super) struct Visit {
    pub(super) setting: Setting,
    pub(super) cost: Seconds,
    pub(super) most: Seconds,
}
