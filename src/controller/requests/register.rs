//! Requests to register a job.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};

use super::caller::Caller;
use super::end::LAPSED;
use super::owners::{check_priority, owners_of};
use crate::controller::gpus::GpuRef;
use crate::controller::jobs::Job;
use crate::controller::view::JobView;
use crate::controller::{ControlError, Controller};
use crate::store::{Absence, AuditAction, Presence, StoredJob, StoredProgress};
use wattune_core::domain::{
    Continuation, DeviceKind, Forecast, GpuId, InvalidJob, JobId, JobKey, JobName, JobSpec, Objective, Offers, Owners,
    ProcessSelector, StartOffer, SuspendOffer, Work,
};
use wattune_core::ledger::entry::Entry;
use wattune_core::ledger::forecast_id::ForecastId;
use wattune_core::ledger::presence_entries::{START_RULE, StartRequest};
use wattune_core::time::later;
use wattune_core::units::{GramsCo2e, Samples, Seconds, Watts};

/// Request to register a job.
#[derive(Clone, Debug, PartialEq)]
pub struct NewJob {
    /// Name of the job; runs with the same name can share a profile.
    pub name: JobName,
    /// GPUs that the job uses.
    pub gpus: Vec<GpuRef>,
    /// Number of samples per training step.
    pub batch_size: Option<u64>,
    /// Total work, in samples, or unknown.
    pub work: Work,
    /// Objective of the job, and the promises (constraints that the user sets) such as a maximum slowdown.
    pub objective: Objective,
    /// Lease, the longest silence before the job counts as dead; the daemon's default if absent.
    pub lease: Option<Seconds>,
    /// True if wattune may set the limits of the job's GPUs.
    pub control: bool,
    /// Priority under the node's cap: the job with the lowest priority is lowered first.
    pub priority: i32,
    /// Labels of the job.
    pub tags: BTreeMap<String, String>,
    /// Selector of the job's processes, whose CPU energy is recorded too.
    pub processes: Option<ProcessSelector>,
    /// Open job that this one replaces; it ends when this one is registered.
    pub replaces: Option<JobId>,
    /// Offers that the job makes.
    pub offers: NewOffers,
    /// Caller, to whom the job belongs.
    pub by: Caller,
    /// Number of the user for whom the caller registers the job, and to whom it then belongs, too.
    pub user: Option<u32>,
}

/// Offers that a job makes at its registration.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NewOffers {
    /// Key by which a later registration continues a job that has lost its lease.
    pub key: Option<JobKey>,
    /// Offer to be held until a start that the daemon chooses.
    pub start: Option<NewStart>,
    /// Offer to be suspended.
    pub suspend: Option<SuspendOffer>,
}

/// Offer to be held until a start that the daemon chooses.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NewStart {
    /// Bound of the start.
    pub by: StartBy,
    /// Expected duration at the original limits; absent if the stored profile determines it.
    pub duration: Option<Seconds>,
    /// Expected power of the job's GPUs together; absent if the stored profile determines it.
    pub power: Option<Watts>,
    /// Minimum expected saving for which the job waits, as a fraction.
    pub min_gain: Option<f64>,
    /// Maximum probability that waiting causes more emissions than starting at once.
    pub max_loss_probability: Option<f64>,
    /// Power of the job's GPUs together while they are reserved for it before its start.
    pub idle_power: Watts,
}

/// Bound of a job's start.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum StartBy {
    /// Longest time from the request to the start.
    Within(Seconds),
    /// Latest start.
    At(DateTime<Utc>),
}

/// A new job with everything that its request names found, until it is stored.
struct Registration {
    /// Specification of the job, without its processes until they are found.
    spec: JobSpec,
    owners: Owners,
    /// Selector of the job's processes.
    processes: Option<ProcessSelector>,
    /// Open job that this one replaces.
    replaces: Option<JobId>,
    /// Caller who registers the job.
    by: Caller,
}

impl Registration {
    /// Returns whether the job is to be held until a start that the daemon chooses.
    fn is_held(&self) -> bool {
        self.spec.offers.start.is_some()
    }
}

impl NewOffers {
    /// Returns the offers of a job that is requested at `now`. A job that continues an earlier one keeps the latest start
    /// of that one. It is given with the emissions of its GPUs.
    fn at(self, now: DateTime<Utc>, earlier: Option<(&StoredJob, GramsCo2e)>) -> Offers {
        let (earlier, emitted) = earlier.unzip();
        let inherited = earlier.and_then(|earlier| earlier.spec.offers.start.map(|start| start.latest));
        let start = self.start.map(|new| StartOffer {
            latest: inherited.unwrap_or(match new.by {
                StartBy::Within(span) => later(now, span.to_delta()),
                StartBy::At(at) => at,
            }),
            duration: new.duration,
            power: new.power,
            min_gain: new.min_gain,
            max_loss_probability: new.max_loss_probability,
            idle_power: new.idle_power,
        });
        let continues = earlier.map(|earlier| {
            let before = earlier.spec.offers.continues.as_ref();
            let done =
                earlier.progress.last.map_or(before.map_or(Samples::ZERO, |b| b.done), |l| Samples::new(l.samples));
            let asked_at = before.map_or(earlier.registered_at, |before| before.asked_at);
            let first = before.map(|before| before.first().clone());
            let emitted = emitted.unwrap_or_default() + before.map_or(GramsCo2e::ZERO, |before| before.emitted);
            Continuation { job: earlier.id.clone(), asked_at, done, emitted, first }
        });
        Offers { key: self.key, start, suspend: self.suspend, continues }
    }
}

impl Controller {
    /// Registers a job, which controls its GPUs from now on unless `control` is false.
    ///
    /// # Errors
    /// If a GPU does not exist, if another job controls one of the GPUs that this job is to control, if
    /// [`JobSpec::check`] refuses the job, if the job's processes are not found or its price weight has no source of
    /// prices, or if as many jobs are registered as the settings allow, or if there is no open job to replace, or the
    /// caller may not replace it, register a job for another user, name its processes or control its GPUs. Then nothing
    /// changes.
    pub async fn register(&mut self, new: NewJob) -> Result<JobView, ControlError> {
        let mut registration = self.resolve_job(new).await?;
        self.check_job(&mut registration).await?;
        self.commit_job(registration).await
    }

    /// Finds the owners, the earlier job and the GPUs of a new job.
    async fn resolve_job(&self, new: NewJob) -> Result<Registration, ControlError> {
        let mut owners = owners_of(&new.by, new.user)?;
        check_priority(&new.by, new.priority)?;
        if let Some(other) = new.replaces.as_ref() {
            if !self.jobs.contains(other) {
                return Err(self.snapshot().no_such_job(other).await);
            }
            self.check_owner(other, &new.by).await?;
        }
        let gpus: Vec<GpuId> = new.gpus.iter().map(|g| self.gpus.resolve(g)).collect::<Result<_, _>>()?;
        let earlier = self.earlier_of(new.offers.key.as_ref(), new.replaces.as_ref(), &owners).await?;
        let emitted = match &earlier {
            Some(earlier) => self.emitted_by(&earlier.id).await?,
            None => GramsCo2e::ZERO,
        };
        let replaced = new.replaces.as_ref().and_then(|id| self.jobs.get(id));
        let before = replaced.map(|job| &job.owners).into_iter().chain(earlier.as_ref().map(|job| &job.owners));
        for others in before {
            owners.join(others);
        }
        let replaced = replaced.filter(|job| new.offers == NewOffers::default() && !job.is_absent());
        let inherited = replaced
            .map(|job| job.inherited_offers(new.control && new.objective.bounds_time(), self.signal.fallback()));
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
            offers: match inherited {
                Some(inherited) => inherited,
                None => new.offers.at(self.now().utc, earlier.as_ref().map(|earlier| (earlier, emitted))),
            },
        };
        let (processes, replaces, by) = (new.processes, new.replaces, new.by);
        Ok(Registration { spec: spec.check()?, owners, processes, replaces, by })
    }

    /// Checks that a job may be registered now, and finds its processes and the found jobs that it joins.
    async fn check_job(&mut self, registration: &mut Registration) -> Result<(), ControlError> {
        let is_held = registration.is_held();
        let Registration { spec, owners, processes, replaces, by } = registration;
        if spec.objective.price_weight > 0.0 && self.signal.price().is_none() {
            let why = "needs a source of prices and this daemon has none; set source in [price] of its settings, or leave \
                       the price_weight out";
            let field = "objective.price_weight";
            return Err(ControlError::Invalid(InvalidJob { field, why: why.into() }));
        }
        if spec.control && !is_held {
            self.refuse_controlled_gpus(spec, replaces.as_ref())?;
        }
        if replaces.is_none() {
            self.refuse_too_many(spec, owners)?;
        }
        spec.processes = self.accounting.find_processes(&node!(self), processes.take(), replaces.as_ref()).await?;
        self.check_processes(spec.processes.as_ref(), by).await?;
        if !is_held {
            self.check_gpus(spec, by).await?;
        }
        let joins = self.joined_by(&spec.gpus, spec.processes.as_ref());
        if let Some(joins) = joins.filter(|_| spec.tags.len() < JobSpec::MOST_TAGS) {
            spec.tags.entry("joins".to_owned()).or_insert(joins);
        }
        Ok(())
    }

    /// Stores a checked job, ends the job that it replaces, and adds it to its GPUs or holds it.
    async fn commit_job(&mut self, registration: Registration) -> Result<JobView, ControlError> {
        let is_held = registration.is_held();
        let Registration { spec, owners, replaces, by, .. } = registration;
        let id = JobId::new(uuid::Uuid::new_v4().to_string()).expect("a UUID is letters, digits and dashes");
        let registered_at = self.now().utc;
        let absence = is_held.then_some(Absence::HeldSince(registered_at));
        let progress =
            StoredProgress { presence: Presence { absence, ..Presence::default() }, ..StoredProgress::default() };
        let stored = StoredJob { id: id.clone(), spec, progress, registered_at, ended: None, owners };
        let job = self.snapshot().make_job(&stored).await?;
        refuse_unknown_run(&job)?;
        self.store.save_job(&stored).await?;
        if let Some(other) = &replaces {
            self.end_job(other, &format!("replaced by job {id}"), Some(by.clone())).await;
        }
        tracing::info!(job.id = %id, "job {id} ({}) registered on {} GPU(s)", job.spec.name, job.spec.gpus.len());
        self.audit_job(Some(by), AuditAction::RegisterJob, &id, job.spec.name.as_str());
        self.record_request(&job).await;
        if is_held {
            self.hold(job);
            self.end_joined().await;
            self.plan().await;
        } else {
            self.admit(job).await;
            self.end_joined().await;
            self.plan_one(&id).await;
        }
        self.job(&id).await
    }

    /// Ends the found jobs whose processes a new job has, and requests a new choice of the starts of held jobs.
    async fn end_joined(&mut self) {
        self.discover().await;
        self.planner.rethink_starts();
    }

    /// Returns the job with this key that a new one of `owners` continues: their last one, unless they ended it while it ran.
    async fn earlier_of(
        &self,
        key: Option<&JobKey>,
        replaces: Option<&JobId>,
        owners: &Owners,
    ) -> Result<Option<StoredJob>, ControlError> {
        let Some(key) = key else { return Ok(None) };
        let has_key = |job: &&Job| {
            job.spec.offers.key.as_ref() == Some(key) && Some(&job.id) != replaces && job.owners.share_keys_with(owners)
        };
        if let Some(open) = self.jobs.iter().find(has_key) {
            return Err(ControlError::KeyTaken(format!(
                "key {:?} belongs to the open job {} ({}); end that job first, replace it with \"replaces\": \"{}\", or choose \
                 another key",
                key.as_str(),
                open.id,
                open.spec.name,
                open.id
            )));
        }
        // The caller may know that the replaced job has died, and need not wait for the end of its lease.
        let replaced =
            replaces.and_then(|id| self.jobs.get(id)).filter(|job| job.spec.offers.key.as_ref() == Some(key));
        if let Some(replaced) = replaced {
            return Ok(Some(replaced.stored(None)));
        }
        let earlier = self.store.job_by_key(key, owners).await?;
        let now = self.now().utc;
        // A scheduler ends a held or suspended job when it takes the job back to its queue.
        let goes_on = |job: &StoredJob| {
            let presence = &job.progress.presence;
            let may_start = job.spec.offers.start.is_none_or(|start| start.latest > now);
            let lapsed = job.ended.as_ref().is_some_and(|(_, why)| why == LAPSED);
            lapsed || presence.suspended_since().is_some() || (presence.is_held() && may_start)
        };
        Ok(earlier.filter(goes_on))
    }

    /// Returns the emissions of a job's GPUs. Energy without a carbon intensity counts with the mean of the rest, or
    /// with the configured constant.
    async fn emitted_by(&self, id: &JobId) -> Result<GramsCo2e, ControlError> {
        let mut rows = self.accounting.rows_of(id, &self.store).await?;
        rows.retain(|row| row.device.kind() == DeviceKind::Gpu);
        let (emissions, _) = self.snapshot().intensities().emissions_of(&rows).await?;
        Ok(emissions.estimate(self.signal.fallback()))
    }

    /// Records in the ledger the reference "started when asked" of a job that offers a later start or suspensions, or
    /// that continues an earlier job.
    async fn record_request(&mut self, job: &Job) {
        if job.spec.offers.is_empty() {
            return;
        }
        let (duration_s, power_w) = job.expected_run();
        let id = |f: &Forecast| ForecastId { source: f.source.clone(), zone: f.zone.clone(), issued_at: f.issued_at };
        let request = StartRequest {
            at: self.now().utc,
            job: job.id.clone(),
            rule: START_RULE.into(),
            asked_at: job.asked_at(),
            done: job.done_before(),
            latest_start: job.spec.offers.start.map(|start| start.latest),
            duration_s,
            power_w,
            forecast: self.snapshot().signal.forecast().map(id),
            continues: job.spec.offers.continues.as_ref().map(|earlier| earlier.job.clone()),
        };
        self.write_entry(Entry::StartRequest(Box::new(request))).await;
    }

    /// Refuses a job if another job than `replaced`, which ends, controls one of its GPUs.
    fn refuse_controlled_gpus(&self, spec: &JobSpec, replaced: Option<&JobId>) -> Result<(), ControlError> {
        for id in &spec.gpus {
            let Some(gpu) = self.gpus.get(id) else { continue };
            let index = gpu.handle.identity().index;
            if let Some(owner) = gpu.owner.as_ref().filter(|o| Some(*o) != replaced).and_then(|o| self.jobs.get(o)) {
                return Err(ControlError::Conflict(format!(
                    "GPU {index} ({id}) is controlled by job {} ({}); end that job first, or register with \
                     \"control\": false to have its energy recorded without control",
                    owner.id, owner.spec.name
                )));
            }
        }
        Ok(())
    }

    /// Adds a held job to the jobs that have not ended. From now on, the idle energy of the GPUs that are reserved for it
    /// is the job's.
    fn hold(&mut self, job: Job) {
        for gpu in job.spec.gpus.iter().filter(|_| job.reserves()) {
            self.accounting.split_interval_of(&mut node!(self), gpu, false);
        }
        self.jobs.add(job);
    }

    /// Adds a job to its GPUs and to the jobs that have not ended, and begins to count the CPU time of its processes.
    pub(crate) async fn admit(&mut self, job: Job) {
        let (id, gpus, processes) = (job.id.clone(), job.spec.gpus.clone(), job.spec.processes.clone());
        for gpu in &gpus {
            let is_split = self.accounting.split_interval_of(&mut node!(self), gpu, false);
            if let Some(gpu) = self.gpus.get_mut(gpu) {
                gpu.admit(&id, job.controls(), is_split);
            }
        }
        self.jobs.add(job);
        for gpu in gpus.iter().filter_map(|gpu| self.gpus.get(gpu)) {
            self.jobs.detect_sharing(gpu);
        }
        if let Some(processes) = processes {
            self.accounting.follow(&mut node!(self), &id, &processes).await;
        }
    }
}

/// Refuses a job that is to be held without a known duration.
fn refuse_unknown_run(job: &Job) -> Result<(), ControlError> {
    if job.spec.offers.start.is_none() || job.expected_run().0.is_some() {
        return Ok(());
    }
    let why = format!(
        "is needed: no run of {:?} with these GPUs and this batch size has a profile, or work.total_samples is unknown; \
         give the expected duration",
        job.spec.name.as_str()
    );
    Err(ControlError::Invalid(InvalidJob { field: "start.duration_s", why }))
}
