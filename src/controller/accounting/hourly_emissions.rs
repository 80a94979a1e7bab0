//! What was emitted, by the hour in which it was, so that hours of which something new is told are counted anew: a
//! running job has one figure, wherever it is asked for.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, TimeDelta, Utc};

use super::Accounting;
use crate::controller::error::ControlError;
use crate::controller::node::Node;
use wattune_core::domain::{CarbonSeries, DeviceKind, JobId, Slot};
use wattune_core::ledger::apportion::{hour_of, hours_of};
use wattune_core::ledger::{self, Emissions, Interval, Share};
use wattune_core::units::{GramsPerKwh, Millijoules, Seconds};

/// So many hours are counted anew in one tick, the newest first.
const RECOUNTED_AT_ONCE: usize = 24;

/// Energy and what it emitted, by UTC hour.
#[derive(Clone, Debug, Default)]
pub(in crate::controller) struct HourlyEmissions {
    hours: BTreeMap<DateTime<Utc>, Emissions>,
    sum: Emissions,
}

impl HourlyEmissions {
    pub(in crate::controller) fn of<'a>(rows: impl IntoIterator<Item = &'a Interval>, series: &CarbonSeries) -> Self {
        let mut all = Self::default();
        for row in rows {
            all.add(row, series);
        }
        all
    }

    /// Adds a row of the books.
    pub(in crate::controller) fn add(&mut self, row: &Interval, series: &CarbonSeries) {
        let more = ledger::emissions([row], series);
        self.hours.entry(hour_of(row.slot.start())).or_default().add(&more);
        self.sum.add(&more);
    }

    /// Puts rows in the place of all that was added of an hour.
    pub(in crate::controller) fn recount<'a>(
        &mut self,
        hour: DateTime<Utc>,
        rows: impl IntoIterator<Item = &'a Interval>,
        series: &CarbonSeries,
    ) {
        self.hours.remove(&hour);
        for row in rows {
            self.hours.entry(hour).or_default().add(&ledger::emissions([row], series));
        }
        self.sum = Emissions::default();
        for of_hour in self.hours.values() {
            self.sum.add(of_hour);
        }
    }

    /// All of it.
    pub(in crate::controller) fn sum(&self) -> &Emissions {
        &self.sum
    }

    /// The mean intensity over a span, from the hours in it; `None` where none of their energy has an intensity.
    pub(in crate::controller) fn mean_intensity_over(&self, span: &Slot) -> Option<GramsPerKwh> {
        let (mut time, mut sum) = (Seconds::ZERO, 0.0);
        for (hour, emissions) in &self.hours {
            let part = Slot::new(*hour, *hour + TimeDelta::hours(1)).and_then(|hour| hour.intersection(span));
            if let Some((part, intensity)) = part.zip(emissions.mean_intensity()) {
                time += part.duration();
                sum += intensity.get() * part.duration().get();
            }
        }
        (time > Seconds::ZERO).then(|| GramsPerKwh::new(sum / time.get()))
    }

    /// The hours in which there is something.
    pub(in crate::controller) fn hours(&self) -> impl Iterator<Item = DateTime<Utc>> {
        self.hours.keys().copied()
    }
}

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

/// A job's rows of boards, or of what is beside them.
pub(in crate::controller) fn of_job<'a>(
    rows: &'a [Interval],
    id: &'a JobId,
    of_boards: bool,
) -> impl Iterator<Item = &'a Interval> {
    let is_its = move |row: &&Interval| {
        matches!(&row.share, Share::Job(of) if of == id) && (row.device.kind() == DeviceKind::Gpu) == of_boards
    };
    rows.iter().filter(is_its)
}

/// Energy by what used it.
pub(in crate::controller) fn by_kind(rows: &[Interval]) -> BTreeMap<DeviceKind, Millijoules> {
    let mut sums = BTreeMap::new();
    for row in rows {
        *sums.entry(row.device.kind()).or_default() += row.energy;
    }
    sums
}

#[cfg(test)]
mod tests {
    use chrono::TimeDelta;
    use proptest::prelude::*;

    use super::*;
    use wattune_core::domain::{DeviceId, EnergySource, Intensity, Origin};
    use wattune_core::units::{GramsPerKwh, Millijoules};

    fn at(minutes: i64) -> DateTime<Utc> {
        DateTime::UNIX_EPOCH + TimeDelta::minutes(minutes)
    }

    fn row(minute: i64, energy: u64) -> Interval {
        let slot = Slot::new(at(minute), at(minute + 1)).expect("from < to");
        let device = DeviceId::new("GPU-0").expect("an id");
        Interval { device, share: Share::Idle, slot, energy: Millijoules::new(energy), source: EnergySource::Counter }
    }

    fn hourly(values: &[f64]) -> CarbonSeries {
        let point = |(hour, value): (i64, &f64)| {
            let slot = Slot::new(at(60 * hour), at(60 * hour + 60)).expect("from < to");
            (slot, Intensity { value: GramsPerKwh::new(*value), origin: Origin::Measured })
        };
        CarbonSeries::from_points((0..).zip(values).map(point).collect()).0
    }

    proptest! {
        #[test]
        fn hours_counted_anew_come_to_what_all_comes_to_by_what_is_known_now(
            minutes in prop::collection::vec((0i64..240, 0u64..10_000_000), 0..60),
            before in prop::collection::vec(0.0f64..900.0, 4),
            after in prop::collection::vec(0.0f64..900.0, 4),
        ) {
            let rows: Vec<Interval> = minutes.into_iter().map(|(minute, energy)| row(minute, energy)).collect();
            let mut sums = HourlyEmissions::of(&rows, &hourly(&before));
            let hours: Vec<_> = sums.hours().collect();
            for hour in hours {
                sums.recount(hour, rows.iter().filter(|r| hour_of(r.slot.start()) == hour), &hourly(&after));
            }
            let anew = ledger::emissions(&rows, &hourly(&after));
            let tolerance = 1e-9 * (1.0 + anew.carbon.get());
            prop_assert!((sums.sum().carbon - anew.carbon).get().abs() < tolerance, "{:?} {anew:?}", sums.sum());
            prop_assert!((sums.sum().energy - anew.energy).get().abs() < 1e-6);
        }
    }
}
