//! Who held a board in a time in which it was not read: jobs that ended in it, and those that go on.

use chrono::TimeDelta;

use crate::clock::Clock;
use crate::controller::jobs::Job;
use crate::gpu::journal::boot_id;
use crate::store::{Checkpoint, LastSeen, Store, StoreError, StoredJob};
use wattune_core::domain::{DeviceId, GpuId};
use wattune_core::ledger::OccupancySpan;
use wattune_core::time::Monotonic;
use wattune_core::units::Seconds;

/// No more ended jobs are looked at after a start.
const RECALLED: u32 = 1000;

/// Boards are read a moment before a job ends: that moment is not worth a row after its final account.
pub(super) const MOMENT: TimeDelta = TimeDelta::milliseconds(200);

/// A job that has ended.
pub(in crate::controller) struct EndedOccupancy {
    pub(super) boards: Vec<GpuId>,
    pub(super) stay: OccupancySpan,
}

/// The time between the last daemon and this one.
pub(in crate::controller) struct Downtime {
    pub(super) seen: LastSeen,
    /// From then until this daemon began.
    pub(super) span: Seconds,
    /// When it began.
    pub(super) back: Monotonic,
}

impl Downtime {
    /// That ends now.
    pub(in crate::controller) fn until_now(seen: LastSeen, clock: &dyn Clock) -> Self {
        let by_machine = seen.uptime.zip(clock.uptime()).filter(|(then, now)| seen.boot_id == boot_id() && now >= then);
        // The wall clock may have been set meanwhile.
        let span = by_machine.map_or_else(|| Seconds::from_delta(clock.utc() - seen.at), |(then, now)| now - then);
        Self { seen, span: span.max(Seconds::ZERO), back: clock.monotonic() }
    }

    /// How long a job's lease lasted without a further word from when the last daemon was seen last. One that was not there
    /// then was registered right afterwards.
    pub(super) fn lease_left(&self, job: &Job) -> Seconds {
        self.seen.leases.get(&job.id).copied().unwrap_or(job.spec.lease)
    }
}

/// The jobs that ended after their boards were read last, by the last daemon.
///
/// # Errors
/// If they cannot be read.
pub(in crate::controller) async fn gone_since(
    store: &Store,
    points: &[Checkpoint],
) -> Result<Vec<EndedOccupancy>, StoreError> {
    let ended = store.ended_jobs(RECALLED).await?;
    let gone = |job: &StoredJob| {
        let until = job.ended.as_ref().map(|(at, _)| *at)?;
        let is_missed = |point: &Checkpoint| {
            job.spec.gpus.iter().any(|board| DeviceId::from(board) == point.device) && until - point.at >= MOMENT
        };
        let stay = OccupancySpan { job: job.id.clone(), from: job.registered_at, until: Some(until) };
        points.iter().any(is_missed).then(|| EndedOccupancy { boards: job.spec.gpus.clone(), stay })
    };
    Ok(ended.iter().filter_map(gone).collect())
}
