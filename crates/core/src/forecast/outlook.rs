//! Makes a planning horizon without gaps from a model and a source's forecast.

use chrono::{DateTime, TimeDelta, Utc};

use super::blend::SourceOffset;
use super::gap_filling::{KnownValues, decayed, middle};
use super::horizon::{Basis, Horizon, HorizonSlot};
use super::model::{Expected, Forecaster, Model};
use crate::domain::{CarbonSeries, Intensity, Slot};
use crate::units::GramsPerKwh;

/// Returns the length of slots without a published value at a lead: an hour for the first two days, then three, and a
/// day from 30 days ahead on.
fn step_at(lead: TimeDelta) -> TimeDelta {
    match lead {
        lead if lead >= TimeDelta::days(30) => TimeDelta::days(1),
        lead if lead >= TimeDelta::hours(48) => TimeDelta::hours(3),
        _ => TimeDelta::hours(1),
    }
}

/// Maximum length of a horizon, to bound the number of slots.
const LONGEST: TimeDelta = TimeDelta::days(3660);

impl Model {
    /// Returns contiguous slots from `now` (where the first slot is cut off) to `until`, at most ten years ahead; none
    /// if `until ≤ now`.
    ///
    /// `expected` is the source's forecast, which the model corrects and blends with the local forecaster. A gap takes
    /// the value at the same time of day on the nearest known day, else one on a line between the neighbouring values.
    /// Beyond the end of the source's forecast the local forecaster continues it, with a decaying offset. If actual
    /// values are old or missing, the daily profile replaces the local forecaster; without any data, `fallback`
    /// constant does. Last, the values are corrected for past errors that differ between weekends and weekdays.
    pub fn outlook(
        &self,
        expected: &CarbonSeries,
        now: DateTime<Utc>,
        until: DateTime<Utc>,
        fallback: GramsPerKwh,
    ) -> Horizon {
        let until = until.min(now.checked_add_signed(LONGEST).unwrap_or(now));
        let Some(span) = Slot::new(now, until) else { return Horizon::default() };
        let model = self.unless_outdated(now);
        let offset = model.offset(expected, now);
        let corrected = |point: &(Slot, Intensity)| {
            let slot = Slot::new(point.0.start().max(now), point.0.end())?;
            let forecast = model.expect(&slot, Some(point.1.value), &offset, Forecaster::Feed, now)?;
            Some((slot, forecast, point.1.origin))
        };
        let points = expected.points();
        let ahead = &points[points.partition_point(|(slot, _)| slot.end() <= now)..];
        let (within, beyond) = ahead.split_at(ahead.partition_point(|(slot, _)| slot.start() < until));
        let within: Vec<_> = within.iter().filter_map(corrected).collect();
        let given =
            within.iter().filter_map(|(slot, forecast, _)| Some(horizon_slot(slot.intersection(&span)?, *forecast)));
        let given: Vec<HorizonSlot> = given.collect();
        let mut slots = if is_without_gaps(&given, &span) {
            given
        } else {
            // Days of the forecast beyond the end of the horizon help to fill its gaps.
            let beyond = beyond.iter().filter_map(corrected);
            let point =
                |(slot, forecast, origin): (Slot, Expected, _)| (slot, Intensity { value: forecast.intensity, origin });
            let values = within.into_iter().chain(beyond).map(point).collect();
            let known = KnownValues::new(&CarbonSeries::from_points(values).0, model.history(), now, until);
            Fill { model: &model, known: &known, offset: &offset, now, fallback }.gaps(given, &span)
        };
        model.correct_weekends(&mut slots);
        Horizon { slots }
    }
}

/// Returns whether contiguous slots cover the whole span.
fn is_without_gaps(slots: &[HorizonSlot], span: &Slot) -> bool {
    slots.first().is_some_and(|first| first.slot.start() == span.start())
        && slots.last().is_some_and(|last| last.slot.end() == span.end())
        && slots.windows(2).all(|pair| pair[0].slot.end() == pair[1].slot.start())
}

fn horizon_slot(slot: Slot, expected: Expected) -> HorizonSlot {
    let Expected { intensity, low, high, basis } = expected;
    HorizonSlot { slot, intensity, low, high, basis }
}

/// Filler of the spans without a forecast.
struct Fill<'a> {
    model: &'a Model,
    known: &'a KnownValues,
    offset: &'a SourceOffset,
    now: DateTime<Utc>,
    fallback: GramsPerKwh,
}

impl Fill<'_> {
    /// Returns the `given` slots with all gaps of the span filled.
    fn gaps(&self, given: Vec<HorizonSlot>, span: &Slot) -> Vec<HorizonSlot> {
        let mut slots = Vec::with_capacity(given.len());
        let mut at = span.start();
        for slot in given {
            if let Some(gap) = Slot::new(at, slot.slot.start()) {
                self.gap(&gap, &mut slots);
            }
            at = slot.slot.end();
            slots.push(slot);
        }
        if let Some(rest) = Slot::new(at, span.end()) {
            self.gap(&rest, &mut slots);
        }
        slots
    }

    /// Fills a gap with slots on a fixed grid, so that slots do not shift as `now` moves. The grid passes through the
    /// end of the known slot before the gap, else through the start of the one after it, else through 1970-01-01 00:00
    /// UTC.
    fn gap(&self, gap: &Slot, slots: &mut Vec<HorizonSlot>) {
        let points = self.known.series().points();
        let before = points[..points.partition_point(|(s, _)| s.end() <= gap.start())].last().map(|p| p.0.end());
        let after = points.get(points.partition_point(|(s, _)| s.start() < gap.end())).map(|p| p.0.start());
        let anchor = before.or(after).unwrap_or(DateTime::UNIX_EPOCH);
        let beyond_the_end = after.is_none();
        let by_model = beyond_the_end && self.model.has_daily_profile();
        let deviation = if beyond_the_end && !by_model { self.known.last_deviation() } else { None };
        let mut start = gap.start();
        while start < gap.end() {
            let end = next_on_grid(anchor, start, step_at(start - self.now)).min(gap.end());
            let Some(slot) = Slot::new(start, end) else { break };
            let expected = if by_model {
                self.local(&slot)
            } else if beyond_the_end {
                self.extended(&slot, deviation).or_else(|| self.local(&slot))
            } else {
                let other_day = self.known.other_day(&slot).map(|v| self.rough(v, Basis::FilledFromOtherDay));
                let between = || self.known.between_neighbours(&slot);
                other_day.or_else(|| Some(self.rough(between()?, Basis::FilledFromNeighbours)))
            };
            let expected = expected
                .or_else(|| Some(self.rough(self.known.mean()?, Basis::FilledFromNeighbours)))
                .unwrap_or_else(|| self.constant());
            slots.push(horizon_slot(slot, expected));
            start = end;
        }
    }

    fn local(&self, slot: &Slot) -> Option<Expected> {
        self.model.expect(slot, None, self.offset, Forecaster::Feed, self.now)
    }

    fn extended(&self, slot: &Slot, deviation: Option<(DateTime<Utc>, f64)>) -> Option<Expected> {
        let shape = self.known.daily_shape(slot)?;
        let rest = deviation.map_or(0.0, |(since, deviation)| decayed(deviation, middle(slot) - since));
        Some(self.rough(shape + rest, Basis::DailyShape))
    }

    fn rough(&self, value: f64, basis: Basis) -> Expected {
        // A decaying deviation may make the value negative. Clamping it here keeps the half width from becoming
        // negative.
        let value = value.max(0.0);
        Expected::new(value, self.model.rough_width(value), basis)
    }

    /// Returns the configured constant, with a prediction interval from zero to twice the constant.
    fn constant(&self) -> Expected {
        let constant = self.fallback.get();
        Expected::new(constant, constant, Basis::Constant)
    }
}

/// Returns the first time after `t` that is a whole number of `step`s from `anchor`.
fn next_on_grid(anchor: DateTime<Utc>, t: DateTime<Utc>, step: TimeDelta) -> DateTime<Utc> {
    let step_ms = step.num_milliseconds();
    let past = (t - anchor).num_milliseconds().rem_euclid(step_ms);
    // The grid has millisecond resolution; a remainder below that only lengthens the slot slightly.
    t + TimeDelta::milliseconds(step_ms - past)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::domain::Origin;
    use crate::forecast::FALLBACK;
    use crate::units::GramsPerKwh;

    fn at(minutes: i64) -> DateTime<Utc> {
        DateTime::UNIX_EPOCH + TimeDelta::days(20_000) + TimeDelta::minutes(minutes)
    }

    fn series(points: &[(i64, i64, f64)]) -> CarbonSeries {
        let points = points.iter().map(|&(from, to, value)| {
            let intensity = Intensity { value: GramsPerKwh::new(value), origin: Origin::Forecast };
            (Slot::new(at(from), at(to)).expect("from < to"), intensity)
        });
        CarbonSeries::from_points(points.collect()).0
    }

    /// Returns hourly values from `from` to `to` (hours) as a function of the hour.
    fn hourly(from: i64, to: i64, value: impl Fn(i64) -> f64) -> CarbonSeries {
        series(&(from..to).map(|h| (h * 60, h * 60 + 60, value(h))).collect::<Vec<_>>())
    }

    fn sun(hour: i64) -> f64 {
        if (9..17).contains(&hour.rem_euclid(24)) { 100.0 } else { 300.0 }
    }

    fn plan(expected: &CarbonSeries, now: i64, until: i64, recent: &CarbonSeries) -> Horizon {
        let model = Model::fit(&CarbonSeries::default(), &[], recent, at(now));
        model.outlook(expected, at(now), at(until), FALLBACK)
    }

    fn contiguous(horizon: &Horizon, now: i64, until: i64) -> bool {
        let slots = &horizon.slots;
        slots.first().is_some_and(|s| s.slot.start() == at(now))
            && slots.last().is_some_and(|s| s.slot.end() == at(until))
            && slots.windows(2).all(|pair| pair[0].slot.end() == pair[1].slot.start())
    }

    #[test]
    fn published_slots_are_kept_and_the_first_is_cut_at_now() {
        let expected = series(&[(20, 50, 5.0), (50, 80, 7.0)]);
        let horizon = plan(&expected, 30, 80, &CarbonSeries::default());
        assert!(contiguous(&horizon, 30, 80));
        let values: Vec<_> = horizon.slots.iter().map(|s| (s.slot.duration().get(), s.intensity.get())).collect();
        assert_eq!(values, [(1200.0, 5.0), (1800.0, 7.0)]);
        assert_eq!(horizon.summary().to_string(), "2 slots as published");
        assert!(plan(&expected, 80, 80, &CarbonSeries::default()).slots.is_empty());
    }

    #[test]
    fn a_short_horizon_is_the_beginning_of_a_long_one() {
        let (expected, recent) = (hourly(0, 96, sun), hourly(-200, 0, |h| sun(h) + 20.0));
        for published in [CarbonSeries::default(), hourly(-200, 0, |h| sun(h) - 30.0)] {
            let model = Model::fit(&published, &[], &recent, at(30));
            let to = |hours: i64| model.outlook(&expected, at(30), at(hours * 60), FALLBACK).slots;
            // Only the long one has a gap, after the end of the forecast.
            let long = to(120);
            for hours in [1, 5, 60, 96] {
                assert_eq!(to(hours), long[..usize::try_from(hours).expect("few")], "{hours} hours");
            }
        }
    }

    #[test]
    fn a_gap_takes_the_same_time_of_the_nearest_day() {
        let mut expected = hourly(0, 24, |_| 200.0);
        expected.overwrite(&hourly(27, 48, |_| 200.0));
        let recent = hourly(-24, 0, |h| sun(h) + 1.0);
        let horizon = plan(&expected, 0, 48 * 60, &recent);
        assert!(contiguous(&horizon, 0, 48 * 60));
        assert_eq!(
            horizon.summary().to_string(),
            "45 slots as published, 3 slots filled from the same time on another day"
        );
        assert_eq!(horizon.slots[25].intensity, GramsPerKwh::new(200.0), "yesterday is nearer than the day before");
    }

    #[test]
    fn a_gap_without_other_days_is_interpolated_between_its_neighbours() {
        let horizon = plan(&series(&[(0, 60, 100.0), (180, 240, 400.0)]), 0, 240, &CarbonSeries::default());
        let values: Vec<_> = horizon.slots.iter().map(|s| s.intensity.get().round()).collect();
        assert_eq!(values, [100.0, 200.0, 300.0, 400.0]);
        assert_eq!(horizon.slots[1].basis, Basis::FilledFromNeighbours);
    }

    #[test]
    fn beyond_the_end_the_daily_profile_continues_and_a_deviation_decays() {
        let usual = plan(&hourly(0, 6, sun), 0, 30 * 60, &hourly(-7 * 24, 0, sun));
        assert!(contiguous(&usual, 0, 30 * 60));
        assert!(usual.slots.iter().zip(0..).all(|(slot, h)| (slot.intensity.get() - sun(h)).abs() < 1e-9), "{usual:?}");
        assert_eq!(usual.summary().to_string(), "6 slots as published, 24 slots by the local forecaster");

        let dirty = plan(&hourly(0, 6, |h| sun(h) + 50.0), 0, 54 * 60, &hourly(-7 * 24, 0, sun));
        let excess: Vec<_> = dirty.slots[6..].iter().zip(6..).map(|(slot, h)| slot.intensity.get() - sun(h)).collect();
        assert!(excess[0] > 45.0 && excess[0] < 50.0, "{excess:?}");
        assert!(excess[17] > 0.0 && excess[17] < excess[0] / 1.5, "{excess:?}");
        assert!(dirty.slots[48..].iter().all(|s| s.slot.duration().get() == 3.0 * 3600.0), "coarser beyond two days");
    }

    #[test]
    fn without_data_slots_are_constant_and_do_not_shift() {
        let nothing = CarbonSeries::default();
        let horizon = plan(&nothing, 12, 150, &nothing);
        assert!(contiguous(&horizon, 12, 150));
        assert_eq!(horizon.slots.len(), 3);
        assert_eq!(horizon.slots[0].slot.end(), at(60));
        assert_eq!(horizon.slots[2].intensity, GramsPerKwh::new(475.0));
        assert_eq!(horizon.summary().constant, 3);
        let far = Model::default().outlook(&nothing, at(0), DateTime::<Utc>::MAX_UTC, FALLBACK);
        assert!(far.slots.len() < 5000);
    }

    proptest! {
        #[test]
        fn every_horizon_is_contiguous_and_never_negative(
            ahead in prop::collection::vec((-3000i64..3000, 1i64..200, 0.0f64..900.0), 0..30),
            behind in prop::collection::vec((-9000i64..0, 1i64..200, 0.0f64..900.0), 0..30),
            now in -500i64..500,
            length in 1i64..6000,
        ) {
            let spans = |points: &[(i64, i64, f64)]| series(&points.iter().map(|&(f, l, v)| (f, f + l, v)).collect::<Vec<_>>());
            let (expected, recent) = (spans(&ahead), spans(&behind));
            let horizon = plan(&expected, now, now + length, &recent);
            prop_assert!(contiguous(&horizon, now, now + length));
            for slot in &horizon.slots {
                prop_assert!((0.0..=2000.0).contains(&slot.intensity.get()));
                if let Some((_, given)) = expected.at(slot.slot.start()) {
                    prop_assert_eq!((slot.intensity, slot.basis), (given.value, Basis::Given));
                }
            }
        }
    }
}
