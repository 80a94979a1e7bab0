//! Outlier detection: values far outside the known range are quarantined until the source has repeated them.
//!
//! A number in another unit (kg for g, lb/MWh for g/kWh) or a broken sensor looks like a grid that changed overnight.
//! Values are compared with the range of the last four weeks, because grids with much wind change tenfold within a day
//! and yet stay within that range. A single zero is no outlier: it is a possible carbon intensity.

use std::fmt;

use chrono::{DateTime, TimeDelta, Utc};

use wattune_core::domain::{Forecast, Quoted, SignalKind, SignalValue, Slot, TimeSeries};

/// Number of consecutive answers with the same outlier, the first included, after which the outlier is accepted.
const BELIEVED: u32 = 3;

/// Relative difference up to which two outliers count as the same.
const SAME: f64 = 0.25;

/// Smallest value in g/kWh (or price per MWh) to which other values are compared: ratios to smaller values mean little.
const FLOOR: f64 = 50.0;

/// Minimum number of values in an answer from which a range is derived for comparison.
const MIN_RANGE_VALUES: usize = 8;

/// Minimum span of an answer's actual values from which a range is derived for comparison.
const DAY: TimeDelta = TimeDelta::hours(24);

/// Maximum age of values that count towards the known range.
const WINDOW: TimeDelta = TimeDelta::days(28);

/// Quarantined values of the newest answer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Quarantined<V> {
    /// Number of quarantined values.
    pub values: usize,
    /// Number of values in the answer.
    pub of: usize,
    /// Slot of the first quarantined value.
    pub slot: Slot,
    /// The first quarantined value.
    pub value: V,
    /// The known range: first its lowest, second its highest value.
    pub known: (f64, f64),
    /// Factor by which a value must lie outside the known range to be quarantined.
    pub factor: f64,
    /// Number of consecutive answers with the same outlier. A service's answer that is its previous one again does not
    /// count.
    pub times: u32,
    /// Time of the first of these consecutive answers.
    pub since: DateTime<Utc>,
}

impl<V: SignalValue> fmt::Display for Quarantined<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (low, high) = self.known;
        write!(
            f,
            "{} of {} values quarantined: {:.1} for {} lies more than {} times outside the known range ({low:.1} to {high:.1}); \
             they are used once {BELIEVED} consecutive answers confirm them (of a service, an unchanged answer does not count)",
            self.values,
            self.of,
            self.value.number(),
            self.slot,
            self.factor,
        )
    }
}

/// Removes outliers from `newest` and returns them; `None` if there are none, or if [`BELIEVED`] consecutive answers
/// have contained them; an answer that is believed may still have others. `old` holds the known values, and `before` the outliers of the previous answer, which are
/// repeated if `newest` has about the same value in the same slot. A forecast of only zeros is an outlier too, unless
/// the known range reaches near zero.
pub(super) fn quarantine<V: SignalValue>(
    old: Option<&Forecast<V>>,
    newest: &mut Forecast<V>,
    before: Option<&Quarantined<V>>,
    factor: f64,
    now: DateTime<Utc>,
) -> Option<Quarantined<V>> {
    let known_range = known_range(old, newest, now)?;
    let mut range =
        Range { known_range, can_fall: newest.kind != SignalKind::Marginal && known_range.0 >= FLOOR, factor };
    let expected = newest.expected.points();
    let is_all_zero =
        V::LOWEST >= 0.0 && expected.len() >= MIN_RANGE_VALUES && expected.iter().all(|(_, v)| v.value.number() == 0.0);
    let jumps = |range: &Range, v: &Quoted<V>| {
        range.is_left_by(v.value) || (range.can_fall && is_all_zero && v.value.number() == 0.0)
    };
    let all = || expected.iter().chain(newest.actual.points());
    let first = |range: &Range| all().find(|(_, v)| jumps(range, v)).map(|(slot, v)| (*slot, v.value));
    let (mut slot, mut value) = first(&range)?;
    let mut again = before.filter(|b| b.is_repeated_by(newest, slot, value));
    if let Some(believed) = again.filter(|b| b.times + 1 >= BELIEVED) {
        // Values that lie as far above again are not confirmed by that.
        range.known_range.1 = range.known_range.1.max(believed.value.number().abs());
        range.can_fall = false;
        again = None;
        (slot, value) = first(&range)?;
    }
    let times = again.map_or(0, |b| b.times) + 1;
    let (of, values) = (all().count(), all().filter(|(_, v)| jumps(&range, v)).count());
    let keep = |series: &TimeSeries<Quoted<V>>| {
        TimeSeries::from_points(series.points().iter().filter(|(_, v)| !jumps(&range, v)).copied().collect()).0
    };
    let (expected, actual) = (keep(&newest.expected), keep(&newest.actual));
    (newest.expected, newest.actual) = (expected, actual);
    // The next answer is compared in the slot that was quarantined first, as long as that slot has not ended.
    let (slot, value) =
        again.map_or((slot, value), |b| if b.slot.end() > now { (b.slot, b.value) } else { (slot, value) });
    let since = again.map_or(now, |b| b.since);
    Some(Quarantined { values, of, slot, value, known: known_range, factor, times, since })
}

/// Removes outliers from past actual values, and returns their number. A long history may have a wider range than the
/// known values: if the middle half of the history lies near the known range, that range is extended to the range of
/// the history without its lowest and highest 5 %.
pub(super) fn quarantine_past<V: SignalValue>(
    known: &Forecast<V>,
    actuals: &mut TimeSeries<Quoted<V>>,
    factor: f64,
    now: DateTime<Utc>,
) -> usize {
    let Some((mut low, mut high)) = known_range(Some(known), known, now) else { return 0 };
    let mut own: Vec<f64> = actuals.points().iter().map(|(_, v)| v.value.number()).collect();
    own.sort_by(f64::total_cmp);
    if own.len() >= MIN_RANGE_VALUES {
        let at = |share: usize| own[(own.len() - 1) * share / 100];
        if at(25) <= 2.0 * high.max(FLOOR) && 2.0 * at(75).max(FLOOR) >= low {
            (low, high) = (low.min(at(5)), high.max(at(95)));
        }
    }
    let range =
        Range { known_range: (low, high), can_fall: known.kind != SignalKind::Marginal && low >= FLOOR, factor };
    let before = actuals.points().len();
    let kept = actuals.points().iter().filter(|(_, v)| !range.is_left_by(v.value)).copied().collect();
    *actuals = TimeSeries::from_points(kept).0;
    before - actuals.points().len()
}

struct Range {
    known_range: (f64, f64),
    can_fall: bool,
    factor: f64,
}

impl Range {
    fn is_left_by<V: SignalValue>(&self, value: V) -> bool {
        let (number, (low, high)) = (value.number(), self.known_range);
        let above = number.abs() > self.factor * high.abs().max(FLOOR);
        above || (self.can_fall && V::LOWEST >= 0.0 && number > 0.0 && number < low / self.factor)
    }
}

impl<V: SignalValue> Quarantined<V> {
    /// Returns true if an answer repeats the quarantined value: it has about the same value in the same slot. If the
    /// answer has no value there, its first outlier (`slot`, `value`) is compared instead, unless that outlier lies in
    /// an earlier slot.
    fn is_repeated_by(&self, newest: &Forecast<V>, slot: Slot, value: V) -> bool {
        let at = self.slot.start();
        let repeated = newest.expected.at(at).or_else(|| newest.actual.at(at)).map(|(_, v)| v.value);
        let repeated = repeated.or((slot.start() >= self.slot.start()).then_some(value));
        repeated.is_some_and(|v| (v.number() - self.value.number()).abs() <= SAME * self.value.number().abs())
    }
}

/// Returns the lowest and highest known value of the last four weeks. If there are none, returns the lower and upper
/// quartile of the answer's actual values if they span a day, else of its forecast; `None` if those are fewer than 8.
fn known_range<V: SignalValue>(
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
        (own.len() >= MIN_RANGE_VALUES).then(|| (own[own.len() / 4], own[3 * own.len() / 4]))
    };
    // The values of a few hours do not represent the whole day.
    let actuals = newest.actual.start().zip(newest.actual.end()).filter(|(start, end)| *end - *start >= DAY);
    actuals.and_then(|_| own(&newest.actual)).or_else(|| own(&newest.expected))
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
    fn an_outlier_is_quarantined_and_believed_at_its_third_repetition() {
        let known = answer(&[200.0, 300.0, 400.0]);
        let jump = || answer(&[300.0, 4000.0, 0.0, 20.0]);
        let mut newest = jump();
        let first = quarantine(Some(&known), &mut newest, None, 4.0, at(0)).expect("quarantined");
        assert_eq!((left(&newest), first.values, first.of, first.times), (vec![300.0, 0.0], 2, 4, 1));
        assert!(first.to_string().contains("4000.0 for") && first.to_string().contains("(200.0 to 400.0)"), "{first}");
        let second = quarantine(Some(&known), &mut jump(), Some(&first), 4.0, at(1)).expect("quarantined again");
        assert_eq!((second.times, second.since), (2, at(0)));
        let mut third = jump();
        assert_eq!(quarantine(Some(&known), &mut third, Some(&second), 4.0, at(2)), None);
        assert_eq!(left(&third).len(), 4);
        let mut other = answer(&[90_000.0, 4000.0, 0.0, 20.0]);
        let new = quarantine(Some(&known), &mut other, Some(&second), 4.0, at(-1)).expect("quarantined");
        assert_eq!((left(&other), new.times), (vec![4000.0, 0.0, 20.0], 1), "believing one does not let another in");
    }

    #[test]
    fn three_different_slips_are_not_one_statement() {
        let known = answer(&[200.0, 300.0, 400.0]);
        let mut before = None;
        for slip in 0..6 {
            let mut values = [300.0; 8];
            values[slip] = 9000.0;
            let mut newest = answer(&values);
            let held = quarantine(Some(&known), &mut newest, before.as_ref(), 4.0, at(-1)).expect("quarantined");
            assert_eq!((held.times, left(&newest).len()), (1, 7));
            before = Some(held);
        }
    }

    #[test]
    fn a_day_of_zeros_is_no_forecast_where_nothing_ever_was_clean() {
        let known = answer(&[200.0, 300.0, 400.0]);
        let mut dead = answer(&[0.0; 24]);
        assert!(quarantine(Some(&known), &mut dead, None, 4.0, at(0)).is_some() && left(&dead).is_empty());
        let mut marginal = answer(&[0.0; 24]);
        marginal.kind = SignalKind::Marginal;
        assert_eq!(quarantine(Some(&known), &mut marginal, None, 4.0, at(0)), None);
    }

    #[test]
    fn a_first_answer_is_measured_by_actual_values() {
        let mut newest = answer(&[3000.0; 24]);
        newest.actual = answer(&[300.0; 24]).expected;
        assert!(quarantine(None, &mut newest, None, 4.0, at(0)).is_some());
        assert_eq!((left(&newest).len(), newest.actual.points().len()), (0, 24));
    }

    #[test]
    fn old_actual_values_may_widen_the_yardstick_but_not_leave_it_as_a_whole() {
        let known = answer(&[200.0, 300.0, 400.0]);
        let varied: Vec<f64> = (0..100).map(|h| if h < 10 { 40.0 } else { 250.0 }).collect();
        let mut actuals = answer(&varied).expected;
        assert_eq!(quarantine_past(&known, &mut actuals, 4.0, at(0)), 0);
        let mut scaled = answer(&[9000.0; 100]).expected;
        assert_eq!((quarantine_past(&known, &mut scaled, 4.0, at(0)), scaled.is_empty()), (100, true));
    }

    #[test]
    fn what_grids_do_is_no_jump() {
        let known = answer(&[100.0, 300.0]);
        for values in [&[0.0, 900.0, 30.0][..], &[1199.0, 26.0]] {
            assert_eq!(quarantine(Some(&known), &mut answer(values), None, 4.0, at(0)), None, "{values:?}");
        }
        let mut marginal = answer(&[5.0]);
        marginal.kind = SignalKind::Marginal;
        assert_eq!(quarantine(Some(&known), &mut marginal, None, 4.0, at(0)), None, "surplus of wind and sun");
        let clean = answer(&[0.0, 1.0]);
        assert_eq!(quarantine(Some(&clean), &mut answer(&[150.0]), None, 4.0, at(0)), None, "nothing is a factor of 0");
    }

    #[test]
    fn a_first_answer_is_its_own_yardstick() {
        let mut values = vec![300.0; 11];
        values.push(9000.0);
        let mut newest = answer(&values);
        assert!(quarantine(None, &mut newest, None, 4.0, at(0)).is_some());
        assert_eq!(left(&newest), [300.0; 11]);
        assert_eq!(quarantine(None, &mut answer(&[300.0, 9000.0]), None, 4.0, at(0)), None, "who is to say?");
    }
}
