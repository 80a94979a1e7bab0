//! Values that jump: held back until the source has said them several times.
//!
//! A number in another unit (kg for g, lb/MWh for g/kWh) or a broken sensor looks like a grid that changed overnight.
//! What is known of four weeks is the yardstick, since grids with much wind change tenfold within a day and yet stay
//! within their range. Zero is no jump: it is a legitimate intensity.

use std::fmt;

use chrono::{DateTime, TimeDelta, Utc};

use wattune_core::domain::{Forecast, Quoted, SignalKind, SignalValue, Slot, TimeSeries};

/// An answer that says the same for the this-many-th time is believed.
const BELIEVED: u32 = 3;

/// A value within this part of another one is the same statement.
const SAME: f64 = 0.25;

/// Below this many g/kWh (or price units) factors mean nothing.
const FLOOR: f64 = 50.0;

/// Without anything known before, an answer with so many values is its own yardstick.
const OWN_YARDSTICK: usize = 8;

/// What came is a yardstick of its own once it covers this much.
const DAY: TimeDelta = TimeDelta::hours(24);

/// How far back known values count.
const WINDOW: TimeDelta = TimeDelta::days(28);

/// What was held back of the newest answer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HeldBack<V> {
    /// How many of its values.
    pub values: usize,
    /// How many values it had.
    pub of: usize,
    /// The first slot that one of them was for.
    pub slot: Slot,
    /// The first of them.
    pub value: V,
    /// The range of what is known.
    pub known: (f64, f64),
    /// By how many times a value must leave the range to be held back.
    pub factor: f64,
    /// In how many answers in a row this happened.
    pub times: u32,
    /// When it first did.
    pub since: DateTime<Utc>,
}

impl<V: SignalValue> fmt::Display for HeldBack<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (low, high) = self.known;
        write!(
            f,
            "{} of {} values held back: {:.1} for {} lies more than {} times off all that is known ({low:.1} to {high:.1}); \
             they are used when the source has said so in {BELIEVED} answers",
            self.values,
            self.of,
            self.value.number(),
            self.slot,
            self.factor,
        )
    }
}

/// Takes the values that jump out of `newest`, and says which; `None` if there are none, or if the source has said so
/// often enough to be believed. `before` is what was held back of the answer before: it counts if this answer says the
/// same of the same slot. A forecast of zeros throughout, where the grid never was near zero, is a jump too.
pub(super) fn hold_back<V: SignalValue>(
    old: Option<&Forecast<V>>,
    newest: &mut Forecast<V>,
    before: Option<&HeldBack<V>>,
    factor: f64,
    now: DateTime<Utc>,
) -> Option<HeldBack<V>> {
    let yardstick = yardstick(old, newest, now)?;
    let range = Range { yardstick, can_fall: newest.kind != SignalKind::Marginal && yardstick.0 >= FLOOR, factor };
    let expected = newest.expected.points();
    let dead = range.can_fall
        && V::LOWEST >= 0.0
        && expected.len() >= OWN_YARDSTICK
        && expected.iter().all(|(_, v)| v.value.number() == 0.0);
    let jumps = |v: &Quoted<V>| range.is_left_by(v.value) || (dead && v.value.number() == 0.0);
    let (of, mut all) = (expected.len() + newest.actual.points().len(), expected.iter().chain(newest.actual.points()));
    let (slot, value) = all.find(|(_, v)| jumps(v)).map(|(slot, v)| (*slot, v.value))?;
    let values = 1 + all.filter(|(_, v)| jumps(v)).count();
    let again = before.filter(|b| b.is_said_by(newest, slot, value));
    let times = again.map_or(0, |b| b.times) + 1;
    if times >= BELIEVED {
        return None;
    }
    let keep = |series: &TimeSeries<Quoted<V>>| {
        TimeSeries::from_points(series.points().iter().filter(|(_, v)| !jumps(v)).copied().collect()).0
    };
    newest.expected = keep(&newest.expected);
    newest.actual = keep(&newest.actual);
    // The slot that was held back first is the one to ask about again, as long as it is spoken of.
    let (slot, value) =
        again.map_or((slot, value), |b| if b.slot.end() > now { (b.slot, b.value) } else { (slot, value) });
    let since = again.map_or(now, |b| b.since);
    Some(HeldBack { values, of, slot, value, known: yardstick, factor, times, since })
}

/// Takes the values that jump out of what came in times past, and says how many they are. A long history may have seen
/// more than is known yet: where its middle half lies within what is known, it widens the yardstick itself.
pub(super) fn hold_back_past<V: SignalValue>(
    known: &Forecast<V>,
    came: &mut TimeSeries<Quoted<V>>,
    factor: f64,
    now: DateTime<Utc>,
) -> usize {
    let Some((mut low, mut high)) = yardstick(Some(known), known, now) else { return 0 };
    let mut own: Vec<f64> = came.points().iter().map(|(_, v)| v.value.number()).collect();
    own.sort_by(f64::total_cmp);
    if own.len() >= OWN_YARDSTICK {
        let at = |share: usize| own[(own.len() - 1) * share / 100];
        if at(25) <= 2.0 * high.max(FLOOR) && 2.0 * at(75).max(FLOOR) >= low {
            (low, high) = (low.min(at(5)), high.max(at(95)));
        }
    }
    let range = Range { yardstick: (low, high), can_fall: known.kind != SignalKind::Marginal && low >= FLOOR, factor };
    let before = came.points().len();
    let kept = came.points().iter().filter(|(_, v)| !range.is_left_by(v.value)).copied().collect();
    *came = TimeSeries::from_points(kept).0;
    before - came.points().len()
}

struct Range {
    yardstick: (f64, f64),
    can_fall: bool,
    factor: f64,
}

impl Range {
    fn is_left_by<V: SignalValue>(&self, value: V) -> bool {
        let (number, (low, high)) = (value.number(), self.yardstick);
        let above = number.abs() > self.factor * high.abs().max(FLOOR);
        above || (self.can_fall && V::LOWEST >= 0.0 && number > 0.0 && number < low / self.factor)
    }
}

impl<V: SignalValue> HeldBack<V> {
    /// Whether an answer repeats what was held back: of the same slot about the same; where it does not speak of that
    /// slot any more, of its first jump.
    fn is_said_by(&self, newest: &Forecast<V>, slot: Slot, value: V) -> bool {
        let at = self.slot.start();
        let said = newest.expected.at(at).or_else(|| newest.actual.at(at)).map(|(_, v)| v.value);
        let said = said.or((slot.start() >= self.slot.start()).then_some(value));
        said.is_some_and(|v| (v.number() - self.value.number()).abs() <= SAME * self.value.number().abs())
    }
}

/// The range of what is known; without that, of a day of what came by the answer itself, else of what it expects (but for the
/// lowest and the highest quarter).
fn yardstick<V: SignalValue>(
    old: Option<&Forecast<V>>,
    newest: &Forecast<V>,
    now: DateTime<Utc>,
) -> Option<(f64, f64)> {
    if let Some(old) = old {
        let known = old.expected.points().iter().chain(old.actual.points());
        let known = known.filter(|(slot, _)| slot.end() > now - WINDOW).map(|(_, v)| v.value.number());
        let range = known.fold(None, |range: Option<(f64, f64)>, v| {
            Some(range.map_or((v, v), |(low, high)| (low.min(v), high.max(v))))
        });
        if range.is_some() {
            return range;
        }
    }
    let own = |series: &TimeSeries<Quoted<V>>| {
        let mut own: Vec<f64> = series.points().iter().map(|(_, v)| v.value.number()).collect();
        own.sort_by(f64::total_cmp);
        (own.len() >= OWN_YARDSTICK).then(|| (own[own.len() / 4], own[3 * own.len() / 4]))
    };
    // Hours of a day tell nothing of its other hours.
    let came = newest.actual.start().zip(newest.actual.end()).filter(|(start, end)| *end - *start >= DAY);
    came.and_then(|_| own(&newest.actual)).or_else(|| own(&newest.expected))
}

#[cfg(test)]
mod tests {
    use super::*;
    use wattune_core::domain::{CarbonSeries, Intensity, Origin, SignalScope, Zone};
    use wattune_core::units::GramsPerKwh;

    fn at(hours: i64) -> DateTime<Utc> {
        DateTime::UNIX_EPOCH + TimeDelta::days(20_000) + TimeDelta::hours(hours)
    }

    fn answer(values: &[f64]) -> Forecast {
        let point = |(h, v): (i64, &f64)| {
            let intensity = Intensity { value: GramsPerKwh::new(*v), origin: Origin::Forecast };
            (Slot::new(at(h), at(h + 1)).expect("an hour"), intensity)
        };
        Forecast {
            zone: Zone::new("DE").expect("a zone"),
            source: "test".to_owned(),
            kind: SignalKind::Average,
            scope: SignalScope::Lifecycle,
            issued_at: at(0),
            retrieved_at: at(0),
            provenance: Default::default(),
            expected: CarbonSeries::from_points((0..).zip(values).map(point).collect()).0,
            actual: CarbonSeries::default(),
        }
    }

    fn left(forecast: &Forecast) -> Vec<f64> {
        forecast.expected.points().iter().map(|(_, v)| v.value.get()).collect()
    }

    #[test]
    fn a_jump_is_held_back_and_believed_when_it_is_said_for_the_third_time() {
        let known = answer(&[200.0, 300.0, 400.0]);
        let jump = || answer(&[300.0, 4000.0, 0.0, 20.0]);
        let mut newest = jump();
        let first = hold_back(Some(&known), &mut newest, None, 4.0, at(0)).expect("held back");
        assert_eq!((left(&newest), first.values, first.of, first.times), (vec![300.0, 0.0], 2, 4, 1));
        assert!(first.to_string().contains("4000.0 for") && first.to_string().contains("(200.0 to 400.0)"), "{first}");
        let second = hold_back(Some(&known), &mut jump(), Some(&first), 4.0, at(1)).expect("held back again");
        assert_eq!((second.times, second.since), (2, at(0)));
        let mut third = jump();
        assert_eq!(hold_back(Some(&known), &mut third, Some(&second), 4.0, at(2)), None);
        assert_eq!(left(&third).len(), 4);
    }

    #[test]
    fn three_different_slips_are_not_one_statement() {
        let known = answer(&[200.0, 300.0, 400.0]);
        let mut before = None;
        for slip in 0..6 {
            let mut values = [300.0; 8];
            values[slip] = 9000.0;
            let mut newest = answer(&values);
            let held = hold_back(Some(&known), &mut newest, before.as_ref(), 4.0, at(-1)).expect("held back");
            assert_eq!((held.times, left(&newest).len()), (1, 7));
            before = Some(held);
        }
    }

    #[test]
    fn a_day_of_zeros_is_no_forecast_where_nothing_ever_was_clean() {
        let known = answer(&[200.0, 300.0, 400.0]);
        let mut dead = answer(&[0.0; 24]);
        assert!(hold_back(Some(&known), &mut dead, None, 4.0, at(0)).is_some() && left(&dead).is_empty());
        let mut marginal = answer(&[0.0; 24]);
        marginal.kind = SignalKind::Marginal;
        assert_eq!(hold_back(Some(&known), &mut marginal, None, 4.0, at(0)), None);
    }

    #[test]
    fn a_first_answer_is_measured_by_what_came() {
        let mut newest = answer(&[3000.0; 24]);
        newest.actual = answer(&[300.0; 24]).expected;
        assert!(hold_back(None, &mut newest, None, 4.0, at(0)).is_some());
        assert_eq!((left(&newest).len(), newest.actual.points().len()), (0, 24));
    }

    #[test]
    fn what_came_long_ago_may_widen_the_yardstick_but_not_leave_it_as_a_whole() {
        let known = answer(&[200.0, 300.0, 400.0]);
        let varied: Vec<f64> = (0..100).map(|h| if h < 10 { 40.0 } else { 250.0 }).collect();
        let mut came = answer(&varied).expected;
        assert_eq!(hold_back_past(&known, &mut came, 4.0, at(0)), 0);
        let mut scaled = answer(&[9000.0; 100]).expected;
        assert_eq!((hold_back_past(&known, &mut scaled, 4.0, at(0)), scaled.is_empty()), (100, true));
    }

    #[test]
    fn what_grids_do_is_no_jump() {
        let known = answer(&[100.0, 300.0]);
        for values in [&[0.0, 900.0, 30.0][..], &[1199.0, 26.0]] {
            assert_eq!(hold_back(Some(&known), &mut answer(values), None, 4.0, at(0)), None, "{values:?}");
        }
        let mut marginal = answer(&[5.0]);
        marginal.kind = SignalKind::Marginal;
        assert_eq!(hold_back(Some(&known), &mut marginal, None, 4.0, at(0)), None, "surplus of wind and sun");
        let clean = answer(&[0.0, 1.0]);
        assert_eq!(hold_back(Some(&clean), &mut answer(&[150.0]), None, 4.0, at(0)), None, "nothing is a factor of 0");
    }

    #[test]
    fn a_first_answer_is_its_own_yardstick() {
        let mut values = vec![300.0; 11];
        values.push(9000.0);
        let mut newest = answer(&values);
        assert!(hold_back(None, &mut newest, None, 4.0, at(0)).is_some());
        assert_eq!(left(&newest), [300.0; 11]);
        assert_eq!(hold_back(None, &mut answer(&[300.0, 9000.0]), None, 4.0, at(0)), None, "who is to say?");
    }
}
