//! Recurring jobs as a service: which batch size the next run takes, over restarts and for any number of clients.
//!
//! Each request is one transaction of the store, and nothing is kept in memory: whatever kills the daemon between two
//! requests, the next one goes on from what was answered. The control loop is not asked and does not wait.

mod document;
mod spec;
mod view;

use std::sync::Arc;

use chrono::{DateTime, DurationRound, TimeDelta, Utc};
use tokio_util::sync::CancellationToken;

use crate::clock::Clock;
use crate::store::{Created, InFull, Page, Store, StoreError, StoredRecurring};
use wattune_core::bandit::{self, Boards, Ending, InvalidSpec, Job, Knob, Refused, Report, Run, Terms};
use wattune_core::domain::{JobId, JobName, ProfileKey};

pub use document::{RecurringDocument, TrialDocument, TrialKind, TrialState};
pub use spec::{RecurringObjective, RecurringPolicy, RecurringSpec};
pub use view::{ArmView, RecurringEntry, RecurringStage, RecurringView, TrialView, VerdictView};

/// Between two looks for trials that fell silent.
const SWEEP: std::time::Duration = std::time::Duration::from_secs(30);

/// No more recurring jobs are kept: beyond that, each run has made one of its own.
const MOST_JOBS: u32 = 10_000;

/// So many characters a trial's key may have.
pub const LONGEST_KEY: usize = 200;

/// Why a request is not carried out. Each says what would be right.
#[derive(Debug, thiserror::Error)]
pub enum RecurringError {
    /// There is no such job.
    #[error("no recurring job {0:?}; PUT /v1/recurring/{{name}} makes one")]
    NotFound(String),
    /// There is one already.
    #[error("{0}")]
    Conflict(String),
    /// What it is to be makes no sense.
    #[error(transparent)]
    Invalid(#[from] InvalidSpec),
    /// The trial cannot do that.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// The database failed; nothing was changed.
    #[error("the books cannot be read or written now: {0}")]
    Store(#[from] StoreError),
}

/// What a trial's client says.
#[derive(Clone, Debug, PartialEq)]
pub struct Told {
    /// How far it is.
    pub report: Report,
    /// The training run whose books its energy was taken from.
    pub job: Option<JobId>,
}

/// The service. Cheap to clone.
#[derive(Clone)]
pub struct Recurring {
    store: Store,
    clock: Arc<dyn Clock>,
}

impl Recurring {
    /// Over this store.
    pub fn new(store: Store, clock: Arc<dyn Clock>) -> Self {
        Self { store, clock }
    }

    /// Gives running trials their leases anew, since nobody could report while the daemon was away. To be done before
    /// the first request: that would end them.
    pub async fn renew(&self) {
        if let Err(error) = self.store.renew_recurring_leases(self.now()).await {
            tracing::error!("leases of trials could not be renewed after the start: {error}");
        }
    }

    /// Ends trials that fall silent, until `cancel`.
    pub async fn watch(self, cancel: CancellationToken) {
        while cancel.run_until_cancelled(tokio::time::sleep(SWEEP)).await.is_some() {
            if let Err(error) = self.sweep().await {
                tracing::error!("silent trials could not be ended: {error}");
            }
        }
    }

    /// Ends the trials that have fallen silent.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn sweep(&self) -> Result<(), StoreError> {
        let now = self.now();
        for name in self.store.overdue_recurring(now).await? {
            self.store.change_recurring(&name, InFull::default(), move |job| job.expire(now)).await?;
        }
        Ok(())
    }

    /// Makes a recurring job, or finds it made already. Says whether it is new.
    ///
    /// # Errors
    /// For a specification that makes no sense, and where there is another of that name.
    pub async fn put(&self, name: JobName, spec: RecurringSpec) -> Result<(RecurringView, bool), RecurringError> {
        let terms = Terms::try_from(spec)?;
        let wanted = RecurringSpec::from(&terms);
        let (seed, _) = uuid::Uuid::new_v4().as_u64_pair();
        let new = StoredRecurring { name, created_at: self.now(), job: Job::new(terms, seed) };
        if self.create(&new).await? {
            tracing::info!("recurring job {} made", new.name);
            return Ok(((&new).into(), true));
        }
        let known = self.outline(&new.name, InFull::default()).await?;
        let has = RecurringSpec::from(&known.job.terms);
        match wanted.differs_in(&has) {
            None => Ok(((&known).into(), false)),
            Some(field) => Err(RecurringError::Conflict(format!(
                "there is a recurring job {:?} with another {field}; GET it to see which, or take another name",
                known.name.as_str()
            ))),
        }
    }

    /// Recurring jobs by name, those after `after`.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn list(&self, after: &str, limit: u32) -> Result<Vec<RecurringEntry>, RecurringError> {
        Ok(self.store.list_recurring(after, limit, self.now()).await?.into_iter().map(RecurringEntry::from).collect())
    }

    /// The recurring jobs that were tried last, at most `limit` and the newest first; and how many there are in all.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn latest(&self, limit: u32) -> Result<(Vec<RecurringView>, u64), RecurringError> {
        let now = self.now();
        let (mut latest, all) = self.store.latest_recurring(limit).await?;
        latest.iter_mut().for_each(|stored| stored.job.expire(now));
        Ok((latest.iter().map(RecurringView::from).collect(), all))
    }

    /// A recurring job, with what is believed of its batch sizes.
    ///
    /// # Errors
    /// If there is none of that name.
    pub async fn show(&self, name: &JobName) -> Result<RecurringView, RecurringError> {
        Ok((&self.present(name, InFull::default()).await?).into())
    }

    /// Forgets a recurring job with all its trials; answers with what it was.
    ///
    /// # Errors
    /// If there is none of that name.
    pub async fn delete(&self, name: &JobName) -> Result<RecurringView, RecurringError> {
        let was = self.present(name, InFull::default()).await?;
        self.store.delete_recurring(name).await?;
        tracing::info!("recurring job {name} forgotten");
        // What is wrong with a job must not keep it from being forgotten, so policies are asked about it only now.
        Ok((&was).into())
    }

    /// Begins a trial. Says whether it is new: with a `key` that a trial has, it is that one.
    ///
    /// # Errors
    /// If there is no such job, nothing is left to choose from, or the key's trial fell silent or was withdrawn.
    pub async fn begin(&self, name: &JobName, key: Option<String>) -> Result<(TrialView, bool), RecurringError> {
        let now = self.now();
        let in_full = InFull { key: key.clone(), ..InFull::default() };
        let (begun, stored) = self.change(name, in_full, move |job| job.begin(key.as_deref(), now)).await?;
        Ok((self.with_hint(&stored, begun.number).await?, !begun.again))
    }

    /// One trial.
    ///
    /// # Errors
    /// If there is no such job or trial.
    pub async fn trial(&self, name: &JobName, number: u32) -> Result<TrialView, RecurringError> {
        let stored = self.present(name, one(number)).await?;
        self.with_hint(&stored, number).await
    }

    /// The trials on this page, in its order.
    ///
    /// # Errors
    /// If there is no such job.
    pub async fn trials(&self, name: &JobName, page: Page) -> Result<Vec<TrialView>, RecurringError> {
        let stored = self.present(name, InFull { page: Some(page), ..InFull::default() }).await?;
        let on_page = page.of(&stored.job.runs).into_iter();
        Ok(on_page.map(|run| TrialView::of(&stored.job, run, None)).collect())
    }

    /// The batch size of a trial that `job` reports for.
    ///
    /// # Errors
    /// If there is no such job or trial.
    pub async fn batch_size(&self, name: &JobName, number: u32) -> Result<u64, RecurringError> {
        let stored = self.outline(name, one(number)).await?;
        Ok(find(&stored, number)?.trial.batch_size)
    }

    /// Takes a trial's report.
    ///
    /// # Errors
    /// If there is no such job or trial, it is lost or withdrawn, or the report contradicts the one before.
    pub async fn report(&self, name: &JobName, number: u32, told: Told) -> Result<VerdictView, RecurringError> {
        let now = self.now();
        let in_full = InFull { run: told.job.clone(), ..one(number) };
        let report = move |job: &mut Job| job.report(number, &told.report, told.job.as_ref(), now);
        let (verdict, stored) = self.change(name, in_full, report).await?;
        Ok(VerdictView::of(&stored.job, find(&stored, number)?, verdict))
    }

    /// Ends a trial, after a last report if there is one.
    ///
    /// # Errors
    /// As [`Self::report`].
    pub async fn end(
        &self,
        name: &JobName,
        number: u32,
        last: Option<Told>,
        ending: Ending,
    ) -> Result<TrialView, RecurringError> {
        let now = self.now();
        let in_full = InFull { run: last.as_ref().and_then(|t| t.job.clone()), ..one(number) };
        let end = move |job: &mut Job| {
            let last = last.as_ref();
            job.end(number, last.map(|t| &t.report), last.and_then(|t| t.job.as_ref()), ending, now)
        };
        let ((), stored) = self.change(name, in_full, end).await?;
        Ok(TrialView::of(&stored.job, find(&stored, number)?, None))
    }

    /// All of a recurring job.
    ///
    /// # Errors
    /// If there is none of that name.
    pub async fn export(&self, name: &JobName) -> Result<RecurringDocument, RecurringError> {
        Ok((&self.known(name).await?).into())
    }

    /// Takes an exported job in under this name.
    ///
    /// # Errors
    /// If the document contradicts itself, or there is a job of that name.
    pub async fn import(&self, name: JobName, document: RecurringDocument) -> Result<RecurringView, RecurringError> {
        let mut stored = document.read(name)?;
        // Nobody is waited for longer than for a trial that begins now.
        let latest = self.now() + stored.job.terms.lease.to_delta();
        let running = stored.job.runs.iter_mut().filter(|run| run.trial.is_running());
        running.for_each(|run| run.lease_until = run.lease_until.min(latest));
        if self.create(&stored).await? {
            return Ok((&stored).into());
        }
        let why =
            format!("there is a recurring job {:?} already; DELETE it, or take another name", stored.name.as_str());
        Err(RecurringError::Conflict(why))
    }

    /// Writes a new recurring job; `false` if there is one of that name.
    async fn create(&self, new: &StoredRecurring) -> Result<bool, RecurringError> {
        match self.store.create_recurring(new, MOST_JOBS).await? {
            Created::New => Ok(true),
            Created::Known => Ok(false),
            Created::TooMany => Err(RecurringError::Conflict(format!(
                "there are {MOST_JOBS} recurring jobs already, and no more are kept: runs of one training share one name; \
                 DELETE those that are done with"
            ))),
        }
    }

    /// The present, as finely as the store knows it.
    fn now(&self) -> DateTime<Utc> {
        let now = self.clock.utc();
        now.duration_trunc(TimeDelta::microseconds(1)).unwrap_or(now)
    }

    async fn change<T: Send + 'static>(
        &self,
        name: &JobName,
        in_full: InFull,
        change: impl FnOnce(&mut Job) -> Result<T, Refused> + Send + 'static,
    ) -> Result<(T, StoredRecurring), RecurringError> {
        let changed = self.store.change_recurring(name, in_full, change).await?;
        let (answer, stored) = changed.ok_or_else(|| RecurringError::NotFound(name.to_string()))?;
        Ok((answer?, stored))
    }

    async fn known(&self, name: &JobName) -> Result<StoredRecurring, RecurringError> {
        self.store.recurring(name).await?.ok_or_else(|| RecurringError::NotFound(name.to_string()))
    }

    async fn outline(&self, name: &JobName, in_full: InFull) -> Result<StoredRecurring, RecurringError> {
        let known = self.store.recurring_outline(name, in_full).await?;
        known.ok_or_else(|| RecurringError::NotFound(name.to_string()))
    }

    /// A job's outline as it is now: trials whose lease has run out are shown as they will be stored.
    async fn present(&self, name: &JobName, in_full: InFull) -> Result<StoredRecurring, RecurringError> {
        let mut stored = self.outline(name, in_full).await?;
        stored.job.expire(self.now());
        Ok(stored)
    }

    async fn with_hint(&self, stored: &StoredRecurring, number: u32) -> Result<TrialView, RecurringError> {
        let run = find(stored, number)?;
        let terms = &stored.job.terms;
        let hint = match &terms.boards {
            Some(boards) => self.hint(&stored.name, boards, run.trial.batch_size, &terms.spec.knob).await,
            None => None,
        };
        Ok(TrialView::of(&stored.job, run, hint))
    }

    /// The limit of least cost per sample, if the profile of this batch size is complete.
    async fn hint(&self, name: &JobName, boards: &Boards, batch_size: u64, knob: &Knob) -> Option<f64> {
        let boards = vec![(boards.model.clone(), boards.count)];
        let key = ProfileKey { name: name.clone(), batch_size: Some(batch_size), boards };
        let record = match self.store.profile(&key).await {
            Ok(record) => record?,
            Err(error) => {
                tracing::warn!("a trial of {name} is told no limit: {error}");
                return None;
            }
        };
        record.closed_at.as_ref()?;
        bandit::best_limit(&record.measured(), knob).map(|limit| limit.watts().get())
    }
}

fn one(number: u32) -> InFull {
    InFull { number: Some(number), ..InFull::default() }
}

fn find(stored: &StoredRecurring, number: u32) -> Result<&Run, RecurringError> {
    stored.job.run(number).ok_or_else(|| Refused::NoSuchTrial(number).into())
}
