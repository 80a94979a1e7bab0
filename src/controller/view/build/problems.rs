//! What somebody should look at: of the daemon as a whole, and of one job.

use crate::controller::gpus::{Gpu, concerns};
use crate::controller::jobs::Job;
use crate::controller::snapshot::Snapshot;

impl Snapshot<'_> {
    /// Returns what somebody should look at, in one sentence each.
    pub(in crate::controller) fn problems(&self) -> Vec<String> {
        let mut problems = self.gpus.problems().to_vec();
        problems.extend(self.accounting.store_fault().iter().map(|f| format!("books: {f}")));
        problems.extend(self.gpus.journal_fault().iter().map(|f| format!("no limit is set: {f}")));
        problems.extend(self.cap.problems(&self.demand()));
        problems.extend(self.accounting.cpu_problems());
        problems.extend(self.planner.problems(self.now));
        let mut gpus: Vec<&Gpu> = self.gpus.iter().collect();
        gpus.sort_by_key(|g| g.handle.board().index);
        for gpu in gpus {
            let index = gpu.handle.board().index;
            problems
                .extend(concerns(gpu, self.now.monotonic).into_iter().map(|(_, why)| format!("GPU {index}: {why}")));
        }
        for (id, entry) in self.gpus.journal().entries().filter(|(id, _)| !self.gpus.contains(id)) {
            problems.push(format!(
                "GPU {id} was set by wattune and is not there now; its limit of {} comes back once it is there again, with \
                 this daemon or `wattune restore`",
                entry.original
            ));
        }
        for job in self.jobs.iter() {
            problems
                .extend(job.warnings(self.now).into_iter().map(|w| format!("job {} ({}): {w}", job.id, job.spec.name)));
        }
        problems
    }

    /// Returns all that somebody should know of a job: what it cannot keep, what keeps it from being measured, what its
    /// jobs together cannot keep, and what is the matter with its GPUs.
    pub(in crate::controller) fn warnings_of(&self, job: &Job) -> Vec<String> {
        let mut warnings = job.warnings(self.now);
        warnings.extend(self.planner.broken_for(&job.id).iter().cloned());
        if job.spec.control && !self.settings.observe {
            let gpus = job.spec.gpus.iter().filter_map(|id| self.gpus.get(id));
            warnings.extend(gpus.flat_map(|gpu| {
                let index = gpu.handle.board().index;
                let concerns = concerns(gpu, self.now.monotonic).into_iter();
                let of_steering = concerns.filter(|(concern, _)| concern.is_of_steering());
                of_steering.map(move |(_, why)| format!("GPU {index}: {why}"))
            }));
        }
        warnings
    }
}
