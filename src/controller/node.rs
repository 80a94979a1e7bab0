//! The parts of the daemon that an owner beside them works on, borrowed one by one.

use chrono::{DateTime, Utc};

use super::cap::{Cap, Demand};
use super::gpus::Gpus;
use super::jobs::Jobs;
use super::settings::Settings;
use super::signal::Signal;
use crate::clock::Clock;
use crate::store::Store;
use wattune_core::time::Now;

/// What the ledger is kept of, and plans are made for.
pub(super) struct Node<'a> {
    pub(super) gpus: &'a mut Gpus,
    pub(super) jobs: &'a mut Jobs,
    pub(super) cap: &'a Cap,
    pub(super) signal: &'a Signal,
    pub(super) store: &'a Store,
    pub(super) settings: &'a Settings,
    pub(super) clock: &'a dyn Clock,
    /// When the daemon was started.
    pub(super) started_at: DateTime<Utc>,
}

impl Node<'_> {
    pub(super) fn now(&self) -> Now {
        self.clock.now()
    }

    /// Returns what is wanted of the GPUs.
    pub(super) fn demand(&self, now: Now) -> Demand<'_> {
        Demand { gpus: self.gpus, jobs: self.jobs, settings: self.settings, now }
    }
}
