//! Blends the corrected source with the local forecaster and estimates prediction intervals, from errors on past days.
//!
//! Forecasts made on each past day at this time of day, by the corrected source and by the local forecaster, both
//! fitted to data known then, would have had the errors eₛ and eₗ. For each range of leads (times ahead) the weight of
//! the source is
//!
//! ```text
//! w = (Σ eₗ(eₗ − eₛ) + κu) / (Σ (eₗ − eₛ)² + κ)     clamped to [0, 1]
//! ```
//!
//! which minimises the squared error of the blend. Without evidence the weight is u; κ is the strength of this prior.
//! On the first day of the source's latest issue (published forecast), u is 1 and κ one day's worth of Σ (eₗ − eₛ)²:
//! the source is trusted until errors speak against it. Each later day has two weights: one for the day's mean (u is ½
//! and κ three days' worth), and one for deviations from that mean, because weather forecasts predict a day's wind
//! while the local forecaster predicts which hours are cleanest.
//!
//! For the hours of later days and for the next three hours, the local forecaster is hard to beat and a wrong weight
//! does harm. There κ is 0, and the two days most favourable to the source are excluded.

use chrono::{DateTime, TimeDelta, Utc};

use super::gap_filling::decayed;
use super::hourly_window::DAY;

/// Maximum lead (time ahead) in hours for which errors are evaluated; longer leads use the value of the longest range.
pub(super) const MAX_LEAD_HOURS: usize = 7 * DAY;
/// Ends in hours of the ranges of leads; all leads of a range have a common weight and a common interval width.
const LEAD_RANGES: [usize; 9] = [1, 3, 8, 16, DAY, 2 * DAY, 3 * DAY, 4 * DAY, MAX_LEAD_HOURS];
/// Weight, in days of data, of the prior trust in the source on the first day ahead.
const PRIOR_DAYS: f64 = 1.0;
/// Lead in hours below which recent actual values say most, so that the source gets weight only if it clearly helps.
const NOW: usize = 3;
/// Number of days most favourable to the source that are excluded where the source gets weight only if it clearly
/// helps. In a sum of squares, one large error of the local forecaster outweighs weeks of small ones.
const EXCLUDED_DAYS: usize = 2;
/// Weight, in days of data, of the prior that source and local forecaster are equally good, beyond the first day.
const EQUAL_DAYS: f64 = 3.0;
/// Quantiles of past absolute errors that cover 80 % of future ones: on the first day ahead (first) and beyond it
/// (second). They are above 0.8 because recent errors differ from those of the next days, and errors far ahead come
/// from few independent days.
pub(super) const COVERAGE: [f64; 2] = [0.81, 0.835];
/// Maximum number of past days that are evaluated for weights on the first day ahead and for interval widths; on
/// earlier days, forecasters had less than a week of training data.
const EVALUATED_DAYS: usize = 21;
/// 90 % quantile of the standard normal distribution: the half width of its 80 % prediction interval.
pub(super) const NORMAL: f64 = 1.2816;
/// Minimum number of errors for taking a quantile of them.
const ENOUGH: usize = 14;
/// Weight of the assumed error if fewer than [`ENOUGH`] errors are known, as a number of errors.
const ASSUMED_WEIGHT: f64 = 2.0;
/// Assumed relative standard error without data: published day-ahead errors are 3 to 15 % (`carbon-apis.md` §9).
pub(super) const ASSUMED_ERROR: f64 = 0.1;

/// Past errors (actual less forecast) of one forecaster: one list per past day, indexed by lead in hours. The first
/// list has the errors of the forecast that was made one day before the latest actual value.
pub(super) type Errors = Vec<Vec<Option<f64>>>;

/// One value for each range of leads (times ahead), see [`LEAD_RANGES`].
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct ByLead([f64; LEAD_RANGES.len()]);

impl ByLead {
    fn of(mut f: impl FnMut(std::ops::Range<usize>) -> f64) -> Self {
        let start = |i: usize| if i == 0 { 0 } else { LEAD_RANGES[i - 1] };
        Self(std::array::from_fn(|i| f(start(i)..LEAD_RANGES[i])))
    }

    /// Returns the value for a lead in hours; beyond all ranges the last value.
    pub(super) fn at(&self, lead: i64) -> f64 {
        let within = |end: &usize| i64::try_from(*end).is_ok_and(|end| lead < end);
        self.0[LEAD_RANGES.iter().position(within).unwrap_or(LEAD_RANGES.len() - 1)]
    }
}

/// Returns the errors of a day in a range of leads.
fn at_leads<'a>(day: &'a [Option<f64>], leads: &std::ops::Range<usize>) -> &'a [Option<f64>] {
    &day[leads.start.min(day.len())..leads.end.min(day.len())]
}

/// Division of the time ahead into spans of 24 hours, counted from the latest issue (published forecast) and not from
/// midnight: a source's errors grow from each span to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct IssueDays {
    /// Length of the first day in hours.
    first: usize,
}

impl IssueDays {
    /// Divides the time ahead by the `age` that the latest issue had at the latest actual value; `None` if there is no
    /// issue, so that days count from the latest actual value.
    pub(super) fn of(age: Option<TimeDelta>) -> Self {
        let hours = age.and_then(|age| usize::try_from((age + TimeDelta::days(1)).num_hours()).ok());
        let into = hours.unwrap_or(DAY);
        // An issue that is newer than the latest actual value has its whole first day ahead.
        Self { first: if into < DAY { 2 * DAY - into } else { DAY - into % DAY } }
    }

    /// Returns the index of the day that contains a lead in hours; beyond all days the last index.
    fn at(self, lead: usize) -> usize {
        ((lead + DAY).saturating_sub(self.first) / DAY).min(MAX_LEAD_HOURS / DAY - 1)
    }

    /// Returns the index of the day that contains a signed lead in hours; negative leads are on the first day.
    pub(super) fn at_lead(self, lead: i64) -> usize {
        self.at(usize::try_from(lead).unwrap_or(0))
    }

    /// Returns the leads of a day in hours.
    fn leads(self, day: usize) -> std::ops::Range<usize> {
        let end = self.first + DAY * day;
        if day == 0 { 0..end } else { end - DAY..end }
    }
}

/// Weights of the source in the blend.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct BlendWeights {
    days: IssueDays,
    /// Weights on the first day of the latest issue and in the next three hours.
    near: ByLead,
    /// Weights on each later day: that of the source's mean of the day (first), and that of its deviations from this
    /// mean (second).
    later: [(f64, f64); MAX_LEAD_HOURS / DAY - 1],
}

/// Mean offset of the corrected source from the local forecaster on each day since the latest issue, in g/kWh, over
/// hours for which both have values.
pub(super) type ByDay = [f64; MAX_LEAD_HOURS / DAY];

/// Offset of a source's current forecast from the local forecaster.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct SourceOffset {
    pub(super) by_day: ByDay,
    /// End of the source's forecast (first) and the blend's mean offset from the local forecast in the last hour before
    /// that end, in g/kWh (second). `None` if nothing is to be continued beyond the end.
    pub(super) end: Option<(DateTime<Utc>, f64)>,
}

/// Returns the index of the day ahead (24 h from lead 0) for a lead in hours; beyond all days the last index.
pub(super) fn day_of(lead: usize) -> usize {
    (lead / DAY).min(MAX_LEAD_HOURS / DAY - 1)
}

impl BlendWeights {
    /// Returns the value to add to the local forecast at a lead in hours. `above` is the source's offset from the local
    /// forecast at this lead, `offset` its mean offset on each day.
    pub(super) fn of_source(&self, lead: i64, above: f64, offset: &ByDay) -> f64 {
        let now = usize::try_from(lead).is_ok_and(|lead| lead < NOW);
        let day = self.days.at_lead(lead);
        match day.checked_sub(1).filter(|_| !now).map(|day| self.later[day]) {
            None => self.near.at(lead) * above,
            Some((level, shape)) => level * offset[day] + shape * (above - offset[day]),
        }
    }

    /// Returns the index of the day since the latest issue that contains a lead in hours.
    pub(super) fn day_of(&self, lead: i64) -> usize {
        self.days.at_lead(lead)
    }

    /// Fits the weights with which the blend has the least squared errors on past days.
    pub(super) fn fit(source: &Errors, local: &Errors, days: IssueDays) -> Self {
        let both = |leads: std::ops::Range<usize>| {
            source.iter().zip(local).map(move |(source, local)| both_known(source, local, &leads))
        };
        let mut before = 1.0;
        let near = ByLead::of(|leads| {
            let now = leads.end <= NOW;
            let end = if now { leads.end } else { leads.end.min(days.first).max(leads.start) };
            let by_day: Vec<WeightSums> =
                both(leads.start..end).take(EVALUATED_DAYS).map(|day| WeightSums::of(&day)).collect();
            if now {
                return robust_weight(by_day).unwrap_or(0.0);
            }
            before = WeightSums::sum(&by_day).share(1.0, PRIOR_DAYS).unwrap_or(before);
            before
        });
        let mut before = (0.5, 0.0);
        let later = std::array::from_fn(|day| {
            let (mut level, mut shape) = (Vec::new(), Vec::new());
            for both in both(days.leads(day + 1)) {
                let Some((source, local)) = means(&both) else { continue };
                level.push(WeightSums::of(&[(source, local)]));
                shape.push(WeightSums::of(&both.iter().map(|(s, l)| (s - source, l - local)).collect::<Vec<_>>()));
            }
            let level = WeightSums::sum(&level).share(0.5, EQUAL_DAYS).unwrap_or(before.0);
            before = (level, robust_weight(shape).unwrap_or(before.1));
            before
        });
        Self { days, near, later }
    }
}

/// Returns the errors of the source (first) and the local forecaster (second) in a range of leads, where both are
/// known.
fn both_known(source: &[Option<f64>], local: &[Option<f64>], leads: &std::ops::Range<usize>) -> Vec<(f64, f64)> {
    let pairs = at_leads(source, leads).iter().zip(at_leads(local, leads));
    pairs.filter_map(|(s, l)| Some(((*s)?, (*l)?))).collect()
}

/// Sums over errors for estimating a weight of the source.
#[derive(Clone, Copy, Debug, Default)]
struct WeightSums {
    product: f64,
    squares: f64,
    days: f64,
}

impl WeightSums {
    /// Sums the errors of source and local forecaster on one day.
    fn of(both: &[(f64, f64)]) -> Self {
        let mut day = Self { days: if both.is_empty() { 0.0 } else { 1.0 }, ..Self::default() };
        for (s, l) in both {
            day.product += l * (l - s);
            day.squares += (l - s) * (l - s);
        }
        day
    }

    fn sum(days: &[Self]) -> Self {
        let add = |sum: Self, day: &Self| Self {
            product: sum.product + day.product,
            squares: sum.squares + day.squares,
            days: sum.days + day.days,
        };
        days.iter().fold(Self::default(), add)
    }

    /// Returns the weight, combined with a prior weight `usual` that counts as `days` days; `None` without data.
    fn share(self, usual: f64, days: f64) -> Option<f64> {
        let trust = days * self.squares / self.days;
        (self.squares > 0.0).then(|| ((self.product + trust * usual) / (self.squares + trust)).clamp(0.0, 1.0))
    }
}

/// Returns the weight without the [`EXCLUDED_DAYS`] days most favourable to the source; `None` without data.
fn robust_weight(mut days: Vec<WeightSums>) -> Option<f64> {
    WeightSums::sum(&days).share(0.0, 0.0)?;
    let share = |days: &[WeightSums]| WeightSums::sum(days).share(0.0, 0.0).unwrap_or(0.0);
    for _ in 0..EXCLUDED_DAYS {
        let without = |place: usize| {
            let (earlier, later) = days.split_at(place);
            share(&[earlier, later.get(1..).unwrap_or_default()].concat())
        };
        let most = (0..days.len()).min_by(|a, b| without(*a).total_cmp(&without(*b)));
        most.map(|place| days.remove(place));
    }
    Some(share(&days))
}

#[expect(clippy::cast_precision_loss, reason = "hours of a day")]
fn means(both: &[(f64, f64)]) -> Option<(f64, f64)> {
    let count = both.len() as f64;
    let sum = both.iter().fold((0.0, 0.0), |sum, both| (sum.0 + both.0, sum.1 + both.1));
    (count > 0.0).then(|| (sum.0 / count, sum.1 / count))
}

/// Returns the errors of the blend on past days; beyond the end of the source's forecast, those of the local forecast
/// with the source's decaying offset added.
pub(super) fn mixed(source: &Errors, local: &Errors, weights: &BlendWeights) -> Errors {
    let none = Vec::new();
    let day = |day: usize| -> Vec<Option<f64>> {
        let (source, local) = (source.get(day).unwrap_or(&none), local.get(day).unwrap_or(&none));
        let of = |errors: &[Option<f64>], lead: usize| errors.get(lead).copied().flatten();
        let offset: ByDay = std::array::from_fn(|day| {
            let both = both_known(source, local, &weights.days.leads(day));
            means(&both).map_or(0.0, |(s, l)| l - s)
        });
        let within = |lead: usize| match (of(source, lead), of(local, lead)) {
            (Some(s), Some(l)) => Some(l - weights.of_source(i64::try_from(lead).unwrap_or(0), l - s, &offset)),
            // Without a local forecast the source stands alone; without a source forecast there is no blend to
            // evaluate.
            (s, _) => s,
        };
        let end = source.len();
        let last = end.checked_sub(1).and_then(|last| Some(of(local, last)? - within(last)?));
        let beyond = |lead: usize| {
            let hours = i32::try_from(lead - end).unwrap_or(i32::MAX);
            let rest = last.map_or(0.0, |last| decayed(last, TimeDelta::minutes(30) + TimeDelta::hours(hours.into())));
            Some(of(local, lead)? - rest)
        };
        let mixed = |lead: usize| if lead < end { within(lead) } else { beyond(lead) };
        (0..end.max(local.len())).map(mixed).collect()
    };
    (0..source.len().max(local.len())).map(day).collect()
}

/// Returns the half width of the 80 % prediction interval per range of leads. `assumed` is the standard error that is
/// assumed without data; a range with few errors gets at least the width of the previous range.
pub(super) fn widths(errors: &Errors, assumed: f64) -> ByLead {
    let mut before = 0.0;
    ByLead::of(|leads| {
        let mut all: Vec<f64> =
            errors.iter().take(EVALUATED_DAYS).flat_map(|day| at_leads(day, &leads)).flatten().copied().collect();
        let few = all.len() < 3 * leads.len();
        let width = width(&mut all, COVERAGE[usize::from(leads.start >= DAY)], assumed);
        before = if few { width.max(before) } else { width };
        before
    })
}

/// Returns the quantile `coverage` of the absolute errors, or an estimate from the `assumed` error if there are few.
#[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "below 700")]
pub(super) fn width(errors: &mut [f64], coverage: f64, assumed: f64) -> f64 {
    let count = errors.len();
    if count < ENOUGH {
        let squares: f64 = errors.iter().map(|e| e * e).sum::<f64>() + ASSUMED_WEIGHT * assumed * assumed;
        return NORMAL * (squares / (count as f64 + ASSUMED_WEIGHT)).sqrt();
    }
    for e in errors.iter_mut() {
        *e = e.abs();
    }
    errors.sort_unstable_by(f64::total_cmp);
    let rank = (coverage * (count + 1) as f64 - 1.0).clamp(0.0, (count - 1) as f64);
    let (below, above) = (errors[rank.floor() as usize], errors[rank.ceil() as usize]);
    below + rank.fract() * (above - below)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn days(errors: impl Fn(usize, usize) -> f64) -> Errors {
        (1..28).map(|day| (0..MAX_LEAD_HOURS.min(day * DAY)).map(|lead| Some(errors(day, lead))).collect()).collect()
    }

    /// Alternates the sign, so that neither bias nor correlation favours a forecaster.
    fn sign(day: usize) -> f64 {
        if day.is_multiple_of(2) { 1.0 } else { -1.0 }
    }

    #[test]
    fn days_ahead_are_those_of_the_newest_issue() {
        let first = |age: Option<i64>| IssueDays::of(age.map(TimeDelta::hours)).leads(0).end;
        let ages = [None, Some(0), Some(15), Some(23), Some(24), Some(39), Some(-2)];
        assert_eq!(ages.map(first), [24, 24, 9, 1, 24, 9, 26]);
        for age in ages {
            let days = IssueDays::of(age.map(TimeDelta::hours));
            for day in 0..MAX_LEAD_HOURS / DAY - 1 {
                assert!(days.leads(day).all(|lead| days.at(lead) == day), "{age:?}");
            }
            assert_eq!(days.at(10 * MAX_LEAD_HOURS), MAX_LEAD_HOURS / DAY - 1);
        }
    }

    #[test]
    fn a_surprise_gives_no_weight_in_the_next_hours() {
        // The local forecaster errs little except on two days that the source predicted.
        let local = days(|day, _| if day == 5 || day == 9 { 100.0 } else { 1.0 });
        let source = days(|day, _| if day == 5 || day == 9 { 0.0 } else { 5.0 * sign(day) });
        let weights = BlendWeights::fit(&source, &local, IssueDays::of(None));
        assert!([0, 1, 2].iter().all(|lead| weights.near.at(*lead) < 0.05), "{weights:?}");
        assert!(weights.near.at(3) > 0.9, "further ahead both count: {weights:?}");
    }

    #[test]
    fn a_better_source_gets_weight_at_once() {
        let weights = BlendWeights::fit(&days(|day, _| sign(day)), &days(|_, _| 10.0), IssueDays::of(None));
        assert!((0..24).all(|lead| weights.near.at(lead) > 0.9), "{weights:?}");
        assert!(weights.later.iter().take(5).all(|(level, _)| *level > 0.7), "{weights:?}");
    }

    #[test]
    fn a_source_with_wrong_hours_on_later_days_contributes_only_their_mean() {
        // The source knows each day's mean; its hours are wrong from its second day on, 9 hours from now.
        let wave = |lead: usize| if (lead / 6).is_multiple_of(2) { 20.0 } else { -20.0 };
        let source = days(|_, lead| if lead < 9 { 0.0 } else { wave(lead) });
        let local = days(|day, _| 10.0 * sign(day));
        let weights = BlendWeights::fit(&source, &local, IssueDays::of(Some(TimeDelta::hours(15))));
        let offset: ByDay = std::array::from_fn(|_| 10.0);
        assert!(weights.of_source(5, 10.0, &offset) > 9.0, "{weights:?}");
        for lead in [9, 20, 33] {
            let (level, above) = (weights.of_source(lead, 10.0, &offset), weights.of_source(lead, 30.0, &offset));
            assert!(level > 7.0 && above - level < 1.0, "{lead} h ahead: {level:.2} {above:.2}, {weights:?}");
        }
    }
}
