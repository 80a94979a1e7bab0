//! A horizon without gaps, in which every slot says what its value rests on.

use std::fmt;

use chrono::{DateTime, TimeDelta, Utc};
use serde::{Deserialize, Serialize};

use super::blend::Apart;
use super::known::{Known, decayed, middle};
use super::model::{Expected, Follow, Model};
use crate::domain::{CarbonSeries, Intensity, Slot};
use crate::units::{GramsPerKwh, Seconds};

/// Nothing is planned further ahead; it bounds the number of slots whatever is asked.
const LONGEST: TimeDelta = TimeDelta::days(3660);

/// What the value of a slot rests on, from the best to the poorest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Basis {
    /// The source said it, and there is nothing to correct it by.
    Given,
    /// The source said it; corrected by what it lately got wrong, and mixed with the local forecaster as far as that did
    /// better.
    Corrected,
    /// A hole in the forecast, filled from the same time of day on the nearest known day.
    FilledFromOtherDay,
    /// A hole or the time beyond the end, filled from the known values next to it, or from the mean of all.
    FilledFromNeighbours,
    /// Beyond the forecast's end, or without one: the local forecaster, on outcomes that are a day old at the most.
    Local,
    /// The same on older outcomes, or on what is given of other days: their daily shape.
    DailyShape,
    /// Nothing is known: the configured constant.
    Constant,
}

/// One slot of a horizon.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct HorizonSlot {
    /// When.
    pub slot: Slot,
    /// What to reckon with, in gCO2e/kWh; never negative.
    pub intensity: GramsPerKwh,
    /// The outcome lies at or above this, and at or below `high`, four times in five.
    pub low: GramsPerKwh,
    /// See `low`.
    pub high: GramsPerKwh,
    /// Why.
    pub basis: Basis,
}

/// Contiguous slots, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Horizon {
    /// Each begins where the one before it ends.
    pub slots: Vec<HorizonSlot>,
}

/// How the unknown is cut into slots, and what stands for it when nothing is known.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HorizonPolicy {
    /// The constant of last resort, in gCO2e/kWh.
    pub fallback: GramsPerKwh,
    /// How far ahead of now slots without a value are short.
    pub near: Seconds,
    /// The length of slots without a value within `near`.
    pub near_step: Seconds,
    /// The length of slots without a value beyond `near`; daily from a month ahead on.
    pub far_step: Seconds,
}

impl Default for HorizonPolicy {
    /// 475 g/kWh (a world average), 1 h slots for two days, then 3 h.
    fn default() -> Self {
        Self {
            fallback: GramsPerKwh::new(475.0),
            near: Seconds::new(48.0 * 3600.0),
            near_step: Seconds::new(3600.0),
            far_step: Seconds::new(3.0 * 3600.0),
        }
    }
}

impl HorizonPolicy {
    fn step(&self, lead: TimeDelta) -> TimeDelta {
        let step = if lead >= TimeDelta::days(30) {
            TimeDelta::days(1)
        } else if Seconds::from_delta(lead) < self.near {
            self.near_step.to_delta()
        } else {
            self.far_step.to_delta()
        };
        step.max(TimeDelta::minutes(1))
    }
}

/// How many slots of a horizon rest on what. Displays as a sentence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct HorizonSummary {
    /// [`Basis::Given`].
    pub given: usize,
    /// [`Basis::Corrected`].
    pub corrected: usize,
    /// [`Basis::FilledFromOtherDay`].
    pub filled_from_other_day: usize,
    /// [`Basis::FilledFromNeighbours`].
    pub filled_from_neighbours: usize,
    /// [`Basis::Local`].
    pub local: usize,
    /// [`Basis::DailyShape`].
    pub daily_shape: usize,
    /// [`Basis::Constant`].
    pub constant: usize,
}

impl fmt::Display for HorizonSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let slots = |n: usize| if n == 1 { "1 slot".to_owned() } else { format!("{n} slots") };
        let parts = [
            (self.given, "as given"),
            (self.corrected, "as given, corrected by what came before"),
            (self.filled_from_other_day, "filled from the same time on another day"),
            (self.filled_from_neighbours, "filled from the values next to it"),
            (self.local, "by the local forecaster"),
            (self.daily_shape, "by the daily shape"),
            (self.constant, "at the configured constant because nothing is known"),
        ];
        let said: Vec<_> = parts.iter().filter(|p| p.0 > 0).map(|(n, how)| format!("{} {how}", slots(*n))).collect();
        f.write_str(if said.is_empty() { "no slots" } else { "" })?;
        f.write_str(&said.join(", "))
    }
}

impl Horizon {
    /// The time-weighted mean in gCO2e/kWh; `None` without slots.
    pub fn mean(&self) -> Option<GramsPerKwh> {
        let seconds: f64 = self.slots.iter().map(|s| s.slot.duration().get()).sum();
        let weighted: f64 = self.slots.iter().map(|s| s.slot.duration().get() * s.intensity.get()).sum();
        (seconds > 0.0).then(|| GramsPerKwh::new(weighted / seconds))
    }

    /// What the slots rest on.
    pub fn summary(&self) -> HorizonSummary {
        let mut summary = HorizonSummary::default();
        for slot in &self.slots {
            *match slot.basis {
                Basis::Given => &mut summary.given,
                Basis::Corrected => &mut summary.corrected,
                Basis::FilledFromOtherDay => &mut summary.filled_from_other_day,
                Basis::FilledFromNeighbours => &mut summary.filled_from_neighbours,
                Basis::Local => &mut summary.local,
                Basis::DailyShape => &mut summary.daily_shape,
                Basis::Constant => &mut summary.constant,
            } += 1;
        }
        summary
    }
}

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
                given.push(HorizonSlot::new(slot, learnt));
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

impl HorizonSlot {
    fn new(slot: Slot, expected: Expected) -> Self {
        let Expected { intensity, low, high, basis } = expected;
        Self { slot, intensity, low, high, basis }
    }
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
            slots.push(HorizonSlot::new(slot, expected));
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
