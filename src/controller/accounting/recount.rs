//! Emissions of running jobs and of the carbon budget: the emissions of an hour are computed again when the hour's carbon
//! intensities change.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, Utc};

use super::Accounting;
use super::budget::counts;
use super::hourly_emissions::{HourlyEmissions, by_kind, of_job};
use crate::controller::error::ControlError;
use crate::controller::jobs::Jobs;
use crate::controller::node::Node;
use crate::controller::signal::Signal;
use crate::controller::view::BudgetView;
use wattune_core::domain::{DeviceKind, JobId, Slot};
use wattune_core::ledger::apportion::hours_of;
use wattune_core::ledger::{self, Interval, Share};
use wattune_core::units::GramsCo2e;

/// Maximum number of hours whose emissions are computed again in one tick, the newest first.
const RECOUNTED_AT_ONCE: usize = 24;

impl Accounting {
    /// Marks the past hours in `slots`, so that [`Self::recount_hours`] computes their emissions again.
    pub(crate) fn recount_in<'a>(&mut self, node: &mut Node<'_>, slots: impl IntoIterator<Item = &'a Slot>) {
        let now = node.now().utc;
        let past = slots.into_iter().filter(|slot| slot.start() < now);
        self.ledger.recount.extend(past.flat_map(hours_of).filter(|hour| *hour < now));
    }

    /// Marks all hours in which running jobs, or the carbon budget, have emissions, so that [`Self::recount_hours`]
    /// computes these emissions again.
    pub(crate) fn recount_everything(&mut self, node: &mut Node<'_>) {
        let counted = self.counted_hours(node).collect::<Vec<_>>();
        self.ledger.recount.extend(counted);
    }

    /// Returns the hours in which running jobs, or the carbon budget, have counted emissions.
    fn counted_hours(&self, node: &Node<'_>) -> impl Iterator<Item = DateTime<Utc>> {
        let of_jobs = node.jobs.iter().flat_map(|job| job.emissions.hours().chain(job.cpu_emissions.hours()));
        of_jobs.chain(self.budget.hours())
    }

    /// Computes again the emissions of marked hours, for running jobs and the carbon budget: of at most
    /// [`RECOUNTED_AT_ONCE`] hours per call, the newest first.
    pub(crate) async fn recount_hours(&mut self, node: &mut Node<'_>) {
        if self.ledger.recount.is_empty() {
            return;
        }
        let counted: BTreeSet<_> = self.counted_hours(node).collect();
        self.ledger.recount.retain(|hour| counted.contains(hour));
        for _ in 0..RECOUNTED_AT_ONCE {
            let Some(hour) = self.ledger.recount.last().copied() else { return };
            match self.recount_hour(node, hour).await {
                Err(ControlError::Store(error)) => return self.record_store_fault(&error),
                Err(_) | Ok(()) => self.ledger.recount.remove(&hour),
            };
        }
    }

    /// Computes again, from the ledger, the emissions of the carbon budget and of all running jobs. Only the ledger has
    /// the rows of jobs that began under an earlier daemon.
    pub(crate) async fn recount_jobs(&mut self, node: &mut Node<'_>) {
        self.recount_budget(node).await;
        let ids = node.jobs.ids();
        for id in ids {
            let counted = match node.store.intervals_of(&id).await {
                Ok(rows) => self.intensities(node.signal, node.store).over(&rows).await.map(|series| (rows, series)),
                Err(error) => Err(error.into()),
            };
            match (counted, node.jobs.get_mut(&id)) {
                (Ok((rows, series)), Some(job)) => {
                    job.energy_by_kind = by_kind(&rows);
                    self.ledger.raise_recorded(&id, &job.energy_by_kind);
                    job.emissions = HourlyEmissions::of(of_job(&rows, &id, true), &series);
                    job.cpu_emissions = HourlyEmissions::of(of_job(&rows, &id, false), &series);
                }
                (Err(ControlError::Store(error)), _) => self.record_store_fault(&error),
                _ => {}
            }
        }
        self.ledger.recount.clear();
    }

    async fn recount_hour(&mut self, node: &mut Node<'_>, hour: DateTime<Utc>) -> Result<(), ControlError> {
        let rows = node.store.job_rows_of(hour).await?;
        let series = self.intensities(node.signal, node.store).over(&rows).await?;
        let mut of_jobs: BTreeMap<&JobId, Vec<&Interval>> = BTreeMap::new();
        for row in &rows {
            if let Share::Job(id) = &row.share {
                of_jobs.entry(id).or_default().push(row);
            }
        }
        for job in node.jobs.iter_mut() {
            let own = of_jobs.get(&job.id).map(Vec::as_slice).unwrap_or_default();
            let (of_gpus, of_cpus): (Vec<&Interval>, Vec<&Interval>) =
                own.iter().partition(|row| row.device.kind() == DeviceKind::Gpu);
            job.emissions.recount(hour, of_gpus, &series);
            job.cpu_emissions.recount(hour, of_cpus, &series);
        }
        self.budget.recount(hour, &rows, &series);
        Ok(())
    }

    /// Returns the current budget period as the API shows it; `None` without a budget, or once a single budget period
    /// is over.
    pub(crate) fn budget_view(&self, jobs: &Jobs, signal: &Signal, now: DateTime<Utc>) -> Option<BudgetView> {
        let (span, limit) = (self.budget.settings.span(now)?, self.budget.settings.limit()?);
        let counted = self.budget.counted_emissions(&span, signal.basis().value);
        let ahead = Slot::new(now.max(span.start()), span.end())?;
        let planned: GramsCo2e =
            jobs.iter().filter_map(|job| job.plan.as_ref()).map(|plan| plan.carbon_within(&ahead)).sum();
        Some(BudgetView {
            from: span.start(),
            until: span.end(),
            limit_g: limit.get(),
            emissions_g: counted.get(),
            left_g: (limit - counted).get(),
            expected_g: (counted + planned).get(),
        })
    }

    /// Counts the emissions of the current budget period from the ledger whenever a new period begins.
    pub(crate) async fn count_budget(&mut self, node: &mut Node<'_>) {
        let span = self.budget.settings.span(node.now().utc);
        if self.budget.counted.as_ref().map(|(of, _)| *of) != span {
            self.recount_budget(node).await;
        }
    }

    /// Counts the emissions of the current budget period from the ledger, with the intensities known now.
    pub(crate) async fn recount_budget(&mut self, node: &mut Node<'_>) {
        let Some(span) = self.budget.settings.span(node.now().utc) else {
            self.budget.counted = None;
            return;
        };
        match self.emissions_within(node, &span).await {
            Ok(emitted) => self.budget.counted = Some((span, emitted)),
            Err(ControlError::Store(error)) => self.record_store_fault(&error),
            Err(_) => {}
        }
    }

    async fn emissions_within(&self, node: &Node<'_>, span: &Slot) -> Result<HourlyEmissions, ControlError> {
        let mut rows = ledger::within(&node.store.intervals_of_jobs(span).await?, span);
        rows.retain(counts);
        let series = self.intensities(node.signal, node.store).for_jobs(span).await?;
        Ok(HourlyEmissions::of(&rows, &series))
    }
}
