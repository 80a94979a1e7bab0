//! Requests to register a job.

use std::collections::BTreeMap;

use crate::controller::gpus::GpuRef;
use crate::controller::jobs::Job;
use crate::controller::view::JobView;
use crate::controller::{ControlError, Controller};
use crate::store::{StoredJob, StoredProgress};
use wattune_core::domain::{GpuId, InvalidJob, JobId, JobName, JobSpec, Objective, ProcessSelector, Work};
use wattune_core::units::Seconds;

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
}

impl Controller {
    /// Registers a job, which controls its GPUs from now on unless `control` is false.
    ///
    /// # Errors
    /// If a GPU does not exist, if another job controls one of the GPUs that this job is to control, if
    /// [`JobSpec::check`] refuses the job, if the job's processes are not found or its price weight has no source of
    /// prices, or if as many jobs are registered as the settings allow, or if there is no open job to replace. Then nothing changes.
    pub async fn register(&mut self, new: NewJob) -> Result<JobView, ControlError> {
        if let Some(other) = new.replaces.as_ref().filter(|other| !self.jobs.contains(other)) {
            return Err(self.snapshot().no_such_job(other).await);
        }
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
            return Err(ControlError::Invalid(InvalidJob { field, why: why.into() }));
        }
        if spec.control {
            self.refuse_controlled_gpus(&spec, new.replaces.as_ref())?;
        }
        if new.replaces.is_none() {
            self.refuse_too_many(&spec)?;
        }
        spec.processes = self.accounting.find_processes(&node!(self), new.processes, new.replaces.as_ref()).await?;
        let joins = self.joined_by(&spec.gpus, spec.processes.as_ref());
        if let Some(joins) = joins.filter(|_| spec.tags.len() < JobSpec::MOST_TAGS) {
            spec.tags.entry("joins".to_owned()).or_insert(joins);
        }
        let id = JobId::new(uuid::Uuid::new_v4().to_string()).expect("a UUID is letters, digits and dashes");
        let (progress, registered_at) = (StoredProgress::default(), self.now().utc);
        let stored = StoredJob { id: id.clone(), spec, progress, registered_at, ended: None };
        let job = self.snapshot().make_job(&stored).await?;
        self.store.save_job(&stored).await?;
        if let Some(other) = &new.replaces {
            self.end_job(other, &format!("replaced by job {id}")).await;
        }
        tracing::info!(job.id = %id, "job {id} ({}) registered on {} GPU(s)", job.spec.name, job.spec.gpus.len());
        self.admit(job).await;
        // Jobs found by these processes end now.
        self.discover().await;
        self.plan_one(&id).await;
        self.job(&id).await
    }

    pub(super) fn refuse_too_many(&self, spec: &JobSpec) -> Result<(), ControlError> {
        let (most, open) = (self.settings.most_jobs, self.jobs.len());
        if open >= most as usize {
            return Err(ControlError::TooMany(format!(
                "{open} jobs are open, and control.most_jobs = {most} allows no more: end jobs that are done, let their \
                 leases run out, or raise the setting"
            )));
        }
        let most = self.settings.most_jobs_per_gpu;
        for gpu in spec.gpus.iter().filter_map(|id| self.gpus.get(id)) {
            let open = gpu.holder_count();
            if open >= most as usize {
                return Err(ControlError::TooMany(format!(
                    "GPU {} has {open} open jobs, and control.most_jobs_per_gpu = {most} allows no more: end jobs that are \
                     done, let their leases run out, or raise the setting",
                    gpu.handle.identity().index
                )));
            }
        }
        Ok(())
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

    /// Adds a job to its GPUs and to the jobs that have not ended, and begins to count the CPU time of its processes.
    pub(crate) async fn admit(&mut self, job: Job) {
        let (id, gpus, processes) = (job.id.clone(), job.spec.gpus.clone(), job.spec.processes.clone());
        for gpu in &gpus {
            let is_split = self.accounting.split_interval_of(&mut node!(self), gpu, false);
            if let Some(gpu) = self.gpus.get_mut(gpu) {
                gpu.admit(&id, job.spec.control, is_split);
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
