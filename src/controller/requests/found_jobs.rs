//! Jobs that the daemon records by itself, for processes on GPUs that no job has registered.

use crate::controller::Controller;
use crate::controller::jobs::found_jobs::{Scene, Step, owner};
use crate::store::{StoredJob, StoredProgress};
use wattune_core::domain::{GpuId, JobId, JobSpec, Objective, Offers, Owner, Owners, Process, Processes, Work};
use wattune_core::identity::{Kind, Labels};
use wattune_core::units::Seconds;

/// Lease of a found job. The daemon itself renews it while it sees the job's processes. After a fault of the GPU's driver
/// the job therefore continues if the GPU answers again within this time.
const LEASE: Seconds = Seconds::new(600.0);

impl Controller {
    /// Examines the processes on GPUs: records jobs for processes without one, ends found jobs whose processes have
    /// ended or were registered, and renews the leases of the others.
    pub(crate) async fn discover(&mut self) {
        let now = self.now();
        self.jobs.write_mapping(&self.gpus);
        // Also without the discovery, the users of these processes decide who may control the GPU.
        self.gpus.iter().for_each(|gpu| gpu.handle.list_processes(true));
        let Some((listed, sightings)) = self.jobs.found_jobs().observe(&self.gpus) else { return };
        let owners = self.accounting.process_owners().clone();
        let (steps, alive) = self.jobs.judge(now.monotonic, |jobs| Scene {
            listed,
            sightings,
            owner: Box::new(move |candidate, sighting| owner(jobs.values(), &owners, candidate, sighting)),
        });
        self.jobs.renew_found(&alive, now.monotonic);
        for step in steps {
            match step {
                Step::End { job, why } => self.end_job(&job, &why, None).await,
                Step::Extend { job, processes } => self.accounting.extend(&mut node!(self), &job, processes).await,
                Step::Begin { labels, gpus, processes, continues } => {
                    self.record_found(labels, gpus, processes, continues).await;
                }
            }
        }
    }

    /// Returns, as the value of a tag, the found jobs that a registration with these GPUs and processes ends.
    pub(super) fn joined_by(&self, gpus: &[GpuId], processes: Option<&Processes>) -> Option<String> {
        let (_, sightings) = self.jobs.found_jobs().observe(&self.gpus)?;
        self.jobs.found_jobs().joined_by(gpus, processes, &sightings)
    }

    async fn record_found(
        &mut self,
        labels: Labels,
        gpus: Vec<GpuId>,
        processes: Vec<Process>,
        continues: Option<JobId>,
    ) {
        let Labels { name, mut tags, key, .. } = labels;
        let user = (key.kind == Kind::User).then(|| key.id.parse().ok()).flatten();
        let owners = user.map(Owner::User).into_iter().collect();
        tags.extend(continues.map(|id| ("continues".to_owned(), id.to_string())));
        let spec = JobSpec {
            name,
            gpus,
            batch_size: None,
            work: Work::Unknown,
            objective: Objective::DEFAULT,
            lease: LEASE,
            control: false,
            priority: 0,
            tags,
            processes: Some(Processes::Found(processes)),
            offers: Offers::default(),
        };
        let Ok(spec) = spec.check() else { return };
        if self.refuse_too_many(&spec, &Owners::default()).is_err() {
            return;
        }
        let id = JobId::new(uuid::Uuid::new_v4().to_string()).expect("a UUID is letters, digits and dashes");
        let (progress, registered_at) = (StoredProgress::default(), self.now().utc);
        let stored = StoredJob { id: id.clone(), spec, progress, registered_at, ended: None, owners };
        let Ok(job) = self.snapshot().make_job(&stored).await else { return };
        // If the database cannot be written, the next tick finds the processes again.
        if let Err(error) = self.store.save_job(&stored).await {
            return self.accounting.record_store_fault(&error);
        }
        tracing::info!(job.id = %id, "found job {id} ({}) on {} GPU(s); it is recorded, not controlled", job.spec.name, job.spec.gpus.len());
        self.admit(job).await;
    }
}
