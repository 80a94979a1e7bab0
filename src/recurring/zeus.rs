//! Recurring jobs of Zeus's clients, which speak the protocol of Zeus's batch size server.

use super::{FullRuns, Recurring, RecurringError, one, rights};
use crate::store::{StoreError, StoredRecurring, UsersOfRecurring};
use wattune_core::bandit::{Job, ZeusRefused, ZeusReport, ZeusSpec, ZeusVerdict};
use wattune_core::domain::{Actor, JobName, Owners};
use wattune_core::ledger::chain::Digest;

/// Result of a registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ZeusRegistration {
    /// The job is new.
    New,
    /// The job exists with the same specification.
    Same,
    /// A job of this name exists with another specification.
    Other,
}

/// Reason why a request of a Zeus client was rejected.
#[derive(Debug, thiserror::Error)]
pub enum ZeusError {
    /// No Zeus client has registered such a job.
    #[error("no Zeus client has registered this job")]
    UnknownJob,
    /// The trial or the policy does not permit the request.
    #[error(transparent)]
    Refused(#[from] ZeusRefused),
    /// The service failed.
    #[error(transparent)]
    Failed(#[from] RecurringError),
}

impl From<StoreError> for ZeusError {
    fn from(error: StoreError) -> Self {
        Self::Failed(error.into())
    }
}

impl Recurring {
    /// Registers a job that belongs to `by`. A job that exists with the same specification is shared with `by`.
    pub async fn register_for_zeus(&self, spec: ZeusSpec, by: Owners) -> Result<ZeusRegistration, ZeusError> {
        let name = name_of(&spec.job_id);
        let terms = spec.clone().terms(self.settings.zeus_lease_s).map_err(RecurringError::from)?;
        let (seed, _) = uuid::Uuid::new_v4().as_u64_pair();
        let job = Job::new(terms, seed);
        let new = StoredRecurring { name, created_at: self.now(), job, owners: by, members: Owners::default() };
        if self.create(&new).await? {
            tracing::info!(name = %new.name, "recurring job created by a Zeus client");
            return Ok(ZeusRegistration::New);
        }
        let known = self.outline(&new.name, FullRuns::default()).await?;
        let is_same = known.job.terms.spec.zeus.as_deref().is_some_and(|known| *known == spec);
        if !is_same {
            return Ok(ZeusRegistration::Other);
        }
        self.join(&new.name, &new.owners).await?;
        Ok(ZeusRegistration::Same)
    }

    /// Checks that a caller may change the job of a Zeus client, as [`Self::check_users`].
    pub async fn check_users_for_zeus(&self, job_id: &str, by: &Actor, as_owner: bool) -> Result<(), ZeusError> {
        Ok(self.check_users(&name_of(job_id), by, as_owner).await?)
    }

    /// Returns true if a Zeus client has registered the job.
    pub async fn is_known_to_zeus(&self, job_id: &str) -> Result<bool, ZeusError> {
        let stored = self.store.recurring_outline(&name_of(job_id), FullRuns::default()).await?;
        Ok(stored.is_some_and(|stored| is_of(&stored.job, job_id)))
    }

    /// Deletes a job with its trials; returns false if no Zeus client has registered it.
    pub async fn delete_for_zeus(&self, job_id: &str) -> Result<bool, ZeusError> {
        let name = name_of(job_id);
        if !self.is_known_to_zeus(job_id).await? {
            return Ok(false);
        }
        let was_there = self.store.delete_recurring(&name).await?;
        tracing::info!(%name, "recurring job deleted by a Zeus client");
        Ok(was_there)
    }

    /// Begins a trial that belongs to `by`; returns its number and its batch size.
    pub async fn begin_for_zeus(&self, job_id: &str, by: Actor) -> Result<(u32, u64), ZeusError> {
        let now = self.now();
        let begin = move |job: &mut Job, name: &JobName, users: UsersOfRecurring<'_>| {
            rights::of_user(name, users.owners, users.members, &by, false)?;
            let begun = job.begin_for_zeus(now)?;
            job.assign(begun.0, by.owners);
            Ok(begun)
        };
        let (number, draw) = self.change_for_zeus(job_id, FullRuns::default(), begin).await?;
        // In the words of Zeus's server, whose log its tests read.
        if !draw.new_arms.is_empty() {
            tracing::info!("Thompson sampling of {job_id:?} with arms {:?}", draw.new_arms);
        }
        for sample in &draw.samples {
            tracing::info!("{sample}");
        }
        Ok((number, draw.choice.batch_size))
    }

    /// Processes a report by `by`.
    pub async fn report_for_zeus(
        &self,
        job_id: &str,
        number: u32,
        batch_size: u64,
        report: ZeusReport,
        by: Actor,
    ) -> Result<ZeusVerdict, ZeusError> {
        let now = self.now();
        let apply = move |job: &mut Job| job.report_for_zeus(number, batch_size, &report, now);
        self.change_trial_for_zeus(job_id, number, by, apply).await
    }

    /// Ends a trial whose client's process ends, for `by`.
    pub async fn end_for_zeus(&self, job_id: &str, number: u32, batch_size: u64, by: Actor) -> Result<(), ZeusError> {
        let now = self.now();
        self.change_trial_for_zeus(job_id, number, by, move |job| job.end_for_zeus(number, batch_size, now)).await
    }

    /// Applies `change` to a job if `by` may change the trial, as [`Self::check_trial`] does.
    async fn change_trial_for_zeus<T: Send + 'static>(
        &self,
        job_id: &str,
        number: u32,
        by: Actor,
        change: impl FnOnce(&mut Job) -> Result<T, ZeusRefused> + Send + 'static,
    ) -> Result<T, ZeusError> {
        let change = move |job: &mut Job, name: &JobName, users: UsersOfRecurring<'_>| {
            let UsersOfRecurring { owners, members } = users;
            match job.run(number) {
                Some(run) => rights::of_trial(name, owners, members, (number, &run.owners), &by)?,
                None => rights::of_user(name, owners, members, &by, false)?,
            }
            Ok(change(job)?)
        };
        self.change_for_zeus(job_id, one(number), change).await
    }

    async fn change_for_zeus<T: Send + 'static>(
        &self,
        job_id: &str,
        full_runs: FullRuns,
        change: impl FnOnce(&mut Job, &JobName, UsersOfRecurring<'_>) -> Result<T, ZeusError> + Send + 'static,
    ) -> Result<T, ZeusError> {
        let (name, id) = (name_of(job_id), job_id.to_owned());
        let named = name.clone();
        let change = move |job: &mut Job, users: UsersOfRecurring<'_>| {
            if is_of(job, &id) { change(job, &named, users) } else { Err(ZeusError::UnknownJob) }
        };
        let changed = self.store.change_recurring_of(&name, full_runs, change).await?;
        changed.unwrap_or(Err(ZeusError::UnknownJob))
    }
}

/// Returns true if a Zeus client has registered the job under this identifier.
fn is_of(job: &Job, job_id: &str) -> bool {
    job.terms.spec.zeus.as_ref().is_some_and(|zeus| zeus.job_id == job_id)
}

/// Returns the name of the recurring job with this identifier: the identifier, or its digest if it is no valid name.
fn name_of(job_id: &str) -> JobName {
    let digest = || JobName::new(format!("zeus-{}", Digest::of(job_id)));
    JobName::new(job_id).or_else(|_| digest()).unwrap_or_else(|_| unreachable!("a digest is a valid name"))
}
