//! Owns the jobs that have not ended: registration, leases, progress, phases and warnings.

mod choice;
mod equipment;
pub(super) mod found_jobs;
mod job;
mod plan_following;
mod presence;
mod progress;
mod reports;
mod setback;
mod slack;
mod sweeps;
mod warnings;

use std::collections::BTreeMap;

pub(super) use choice::StartChoice;
pub use choice::{BeginReason, Wanted};
pub use job::Phase;
#[cfg(test)]
pub(super) use job::PriorProfile;
pub(super) use job::{Group, Job, SweepCeiling};
pub use progress::ProgressReport;

use found_jobs::{FoundJobs, Scene, Step};

use super::gpus::{Gpu, Gpus};
use super::planning::ReplanReason;
use crate::discovery::Scout;
use wattune_core::domain::{JobId, Processes};
use wattune_core::identity::Kind;
use wattune_core::time::{Monotonic, Now};
use wattune_core::units::Seconds;

/// Maximum number of jobs, among those whose limits wattune does not control, that one tick ends because their leases
/// (longest silence before a job counts as dead) have expired.
const GUESTS_ENDED_AT_ONCE: usize = 16;

/// Owner of the jobs that have not ended.
pub(super) struct Jobs {
    by_id: BTreeMap<JobId, Job>,
    leases_checked: Monotonic,
    found_jobs: FoundJobs,
}

impl Jobs {
    pub(super) fn new(now: Now, scout: Option<Scout>) -> Self {
        Self { by_id: BTreeMap::new(), leases_checked: now.monotonic, found_jobs: FoundJobs::new(scout) }
    }

    /// Returns the discovery of jobs by their processes.
    pub(super) fn found_jobs(&self) -> &FoundJobs {
        &self.found_jobs
    }

    /// Decides about found jobs. Returns the requested actions (first) and the found jobs whose processes still use
    /// GPUs (second).
    pub(super) fn judge<'a>(
        &'a mut self,
        now: Monotonic,
        scene: impl FnOnce(&'a BTreeMap<JobId, Job>) -> Scene<'a>,
    ) -> (Vec<Step>, Vec<JobId>) {
        self.found_jobs.judge(&scene(&self.by_id), now)
    }

    /// Renews the leases of the found jobs in `alive`, whose processes still use GPUs.
    pub(super) fn renew_found(&mut self, alive: &[JobId], at: Monotonic) {
        for id in alive {
            if let Some(job) = self.by_id.get_mut(id) {
                job.note_running(at);
            }
        }
    }

    /// Writes the job-mapping folder if the settings say so: for each GPU the ids of its jobs, which are Slurm's
    /// numbers where known.
    pub(super) fn write_mapping(&self, gpus: &Gpus) {
        self.found_jobs.write_mapping(|| {
            let ids = |gpu: &Gpu| {
                let named = gpu.holders().into_iter().filter_map(|id| self.by_id.get(&id));
                let mut ids: Vec<String> = named
                    .map(|job| job.spec.tags.get(Kind::Slurm.tag()).cloned().unwrap_or_else(|| job.id.to_string()))
                    .collect();
                ids.sort_unstable();
                ids.dedup();
                ids
            };
            gpus.iter().map(|gpu| (gpu.handle.identity().index, ids(gpu))).collect()
        });
    }

    pub(super) fn get(&self, id: &JobId) -> Option<&Job> {
        self.by_id.get(id)
    }

    pub(super) fn get_mut(&mut self, id: &JobId) -> Option<&mut Job> {
        self.by_id.get_mut(id)
    }

    pub(super) fn contains(&self, id: &JobId) -> bool {
        self.by_id.contains_key(id)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Job> {
        self.by_id.values()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Job> {
        self.by_id.values_mut()
    }

    pub(super) fn ids(&self) -> Vec<JobId> {
        self.by_id.keys().cloned().collect()
    }

    pub(super) fn len(&self) -> usize {
        self.by_id.len()
    }

    pub(super) fn add(&mut self, job: Job) {
        self.found_jobs.note(&job);
        self.by_id.insert(job.id.clone(), job);
    }

    pub(super) fn remove(&mut self, id: &JobId) -> Option<Job> {
        self.found_jobs.forget(id);
        self.by_id.remove(id)
    }

    /// Marks the guests of a GPU (jobs that use it without controlling it) as sharing the GPU, once it has several
    /// holders (guests and the controlling job). Call this function whenever a holder is added.
    pub(super) fn detect_sharing(&mut self, gpu: &Gpu) {
        // With more than two holders, all guests but the newest are marked already.
        let unmarked = match gpu.holder_count() {
            0 | 1 => return,
            2 => 0,
            _ => gpu.guests.len().saturating_sub(1),
        };
        for guest in gpu.guests.iter().skip(unmarked) {
            if let Some(job) = self.by_id.get_mut(guest).filter(|job| !job.progress.has_shared) {
                (job.progress.has_shared, job.unsaved) = (true, true);
            }
        }
    }

    /// Marks every job to be planned again for the reason `why`; a job that is already marked keeps its reason.
    pub(super) fn replan_all(&mut self, why: ReplanReason) {
        for job in self.iter_mut() {
            job.replan.get_or_insert(why);
        }
    }

    /// Returns the jobs to end now because they have not reported within their leases (longest silence before a job
    /// counts as dead). Expects a call every `period`. If a call is late by more than `period`, extends every lease by
    /// the delay, because reports that arrived meanwhile are still waiting.
    pub(super) fn silent(&mut self, now: Now, period: Seconds) -> Vec<JobId> {
        let missed = now.monotonic.since(self.leases_checked) - period;
        self.leases_checked = now.monotonic;
        if missed > period {
            for job in self.iter_mut() {
                job.lease_until = job.lease_until.after(missed);
            }
        }
        let mut silent: Vec<&Job> = self.iter().filter(|job| job.lease_expired(now)).collect();
        // Jobs with limits to restore come first; others are ended in portions, because requests wait meanwhile.
        silent.sort_by_key(|job| !job.controls());
        let guests = silent.iter().filter(|job| !job.controls()).count();
        silent.truncate(silent.len() - guests.saturating_sub(GUESTS_ENDED_AT_ONCE));
        silent.into_iter().map(|job| job.id.clone()).collect()
    }

    /// Renews the leases of jobs that live as long as their processes run, and whose processes ran at the time `at`.
    pub(super) fn renew_by_processes(&mut self, at: Monotonic, runs: impl Fn(&JobId) -> bool) {
        for job in self.by_id.values_mut() {
            if job.spec.processes.as_ref().is_some_and(Processes::show_life) && runs(&job.id) {
                job.note_running(at);
            }
        }
    }

    /// Disables locked clocks for jobs on GPUs whose clocks wattune may not lock.
    pub(super) fn withdraw_clocks(&mut self, gpus: &Gpus) {
        for job in self.iter_mut() {
            let Some(profiler) = job.profiler.as_mut().filter(|p| p.uses_clocks()) else { continue };
            let why = job.spec.gpus.iter().find_map(|id| gpus.get(id)?.why_no_clocks());
            let Some(why) = why else { continue };
            tracing::warn!(job.id = %job.id, "job {}: clock locks disabled: {why}", job.id);
            profiler.disable_clocks();
            // The plan may contain operating points with locked clocks.
            job.plan = None;
            job.replan = Some(ReplanReason::ClocksLeftAlone);
        }
    }
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;
    use wattune_core::domain::{GpuId, JobName, JobSpec, Objective, Work};

    use super::*;
    use crate::store::StoredProgress;

    fn at(seconds: f64) -> Now {
        Now { utc: DateTime::UNIX_EPOCH, monotonic: Monotonic::default().after(Seconds::new(seconds)) }
    }

    /// A job with a lease of 10 s, registered at second 100.
    fn jobs() -> Jobs {
        let spec = JobSpec {
            name: JobName::new("a").expect("a name"),
            gpus: vec![GpuId::new("GPU-0").expect("an id")],
            batch_size: None,
            work: Work::Unknown,
            objective: Objective::DEFAULT,
            lease: Seconds::new(10.0),
            control: false,
            priority: 0,
            tags: BTreeMap::new(),
            processes: None,
            offers: Default::default(),
        };
        let mut jobs = Jobs::new(at(100.0), None);
        let stored = StoredProgress::default();
        let id = JobId::new("job-a").expect("an id");
        jobs.add(Job::new(id, spec, Vec::new(), None, stored, at(100.0).utc, at(100.0)));
        jobs
    }

    /// Returns how many jobs are silent at each of these times, checked every second.
    fn silent_at(jobs: &mut Jobs, times: &[f64]) -> Vec<usize> {
        times.iter().map(|t| jobs.silent(at(*t), Seconds::new(1.0)).len()).collect()
    }

    #[test]
    fn a_lease_ends_after_its_time() {
        let times: Vec<f64> = (101..=111).map(f64::from).collect();
        let mut expected = vec![0; 10];
        expected.push(1);
        assert_eq!(silent_at(&mut jobs(), &times), expected);
    }

    #[test]
    fn running_processes_renew_a_lease_only_where_they_show_life() {
        for (processes, lives) in [(Some(Processes::SlurmJob(7)), true), (Some(Processes::Pids(Vec::new())), false)] {
            let mut jobs = jobs();
            let id = JobId::new("job-a").expect("an id");
            jobs.get_mut(&id).expect("there").spec.processes = processes;
            jobs.renew_by_processes(at(105.0).monotonic, |_| true);
            jobs.renew_by_processes(at(108.0).monotonic, |_| false);
            let times: Vec<f64> = (101..=116).map(f64::from).collect();
            let silent = silent_at(&mut jobs, &times);
            let first = silent.iter().position(|count| *count > 0).map(|place| times[place]);
            assert_eq!(first, Some(if lives { 116.0 } else { 111.0 }));
        }
    }

    #[test]
    fn time_without_checks_extends_leases() {
        // The call at 121 s is 19 s late, so the lease is extended from 110 s to 129 s.
        assert_eq!(silent_at(&mut jobs(), &[101.0, 121.0, 123.0, 125.0, 127.0, 129.0, 131.0]), [0, 0, 0, 0, 0, 0, 1]);
        // A call that is late by no more than the period extends no lease.
        assert_eq!(silent_at(&mut jobs(), &[102.0, 104.0, 106.0, 108.0, 110.0, 112.0]), [0, 0, 0, 0, 0, 1]);
    }
}
