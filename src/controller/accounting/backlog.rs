//! Rows that wait to be written to the ledger, and the remains of an earlier daemon: open checkpoints, leases, occupancy of GPUs.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, TimeDelta, Utc};

use crate::clock::Clock;
use crate::controller::jobs::Job;
use crate::gpu::journal::boot_id;
use crate::store::{Checkpoint, LastReport, LastSeen, Store, StoreError, StoredJob};
use wattune_core::domain::{DeviceId, GpuId, JobId};
use wattune_core::ledger::{Interval, OccupancySpan};
use wattune_core::time::Monotonic;
use wattune_core::units::Seconds;

/// Reason of a loss where a counter shows less than at its last reading.
pub(crate) const RESET_UNWATCHED: &str =
    "its counter was reset while it was not read: what it had counted since its last reading is not known";
/// Reason of a loss without a counter.
pub(crate) const NEVER_COUNTED: &str = "it has no energy counter, and its power was not read";

/// Records that are not written yet: the database may be unavailable for a while.
#[derive(Default)]
pub(crate) struct Backlog {
    pub(crate) intervals: Vec<Interval>,
    pub(crate) checkpoints: Vec<Checkpoint>,
    pub(crate) ended: Vec<StoredJob>,
    /// Checkpoint of each device when the last daemon stopped.
    pub(crate) recovered: Vec<Checkpoint>,
    /// Time up to which energy of GPUs without a counter was recorded by then.
    pub(crate) recorded_until: BTreeMap<DeviceId, DateTime<Utc>>,
    /// Last report of each job that the last daemon left.
    pub(crate) last_reports: BTreeMap<JobId, DateTime<Utc>>,
    /// Time between the last daemon and this one.
    pub(crate) away: Option<Downtime>,
    /// Occupancy by jobs that have ended since such a device was read.
    pub(crate) ended_occupancy: Vec<EndedOccupancy>,
    /// Ended jobs with energy that was written after their end.
    pub(crate) late: BTreeSet<JobId>,
    /// Last checkpoint of the open intervals.
    pub(crate) last_checkpoint: LastCheckpoint,
}

impl Backlog {
    pub(super) fn is_empty(&self) -> bool {
        self.intervals.is_empty() && self.checkpoints.is_empty() && self.ended.is_empty() && self.late.is_empty()
    }
}

/// The last checkpoint.
#[derive(Default)]
pub(crate) struct LastCheckpoint {
    pub(super) at: Option<Monotonic>,
    /// Last report of each open job in it.
    pub(super) reports: BTreeMap<JobId, LastReport>,
    /// True if it could not be written.
    pub(super) failed: bool,
}

/// Maximum number of ended jobs read at a start.
const RECALLED: u32 = 1000;

/// GPUs are read shortly before a job ends; that time is not worth a row after its final account.
pub(super) const SHORTEST_SPAN: TimeDelta = TimeDelta::milliseconds(200);

/// Occupancy of GPUs by a job that has ended.
pub(crate) struct EndedOccupancy {
    pub(super) gpus: Vec<GpuId>,
    pub(super) span: OccupancySpan,
}

/// Time between the last daemon and this one.
pub(crate) struct Downtime {
    pub(super) seen: LastSeen,
    /// Duration.
    pub(super) span: Seconds,
    /// Start of this daemon.
    pub(super) back: Monotonic,
}

impl Downtime {
    /// Returns the time from `seen` to now.
    pub(crate) fn until_now(seen: LastSeen, clock: &dyn Clock) -> Self {
        let by_machine = seen.uptime.zip(clock.uptime()).filter(|(then, now)| seen.boot_id == boot_id() && now >= then);
        // The wall clock may have been set meanwhile.
        let span = by_machine.map_or_else(|| Seconds::from_delta(clock.utc() - seen.at), |(then, now)| now - then);
        Self { seen, span: span.max(Seconds::ZERO), back: clock.monotonic() }
    }

    /// Returns the rest of a job's lease when the last daemon was seen last. A job that it did not list was registered
    /// right afterwards.
    pub(super) fn lease_left(&self, job: &Job) -> Seconds {
        self.seen.leases.get(&job.id).copied().unwrap_or(job.spec.lease)
    }
}

/// Returns the occupancy by jobs that ended after the last daemon had read their GPUs.
pub(crate) async fn ended_since(store: &Store, points: &[Checkpoint]) -> Result<Vec<EndedOccupancy>, StoreError> {
    let ended = store.ended_jobs(RECALLED).await?;
    let gone = |job: &StoredJob| {
        let until = job.ended.as_ref().map(|(at, _)| *at)?;
        let is_missed = |point: &Checkpoint| {
            job.spec.gpus.iter().any(|gpu| DeviceId::from(gpu) == point.device) && until - point.at >= SHORTEST_SPAN
        };
        let span = OccupancySpan { job: job.id.clone(), from: job.registered_at, until: Some(until) };
        points.iter().any(is_missed).then(|| EndedOccupancy { gpus: job.spec.gpus.clone(), span })
    };
    Ok(ended.iter().filter_map(gone).collect())
}
