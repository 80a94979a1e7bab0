//! Ledger rows not written yet, and the state that the last daemon left: checkpoints (counter readings up to which
//! energy is recorded), leases of jobs (longest silences), and the times of jobs on GPUs.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, TimeDelta, Utc};

use crate::clock::Clock;
use crate::controller::jobs::Job;
use crate::gpu::journal::boot_id;
use crate::store::{Checkpoint, LastReport, LastSeen, Store, StoreError, StoredJob};
use wattune_core::domain::{DeviceId, GpuId, JobId};
use wattune_core::ledger::{Interval, LONGEST_GAP, OccupancySpan};
use wattune_core::time::{Monotonic, Now};
use wattune_core::units::Seconds;

/// Reason, in the ledger, for lost energy of a GPU whose counter was reset between two readings.
pub(crate) const RESET_UNWATCHED: &str =
    "its counter was reset while it was not read: its energy between the last reading and the reset is unknown";
/// Reason, in the ledger, for lost energy of a GPU without a counter whose power was not read.
pub(crate) const NEVER_COUNTED: &str = "it has no energy counter, and its power was not read";

/// Records not written to the database yet, since the database may be unavailable for a while, and the state that the
/// last daemon left.
#[derive(Default)]
pub(crate) struct Backlog {
    pub(crate) intervals: Vec<Interval>,
    pub(crate) checkpoints: Vec<Checkpoint>,
    pub(crate) ended: Vec<StoredJob>,
    /// Last daemon's checkpoint (counter reading up to which energy is recorded) of each device whose counter this
    /// daemon has not read yet.
    pub(crate) recovered: Vec<Checkpoint>,
    /// Time up to which an earlier daemon recorded the energy of each GPU without a readable counter.
    pub(crate) recorded_until: BTreeMap<DeviceId, DateTime<Utc>>,
    /// Time of the last progress report of each job that was running under the last daemon.
    pub(crate) last_reports: BTreeMap<JobId, DateTime<Utc>>,
    /// Time without a daemon before this daemon's start; `None` if it is unknown.
    pub(crate) away: Option<Downtime>,
    /// Times of jobs on GPUs, for jobs that ended after the last daemon's checkpoint (counter reading up to which
    /// energy is recorded) of the GPU: a part of the energy since that checkpoint belongs to these jobs.
    pub(crate) ended_occupancy: Vec<EndedOccupancy>,
    /// Ended jobs whose energy in the ledger changed after their savings were estimated: it was written late, or was
    /// corrected.
    pub(crate) late: BTreeSet<JobId>,
    /// State of the last attempt to store the open intervals.
    pub(crate) last_checkpoint: LastCheckpoint,
}

impl Backlog {
    pub(super) fn is_empty(&self) -> bool {
        self.intervals.is_empty() && self.checkpoints.is_empty() && self.ended.is_empty() && self.late.is_empty()
    }

    /// Returns the start of a time without readings that ends at `end`. By the wall clock of the last daemon, it began
    /// at `at`; if the wall clock was set forward since, it begins as long before `end` as the machine's uptime shows.
    pub(super) fn gap_start(&self, at: DateTime<Utc>, end: Now) -> DateTime<Utc> {
        let by_uptime = self.away.as_ref().and_then(|away| away.time_since(at, end));
        let start = by_uptime.filter(|time| end.utc - at > *time + CLOCK_STEP).map_or(at, |time| end.utc - time);
        if end.utc - start > LONGEST_GAP {
            tracing::warn!(
                "by the wall clock, no daemon has run for {} days, which is implausible: energy that the counters show of \
                 that time is recorded in its last hour",
                (end.utc - start).num_days()
            );
            return end.utc - TimeDelta::hours(1);
        }
        start
    }

    /// Returns true if the uptime shows that the machine has not restarted since `at`, by the last daemon's wall clock.
    pub(super) fn is_same_boot_since(&self, at: DateTime<Utc>) -> bool {
        self.away.as_ref().is_some_and(|away| away.is_same_boot_since(at))
    }
}

/// State of this daemon's last attempt to store a checkpoint: the open intervals and the jobs' last reports.
#[derive(Default)]
pub(crate) struct LastCheckpoint {
    pub(super) at: Option<Monotonic>,
    /// Last progress report of each running job, as stored with the open intervals.
    pub(super) reports: BTreeMap<JobId, LastReport>,
    /// True if the last attempt failed.
    pub(super) failed: bool,
}

/// Difference between the wall clock and the uptime above which the wall clock counts as having been set while no daemon
/// ran.
const CLOCK_STEP: TimeDelta = TimeDelta::minutes(1);

/// Maximum number of ended jobs that the daemon reads when it starts.
const RECALLED: u32 = 1000;

/// Shortest time between the GPU's checkpoint (counter reading up to which energy is recorded) and a job's end that
/// counts as occupancy by that job. A shorter time is normal, because GPUs are read shortly before a job ends.
pub(super) const SHORTEST_SPAN: TimeDelta = TimeDelta::milliseconds(200);

/// Time that a job spent on its GPUs; the job has ended since.
pub(crate) struct EndedOccupancy {
    pub(super) gpus: Vec<GpuId>,
    pub(super) span: OccupancySpan,
}

/// Time from the last daemon's last sign of life to the start of this daemon.
pub(crate) struct Downtime {
    pub(super) last_seen: LastSeen,
    /// Length of the downtime.
    pub(super) span: Seconds,
    /// True if the length is known from the machine's uptime, which setting the wall clock does not change.
    is_by_uptime: bool,
    /// Start of this daemon, at the end of the downtime.
    pub(super) back: Monotonic,
}

impl Downtime {
    /// Returns the downtime from the last daemon's last sign of life, `last_seen`, to now.
    pub(crate) fn until_now(last_seen: LastSeen, clock: &dyn Clock) -> Self {
        let by_machine =
            last_seen.uptime.zip(clock.uptime()).filter(|(then, now)| last_seen.boot_id == boot_id() && now >= then);
        // The uptime of the same boot is preferred, because the wall clock may have been set meanwhile.
        let span = by_machine.map_or_else(|| Seconds::from_delta(clock.utc() - last_seen.at), |(then, now)| now - then);
        let is_by_uptime = by_machine.is_some();
        Self { last_seen, span: span.max(Seconds::ZERO), is_by_uptime, back: clock.monotonic() }
    }

    /// Returns the time from `at`, by the last daemon's wall clock, to `end`, by this daemon's clocks; `None` if the
    /// uptime does not show how long no daemon ran.
    fn time_since(&self, at: DateTime<Utc>, end: Now) -> Option<TimeDelta> {
        let before = (self.last_seen.at - at).max(TimeDelta::zero());
        self.is_by_uptime.then(|| before + (self.span + end.monotonic.since(self.back)).to_delta())
    }

    /// Returns true if the uptime shows that the machine has not restarted since `at`, by the last daemon's wall clock.
    fn is_same_boot_since(&self, at: DateTime<Utc>) -> bool {
        // An earlier daemon may have read a device last, before a restart that preceded the last daemon.
        let is_in_boot = |uptime: Seconds| Seconds::from_delta(self.last_seen.at - at) <= uptime;
        self.is_by_uptime && self.last_seen.uptime.is_some_and(is_in_boot)
    }

    /// Returns the time that was left of a job's lease (longest silence before a job counts as dead) at the last
    /// daemon's last sign of life. A job without a record in that sign of life was registered right afterwards: its
    /// whole lease was left.
    pub(super) fn lease_left(&self, job: &Job) -> Seconds {
        self.last_seen.leases.get(&job.id).copied().unwrap_or(job.spec.lease)
    }
}

/// Returns the times of ended jobs on their GPUs, for jobs that ended after the last daemon's checkpoint (counter
/// reading up to which energy is recorded) of one of these GPUs. `points` are the checkpoints.
pub(crate) async fn ended_since(store: &Store, points: &[Checkpoint]) -> Result<Vec<EndedOccupancy>, StoreError> {
    let ended = store.ended_jobs(RECALLED).await?;
    let gone = |job: &StoredJob| {
        let until = job.ended.as_ref().map(|(at, _)| *at).filter(|_| !job.progress.presence.is_absent())?;
        let is_missed = |point: &Checkpoint| {
            job.spec.gpus.iter().any(|gpu| DeviceId::from(gpu) == point.device) && until - point.at >= SHORTEST_SPAN
        };
        let span = OccupancySpan {
            job: job.id.clone(),
            from: job.progress.presence.present_since.unwrap_or(job.registered_at),
            until: Some(until),
        };
        points.iter().any(is_missed).then(|| EndedOccupancy { gpus: job.spec.gpus.clone(), span })
    };
    Ok(ended.iter().filter_map(gone).collect())
}
