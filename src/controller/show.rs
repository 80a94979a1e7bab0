//! Views of the controller's state.

mod carbon;
mod job;

pub use carbon::{look, price_view};

use super::Controller;
use super::view::{PlanningView, StatusView, StorageView};
use wattune_core::domain::{ClockLimit, SetPoint};

impl Controller {
    /// The daemon as a whole.
    pub fn status(&self) -> StatusView {
        let gpus = self.gpus();
        StatusView {
            version: env!("CARGO_PKG_VERSION"),
            mode: if self.settings.observe { "observe" } else { "control" },
            simulated: !gpus.is_empty() && gpus.iter().all(|g| g.simulated),
            started_at: self.started_at,
            now: self.now().utc,
            carbon: self.carbon_now(),
            price: self.price_of_the_present(),
            cap: self.cap_view(),
            carbon_budget: self.accounting.budget_view(&self.jobs, &self.signal, self.now().utc),
            ledger: self.accounting.ledger_view(self.saved.ended),
            planning: self.planning_view(),
            storage: self.storage_view(),
            problems: self.problems(),
            gpus,
            cpu: self.accounting.cpu_view(),
            jobs: self.jobs(),
            jobs_left_out: 0,
            problems_left_out: 0,
        }
    }
}

impl Controller {
    fn planning_view(&self) -> PlanningView {
        let now = self.now().monotonic;
        PlanningView {
            last_search_s: self.planner.took.map(|s| s.get()),
            late_s: self.planner.search.as_ref().map(|search| now.since(search.since).get()),
        }
    }
}

impl Controller {
    fn storage_view(&self) -> StorageView {
        StorageView {
            fault: self.accounting.store_fault().cloned(),
            journal_fault: self.gpus.journal_fault().cloned(),
            unwritten_intervals: self.accounting.unwritten().len(),
        }
    }
}

/// What a set point locks clocks to, in MHz.
pub(super) fn megahertz(set: Option<SetPoint>) -> Option<u32> {
    set?.clock.map(ClockLimit::megahertz)
}

/// A unit variant as serde spells it.
pub(super) fn spelled<T: serde::Serialize>(value: &T) -> Option<String> {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(text)) => Some(text),
        _ => None,
    }
}
