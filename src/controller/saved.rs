//! What jobs saved, as far as it is known now: of those that run so far, of those that ended lately together.

use std::collections::BTreeSet;

use chrono::{DateTime, DurationRound, TimeDelta, Utc};

use super::accounting::SHOWN_DAYS;
use super::savings::Sources;
use super::{ControlError, Controller};
use wattune_core::domain::{JobId, Slot};
use wattune_core::ledger::apportion::hour_of;
use wattune_core::ledger::report::Saved;

/// Savings as they were looked at last.
#[derive(Default)]
pub(super) struct SavedJobs {
    /// The minute in which that was.
    looked: Option<DateTime<Utc>>,
    /// The jobs that ran then.
    running: Vec<JobId>,
    /// Jobs that ended and wait for intensities of their time.
    pub(super) awaited: BTreeSet<JobId>,
    /// Of the jobs that ended in the last 30 days.
    pub(super) ended: Option<SavedTogether>,
}

/// What jobs saved together.
#[derive(Clone, Copy)]
pub(super) struct SavedTogether {
    /// Of those of which it is known; absent if there is none.
    pub(super) saved: Option<Saved>,
    /// How many these are.
    pub(super) known: u64,
    /// How many jobs there are.
    pub(super) jobs: u64,
}

impl Controller {
    /// Looks what was saved: of each job once an hour, in a job's first hour once a minute. All of a job's intervals are
    /// read for it.
    pub(super) async fn look_at_savings(&mut self) -> Result<(), ControlError> {
        let now = self.now().utc;
        let minute = now.duration_trunc(TimeDelta::minutes(1)).unwrap_or(now);
        let before = self.saved.looked.replace(minute);
        if before == Some(minute) {
            return Ok(());
        }
        let is_new_hour = before.is_none_or(|before| hour_of(before) != hour_of(minute));
        let running: Vec<JobId> = self.jobs.keys().cloned().collect();
        for id in &running {
            let is_young = |at: DateTime<Utc>| now - at < TimeDelta::hours(1);
            if is_new_hour || self.jobs.get(id).is_some_and(|job| is_young(job.registered_at)) {
                let saved = self.saved_so_far(id).await?;
                if let Some(job) = self.jobs.get_mut(id) {
                    job.saved = saved;
                }
            }
        }
        let has_changed = self.saved.running != running;
        self.saved.running = running;
        let span = Slot::new(now - TimeDelta::days(SHOWN_DAYS), now).filter(|_| is_new_hour || has_changed);
        if let Some(span) = span {
            let jobs = self.store.jobs_within(&span).await?;
            let ended = || jobs.iter().filter(|job| job.ended_within(&span));
            let known = ended().filter_map(|job| job.saved);
            self.saved.ended = Some(SavedTogether {
                saved: known.clone().reduce(|a, b| a + b),
                known: known.count() as u64,
                jobs: ended().count() as u64,
            });
        }
        Ok(())
    }

    /// What a running job saved so far against the limit found, if that can be told.
    async fn saved_so_far(&self, id: &JobId) -> Result<Option<Saved>, ControlError> {
        let Some(job) = self.jobs.get(id).filter(|job| job.frozen.is_some()) else { return Ok(None) };
        let stored = job.stored(None);
        let rows = self.accounting.rows_of(id, &self.store).await?;
        let (emissions, series) = self.intensities().settle(&rows).await?;
        let sources = Sources { stored: &stored, job, rows: &rows, series: &series, emissions: &emissions };
        let done = self.done(&sources).await?;
        let savings = self.savings(&sources, done).await?;
        let saving = savings.against_found.known().and_then(|compared| compared.saving.known());
        Ok(saving.map(|saving| saving.carbon_reduction_g.into()))
    }
}
