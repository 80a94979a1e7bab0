//! What others may ask for: registering, reporting and ending jobs, and setting limits by hand.

use std::collections::BTreeMap;

use super::job::{Group, Job, Known, ProgressReport, profile_key};
use super::replan::ReplanReason;
use super::view::{AccountView, GpuView, JobView, ProgressView};
use super::{ControlError, Controller, Override, show_gpus};
use crate::store::{StoreError, StoredProgress};
use wattune_core::domain::{Claim, GpuId, JobId, JobName, JobSpec, Objective, PowerLimit, Work};
use wattune_core::profile::Record;
use wattune_core::profile::ladder::GroupRange;
use wattune_core::units::{Joules, Seconds, Short, Watts};

/// A board as people name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GpuRef {
    /// By its index at this boot.
    Index(u32),
    /// By its UUID or its PCI bus id.
    Id(String),
}

impl GpuRef {
    /// Digits are an index, everything else an id.
    pub fn parse(text: &str) -> Self {
        text.parse().map_or_else(|_| Self::Id(text.to_owned()), Self::Index)
    }
}

impl std::fmt::Display for GpuRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Index(index) => write!(f, "{index}"),
            Self::Id(id) => f.write_str(id),
        }
    }
}

/// A job that wants to be registered.
#[derive(Clone, Debug, PartialEq)]
pub struct NewJob {
    /// The user's name for it.
    pub name: JobName,
    /// Its boards.
    pub gpus: Vec<GpuRef>,
    /// Samples per step.
    pub batch_size: Option<u64>,
    /// How much there is to do.
    pub work: Work,
    /// What it may cost.
    pub objective: Objective,
    /// Its lease; the daemon's default if absent.
    pub lease: Option<Seconds>,
    /// Whether its limits may be set.
    pub control: bool,
    /// Who bends first: the lowest.
    pub priority: i32,
    /// The user's labels.
    pub tags: BTreeMap<String, String>,
    /// Which processes are its own.
    pub claim: Option<Claim>,
}

/// Overrides outside this range are refused.
const OVERRIDE_RANGE_S: std::ops::RangeInclusive<f64> = 1.0..=7.0 * 86_400.0;

impl Controller {
    /// Registers a job. Its boards are its own from now on, unless it asks not to control them.
    ///
    /// # Errors
    /// For boards that do not exist or that another job controls, for what [`JobSpec::check`] refuses, and where as many
    /// jobs are open as the settings allow. Nothing is changed then.
    pub async fn register(&mut self, new: NewJob) -> Result<JobView, ControlError> {
        let gpus: Vec<GpuId> = new.gpus.iter().map(|g| self.gpus.resolve(g)).collect::<Result<_, _>>()?;
        let spec = JobSpec {
            name: new.name,
            gpus,
            batch_size: new.batch_size,
            work: new.work,
            objective: new.objective,
            lease: new.lease.unwrap_or(self.settings.default_lease_s),
            control: new.control,
            priority: new.priority,
            tags: new.tags,
            processes: None,
        };
        let mut spec = spec.check()?;
        if spec.objective.price_weight > 0.0 && self.signal.price().is_none() {
            let why = "needs a source of prices and this daemon has none; set source in [price] of its settings, or leave \
                       the price_weight out";
            let field = "objective.price_weight";
            return Err(ControlError::Invalid(wattune_core::domain::InvalidJob { field, why: why.into() }));
        }
        if spec.control {
            self.refuse_held_boards(&spec)?;
        }
        self.refuse_too_many(&spec)?;
        let (accounting, node) = self.accounts();
        spec.processes = accounting.find_processes(&node, new.claim).await?;
        let id = JobId::new(uuid::Uuid::new_v4().to_string()).expect("a UUID is letters, digits and dashes");
        let job = self.make_job(id.clone(), spec, StoredProgress::default(), self.now().utc).await?;
        self.store.save_job(&job.stored(None)).await?;
        tracing::info!(job.id = %id, "job {id} ({}) registered on {} GPU(s)", job.spec.name, job.spec.gpus.len());
        let processes = job.spec.processes.clone();
        self.admit(job);
        if let Some(processes) = processes {
            let (accounting, mut node) = self.accounts();
            accounting.follow(&mut node, &id, &processes).await;
        }
        self.plan_one(&id).await;
        self.job(&id).await
    }

    fn refuse_too_many(&self, spec: &JobSpec) -> Result<(), ControlError> {
        let (most, open) = (self.settings.most_jobs, self.jobs.len());
        if open >= most as usize {
            return Err(ControlError::TooMany(format!(
                "{open} jobs are open, and control.most_jobs = {most} allows no more: end jobs that are done, let their \
                 leases run out, or raise the setting"
            )));
        }
        let most = self.settings.most_jobs_per_gpu;
        for gpu in spec.gpus.iter().filter_map(|id| self.gpus.get(id)) {
            let open = gpu.booked();
            if open >= most as usize {
                return Err(ControlError::TooMany(format!(
                    "GPU {} has {open} open jobs, and control.most_jobs_per_gpu = {most} allows no more: end jobs that are \
                     done, let their leases run out, or raise the setting",
                    gpu.handle.board().index
                )));
            }
        }
        Ok(())
    }

    fn refuse_held_boards(&self, spec: &JobSpec) -> Result<(), ControlError> {
        for id in &spec.gpus {
            let Some(gpu) = self.gpus.get(id) else { continue };
            let index = gpu.handle.board().index;
            if let Some(owner) = gpu.owner.as_ref().and_then(|o| self.jobs.get(o)) {
                return Err(ControlError::Conflict(format!(
                    "GPU {index} ({id}) is controlled by job {} ({}); end that job first, or register with \
                     \"control\": false to be booked without control",
                    owner.id, owner.spec.name
                )));
            }
        }
        Ok(())
    }

    /// Makes a job for boards that exist, with what earlier runs learned.
    pub(super) async fn make_job(
        &self,
        id: JobId,
        spec: JobSpec,
        stored: StoredProgress,
        registered_at: chrono::DateTime<chrono::Utc>,
    ) -> Result<Job, ControlError> {
        let groups = self.group(&spec);
        let profiling = match &groups {
            Some(groups) => Some((self.profiling.clone(), self.known_profile(&spec, groups).await?)),
            None => None,
        };
        let groups = groups.unwrap_or_default();
        Ok(Job::new(id, spec, groups, profiling, stored, registered_at, self.now()))
    }

    async fn known_profile(&self, spec: &JobSpec, groups: &[Group]) -> Result<Known, ControlError> {
        let key = profile_key(spec, groups);
        let record = match self.store.profile(&key).await {
            // What cannot be read is measured again; the job must not be refused for ever because of it.
            Err(error @ StoreError::Damaged { .. }) => {
                tracing::warn!("{error}; job {} is profiled anew", spec.name);
                Record::default()
            }
            found => found?.unwrap_or_default(),
        };
        let expected = match spec.batch_size {
            // Under a cap, lower limits than that of least energy may be needed.
            Some(batch_size) if record.closed_at.is_none() && self.cap_schedule(self.now().utc).is_empty() => {
                let neighbours = self.store.neighbouring_profiles(&key).await.unwrap_or_default();
                let known = neighbours.iter().filter_map(|(other, record)| Some((*other, record.most_efficient()?)));
                known.min_by(|a, b| octaves(a.0, batch_size).total_cmp(&octaves(b.0, batch_size))).map(|(_, l)| l)
            }
            _ => None,
        };
        Ok(Known { record, expected })
    }

    /// Boards that were silent when their job came may have answered since: then it gets its profiler.
    pub(super) async fn equip_jobs(&mut self) {
        let bare: Vec<JobId> = self.jobs.values().filter(|j| j.profiler.is_none()).map(|j| j.id.clone()).collect();
        for id in bare {
            let Some(spec) = self.jobs.get(&id).map(|j| j.spec.clone()) else { continue };
            let Some(groups) = self.group(&spec) else { continue };
            // If the books cannot be read now, the next tick tries again.
            let Ok(known) = self.known_profile(&spec, &groups).await else { continue };
            if let Some(job) = self.jobs.get_mut(&id) {
                job.equip(groups, self.profiling.clone(), known);
            }
        }
    }

    /// The job's boards in groups of equal ones, by model. Equal boards get one limit, so that their ceiling is the
    /// lowest of theirs. `None` if one of them has no limit to set.
    fn group(&self, spec: &JobSpec) -> Option<Vec<Group>> {
        let mut groups: Vec<Group> = Vec::new();
        for id in &spec.gpus {
            let gpu = self.gpus.get(id)?;
            let (model, range) = (gpu.handle.board().model.clone(), gpu.range()?);
            let (ceiling, found) = (self.gpus.ceiling(id)?, self.gpus.found(id));
            let clocks = gpu.lockable_clocks(self.settings.clocks);
            match groups.iter_mut().find(|g| g.model == model) {
                Some(group) => {
                    group.members.push(id.clone());
                    group.range.ceiling = group.range.ceiling.min(ceiling);
                    group.range.found = group.range.found.filter(|own| Some(*own) == found);
                    group.range.min = group.range.min.max(range.min);
                    group.range.boards += 1;
                    group.range.clocks = group.range.clocks.take().filter(|own| Some(own) == clocks.as_ref());
                }
                None => {
                    let range = GroupRange { boards: 1, ceiling, found, min: range.min, clocks };
                    groups.push(Group { model, members: vec![id.clone()], range });
                }
            }
        }
        groups.sort_by(|a, b| a.model.cmp(&b.model));
        self.keep_within_reach(&mut groups);
        Some(groups)
    }

    /// Gives a job its place on its boards.
    pub(super) fn admit(&mut self, job: Job) {
        for id in &job.spec.gpus {
            let (accounting, mut node) = self.accounts();
            let turned = accounting.turn_books_of(&mut node, id, false);
            let Some(gpu) = self.gpus.get_mut(id) else { continue };
            if !turned {
                gpu.newcomers.insert(job.id.clone());
            }
            if job.spec.control {
                gpu.owner = Some(job.id.clone());
                // A new owner asks anew: what somebody set before it came is what it finds, and what was not allowed
                // then may be now.
                gpu.foreign = None;
                gpu.denied = None;
                gpu.persistence_denied = None;
                gpu.ask_clocks_anew();
            } else {
                gpu.guests.push(job.id.clone());
            }
        }
        self.jobs.insert(job.id.clone(), job);
    }

    /// Takes a job's progress report and renews its lease.
    ///
    /// # Errors
    /// If there is no such job, or the report contradicts the one before.
    pub async fn progress(&mut self, id: &JobId, report: ProgressReport) -> Result<ProgressView, ControlError> {
        if !self.jobs.contains_key(id) {
            return Err(self.no_such_job(id).await);
        }
        self.refresh_boards_of(id);
        let now = self.now();
        let Some(job) = self.jobs.get_mut(id) else { return Err(self.no_such_job(id).await) };
        let (phase, stage) = (job.phase, job.profiler.as_ref().map(|p| p.stage()));
        let first = job.progress.last.is_none();
        job.report(report, now)?;
        if first {
            self.keep_progress(id).await;
        }
        let Some(job) = self.jobs.get_mut(id) else { return Err(self.no_such_job(id).await) };
        let notes = job.profiler.as_mut().map(|p| p.take_notes()).unwrap_or_default();
        for note in notes {
            tracing::info!(job.id = %id, "job {id}: {note}");
        }
        let stage_now = job.profiler.as_ref().map(|p| p.stage());
        self.plan_one(id).await;
        let moved = stage_now != stage || self.jobs.get(id).is_some_and(|j| j.phase != phase);
        if moved {
            self.act();
            let (accounting, mut node) = self.accounts();
            accounting.store_profile(&mut node, id).await;
        }
        self.progress_view(id).ok_or_else(|| ControlError::not_found("job", id, String::new()))
    }

    /// Writes down how far a job is. Its next report counts on from here even if another daemon takes it, so that what it
    /// spent until then is not lost: the first report, and each that an answer relied on.
    async fn keep_progress(&mut self, id: &JobId) {
        let Some(job) = self.jobs.get(id) else { return };
        let saved = self.store.save_job(&job.stored(None)).await;
        if let Err(error) = &saved {
            self.accounting.note_store_fault(error);
        }
        if let Some(job) = self.jobs.get_mut(id) {
            job.unsaved |= saved.is_err();
        }
    }

    /// Shows a job the newest energy of its GPUs, so that a report's window and its energy end together.
    fn refresh_boards_of(&mut self, id: &JobId) {
        let Some(job) = self.jobs.get(id) else { return };
        for gpu in job.spec.gpus.clone() {
            if let Some(gpu) = self.gpus.get_mut(&gpu) {
                gpu.handle.refresh();
                gpu.seen = gpu.handle.observe();
            }
        }
        let now = self.now();
        if let Some(job) = self.jobs.get_mut(id) {
            show_gpus(job, &self.gpus, now);
        }
    }

    /// Energy of a job's boards up to now, and the job. Its books are closed for that, and written with its progress.
    ///
    /// # Errors
    /// If there is no such job.
    pub async fn metered(&mut self, id: &JobId) -> Result<(JobView, Joules), ControlError> {
        if let Some(job) = self.jobs.get(id) {
            for gpu in job.spec.gpus.clone() {
                if let Some(gpu) = self.gpus.get_mut(&gpu) {
                    gpu.observe();
                }
                let (accounting, mut node) = self.accounts();
                accounting.close_books_of(&mut node, &gpu);
            }
            self.write_backlog().await;
            self.keep_progress(id).await;
        }
        let job = self.job(id).await?;
        let energy = match self.jobs.get(id) {
            Some(job) => job.emissions.sum().energy,
            None => Joules::new(self.account_of(id).await?.energy_by_device_j.get("gpu").copied().unwrap_or_default()),
        };
        Ok((job, energy))
    }

    /// Ends a job: its boards get their limits back, its books are closed. Answers with its account.
    ///
    /// # Errors
    /// If there is no such job.
    pub async fn end(&mut self, id: &JobId) -> Result<AccountView, ControlError> {
        if !self.jobs.contains_key(id) {
            return Err(self.no_such_job(id).await);
        }
        self.end_job(id, "ended by its owner").await?;
        self.act();
        self.account_of(id).await
    }

    pub(super) async fn end_job(&mut self, id: &JobId, reason: &str) -> Result<(), ControlError> {
        let boards = self.jobs.get(id).map(|j| j.spec.gpus.clone()).unwrap_or_default();
        if self.jobs.get(id).is_some_and(|job| job.spec.processes.is_some()) {
            let (accounting, mut node) = self.accounts();
            accounting.unfollow(&mut node, id).await;
        }
        let (accounting, mut node) = self.accounts();
        accounting.store_profile(&mut node, id).await;
        for gpu in &boards {
            let (accounting, mut node) = self.accounts();
            accounting.turn_books_of(&mut node, gpu, true);
            let Some(gpu) = self.gpus.get_mut(gpu) else { continue };
            if gpu.owner.as_ref() == Some(id) {
                gpu.owner = None;
                gpu.foreign = None;
            }
            gpu.guests.retain(|g| g != id);
            gpu.newcomers.remove(id);
        }
        let Some(job) = self.jobs.remove(id) else { return Ok(()) };
        let (accounting, mut node) = self.accounts();
        accounting.remember_gone(&mut node, &job);
        let ended = job.stored(Some((self.now().utc, reason.to_owned())));
        self.write_backlog().await;
        // What was written now is in what is reckoned below.
        self.accounting.forget_late(id);
        tracing::info!(job.id = %id, "job {id} ({}) ended: {reason}", job.spec.name);
        if let Err(error) = self.store.save_job(&ended).await {
            self.accounting.note_store_fault(&error);
            self.accounting.keep_ended(ended);
            return Ok(());
        }
        self.note_outcome(&job, &ended, "it ended").await;
        Ok(())
    }

    /// Sets a board's limit by hand for `ttl`; it takes precedence over the board's job.
    ///
    /// # Errors
    /// In observe mode, on boards that cannot be set, and for limits outside the board's range: from its minimum up to
    /// its ceiling.
    pub async fn set_override(&mut self, which: &GpuRef, limit: Watts, ttl: Seconds) -> Result<GpuView, ControlError> {
        let id = self.gpus.resolve(which)?;
        let now = self.now();
        if self.settings.observe {
            let why = "this daemon observes only (observe = true, or --observe); it sets no limit".to_owned();
            return Err(ControlError::Forbidden(why));
        }
        if !OVERRIDE_RANGE_S.contains(&ttl.get()) {
            let why = format!("is {}; it must be within 1 to 604800 seconds", Short(ttl.get()));
            return Err(ControlError::Invalid(wattune_core::domain::InvalidJob { field: "ttl_s", why }));
        }
        let ceiling = self.gpus.ceiling(&id);
        let Some(gpu) = self.gpus.get_mut(&id) else {
            return Err(ControlError::not_found("GPU", which, String::new()));
        };
        gpu.denied = None;
        // Asking by hand means taking the board back from whoever set it.
        let foreign = gpu.foreign.take();
        let asked = match allowed(gpu, ceiling, limit) {
            Ok(asked) => asked,
            Err(refused) => {
                gpu.foreign = foreign;
                return Err(refused);
            }
        };
        let wish = Override { limit: asked, until: now.monotonic.after(ttl), until_utc: now.utc + ttl.to_delta() };
        let before = gpu.manual.replace(wish);
        tracing::info!(gpu.uuid = %id, power.limit_w = limit.get(), "GPU {id}: set by hand to {asked} for {ttl}");
        self.replan_all(ReplanReason::SetByHand);
        self.plan().await;
        // A write that is still on its way would hide whether this one can be done.
        self.await_write(&id).await;
        self.act();
        if let Some(gpu) = self.gpus.get_mut(&id)
            && let Some(why) = gpu.unjournalled.take()
        {
            (gpu.manual, gpu.foreign) = (before, foreign);
            return Err(ControlError::Journal(why));
        }
        self.await_write(&id).await;
        let refused = self.gpus.get_mut(&id).and_then(|gpu| {
            let why = gpu.denied.as_ref()?.to_string();
            gpu.manual = None;
            Some(why)
        });
        match refused {
            Some(why) => Err(ControlError::Forbidden(why)),
            None => self.gpu(which),
        }
    }

    /// Takes a manual override back.
    ///
    /// # Errors
    /// If there is no such board. A board without an override is left as it is.
    pub async fn release_override(&mut self, which: &GpuRef) -> Result<GpuView, ControlError> {
        let id = self.gpus.resolve(which)?;
        if let Some(gpu) = self.gpus.get_mut(&id) {
            gpu.manual = None;
            gpu.foreign = None;
            gpu.denied = None;
        }
        self.replan_all(ReplanReason::OverrideEnded);
        self.plan().await;
        self.act();
        self.gpu(which)
    }

    /// Gives a board a moment to carry out what it was told, so that the answer says how that ended.
    async fn await_write(&mut self, id: &GpuId) {
        for _ in 0..30 {
            let Some(gpu) = self.gpus.get_mut(id) else { return };
            gpu.observe();
            if !gpu.is_writing() {
                return;
            }
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    }

    pub(super) async fn no_such_job(&self, id: &JobId) -> ControlError {
        match self.store.job(id).await {
            Ok(Some(job)) => {
                let (at, why) = job.ended.unwrap_or((job.registered_at, "unknown".into()));
                ControlError::Conflict(format!("job {id} ended at {}: {why}; register it again", at.format("%FT%TZ")))
            }
            _ => ControlError::not_found("job", id, "; jobs are registered with POST /v1/jobs".into()),
        }
    }
}

/// The limit, if the board may be set to it.
fn allowed(gpu: &super::Gpu, ceiling: Option<PowerLimit>, limit: Watts) -> Result<PowerLimit, ControlError> {
    if let Some(why) = gpu.why_no_control() {
        return Err(ControlError::Forbidden(why));
    }
    let (Some(range), Some(ceiling)) = (gpu.range(), ceiling) else {
        return Err(ControlError::Forbidden("the board does not say which limits it takes".into()));
    };
    let asked = PowerLimit::from_watts(limit);
    if asked < range.min || asked > ceiling {
        let found = if ceiling < range.max { " (its found limit; wattune never goes above it)" } else { "" };
        let why = format!("is {limit}; this board takes {} to {ceiling}{found}", range.min);
        return Err(ControlError::Invalid(wattune_core::domain::InvalidJob { field: "power_limit_w", why }));
    }
    Ok(asked)
}

/// How far apart two batch sizes are.
#[expect(clippy::cast_precision_loss, reason = "batch sizes are far below 2^52")]
fn octaves(a: u64, b: u64) -> f64 {
    (a as f64 / b as f64).log2().abs()
}

/// Kept here so that the views and the requests agree on what a registered job shows.
impl Controller {
    /// A job, running or ended.
    ///
    /// # Errors
    /// If there is none of that id.
    pub async fn job(&self, id: &JobId) -> Result<JobView, ControlError> {
        if let Some(job) = self.jobs.get(id) {
            return Ok(self.job_view(job, &self.passes(self.now())));
        }
        match self.store.job(id).await? {
            Some(stored) => self.ended_view_of(stored).await,
            None => Err(ControlError::not_found("job", id, "; jobs are registered with POST /v1/jobs".into())),
        }
    }
}
