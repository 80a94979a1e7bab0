//! The parts of the daemon that accounting and planning work on, each borrowed separately.

use chrono::{DateTime, Utc};

use super::cap::{Cap, Demand};
use super::gpus::Gpus;
use super::jobs::Jobs;
use super::settings::Settings;
use super::signal::Signal;
use crate::clock::Clock;
use crate::store::Store;
use wattune_core::time::Now;

/// The parts of the daemon that accounting and planning work on.
pub(super) struct Node<'a> {
    pub(super) gpus: &'a mut Gpus,
    pub(super) jobs: &'a mut Jobs,
    pub(super) cap: &'a Cap,
    pub(super) signal: &'a Signal,
    pub(super) store: &'a Store,
    pub(super) settings: &'a Settings,
    pub(super) clock: &'a dyn Clock,
    /// Time of the daemon's start.
    pub(super) started_at: DateTime<Utc>,
}

impl Node<'_> {
    pub(super) fn now(&self) -> Now {
        self.clock.now()
    }

    /// Returns the demand of the GPUs on the node's cap (maximum sum of all power limits).
    pub(super) fn demand(&self, now: Now) -> Demand<'_> {
        Demand { gpus: self.gpus, jobs: self.jobs, settings: self.settings, now }
    }
}
