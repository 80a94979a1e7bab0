//! Who held a board in a time in which it was not read: jobs that ended in it, and those that go on.

use chrono::{DateTime, TimeDelta, Utc};

use super::Controller;
use crate::domain::{DeviceId, GpuId};
use crate::ledger::Stay;
use crate::store::{Checkpoint, Store, StoreError, StoredJob};
use crate::units::Seconds;

/// No more ended jobs are looked at after a start.
const RECALLED: u32 = 1000;

/// Boards are read a moment before a job ends: that moment is not worth a row after its final account.
const MOMENT: TimeDelta = TimeDelta::milliseconds(200);

/// A job that has ended.
pub(super) struct Gone {
    boards: Vec<GpuId>,
    stay: Stay,
}

impl Gone {
    fn of(job: &StoredJob) -> Option<Self> {
        let until = job.ended.as_ref().map(|(at, _)| *at)?;
        let stay = Stay { job: job.id.clone(), from: job.registered_at, until: Some(until) };
        Some(Self { boards: job.spec.gpus.clone(), stay })
    }

    fn was_on(&self, point: &Checkpoint) -> bool {
        self.boards.iter().any(|board| DeviceId::from(board) == point.device)
            && self.stay.until.is_some_and(|until| until - point.at >= MOMENT)
    }
}

/// The jobs that ended after their boards were read last, by the last daemon.
///
/// # Errors
/// If they cannot be read.
pub(super) async fn gone_since(store: &Store, points: &[Checkpoint]) -> Result<Vec<Gone>, StoreError> {
    let ended = store.ended_jobs(RECALLED).await?;
    let gone = ended.iter().filter_map(Gone::of);
    Ok(gone.filter(|gone| points.iter().any(|point| gone.was_on(point))).collect())
}

impl Controller {
    /// Keeps in mind that a job has ended, if one of its boards has not answered yet since this daemon began.
    pub(super) fn remember_gone(&mut self, job: &StoredJob) {
        let recovered = &self.backlog.recovered;
        self.backlog.gone.extend(Gone::of(job).filter(|gone| recovered.iter().any(|point| gone.was_on(point))));
    }

    /// Who held a board since it was read last, `since`, by an earlier daemon. A job that goes on held it as long as a
    /// daemon knew it to be alive; where none was there, if that took no longer than its lease.
    pub(super) fn stays_on(&self, board: &GpuId, since: DateTime<Utc>) -> Vec<Stay> {
        let now = self.now().utc;
        let going_on = self.jobs.values().filter(|job| job.spec.gpus.contains(board)).filter_map(|job| {
            let has_reported = job.progress.last.is_some_and(|last| last.received >= self.started_at);
            let seen_again = if has_reported { self.started_at } else { now };
            let unseen = Seconds::from_delta(seen_again - since.max(job.registered_at));
            let from = match unseen <= job.spec.lease {
                true => Some(job.registered_at),
                false => has_reported.then_some(self.started_at),
            };
            from.map(|from| Stay { job: job.id.clone(), from, until: None })
        });
        let gone = self.backlog.gone.iter().filter(|gone| gone.boards.contains(board)).map(|gone| gone.stay.clone());
        let mut stays: Vec<Stay> = gone.chain(going_on).collect();
        stays.sort_by_key(|stay| stay.from);
        stays
    }
}
