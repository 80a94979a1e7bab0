//! Owns the jobs that have not ended: registration, leases, progress, phases and warnings.

mod equipment;
mod job;
mod pacing;
mod progress;
mod reports;
mod setback;
mod slack;
mod sweeps;
mod warnings;

use std::collections::BTreeMap;

pub use job::Phase;
pub(super) use job::{Group, Job, SweepCeiling};
pub use progress::ProgressReport;

use super::gpus::{Gpu, Gpus};
use super::planning::ReplanReason;
use wattune_core::domain::JobId;
use wattune_core::time::Now;
use wattune_core::units::Seconds;

/// Maximum number of silent guests that are ended in one tick.
const GUESTS_ENDED_AT_ONCE: usize = 16;

/// Owner of the jobs that have not ended.
#[derive(Default)]
pub(super) struct Jobs(BTreeMap<JobId, Job>);

impl Jobs {
    pub(super) fn get(&self, id: &JobId) -> Option<&Job> {
        self.0.get(id)
    }

    pub(super) fn get_mut(&mut self, id: &JobId) -> Option<&mut Job> {
        self.0.get_mut(id)
    }

    pub(super) fn contains(&self, id: &JobId) -> bool {
        self.0.contains_key(id)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Job> {
        self.0.values()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Job> {
        self.0.values_mut()
    }

    pub(super) fn ids(&self) -> Vec<JobId> {
        self.0.keys().cloned().collect()
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn add(&mut self, job: Job) {
        self.0.insert(job.id.clone(), job);
    }

    pub(super) fn remove(&mut self, id: &JobId) -> Option<Job> {
        self.0.remove(id)
    }

    /// Records that the guests of a GPU share it, once it has several holders. Call it whenever a holder is added.
    pub(super) fn detect_sharing(&mut self, gpu: &Gpu) {
        // With more holders, all but the newest are marked already.
        let unmarked = match gpu.holder_count() {
            0 | 1 => return,
            2 => 0,
            _ => gpu.guests.len().saturating_sub(1),
        };
        for guest in gpu.guests.iter().skip(unmarked) {
            if let Some(job) = self.0.get_mut(guest).filter(|job| !job.progress.has_shared) {
                (job.progress.has_shared, job.unsaved) = (true, true);
            }
        }
    }

    /// Marks every job to be planned again.
    pub(super) fn replan_all(&mut self, why: ReplanReason) {
        for job in self.iter_mut() {
            job.replan.get_or_insert(why);
        }
    }

    /// Extends every lease by `span`, in which no report could be taken in.
    pub(super) fn extend_leases(&mut self, span: Seconds) {
        for job in self.iter_mut() {
            job.lease_until = job.lease_until.after(span);
        }
    }

    /// Returns the jobs to end now as they have been silent for longer than their leases.
    pub(super) fn silent(&self, now: Now) -> Vec<JobId> {
        let mut silent: Vec<&Job> = self.iter().filter(|job| job.lease_expired(now)).collect();
        // Those with limits to restore come first; guests are ended in portions, as requests wait meanwhile.
        silent.sort_by_key(|job| !job.spec.control);
        let guests = silent.iter().filter(|job| !job.spec.control).count();
        silent.truncate(silent.len() - guests.saturating_sub(GUESTS_ENDED_AT_ONCE));
        silent.into_iter().map(|job| job.id.clone()).collect()
    }

    /// Disables clocks for jobs on GPUs whose clocks wattune may not lock.
    pub(super) fn withdraw_clocks(&mut self, gpus: &Gpus) {
        for job in self.iter_mut() {
            let Some(profiler) = job.profiler.as_mut().filter(|p| p.uses_clocks()) else { continue };
            let why = job.spec.gpus.iter().find_map(|id| gpus.get(id)?.why_no_clocks());
            let Some(why) = why else { continue };
            tracing::warn!(job.id = %job.id, "job {}: power limits alone from now on: {why}", job.id);
            profiler.disable_clocks();
            // Its plan may hold points that are not available any more.
            job.plan = None;
            job.replan = Some(ReplanReason::ClocksLeftAlone);
        }
    }
}
