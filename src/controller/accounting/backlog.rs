//! What was booked and is not written yet, and what the last daemon left.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, Utc};

use super::occupancy::{Downtime, EndedOccupancy};
use crate::store::{Checkpoint, LastReport, StoredJob};
use wattune_core::domain::{DeviceId, JobId};
use wattune_core::ledger::Interval;
use wattune_core::time::Monotonic;

/// Why energy is lost where a counter shows less than when it was read last.
pub(in crate::controller) const RESET_UNWATCHED: &str =
    "its counter was reset while nobody looked: what it had counted before that since it was read last is not known";
/// Why energy is lost where no counter is.
pub(in crate::controller) const NEVER_COUNTED: &str = "it has no energy counter, and its power was not read";

/// What was booked and is not written yet. The database may be away for a while; the books are not lost.
#[derive(Default)]
pub(in crate::controller) struct Backlog {
    pub(in crate::controller) intervals: Vec<Interval>,
    pub(in crate::controller) checkpoints: Vec<Checkpoint>,
    pub(in crate::controller) ended: Vec<StoredJob>,
    /// Where each board's books stood when the last daemon stopped.
    pub(in crate::controller) recovered: Vec<Checkpoint>,
    /// Until when boards without a counter were booked by then.
    pub(in crate::controller) recorded_until: BTreeMap<DeviceId, DateTime<Utc>>,
    /// When jobs that it left were heard of last.
    pub(in crate::controller) heard: BTreeMap<JobId, DateTime<Utc>>,
    /// When it was seen last, and for how long it was away.
    pub(in crate::controller) away: Option<Downtime>,
    /// Jobs that ended since such a board was read, and held it.
    pub(in crate::controller) gone: Vec<EndedOccupancy>,
    /// Jobs of whose energy something was written after they had ended.
    pub(in crate::controller) late: BTreeSet<JobId>,
    /// What was kept of the open intervals.
    pub(in crate::controller) kept: Kept,
}

impl Backlog {
    pub(super) fn is_empty(&self) -> bool {
        self.intervals.is_empty() && self.checkpoints.is_empty() && self.ended.is_empty() && self.late.is_empty()
    }
}

/// What was written down last.
#[derive(Default)]
pub(in crate::controller) struct Kept {
    pub(super) at: Option<Monotonic>,
    /// The last report of each open job.
    pub(super) reports: BTreeMap<JobId, LastReport>,
    /// Whether the last checkpoint could not be written.
    pub(super) failed: bool,
}
