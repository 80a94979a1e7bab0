//! Emissions by hour. When carbon intensities of an hour change, the emissions of that hour are counted again, so that
//! all figures for a job's emissions agree.

use std::collections::BTreeMap;

use chrono::{DateTime, TimeDelta, Utc};

use wattune_core::domain::{CarbonSeries, DeviceKind, JobId, Slot};
use wattune_core::ledger::apportion::hour_of;
use wattune_core::ledger::{self, Emissions, Interval, Share};
use wattune_core::units::{GramsPerKwh, Millijoules, Seconds};

/// Energy and the emissions of that energy, by UTC hour.
#[derive(Clone, Debug, Default)]
pub(crate) struct HourlyEmissions {
    hours: BTreeMap<DateTime<Utc>, Emissions>,
    sum: Emissions,
}

impl HourlyEmissions {
    pub(crate) fn of<'a>(rows: impl IntoIterator<Item = &'a Interval>, series: &CarbonSeries) -> Self {
        let mut all = Self::default();
        for row in rows {
            all.add(row, series);
        }
        all
    }

    /// Adds a row of the ledger, with its emissions by the intensities in `series`.
    pub(crate) fn add(&mut self, row: &Interval, series: &CarbonSeries) {
        let more = ledger::emissions([row], series);
        self.hours.entry(hour_of(row.slot.start())).or_default().add(&more);
        self.sum.add(&more);
    }

    /// Replaces an hour's energy and emissions by those of `rows` with the intensities in `series`.
    pub(crate) fn recount<'a>(
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

    /// Returns the sum over all hours.
    pub(crate) fn sum(&self) -> &Emissions {
        &self.sum
    }

    /// Returns the mean carbon intensity over a span: the mean intensity of each hour's energy, weighted by the hour's
    /// time within the span. `None` if no hour in the span has an intensity.
    pub(crate) fn mean_intensity_over(&self, span: &Slot) -> Option<GramsPerKwh> {
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

    /// Returns the hours with energy.
    pub(crate) fn hours(&self) -> impl Iterator<Item = DateTime<Utc>> {
        self.hours.keys().copied()
    }
}

/// Returns a job's rows: those of GPUs if `of_gpus`, otherwise those of CPU packages and memory.
pub(crate) fn of_job<'a>(rows: &'a [Interval], id: &'a JobId, of_gpus: bool) -> impl Iterator<Item = &'a Interval> {
    let is_its = move |row: &&Interval| {
        matches!(&row.share, Share::Job(of) if of == id) && (row.device.kind() == DeviceKind::Gpu) == of_gpus
    };
    rows.iter().filter(is_its)
}

/// Returns the sum of the rows' energy for each kind of device.
pub(crate) fn by_kind(rows: &[Interval]) -> BTreeMap<DeviceKind, Millijoules> {
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
