//! Outcomes of ended jobs (their work and savings), and the ledger's entries on the savings of jobs.

use super::estimate::Estimate;
use crate::controller::error::ControlError;
use crate::controller::jobs::Job;
use crate::controller::snapshot::Snapshot;
use crate::store::{StoreError, StoredJob};
use wattune_core::domain::JobId;
use wattune_core::ledger::entry::Entry;
use wattune_core::ledger::report::Saved;
use wattune_core::ledger::savings_entries::{Counterfactual, Outcome, Savings};

impl Snapshot<'_> {
    /// Returns a running job's savings so far compared with its original limits; `None` without an honest estimate.
    pub(crate) async fn saved_so_far(&self, id: &JobId) -> Result<Option<Saved>, ControlError> {
        let Some(job) = self.jobs.get(id).filter(|job| job.references_fit_from.is_some()) else { return Ok(None) };
        let savings = self.savings_of(job, &job.stored(None)).await?;
        let saving = savings.against_original.known().and_then(|compared| compared.saving.known());
        Ok(saving.map(|saving| saving.carbon_reduction_g.into()))
    }

    /// Returns the outcome of an ended job, with the reason `why` it is estimated now; `None` if the job has no
    /// reference to be compared with, or if its savings are the same as in its last outcome. An outcome from before a
    /// correction of the job's energy no longer counts, so it is replaced even by the same savings.
    pub(crate) async fn estimate_outcome(
        &self,
        job: &Job,
        stored: &StoredJob,
        why: &str,
    ) -> Result<Option<Outcome>, ControlError> {
        let earlier = self.outcome(&stored.id).await?;
        // A job that was never planned has no reference to be compared with.
        if self.counterfactuals(&stored.id).await?.is_empty() {
            return Ok(None);
        }
        let savings = self.savings_of(job, stored).await?;
        // Savings of a job whose rows per minute are gone are those from before the correction.
        let is_corrected = self.store.has_outdated_outcome(&stored.id).await?;
        if earlier.as_ref().is_some_and(|before| before.savings == savings) && !is_corrected {
            return Ok(None);
        }
        Ok(Some(Outcome {
            at: self.now.utc,
            job: stored.id.clone(),
            version: earlier.map_or(0, |before| before.version) + 1,
            why: if is_corrected { "its energy was corrected".into() } else { why.into() },
            active_s: stored.progress.account.active,
            stalled_s: stored.progress.account.stalled,
            stalled_energy_j: stored.progress.account.stalled_energy,
            samples: stored.progress.account.samples,
            savings,
        }))
    }

    async fn savings_of(&self, job: &Job, stored: &StoredJob) -> Result<Savings, ControlError> {
        let rows = self.accounting.rows_of(&stored.id, self.store).await?;
        let (emissions, series) = self.intensities().emissions_of(&rows).await?;
        let estimate = Estimate { snapshot: *self, stored, job, rows: &rows, series: &series, emissions: &emissions };
        estimate.savings(estimate.completed_work().await?).await
    }

    /// Returns a job's references as they were recorded (frozen), oldest first, from the ledger and from entries that
    /// wait to be written.
    pub(super) async fn counterfactuals(&self, id: &JobId) -> Result<Vec<Counterfactual>, StoreError> {
        let written = self.store.entries_of("counterfactual", id).await?;
        let is_one = |entry: Entry| match entry {
            Entry::Counterfactual(it) if it.job == *id => Some(*it),
            _ => None,
        };
        Ok(written.into_iter().chain(self.accounting.queued_entries().cloned()).filter_map(is_one).collect())
    }

    /// Returns the ledger's entries about a job's request and its presence, oldest first, with those that wait to be
    /// written.
    pub(super) async fn presence_of(&self, id: &JobId) -> Result<Vec<Entry>, StoreError> {
        let written = self.store.presence_of(id).await?;
        let is_one = |entry: &Entry| match entry {
            Entry::StartRequest(it) => it.job == *id,
            Entry::Presence(it) => it.job == *id,
            _ => false,
        };
        Ok(written.into_iter().chain(self.accounting.queued_entries().filter(|entry| is_one(entry)).cloned()).collect())
    }

    /// Returns a job's newest outcome, from the ledger or from entries that wait to be written.
    pub(crate) async fn outcome(&self, id: &JobId) -> Result<Option<Outcome>, StoreError> {
        let written = self.store.entries_of("outcome", id).await?;
        let is_one = |entry: Entry| match entry {
            Entry::Outcome(it) if it.job == *id => Some(*it),
            _ => None,
        };
        Ok(written.into_iter().chain(self.accounting.queued_entries().cloned()).filter_map(is_one).next_back())
    }
}
