//! Hours counted anew of which something else is known than when their energy was recorded.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, Utc};

use super::Accounting;
use super::hourly_emissions::{HourlyEmissions, by_kind, of_job};
use crate::controller::error::ControlError;
use crate::controller::node::Node;
use wattune_core::domain::{DeviceKind, JobId, Slot};
use wattune_core::ledger::apportion::hours_of;
use wattune_core::ledger::{Interval, Share};

/// So many hours are counted anew in one tick, the newest first.
const RECOUNTED_AT_ONCE: usize = 24;

impl Accounting {
    /// Has what was emitted in these times counted anew: something else is known of them than when it was booked.
    pub(in crate::controller) fn recount_in<'a>(
        &mut self,
        node: &mut Node<'_>,
        slots: impl IntoIterator<Item = &'a Slot>,
    ) {
        let now = node.now().utc;
        let past = slots.into_iter().filter(|slot| slot.start() < now);
        self.ledger.recount.extend(past.flat_map(hours_of).filter(|hour| *hour < now));
    }

    /// The same of all times.
    pub(in crate::controller) fn recount_everything(&mut self, node: &mut Node<'_>) {
        let counted = self.counted_hours(node).collect::<Vec<_>>();
        self.ledger.recount.extend(counted);
    }

    /// Hours of which a running job or the budget holds a sum.
    fn counted_hours(&self, node: &Node<'_>) -> impl Iterator<Item = DateTime<Utc>> {
        let of_jobs = node.jobs.iter().flat_map(|job| job.emissions.hours().chain(job.beside.hours()));
        of_jobs.chain(self.budget.hours())
    }

    /// Counts some of the hours anew that wait for it.
    pub(in crate::controller) async fn recount_hours(&mut self, node: &mut Node<'_>) {
        if self.ledger.recount.is_empty() {
            return;
        }
        let counted: BTreeSet<_> = self.counted_hours(node).collect();
        self.ledger.recount.retain(|hour| counted.contains(hour));
        for _ in 0..RECOUNTED_AT_ONCE {
            let Some(hour) = self.ledger.recount.last().copied() else { return };
            match self.recount_hour(node, hour).await {
                Err(ControlError::Store(error)) => return self.note_store_fault(&error),
                Err(_) | Ok(()) => self.ledger.recount.remove(&hour),
            };
        }
    }

    /// Has every job show what the books hold for it: those that an earlier daemon took up began there.
    pub(in crate::controller) async fn recount_jobs(&mut self, node: &mut Node<'_>) {
        self.recount_budget(node).await;
        let ids = node.jobs.ids();
        for id in ids {
            let counted = match node.store.intervals_of(&id).await {
                Ok(rows) => self.intensities(node.signal, node.store).over(&rows).await.map(|series| (rows, series)),
                Err(error) => Err(error.into()),
            };
            match (counted, node.jobs.get_mut(&id)) {
                (Ok((rows, series)), Some(job)) => {
                    job.used = by_kind(&rows);
                    job.emissions = HourlyEmissions::of(of_job(&rows, &id, true), &series);
                    job.beside = HourlyEmissions::of(of_job(&rows, &id, false), &series);
                }
                (Err(ControlError::Store(error)), _) => self.note_store_fault(&error),
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
            let (boards, beside): (Vec<&Interval>, Vec<&Interval>) =
                own.iter().partition(|row| row.device.kind() == DeviceKind::Gpu);
            job.emissions.recount(hour, boards, &series);
            job.beside.recount(hour, beside, &series);
        }
        self.budget.recount(hour, &rows, &series);
        Ok(())
    }
}
