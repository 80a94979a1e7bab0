//! The count of what jobs have emitted of the node's carbon budget.

use chrono::{DateTime, Utc};

use super::Accounting;
use super::budget::counts;
use super::hourly_emissions::HourlyEmissions;
use crate::controller::error::ControlError;
use crate::controller::jobs::Jobs;
use crate::controller::node::Node;
use crate::controller::signal::Signal;
use crate::controller::view::BudgetView;
use wattune_core::domain::Slot;
use wattune_core::ledger;
use wattune_core::units::GramsCo2e;

impl Accounting {
    /// The budget's present span; `None` where there is no budget, or it is over.
    pub(in crate::controller) fn budget_view(
        &self,
        jobs: &Jobs,
        signal: &Signal,
        now: DateTime<Utc>,
    ) -> Option<BudgetView> {
        let (span, limit) = (self.budget.settings.span(now)?, self.budget.settings.limit()?);
        let emitted = self.budget.emitted(&span, signal.basis().value);
        let ahead = Slot::new(now.max(span.start()), span.end())?;
        let planned: GramsCo2e =
            jobs.iter().filter_map(|job| job.plan.as_ref()).map(|plan| plan.carbon_within(&ahead)).sum();
        Some(BudgetView {
            from: span.start(),
            until: span.end(),
            limit_g: limit.get(),
            emitted_g: emitted.get(),
            left_g: (limit - emitted).get(),
            expected_g: (emitted + planned).get(),
        })
    }

    /// Sees to it that what was emitted within the present span is known: from the books, when a span begins.
    pub(in crate::controller) async fn count_budget(&mut self, node: &mut Node<'_>) {
        let span = self.budget.settings.span(node.now().utc);
        if self.budget.counted.as_ref().map(|(of, _)| *of) != span {
            self.recount_budget(node).await;
        }
    }

    /// Counts it anew, with the intensities known now.
    pub(in crate::controller) async fn recount_budget(&mut self, node: &mut Node<'_>) {
        let Some(span) = self.budget.settings.span(node.now().utc) else {
            self.budget.counted = None;
            return;
        };
        match self.emitted_within(node, &span).await {
            Ok(emitted) => self.budget.counted = Some((span, emitted)),
            Err(ControlError::Store(error)) => self.note_store_fault(&error),
            Err(_) => {}
        }
    }

    async fn emitted_within(&self, node: &Node<'_>, span: &Slot) -> Result<HourlyEmissions, ControlError> {
        let mut rows = ledger::within(&node.store.intervals_of_jobs(span).await?, span);
        rows.retain(counts);
        let series = self.intensities(node.signal, node.store).booked(span).await?;
        Ok(HourlyEmissions::of(&rows, &series))
    }
}
