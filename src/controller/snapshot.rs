//! Read access to the daemon's parts at one time, from which API answers are built and savings are estimated.

use chrono::{DateTime, Utc};

use super::accounting::{Accounting, Intensities};
use super::cap::{Cap, Demand, LimitGrants};
use super::gpus::Gpus;
use super::jobs::Jobs;
use super::planning::Planner;
use super::savings::SavingsTracker;
use super::settings::Settings;
use super::signal::Signal;
use crate::store::Store;
use wattune_core::profile::Settings as ProfileSettings;
use wattune_core::time::Now;

/// References to the daemon's parts, and the time at which they are read.
#[derive(Clone, Copy)]
pub(super) struct Snapshot<'a> {
    pub(super) now: Now,
    /// Seconds that pass on the daemon's clock in one second of the machine's.
    pub(super) clock_speed: f64,
    pub(super) started_at: DateTime<Utc>,
    pub(super) settings: &'a Settings,
    pub(super) profiling: &'a ProfileSettings,
    pub(super) store: &'a Store,
    pub(super) gpus: &'a Gpus,
    pub(super) jobs: &'a Jobs,
    pub(super) cap: &'a Cap,
    pub(super) accounting: &'a Accounting,
    pub(super) savings: &'a SavingsTracker,
    pub(super) planner: &'a Planner,
    pub(super) signal: &'a Signal,
}

impl<'a> Snapshot<'a> {
    /// Returns the demand of the GPUs on the node's cap (maximum sum of all power limits).
    pub(super) fn demand(&self) -> Demand<'a> {
        Demand { gpus: self.gpus, jobs: self.jobs, settings: self.settings, now: self.now }
    }

    /// Returns the limits that the node's cap grants to the GPUs.
    pub(super) fn grants(&self) -> LimitGrants {
        self.cap.grants(&self.demand())
    }

    /// Returns the carbon intensities that emissions are computed with.
    pub(super) fn intensities(&self) -> Intensities<'a> {
        self.accounting.intensities(self.signal, self.store)
    }
}
