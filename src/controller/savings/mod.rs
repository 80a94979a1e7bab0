//! Owns the estimates of savings: of running jobs so far, and of ended jobs. Some ended jobs wait for actual carbon
//! intensities, which replace forecasts in their estimates.

mod estimate;
mod outcome;
mod reference;

use std::collections::BTreeSet;

use chrono::{DateTime, DurationRound, TimeDelta, Utc};

pub(super) use estimate::Estimate;
pub(super) use reference::{changed_at, due_references};

use super::accounting::SHOWN_DAYS;
use super::jobs::{Job, Jobs};
use super::view::SavedView;
use crate::store::{Store, StoreError, StoredJob};
use wattune_core::domain::{JobId, Slot};
use wattune_core::ledger::apportion::hour_of;
use wattune_core::ledger::report::WholeJob;
use wattune_core::ledger::savings_entries::Outcome;

/// Time after a job's end for which the estimate of its savings waits for actual carbon intensities; sources seldom
/// publish actual values later.
const AWAITED: TimeDelta = TimeDelta::days(14);
/// Maximum number of ended jobs that the daemon reads when it starts.
const RECALLED: u32 = 1000;

/// Owner of the estimates of savings.
#[derive(Default)]
pub(super) struct SavingsTracker {
    /// Minute of the last update.
    updated: Option<DateTime<Utc>>,
    /// Jobs that ran at the last update.
    running: Vec<JobId>,
    /// Ended jobs whose estimate waits for actual carbon intensities of the job's time.
    awaited: BTreeSet<JobId>,
    /// Savings of the jobs that ended in the last 30 days; `None` before they are first summed up.
    ended: Option<SavedView>,
}

/// A due update of the estimates.
pub(super) struct SavingsUpdate {
    /// Jobs whose savings are to be estimated again.
    pub(super) jobs: Vec<JobId>,
    running: Vec<JobId>,
    is_new_hour: bool,
    now: DateTime<Utc>,
}

impl SavingsTracker {
    /// Begins an update once a minute; `None` within the minute. A job is updated once a minute in its first hour and
    /// once an hour later, because an estimate reads all of the job's intervals.
    pub(super) fn begin_update(&mut self, jobs: &Jobs, now: DateTime<Utc>) -> Option<SavingsUpdate> {
        let minute = now.duration_trunc(TimeDelta::minutes(1)).unwrap_or(now);
        let before = self.updated.replace(minute);
        if before == Some(minute) {
            return None;
        }
        let is_new_hour = before.is_none_or(|before| hour_of(before) != hour_of(minute));
        let is_due = |job: &&Job| is_new_hour || now - job.registered_at < TimeDelta::hours(1);
        let due = jobs.iter().filter(is_due).map(|job| job.id.clone()).collect();
        Some(SavingsUpdate { jobs: due, running: jobs.ids(), is_new_hour, now })
    }

    /// Ends an update. Sums up the savings of the jobs that ended in the last 30 days: once an hour, and whenever a job
    /// has begun or ended since the last update.
    pub(super) async fn end_update(&mut self, update: SavingsUpdate, store: &Store) -> Result<(), StoreError> {
        let has_changed = self.running != update.running;
        let span = Slot::new(update.now - TimeDelta::days(SHOWN_DAYS), update.now);
        if let Some(span) = span.filter(|_| update.is_new_hour || has_changed) {
            self.sum_up(&span, store).await?;
        }
        self.running = update.running;
        Ok(())
    }

    async fn sum_up(&mut self, span: &Slot, store: &Store) -> Result<(), StoreError> {
        let jobs = store.jobs_within(span).await?;
        let jobs = WholeJob::all(&jobs);
        let ended = || jobs.iter().filter(|job| job.ended_within(span));
        let known = ended().filter_map(WholeJob::saved);
        self.ended = Some(SavedView {
            saved_g: known.clone().reduce(|a, b| a + b).map(Into::into),
            known_jobs: known.count() as u64,
            jobs: ended().count() as u64,
        });
        Ok(())
    }

    /// Returns the savings of the jobs that ended in the last 30 days; `None` before they are first summed up.
    pub(super) fn view(&self) -> Option<SavedView> {
        self.ended.clone()
    }

    /// Adds an ended job to those that wait for actual carbon intensities, if its outcome depends on values that are
    /// not actual ones.
    pub(super) fn add_outcome(&mut self, outcome: &Outcome) {
        if outcome.savings.is_provisional() {
            self.awaited.insert(outcome.job.clone());
        }
    }

    /// Returns the ended jobs that wait for actual intensities.
    pub(super) fn awaited(&self) -> Vec<JobId> {
        self.awaited.iter().cloned().collect()
    }

    /// Removes a job from those that wait for actual intensities.
    pub(super) fn remove_awaited(&mut self, job: &JobId) {
        self.awaited.remove(job);
    }
}

/// Returns whether a job ended at most [`AWAITED`] before `now`, so that its estimate may still wait for actual
/// intensities.
pub(super) fn may_wait(job: &StoredJob, now: DateTime<Utc>) -> bool {
    job.ended.as_ref().is_some_and(|(at, _)| *at >= now - AWAITED)
}

/// Returns the stored jobs that ended within [`AWAITED`] before `now`.
pub(super) async fn ended_lately(store: &Store, now: DateTime<Utc>) -> Result<Vec<StoredJob>, StoreError> {
    let ended = store.ended_jobs(RECALLED).await?;
    Ok(ended.into_iter().filter(|job| may_wait(job, now)).collect())
}
