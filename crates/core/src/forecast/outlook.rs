//! From a model and a source's forecast to a horizon without gaps.

use chrono::{DateTime, TimeDelta, Utc};

use super::blend::Apart;
use super::horizon::{Basis, Horizon, HorizonPolicy, HorizonSlot};
use super::known::{Known, decayed, middle};
use super::model::{Expected, Follow, Model};
use crate::domain::{CarbonSeries, Intensity, Slot};

/// Nothing is planned further ahead; it bounds the number of slots whatever is asked.
const LONGEST: TimeDelta = TimeDelta::days(3660);

impl Model {
    /// Contiguous slots from `now` (the first one cut at it) to `until`, ten years ahead at the most; none if
    /// `until ≤ now`.
    ///
    /// `expected` is the source's forecast. Where it says something, that counts, corrected and mixed as this model
    /// learnt. Holes in it take the same time of day of the nearest known day, else a line between the values around
    /// them. Beyond its end the local forecaster goes on, with what the forecast lay off it fading out; if outcomes are
    /// old or missing it is the daily shape of what is known; if nothing is, the policy's constant.
    pub fn outlook(
        &self,
        expected: &CarbonSeries,
        now: DateTime<Utc>,
        until: DateTime<Utc>,
        policy: &HorizonPolicy,
    ) -> Horizon {
        let until = until.min(now.checked_add_signed(LONGEST).unwrap_or(now));
        let Some(span) = Slot::new(now, until) else { return Horizon::default() };
        let model = self.remembered_at(now);
        let apart = model.apart(expected, now);
        let mut given = Vec::new();
        let mut points = Vec::new();
        // Days beyond the end of the horizon help to fill its holes.
        for (slot, intensity) in expected.points().iter().filter(|(slot, _)| slot.end() > now) {
            let Some(slot) = Slot::new(slot.start().max(now), slot.end()) else { continue };
            let Some(learnt) = model.expect(&slot, Some(intensity.value), &apart, Follow::Feed, now) else { continue };
            points.push((slot, Intensity { value: learnt.intensity, origin: intensity.origin }));
            if let Some(slot) = slot.intersection(&span) {
                given.push(horizon_slot(slot, learnt));
            }
        }
        let known = Known::new(&CarbonSeries::from_points(points).0, model.history(), now, until);
        let fill = Fill { model: &model, known: &known, apart: &apart, now, policy };
        let mut slots = Vec::with_capacity(given.len());
        let mut at = now;
        for slot in given {
            if let Some(hole) = Slot::new(at, slot.slot.start()) {
                fill.hole(&hole, &mut slots);
            }
            at = slot.slot.end();
            slots.push(slot);
        }
        if let Some(rest) = Slot::new(at, until) {
            fill.hole(&rest, &mut slots);
        }
        Horizon { slots }
    }
}

fn horizon_slot(slot: Slot, expected: Expected) -> HorizonSlot {
    let Expected { intensity, low, high, basis } = expected;
    HorizonSlot { slot, intensity, low, high, basis }
}

/// What fills the spans about which nothing was said.
struct Fill<'a> {
    model: &'a Model,
    known: &'a Known,
    apart: &'a Apart,
    now: DateTime<Utc>,
    policy: &'a HorizonPolicy,
}

impl Fill<'_> {
    /// Cut where a grid through the nearest known boundary (the full hours where there is none) cuts it, so that slots
    /// stay where they are while `now` moves on.
    fn hole(&self, hole: &Slot, slots: &mut Vec<HorizonSlot>) {
        let points = self.known.series().points();
        let before = points[..points.partition_point(|(s, _)| s.end() <= hole.start())].last().map(|p| p.0.end());
        let after = points.get(points.partition_point(|(s, _)| s.start() < hole.end())).map(|p| p.0.start());
        let anchor = before.or(after).unwrap_or(DateTime::UNIX_EPOCH);
        let beyond_the_end = after.is_none();
        let by_model = beyond_the_end && self.model.knows_the_day();
        let deviation = if beyond_the_end && !by_model { self.known.last_deviation() } else { None };
        let mut start = hole.start();
        while start < hole.end() {
            let end = next_on_grid(anchor, start, self.policy.step(start - self.now)).min(hole.end());
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
        self.model.expect(slot, None, self.apart, Follow::Feed, self.now)
    }

    fn extended(&self, slot: &Slot, deviation: Option<(DateTime<Utc>, f64)>) -> Option<Expected> {
        let shape = self.known.daily_shape(slot)?;
        let rest = deviation.map_or(0.0, |(since, deviation)| decayed(deviation, middle(slot) - since));
        Some(self.rough(shape + rest, Basis::DailyShape))
    }

    fn rough(&self, value: f64, basis: Basis) -> Expected {
        // What fades out may lead below zero; the width of nothing is none.
        let value = value.max(0.0);
        Expected::new(value, self.model.rough_width(value), basis)
    }

    /// Anything up to twice the constant: it is no knowledge.
    fn constant(&self) -> Expected {
        let constant = self.policy.fallback.get();
        Expected::new(constant, constant, Basis::Constant)
    }
}

/// The first multiple of `step` from `anchor` that lies after `t`.
fn next_on_grid(anchor: DateTime<Utc>, t: DateTime<Utc>, step: TimeDelta) -> DateTime<Utc> {
    let step_ms = step.num_milliseconds();
    let past = (t - anchor).num_milliseconds().rem_euclid(step_ms);
    // Below the millisecond the grid does not exist: a remainder there may only make the slot a little longer.
    t + TimeDelta::milliseconds(step_ms - past)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::domain::Origin;
    use crate::forecast::ModelPolicy;
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

    /// Hourly from `from` to `to` (hours), by a function of the hour.
    fn hourly(from: i64, to: i64, value: impl Fn(i64) -> f64) -> CarbonSeries {
        series(&(from..to).map(|h| (h * 60, h * 60 + 60, value(h))).collect::<Vec<_>>())
    }

    fn sun(hour: i64) -> f64 {
        if (9..17).contains(&hour.rem_euclid(24)) { 100.0 } else { 300.0 }
    }

    fn plan(expected: &CarbonSeries, now: i64, until: i64, recent: &CarbonSeries) -> Horizon {
        let model = Model::fit(&CarbonSeries::default(), &[], recent, at(now), &ModelPolicy::default());
        model.outlook(expected, at(now), at(until), &HorizonPolicy::default())
    }

    fn contiguous(horizon: &Horizon, now: i64, until: i64) -> bool {
        let slots = &horizon.slots;
        slots.first().is_some_and(|s| s.slot.start() == at(now))
            && slots.last().is_some_and(|s| s.slot.end() == at(until))
            && slots.windows(2).all(|pair| pair[0].slot.end() == pair[1].slot.start())
    }

    #[test]
    fn given_slots_stay_and_the_first_is_cut_at_now() {
        let expected = series(&[(20, 50, 5.0), (50, 80, 7.0)]);
        let horizon = plan(&expected, 30, 80, &CarbonSeries::default());
        assert!(contiguous(&horizon, 30, 80));
        let values: Vec<_> = horizon.slots.iter().map(|s| (s.slot.duration().get(), s.intensity.get())).collect();
        assert_eq!(values, [(1200.0, 5.0), (1800.0, 7.0)]);
        assert_eq!(horizon.summary().to_string(), "2 slots as given");
        assert!(plan(&expected, 80, 80, &CarbonSeries::default()).slots.is_empty());
    }

    #[test]
    fn a_hole_takes_the_same_time_of_the_nearest_day() {
        let mut expected = hourly(0, 24, |_| 200.0);
        expected.overwrite(&hourly(27, 48, |_| 200.0));
        let recent = hourly(-24, 0, |h| sun(h) + 1.0);
        let horizon = plan(&expected, 0, 48 * 60, &recent);
        assert!(contiguous(&horizon, 0, 48 * 60));
        assert_eq!(
            horizon.summary().to_string(),
            "45 slots as given, 3 slots filled from the same time on another day"
        );
        assert_eq!(horizon.slots[25].intensity, GramsPerKwh::new(200.0), "yesterday is nearer than the day before");
    }

    #[test]
    fn a_hole_without_other_days_lies_on_the_line_between_its_neighbours() {
        let horizon = plan(&series(&[(0, 60, 100.0), (180, 240, 400.0)]), 0, 240, &CarbonSeries::default());
        let values: Vec<_> = horizon.slots.iter().map(|s| s.intensity.get().round()).collect();
        assert_eq!(values, [100.0, 200.0, 300.0, 400.0]);
        assert_eq!(horizon.slots[1].basis, Basis::FilledFromNeighbours);
    }

    #[test]
    fn beyond_the_end_the_daily_shape_goes_on_and_a_deviation_fades() {
        let usual = plan(&hourly(0, 6, sun), 0, 30 * 60, &hourly(-7 * 24, 0, sun));
        assert!(contiguous(&usual, 0, 30 * 60));
        assert!(usual.slots.iter().zip(0..).all(|(slot, h)| (slot.intensity.get() - sun(h)).abs() < 1e-9), "{usual:?}");
        assert_eq!(usual.summary().to_string(), "6 slots as given, 24 slots by the local forecaster");

        let dirty = plan(&hourly(0, 6, |h| sun(h) + 50.0), 0, 54 * 60, &hourly(-7 * 24, 0, sun));
        let excess: Vec<_> = dirty.slots[6..].iter().zip(6..).map(|(slot, h)| slot.intensity.get() - sun(h)).collect();
        assert!(excess[0] > 45.0 && excess[0] < 50.0, "{excess:?}");
        assert!(excess[17] > 0.0 && excess[17] < excess[0] / 1.5, "{excess:?}");
        assert!(dirty.slots[48..].iter().all(|s| s.slot.duration().get() == 3.0 * 3600.0), "coarser beyond two days");
    }

    #[test]
    fn without_any_value_there_is_the_constant_in_slots_that_stay_put() {
        let nothing = CarbonSeries::default();
        let horizon = plan(&nothing, 12, 150, &nothing);
        assert!(contiguous(&horizon, 12, 150));
        assert_eq!(horizon.slots.len(), 3);
        assert_eq!(horizon.slots[0].slot.end(), at(60));
        assert_eq!(horizon.slots[2].intensity, GramsPerKwh::new(475.0));
        assert_eq!(horizon.summary().constant, 3);
        let far = Model::default().outlook(&nothing, at(0), DateTime::<Utc>::MAX_UTC, &HorizonPolicy::default());
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
