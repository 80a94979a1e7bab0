//! Whose a GPU is: the job that controls it and those that are booked on it beside, be they a thousand.

use super::gpu::Gpu;
use wattune_core::domain::JobId;
use wattune_core::time::Monotonic;
use wattune_core::units::Seconds;

/// With no more jobs than this its books turn whenever one comes or goes.
const FEW_JOBS: usize = 16;
/// With more, so much time lies between two turns for each of them: a row of each is written at a turn.
const TIME_PER_ROW: Seconds = Seconds::new(0.125);

impl Gpu {
    /// The jobs that hold it, the controlling one first.
    pub fn holders(&self) -> Vec<JobId> {
        self.owner.iter().chain(&self.guests).cloned().collect()
    }

    /// Adds a job: as the one that controls the GPU, or as a guest.
    pub(in crate::controller) fn add_holder(&mut self, job: &JobId, controls: bool) {
        match controls {
            true => self.owner = Some(job.clone()),
            false => self.guests.push(job.clone()),
        }
    }

    /// Adds a job that has just come: `is_turned` says that the energy up to now is recorded.
    pub(in crate::controller) fn admit(&mut self, job: &JobId, controls: bool, is_turned: bool) {
        if !is_turned {
            self.newcomers.insert(job.clone());
        }
        self.add_holder(job, controls);
        if !controls {
            return;
        }
        // A new owner asks anew: what somebody set before it came is what it finds, and what was not allowed then may be
        // now.
        self.foreign = None;
        self.denied = None;
        self.persistence_denied = None;
        self.ask_clocks_anew();
    }

    /// Takes a job's place away.
    pub(in crate::controller) fn release(&mut self, job: &JobId) {
        if self.owner.as_ref() == Some(job) {
            self.owner = None;
            self.foreign = None;
        }
        self.guests.retain(|guest| guest != job);
        self.newcomers.remove(job);
    }

    /// Returns the number of its holders.
    pub(in crate::controller) fn holder_count(&self) -> usize {
        self.owner.iter().count() + self.guests.len()
    }

    /// Those that have held it since its books turned last.
    pub(in crate::controller) fn settled_holders(&self) -> Vec<JobId> {
        self.owner.iter().chain(&self.guests).filter(|id| !self.newcomers.contains(*id)).cloned().collect()
    }

    /// Whether a row for each of its jobs is more than should be written every few seconds.
    pub(in crate::controller) fn has_many_jobs(&self) -> bool {
        self.holder_count() > FEW_JOBS
    }

    /// Whether its books are not to turn at this moment for the sake of jobs that come or go: each turn writes a row for
    /// each of its jobs, so that many jobs would else cost the square of their number.
    pub(in crate::controller) fn is_crowded(&self, at: Monotonic) -> bool {
        let jobs = self.holder_count() - self.newcomers.len();
        let Some(books) = self.books.as_ref().filter(|_| jobs > FEW_JOBS) else { return false };
        #[expect(clippy::cast_precision_loss, reason = "jobs of a GPU are counted in thousands")]
        let spacing = TIME_PER_ROW * jobs as f64;
        at.since(books.last_rule_change()) < spacing
    }

    /// Whether something runs on it that nobody registered.
    pub fn has_unknown_user(&self) -> bool {
        self.owner.is_none() && self.guests.is_empty() && self.seen.reading.processes.is_some_and(|n| n > 0)
    }
}
