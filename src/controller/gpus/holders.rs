//! Holders of a GPU: the job that controls it and the guests that only use it, up to thousands.

use super::gpu::Gpu;
use wattune_core::domain::JobId;
use wattune_core::time::Monotonic;
use wattune_core::units::Seconds;

/// Maximum number of jobs on a GPU for which the ledger's interval is split whenever a job is added or removed.
const FEW_JOBS: usize = 16;
/// Minimum time between two splits, per job, on GPUs with more jobs: each split writes a row per job.
const TIME_PER_ROW: Seconds = Seconds::new(0.125);

impl Gpu {
    pub(crate) fn holders(&self) -> Vec<JobId> {
        self.owner.iter().chain(&self.guests).cloned().collect()
    }

    /// Adds a job, as the one that controls the GPU or as a guest.
    pub(crate) fn add_holder(&mut self, job: &JobId, controls: bool) {
        match controls {
            true => self.owner = Some(job.clone()),
            false => self.guests.push(job.clone()),
        }
    }

    /// Adds a new job. `is_split` is true if the energy up to now has been attributed to the earlier holders.
    pub(crate) fn admit(&mut self, job: &JobId, controls: bool, is_split: bool) {
        if !is_split {
            self.newcomers.insert(job.clone());
        }
        self.add_holder(job, controls);
        if !controls {
            return;
        }
        if self.manual.as_ref().is_some_and(|manual| manual.yields_to_jobs) {
            self.end_override("a job controls the GPU");
        }
        // A limit set before the new owner counts as the original one, and denied writes may be permitted now.
        self.external = None;
        self.denied = None;
        self.persistence_denied = None;
        self.reset_clock_state();
    }

    /// Removes a job from the GPU.
    pub(crate) fn release(&mut self, job: &JobId) {
        if self.owner.as_ref() == Some(job) {
            self.owner = None;
            self.external = None;
        }
        self.guests.retain(|guest| guest != job);
        self.newcomers.remove(job);
    }
    pub(crate) fn holder_count(&self) -> usize {
        self.owner.iter().count() + self.guests.len()
    }

    /// Returns the jobs that have held the GPU since its interval was last split.
    pub(crate) fn counted_holders(&self) -> Vec<JobId> {
        self.owner.iter().chain(&self.guests).filter(|id| !self.newcomers.contains(*id)).cloned().collect()
    }

    /// Returns whether the GPU has too many jobs to write a ledger row per job every few seconds.
    pub(crate) fn has_many_jobs(&self) -> bool {
        self.holder_count() > FEW_JOBS
    }

    /// Returns whether the GPU has so many jobs that its ledger interval is not split now for an added or removed job.
    /// Each split writes a row per job, so that adding many jobs would otherwise write the square of their number.
    pub(crate) fn is_crowded(&self, at: Monotonic) -> bool {
        let jobs = self.holder_count() - self.newcomers.len();
        let Some(interval) = self.interval.as_ref().filter(|_| jobs > FEW_JOBS) else { return false };
        #[expect(clippy::cast_precision_loss, reason = "jobs of a GPU are counted in thousands")]
        let spacing = TIME_PER_ROW * jobs as f64;
        at.since(interval.last_rule_change()) < spacing
    }

    /// Returns whether a process runs on the GPU although no job is registered on it.
    pub(crate) fn has_unknown_user(&self) -> bool {
        self.owner.is_none() && self.guests.is_empty() && self.observed.reading.processes.is_some_and(|n| n > 0)
    }
}
