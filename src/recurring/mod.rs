//! Service for recurring jobs, trainings that run again and again: selects the batch size of each run, called a trial.
//! It works across restarts of the daemon and for any number of clients.
//!
//! Each request is one transaction of the store, and no state is kept only in memory: if the daemon dies between two
//! requests, the next request continues from the last answer. The control loop is not involved.

mod document;
mod error;
mod rights;
mod settings;
mod spec;
mod view;
mod zeus;

use std::sync::Arc;

use chrono::{DateTime, DurationRound, TimeDelta, Utc};
use tokio_util::sync::CancellationToken;

use crate::blocking;
use crate::clock::Clock;
use crate::store::{Created, FullRuns, Page, Store, StoreError, StoredRecurring};
use wattune_core::bandit::{self, Ending, GpuSet, Job, Knob, MeteringJob, Refused, Report, Run, Terms};
use wattune_core::domain::{Actor, JobId, JobName, Owners, ProfileKey};
use wattune_core::units::Seconds;

pub use document::{LONGEST_KEY, RecurringDocument, TrialDocument, TrialKind, TrialState};
pub use error::RecurringError;
pub use settings::Settings;
pub use spec::{RecurringObjective, RecurringPolicy, RecurringSpec};
pub use view::{ArmView, RecurringEntry, RecurringStage, RecurringView, TrialView, VerdictView};
pub use zeus::{ZeusError, ZeusRegistration};

/// Time between two searches for trials with an expired lease, whose clients were silent too long.
const EXPIRY_INTERVAL: std::time::Duration = std::time::Duration::from_secs(30);

/// Maximum number of recurring jobs: more would mean that clients create one for each run, by mistake.
const MAX_JOBS: u32 = 10_000;

/// Maximum number of recurring jobs of one user, so that some are left to others.
const MAX_JOBS_OF_ONE: u32 = MAX_JOBS / 5 * 4;

/// Report by a trial's client.
#[derive(Clone, Debug, PartialEq)]
pub struct TrialMessage {
    /// Progress of the trial.
    pub report: Report,
    /// Training run whose account in wattune's ledger supplied the energy; absent if the client reported energy itself.
    pub job: Option<MeteringJob>,
}

/// Service for recurring jobs. Cheap to clone.
#[derive(Clone)]
pub struct Recurring {
    store: Store,
    clock: Arc<dyn Clock>,
    settings: Settings,
}

impl Recurring {
    /// Returns a service that keeps its recurring jobs in `store`.
    pub fn new(store: Store, clock: Arc<dyn Clock>) -> Self {
        Self { store, clock, settings: Settings::default() }
    }

    /// Returns the service with other settings.
    #[must_use]
    pub fn with(self, settings: Settings) -> Self {
        Self { settings, ..self }
    }

    /// Renews the leases of running trials, because clients could not report while the daemon was down. Must run before
    /// the first request, which would end trials whose lease expired in that time.
    pub async fn renew(&self) {
        if let Err(error) = self.store.renew_recurring_leases(self.now()).await {
            tracing::error!(%error, "cannot renew the leases of running batch-size trials, which may expire");
        }
    }

    /// Ends trials with an expired lease, every 30 s until `cancel` is cancelled.
    pub async fn watch(self, cancel: CancellationToken) {
        while cancel.run_until_cancelled(tokio::time::sleep(EXPIRY_INTERVAL)).await.is_some() {
            if let Err(error) = self.expire_overdue().await {
                tracing::error!(%error, "cannot end batch-size trials whose lease expired");
            }
        }
    }

    /// Ends the trials whose lease has expired.
    pub async fn expire_overdue(&self) -> Result<(), StoreError> {
        let now = self.now();
        for name in self.store.overdue_recurring(now).await? {
            self.store.change_recurring(&name, FullRuns::default(), move |job| job.expire(now)).await?;
        }
        Ok(())
    }

    /// Checks that a caller may change a recurring job. A job that does not exist passes.
    ///
    /// # Errors
    /// If the caller is neither an owner nor, unless `as_owner`, a member of the job.
    pub async fn check_users(&self, name: &JobName, by: &Actor, as_owner: bool) -> Result<(), RecurringError> {
        if by.has_control {
            return Ok(());
        }
        match self.store.users_of_recurring(name).await? {
            Some((owners, members)) => rights::of_user(name, &owners, &members, by, as_owner),
            None => Ok(()),
        }
    }

    /// Checks that a caller may report for a trial and end it. A trial that does not exist passes, unless the job is one of
    /// others.
    ///
    /// # Errors
    /// If the caller did not begin the trial. A trial without a known owner belongs to the owners of its recurring job.
    pub async fn check_trial(&self, name: &JobName, number: u32, by: &Actor) -> Result<(), RecurringError> {
        if by.has_control {
            return Ok(());
        }
        match self.store.users_of_trial(name, number).await? {
            Some((owners, members, own)) => rights::of_trial(name, &owners, &members, (number, &own), by),
            None => self.check_users(name, by, false).await,
        }
    }

    /// Makes the caller a member of an existing recurring job that the caller has registered again.
    async fn join(&self, name: &JobName, by: &Owners) -> Result<(), StoreError> {
        if self.store.join_recurring(name, by).await? {
            tracing::info!(%name, "recurring job shared with {by}");
        }
        Ok(())
    }

    /// Creates a recurring job that belongs to `by`, or finds the existing one with this name and specification, of
    /// which `by` becomes a member. The second returned value is true if the job is new.
    pub async fn put(
        &self,
        name: JobName,
        spec: RecurringSpec,
        by: Owners,
    ) -> Result<(RecurringView, bool), RecurringError> {
        let terms = Terms::try_from(spec)?;
        let wanted = RecurringSpec::from(&terms);
        let (seed, _) = uuid::Uuid::new_v4().as_u64_pair();
        let job = Job::new(terms, seed);
        let new = StoredRecurring { name, created_at: self.now(), job, owners: by, members: Owners::default() };
        if self.create(&new).await? {
            tracing::info!(name = %new.name, "recurring job created");
            return Ok((view_of(&new), true));
        }
        let known = self.outline(&new.name, FullRuns::default()).await?;
        let has = RecurringSpec::from(&known.job.terms);
        match wanted.differs_in(&has) {
            None => {
                self.join(&new.name, &new.owners).await?;
                Ok((view_of(&known), false))
            }
            Some(field) => Err(RecurringError::Conflict(format!(
                "there is a recurring job {:?} with a different {field}; GET it to see which, or use another name",
                known.name.as_str()
            ))),
        }
    }

    /// Returns up to `limit` recurring jobs in order of their names, beginning after the name `after`.
    pub async fn list(&self, after: &str, limit: u32) -> Result<Vec<RecurringEntry>, RecurringError> {
        Ok(self.store.list_recurring(after, limit, self.now()).await?.into_iter().map(RecurringEntry::from).collect())
    }

    /// Returns first up to `limit` recurring jobs, those with the newest trials, newest first; second the number of all
    /// recurring jobs.
    pub async fn latest(&self, limit: u32) -> Result<(Vec<RecurringView>, u64), RecurringError> {
        let now = self.now();
        let (mut latest, all) = self.store.latest_recurring(limit).await?;
        latest.iter_mut().for_each(|stored| stored.job.expire(now));
        Ok((latest.iter().map(view_of).collect(), all))
    }

    /// Returns a recurring job with the estimates for its batch sizes.
    pub async fn show(&self, name: &JobName) -> Result<RecurringView, RecurringError> {
        Ok(view_of(&self.present(name, FullRuns::default()).await?))
    }

    /// Deletes a recurring job with all its trials, and returns its last state.
    pub async fn delete(&self, name: &JobName) -> Result<RecurringView, RecurringError> {
        let was = self.present(name, FullRuns::default()).await?;
        self.store.delete_recurring(name).await?;
        tracing::info!(%name, "recurring job deleted");
        // The conversion runs the policy: convert after the deletion, so that a job whose policy fails can be deleted.
        Ok(view_of(&was))
    }

    /// Begins a trial that belongs to `by` and returns it with true; if a trial with this `key` exists, returns that trial
    /// with false.
    ///
    /// # Errors
    ///
    /// If the job does not exist, no batch size is left, or the key's trial was lost, withdrawn, or begun by others.
    pub async fn begin(
        &self,
        name: &JobName,
        key: Option<String>,
        by: Actor,
    ) -> Result<(TrialView, bool), RecurringError> {
        let now = self.now();
        let full_runs = FullRuns { key: key.clone(), ..FullRuns::default() };
        let begin = move |job: &mut Job| {
            let known = job.runs.iter().find(|run| key.is_some() && run.key == key);
            if let Some(of_others) = known.filter(|run| !run.owners.is_empty() && !by.may_change(&run.owners)) {
                return Err(Refused::KeyOfOthers { number: of_others.trial.number });
            }
            let begun = job.begin(key.as_deref(), now)?;
            if !begun.again {
                job.assign(begun.number, by.owners);
            }
            Ok(begun)
        };
        let (begun, stored) = self.change(name, full_runs, begin).await?;
        Ok((self.with_hint(&stored, begun.number).await?, !begun.again))
    }

    /// Returns a trial.
    pub async fn trial(&self, name: &JobName, number: u32) -> Result<TrialView, RecurringError> {
        let stored = self.present(name, one(number)).await?;
        self.with_hint(&stored, number).await
    }

    /// Returns the trials on a page of the list of trials, in the page's order.
    pub async fn trials(&self, name: &JobName, page: Page) -> Result<Vec<TrialView>, RecurringError> {
        let stored = self.present(name, FullRuns { page: Some(page), ..FullRuns::default() }).await?;
        let on_page = page.of(&stored.job.runs).into_iter();
        Ok(on_page.map(|run| TrialView::of(&stored.job, run, None)).collect())
    }

    /// Returns the batch size of a trial (first value), the training run that reported for it last (second), and its time
    /// so far (third).
    pub async fn metering_of(
        &self,
        name: &JobName,
        number: u32,
    ) -> Result<(u64, Option<JobId>, Seconds), RecurringError> {
        let stored = self.outline(name, one(number)).await?;
        let run = find(&stored, number)?;
        Ok((run.trial.batch_size, run.job.clone(), run.time))
    }

    /// Processes a trial's report.
    ///
    /// # Errors
    ///
    /// If the job or the trial does not exist, the trial is lost or withdrawn, or the report contradicts the previous
    /// one.
    pub async fn report(
        &self,
        name: &JobName,
        number: u32,
        message: TrialMessage,
    ) -> Result<VerdictView, RecurringError> {
        let now = self.now();
        let full_runs = FullRuns { run: message.job.as_ref().map(|job| job.id.clone()), ..one(number) };
        let report = move |job: &mut Job| job.report(number, &message.report, message.job.as_ref(), now);
        let (verdict, stored) = self.change(name, full_runs, report).await?;
        Ok(VerdictView::of(&stored.job, find(&stored, number)?, verdict))
    }

    /// Ends a trial, after an optional last report.
    pub async fn end(
        &self,
        name: &JobName,
        number: u32,
        last: Option<TrialMessage>,
        ending: Ending,
    ) -> Result<TrialView, RecurringError> {
        let now = self.now();
        let job = last.as_ref().and_then(|t| t.job.as_ref());
        let full_runs = FullRuns { run: job.map(|job| job.id.clone()), ..one(number) };
        let end = move |job: &mut Job| {
            let last = last.as_ref();
            job.end(number, last.map(|t| &t.report), last.and_then(|t| t.job.as_ref()), ending, now)
        };
        let ((), stored) = self.change(name, full_runs, end).await?;
        Ok(TrialView::of(&stored.job, find(&stored, number)?, None))
    }

    /// Returns all data of a recurring job.
    pub async fn export(&self, name: &JobName) -> Result<RecurringDocument, RecurringError> {
        let stored = self.existing(name).await?;
        Ok(blocking::in_place(|| (&stored).into()))
    }

    /// Creates a recurring job that belongs to `by` from an exported document.
    pub async fn import(
        &self,
        name: JobName,
        document: RecurringDocument,
        by: Owners,
    ) -> Result<RecurringView, RecurringError> {
        let mut stored = StoredRecurring { owners: by, ..blocking::in_place(|| document.read(name))? };
        // Leases are shortened to that of a trial that begins now: the document may hold longer ones.
        let latest = self.now() + stored.job.terms.lease.to_delta();
        for run in &mut stored.job.runs {
            run.owners = stored.owners.clone();
            if run.trial.is_running() {
                run.lease_until = run.lease_until.min(latest);
            }
        }
        if self.create(&stored).await? {
            return Ok(view_of(&stored));
        }
        let why =
            format!("there is already a recurring job {:?}; DELETE it, or use another name", stored.name.as_str());
        Err(RecurringError::Conflict(why))
    }

    /// Stores a new recurring job; returns false if the name exists.
    async fn create(&self, new: &StoredRecurring) -> Result<bool, RecurringError> {
        match self.store.create_recurring(new, MAX_JOBS, MAX_JOBS_OF_ONE).await? {
            Created::New => Ok(true),
            Created::Exists => Ok(false),
            Created::TooManyOf(owner) => Err(RecurringError::Conflict(format!(
                "{MAX_JOBS_OF_ONE} recurring jobs belong to {owner}, which is the maximum for one user: runs of one training \
                 share one name; DELETE finished jobs"
            ))),
            Created::TooMany => Err(RecurringError::Conflict(format!(
                "there are {MAX_JOBS} recurring jobs, which is the maximum: runs of one training share one name; \
                 DELETE finished jobs"
            ))),
        }
    }

    /// Returns the current time in whole microseconds, the resolution of the store.
    fn now(&self) -> DateTime<Utc> {
        let now = self.clock.utc();
        now.duration_trunc(TimeDelta::microseconds(1)).unwrap_or(now)
    }

    async fn change<T: Send + 'static>(
        &self,
        name: &JobName,
        full_runs: FullRuns,
        change: impl FnOnce(&mut Job) -> Result<T, Refused> + Send + 'static,
    ) -> Result<(T, StoredRecurring), RecurringError> {
        let changed = self.store.change_recurring(name, full_runs, change).await?;
        let (answer, stored) = changed.ok_or_else(|| RecurringError::NotFound(name.to_string()))?;
        Ok((answer?, stored))
    }

    async fn existing(&self, name: &JobName) -> Result<StoredRecurring, RecurringError> {
        self.store.recurring(name).await?.ok_or_else(|| RecurringError::NotFound(name.to_string()))
    }

    async fn outline(&self, name: &JobName, full_runs: FullRuns) -> Result<StoredRecurring, RecurringError> {
        let known = self.store.recurring_outline(name, full_runs).await?;
        known.ok_or_else(|| RecurringError::NotFound(name.to_string()))
    }

    /// Returns a recurring job with complete data of the running trials and of those that `full_runs` selects. In the
    /// returned job, trials with an expired lease have ended, even if the database does not show that yet.
    async fn present(&self, name: &JobName, full_runs: FullRuns) -> Result<StoredRecurring, RecurringError> {
        let mut stored = self.outline(name, full_runs).await?;
        stored.job.expire(self.now());
        Ok(stored)
    }

    async fn with_hint(&self, stored: &StoredRecurring, number: u32) -> Result<TrialView, RecurringError> {
        let run = find(stored, number)?;
        let terms = &stored.job.terms;
        let hint = match &terms.gpus {
            Some(gpus) => self.hint(&stored.name, gpus, run.trial.batch_size, &terms.spec.knob).await,
            None => None,
        };
        Ok(TrialView::of(&stored.job, run, hint))
    }

    /// Returns the power limit in watts at which a sample costs least: cost weighs energy against time, as `knob` says.
    /// Returns `None` unless the profile (measured throughput and power by limit) of this batch size is complete.
    async fn hint(&self, name: &JobName, gpus: &GpuSet, batch_size: u64, knob: &Knob) -> Option<f64> {
        let gpus = vec![(gpus.model.clone(), gpus.count)];
        let key = ProfileKey { name: name.clone(), batch_size: Some(batch_size), gpus };
        let record = match self.store.profile(&key).await {
            Ok(record) => record?,
            Err(error) => {
                tracing::warn!(%name, %error, "cannot read the profile, so this trial has no suggested power limit");
                return None;
            }
        };
        record.closed_at.as_ref()?;
        bandit::best_limit(&record.measured(), knob).map(|limit| limit.watts().get())
    }
}

/// Converts a job. That runs the policy over all its trials, which may take long.
fn view_of(stored: &StoredRecurring) -> RecurringView {
    blocking::in_place(|| stored.into())
}

fn one(number: u32) -> FullRuns {
    FullRuns { number: Some(number), ..FullRuns::default() }
}

fn find(stored: &StoredRecurring, number: u32) -> Result<&Run, RecurringError> {
    stored.job.run(number).ok_or_else(|| Refused::NoSuchTrial(number).into())
}
