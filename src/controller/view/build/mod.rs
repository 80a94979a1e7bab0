//! Builders of the views: read models of a snapshot, without side effects.

mod carbon;
mod gpu;
mod job;
mod problems;

pub use carbon::{look, price_view};

use super::{PlanningView, StatusView, StorageView};
use crate::controller::snapshot::Snapshot;
use wattune_core::domain::{ClockLimit, SetPoint};

impl Snapshot<'_> {
    /// Returns the daemon as a whole.
    pub(in crate::controller) fn status(&self) -> StatusView {
        let grants = self.grants();
        let gpus = self.gpus(&grants);
        let (searching, last_search) = (self.planner.searching(self.now), self.planner.last_search());
        StatusView {
            version: env!("CARGO_PKG_VERSION"),
            mode: if self.settings.observe { "observe" } else { "control" },
            simulated: !gpus.is_empty() && gpus.iter().all(|g| g.simulated),
            started_at: self.started_at,
            now: self.now.utc,
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
            },
            problems: self.problems(),
            gpus,
            cpu: self.accounting.cpu_view(),
            jobs: self.jobs(&grants),
            jobs_left_out: 0,
            problems_left_out: 0,
        }
    }
}

/// Returns the clock that a set point locks clocks to, in MHz.
fn megahertz(set: Option<SetPoint>) -> Option<u32> {
    set?.clock.map(ClockLimit::megahertz)
}
