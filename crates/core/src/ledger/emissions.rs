//! Emissions, computed as energy × the best known carbon intensity, and the origins of these intensities.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Interval;
use crate::domain::{CarbonSeries, EnergySource, Origin, SENSOR_GAIN, Slot};
use crate::units::{GramsCo2e, GramsPerKwh, Joules};

/// Energy, its emissions, and the origins of the carbon intensities used.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Emissions {
    /// Total energy, with and without a known carbon intensity.
    pub energy: Joules,
    /// Emissions of the energy with a known carbon intensity.
    pub carbon: GramsCo2e,
    /// Energy with a known carbon intensity, by the origin of the intensity.
    pub by_origin: BTreeMap<Origin, Joules>,
    /// Energy without a known carbon intensity. Its emissions are unknown, not zero, and are not in `carbon`.
    pub unknown: Joules,
    /// Energy that was not read from a monitored counter: integrated from power, or measured over a gap.
    pub estimated: Joules,
}

impl Emissions {
    /// Returns the mean carbon intensity of the energy whose intensity is known; `None` if there is no such energy.
    pub fn mean_intensity(&self) -> Option<GramsPerKwh> {
        let known = self.energy - self.unknown;
        (known > Joules::ZERO).then(|| GramsPerKwh::new(self.carbon / (known * GramsPerKwh::new(1.0))))
    }

    /// Returns the relative uncertainty of the energy: 5 % (sensor gain error) for energy from monitored counters, 10 %
    /// for the rest. Gain errors are systematic and therefore added, not averaged.
    pub fn uncertainty(&self) -> f64 {
        let estimated = if self.energy > Joules::ZERO { self.estimated / self.energy } else { 0.0 };
        SENSOR_GAIN * (1.0 + estimated)
    }

    /// Returns an estimate of the emissions of all energy. Energy without a carbon intensity counts with the mean
    /// intensity of the rest, or with `otherwise` if no energy has an intensity.
    pub fn estimate(&self, otherwise: GramsPerKwh) -> GramsCo2e {
        self.carbon + self.unknown * self.mean_intensity().unwrap_or(otherwise)
    }

    /// Adds further energy and emissions.
    pub fn add(&mut self, more: &Self) {
        self.energy += more.energy;
        self.carbon += more.carbon;
        self.unknown += more.unknown;
        self.estimated += more.estimated;
        for (origin, energy) in &more.by_origin {
            *self.by_origin.entry(*origin).or_default() += *energy;
        }
    }
}

/// Returns the emissions of energy intervals with the carbon intensities `series`. Power is assumed to be constant
/// within an interval: the energy of an interval with several intensities is divided in proportion to their durations.
pub fn emissions<'a>(intervals: impl IntoIterator<Item = &'a Interval>, series: &CarbonSeries) -> Emissions {
    let mut sum = Emissions::default();
    for interval in intervals {
        let energy = interval.energy.to_joules();
        let span = interval.slot.duration();
        sum.energy += energy;
        if interval.source != EnergySource::Counter {
            sum.estimated += energy;
        }
        let mut unknown = energy;
        for (slot, intensity) in series.overlapping(&interval.slot) {
            let Some(part) = slot.intersection(&interval.slot) else { continue };
            let used = energy * (part.duration() / span);
            unknown -= used;
            sum.carbon += used * intensity.value;
            *sum.by_origin.entry(intensity.origin).or_default() += used;
        }
        // The remainder of a fully covered interval is a rounding error.
        if unknown > energy * 1e-9 {
            sum.unknown += unknown;
        }
    }
    sum
}

/// Returns the mean carbon intensity over a span; `None` if a second or more of it has no value.
pub fn mean_intensity(series: &CarbonSeries, span: &Slot) -> Option<GramsPerKwh> {
    let (mean, covered) = series.mean_over(span, |i| i.value.get())?;
    ((span.duration() - covered).get() < 1.0).then(|| GramsPerKwh::new(mean))
}

#[cfg(test)]
mod tests {
    use chrono::{DateTime, TimeDelta};

    use super::*;
    use crate::domain::{DeviceId, Intensity, TimeSeries};
    use crate::ledger::Share;
    use crate::units::Millijoules;

    fn slot(from: i64, to: i64) -> Slot {
        let at = |minutes| DateTime::UNIX_EPOCH + TimeDelta::minutes(minutes);
        Slot::new(at(from), at(to)).expect("from < to")
    }

    fn interval(slot: Slot, joules: u64) -> Interval {
        let energy = Millijoules::new(joules * 1000);
        let device = DeviceId::new("GPU-0").expect("an id");
        Interval { device, share: Share::Idle, slot, energy, source: EnergySource::Counter }
    }

    #[test]
    fn energy_across_slots_is_divided_by_time_and_unknown_intensities_stay_unknown() {
        let known = |value, origin| Intensity { value: GramsPerKwh::new(value), origin };
        let (series, _) = TimeSeries::from_points(vec![
            (slot(0, 30), known(300.0, Origin::Measured)),
            (slot(30, 60), known(0.0, Origin::Forecast)),
        ]);
        let rows = [interval(slot(20, 40), 3_600_000), interval(slot(50, 70), 3_600_000)];
        let sum = emissions(&rows, &series);
        assert!((sum.carbon.get() - 150.0).abs() < 1e-9, "{sum:?}");
        assert!((sum.unknown.get() - 1_800_000.0).abs() < 1e-6, "{sum:?}");
        assert!((sum.by_origin[&Origin::Forecast].get() - 3_600_000.0).abs() < 1e-6, "{sum:?}");
        assert!((sum.uncertainty() - 0.05).abs() < 1e-9 && (Emissions::default().uncertainty() - 0.05).abs() < 1e-9);
        let gap = Interval { source: EnergySource::CounterGap, ..interval(slot(20, 40), 1_200_000) };
        assert!((emissions(&[rows[0].clone(), gap], &series).uncertainty() - 0.0625).abs() < 1e-9);
        let mean = sum.mean_intensity().expect("something is known").get();
        assert!((mean - 150.0 / 1.5).abs() < 1e-9, "{mean}");
    }

    #[test]
    fn a_mean_over_unknown_time_is_none() {
        let known = Intensity { value: GramsPerKwh::new(100.0), origin: Origin::Measured };
        let (series, _) = TimeSeries::from_points(vec![(slot(0, 30), known)]);
        assert_eq!(mean_intensity(&series, &slot(10, 20)), Some(GramsPerKwh::new(100.0)));
        assert_eq!(mean_intensity(&series, &slot(10, 40)), None);
    }
}
