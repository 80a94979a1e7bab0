//! Builders of the views, from a snapshot and without side effects.

mod carbon;
mod carbon_slots;
mod gpu;
mod job;
mod when;

pub use carbon::{describe_feed, price_view};
pub use when::describe_start;

use super::{Mode, PlanningView, StatusView, StorageView};
use crate::controller::gpus::{Gpu, concerns};
use crate::controller::jobs::Job;
use crate::controller::snapshot::Snapshot;
use wattune_core::domain::{ClockLimit, SetPoint};

impl Snapshot<'_> {
    /// Returns the view of the whole daemon.
    pub(crate) fn status(&self) -> StatusView {
        let grants = self.grants();
        let gpus = self.gpus(&grants);
        let (searching, last_search) = (self.planner.searching(self.now), self.planner.last_search());
        StatusView {
            version: env!("CARGO_PKG_VERSION"),
            mode: if self.settings.observe { Mode::Observe } else { Mode::Control },
            simulated: !gpus.is_empty() && gpus.iter().all(|g| g.simulated),
            started_at: self.started_at,
            now: self.now.utc,
            clock_speed: self.clock_speed,
            carbon: self.carbon_now(),
            price: self.price_of_the_present(),
            cap: self.cap.view(&self.demand()),
            carbon_budget: self.accounting.budget_view(self.jobs, self.signal, self.now.utc),
            ledger: self.accounting.ledger_view(self.savings.view()),
            planning: PlanningView {
                last_search_s: last_search.map(|took| took.get()),
                late_s: searching.map(|since| since.get()),
            },
            storage: StorageView {
                fault: self.accounting.store_fault().cloned(),
                journal_fault: self.gpus.journal_fault().cloned(),
                unwritten_intervals: self.accounting.unwritten().len(),
                audit_records_lost: self.store.audit().lost(),
            },
            problems: self.problems(),
            gpus,
            cpu: self.accounting.cpu_view(self.now),
            pid_namespace: self.accounting.pid_namespace(),
            jobs: self.jobs(&grants),
            jobs_left_out: 0,
            problems_left_out: 0,
        }
    }

    /// Returns the daemon's problems, in one sentence each.
    pub(crate) fn problems(&self) -> Vec<String> {
        let mut problems = self.gpus.problems().to_vec();
        problems.extend(self.accounting.store_fault().iter().map(|f| format!("ledger: {f}")));
        problems.extend(self.gpus.journal_fault().iter().map(|f| format!("power limits cannot be changed: {f}")));
        problems.extend(self.store.audit().fault().map(|fault| format!("audit log: {fault}")));
        problems.extend(self.cap.problems(&self.demand()));
        problems.extend(self.accounting.cpu_problems());
        problems.extend(self.planner.problems(self.now));
        problems.extend(self.jobs.found_jobs().problem());
        let mut gpus: Vec<&Gpu> = self.gpus.iter().collect();
        gpus.sort_by_key(|g| g.handle.identity().index);
        for gpu in gpus {
            let index = gpu.handle.identity().index;
            problems
                .extend(concerns(gpu, self.now.monotonic).into_iter().map(|(_, why)| format!("GPU {index}: {why}")));
        }
        for (id, entry) in self.gpus.journal().entries().filter(|(id, _)| !self.gpus.contains(id)) {
            problems.push(format!(
                "GPU {id} was set by wattune and is absent now; its original limit of {} is restored once it is present again, by \
                 this daemon or `wattune restore`; if it was removed for good, stop the daemon and run `wattune restore \
                 --forget {id}`",
                entry.original
            ));
        }
        for job in self.jobs.iter() {
            problems
                .extend(job.warnings(self.now).into_iter().map(|w| format!("job {} ({}): {w}", job.id, job.spec.name)));
        }
        problems
    }

    /// Returns a job's warnings: promises that the job alone or all jobs together cannot keep, obstacles to its
    /// profile, likely mistakes in its reports, and problems of its GPUs.
    pub(crate) fn warnings_of(&self, job: &Job) -> Vec<String> {
        let mut warnings = job.warnings(self.now);
        warnings.extend(self.planner.broken_for(&job.id).iter().cloned());
        if job.controls() && !job.is_absent() && !self.settings.observe {
            let gpus = job.spec.gpus.iter().filter_map(|id| self.gpus.get(id));
            warnings.extend(gpus.flat_map(|gpu| {
                let index = gpu.handle.identity().index;
                let concerns = concerns(gpu, self.now.monotonic).into_iter();
                let of_control = concerns.filter(|(concern, _)| concern.is_of_control());
                of_control.map(move |(_, why)| format!("GPU {index}: {why}"))
            }));
        }
        warnings
    }
}

/// Returns the clock, in MHz, to which a set point (power limit and clock) locks a GPU; `None` without a lock.
fn megahertz(set: Option<SetPoint>) -> Option<u32> {
    set?.clock.map(ClockLimit::megahertz)
}
