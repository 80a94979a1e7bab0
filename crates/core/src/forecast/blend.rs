//! How two forecasts of the same hours are mixed, and how far each is off, judged on the days before.
//!
//! On each past day, from this time of day on, the corrected source and the local forecaster would have been off by
//! eₛ and eₗ, both fitted to what was known then. For each stretch of the time ahead the share of the source is
//!
//! ```text
//! w = (Σ eₗ(eₗ − eₛ) + κu) / (Σ (eₗ − eₛ)² + κ)     cut to [0, 1]
//! ```
//!
//! which minimises the squared error of the mixture. On the first day of the newest issue u is 1 and κ one day's worth of
//! Σ (eₗ − eₛ)²: the source is trusted until there is evidence against it. On each later day there are two shares: of
//! the day's mean, where u is a half and κ three days' worth, and of what lies off it. Who knows the weather knows how
//! windy a day will be; who knows the grid knows at which hours it is cleanest.
//!
//! The local forecaster is hard to beat at the hours of later days and within the next three hours, and a share that
//! is wrong by chance does harm there. Without κ, the source gets what the past days leave it without the two that
//! speak most for it.

use chrono::{DateTime, TimeDelta, Utc};

use super::known::decayed;
use super::trail::DAY;

/// Errors are looked at so many hours ahead; what holds at the last of them holds beyond.
pub(super) const REACH: usize = 7 * DAY;
/// Where one stretch of the time ahead ends and the next begins, in hours ahead.
const STRETCHES: [usize; 9] = [1, 3, 8, 16, DAY, 2 * DAY, 3 * DAY, 4 * DAY, REACH];
/// How many days the trust in the source is worth against what was measured, on the first day ahead.
const TRUST_DAYS: f64 = 1.0;
/// Within so many hours ahead the last outcomes say most: the source gets a share there only where it surely helps.
const NOW: usize = 3;
/// How many of the days that speak most for the source are set aside where it has to help surely. One surprise to the
/// local forecaster outweighs weeks of small errors in a sum of squares, and need not come again.
const SURPRISING_DAYS: usize = 2;
/// How many days equal shares beyond the first day are worth against what was measured.
const EQUAL_DAYS: f64 = 3.0;
/// What part of past errors an interval holds, so that it holds 80 % of those to come, on the first day ahead and
/// beyond: the last weeks' errors are not those of the next days, and far ahead they speak of few days apart.
pub(super) const COVERAGE: [f64; 2] = [0.81, 0.835];
/// How many past days are judged at the most on the first day ahead, and for widths: on those before, forecasters had
/// less than a week to learn from.
const JUDGED_DAYS: usize = 21;
/// Half the width of the interval that holds this part of a normal distribution, in standard deviations.
pub(super) const NORMAL: f64 = 1.2816;
/// From this many errors on their own distribution is known well enough.
const ENOUGH: usize = 14;
/// How many errors the assumed one is worth where there are fewer.
const ASSUMED_WEIGHT: f64 = 2.0;
/// The standard error assumed before any is known, as a part of the intensity: published day-ahead errors are 3 to
/// 15 % (`carbon-apis.md` §9).
pub(super) const ASSUMED_ERROR: f64 = 0.1;

/// The errors (outcome less forecast) of one forecaster, as it would have forecast on each of the past days: the first
/// list is of the forecast made a day before now, by lead in hours.
pub(super) type Errors = Vec<Vec<Option<f64>>>;

/// Shares and interval widths by stretch of the time ahead.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Stretches([f64; STRETCHES.len()]);

impl Stretches {
    fn of(mut f: impl FnMut(std::ops::Range<usize>) -> f64) -> Self {
        let start = |i: usize| if i == 0 { 0 } else { STRETCHES[i - 1] };
        Self(std::array::from_fn(|i| f(start(i)..STRETCHES[i])))
    }

    /// The value for a lead in hours; the last one goes on.
    pub(super) fn at(&self, lead: i64) -> f64 {
        let within = |end: &usize| i64::try_from(*end).is_ok_and(|end| lead < end);
        self.0[STRETCHES.iter().position(within).unwrap_or(STRETCHES.len() - 1)]
    }
}

/// Those of a day's errors that lie at these leads.
fn at_leads<'a>(day: &'a [Option<f64>], leads: &std::ops::Range<usize>) -> &'a [Option<f64>] {
    &day[leads.start.min(day.len())..leads.end.min(day.len())]
}

/// How the time ahead falls into the days of the newest issue: what a source says gets worse from each of its days to
/// the next, at whatever time of day it is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct IssueDays {
    /// Leads in hours below this one are of the first day.
    first: usize,
}

impl IssueDays {
    /// `age` is the newest issue's at the newest outcome; without one, days are counted from that outcome.
    pub(super) fn of(age: Option<TimeDelta>) -> Self {
        let hours = age.and_then(|age| usize::try_from((age + TimeDelta::days(1)).num_hours()).ok());
        let into = hours.unwrap_or(DAY);
        // An issue younger than the newest outcome has all of its first day before it.
        Self { first: if into < DAY { 2 * DAY - into } else { DAY - into % DAY } }
    }

    /// The day that a lead in hours lies on; what holds on the last one holds beyond.
    fn at(self, lead: usize) -> usize {
        ((lead + DAY).saturating_sub(self.first) / DAY).min(REACH / DAY - 1)
    }

    /// By lead, which day it lies on.
    pub(super) fn at_lead(self, lead: i64) -> usize {
        self.at(usize::try_from(lead).unwrap_or(0))
    }

    /// The leads of a day.
    fn leads(self, day: usize) -> std::ops::Range<usize> {
        let end = self.first + DAY * day;
        if day == 0 { 0..end } else { end - DAY..end }
    }
}

/// The source's shares in the mixture.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Shares {
    days: IssueDays,
    /// On the issue's first day, and in the very next hours.
    near: Stretches,
    /// On each later day: of its mean, and of what lies off it.
    later: [(f64, f64); REACH / DAY - 1],
}

/// By how much the corrected source lies above the local forecaster on each of the issue's days ahead, in g/kWh: the
/// mean over the hours for which both are known.
pub(super) type ByDay = [f64; REACH / DAY];

/// How a source's present forecast lies to the local forecaster.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Apart {
    pub(super) by_day: ByDay,
    /// Where the source ends, and by how much the mixture lies above the local forecaster on the last day before, in
    /// g/kWh.
    pub(super) end: Option<(DateTime<Utc>, f64)>,
}

/// The day ahead of a lead in hours; what holds on the last one holds beyond.
pub(super) fn day_of(lead: usize) -> usize {
    (lead / DAY).min(REACH / DAY - 1)
}

impl Shares {
    /// What to add to the local forecaster's value at a lead in hours, where the source lies so much above it.
    pub(super) fn of_source(&self, lead: i64, above: f64, apart: &ByDay) -> f64 {
        let now = usize::try_from(lead).is_ok_and(|lead| lead < NOW);
        let day = self.days.at_lead(lead);
        match day.checked_sub(1).filter(|_| !now).map(|day| self.later[day]) {
            None => self.near.at(lead) * above,
            Some((level, shape)) => level * apart[day] + shape * (above - apart[day]),
        }
    }

    /// The day of the issue that a lead in hours lies on.
    pub(super) fn day_of(&self, lead: i64) -> usize {
        self.days.at_lead(lead)
    }

    /// The shares that would have been best on the past days.
    pub(super) fn fit(source: &Errors, local: &Errors, days: IssueDays) -> Self {
        let both = |leads: std::ops::Range<usize>| {
            source.iter().zip(local).map(move |(source, local)| both_known(source, local, &leads))
        };
        let mut before = 1.0;
        let near = Stretches::of(|leads| {
            let now = leads.end <= NOW;
            let end = if now { leads.end } else { leads.end.min(days.first).max(leads.start) };
            let by_day: Vec<Evidence> =
                both(leads.start..end).take(JUDGED_DAYS).map(|day| Evidence::of(&day)).collect();
            if now {
                return sure_share(by_day).unwrap_or(0.0);
            }
            before = Evidence::sum(&by_day).share(1.0, TRUST_DAYS).unwrap_or(before);
            before
        });
        let mut before = (0.5, 0.0);
        let later = std::array::from_fn(|day| {
            let (mut level, mut shape) = (Vec::new(), Vec::new());
            for both in both(days.leads(day + 1)) {
                let Some((source, local)) = means(&both) else { continue };
                level.push(Evidence::of(&[(source, local)]));
                shape.push(Evidence::of(&both.iter().map(|(s, l)| (s - source, l - local)).collect::<Vec<_>>()));
            }
            let level = Evidence::sum(&level).share(0.5, EQUAL_DAYS).unwrap_or(before.0);
            before = (level, sure_share(shape).unwrap_or(before.1));
            before
        });
        Self { days, near, later }
    }
}

/// The errors of source and local forecaster at these leads where both are known.
fn both_known(source: &[Option<f64>], local: &[Option<f64>], leads: &std::ops::Range<usize>) -> Vec<(f64, f64)> {
    let pairs = at_leads(source, leads).iter().zip(at_leads(local, leads));
    pairs.filter_map(|(s, l)| Some(((*s)?, (*l)?))).collect()
}

/// What speaks for the one forecaster and for the other.
#[derive(Clone, Copy, Debug, Default)]
struct Evidence {
    product: f64,
    squares: f64,
    days: f64,
}

impl Evidence {
    /// A day's errors of source and local forecaster.
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

    /// `usual` is worth so many days. `None` without evidence.
    fn share(self, usual: f64, days: f64) -> Option<f64> {
        let trust = days * self.squares / self.days;
        (self.squares > 0.0).then(|| ((self.product + trust * usual) / (self.squares + trust)).clamp(0.0, 1.0))
    }
}

/// The share that the source would have had without the days that speak most for it. `None` without evidence.
fn sure_share(mut days: Vec<Evidence>) -> Option<f64> {
    Evidence::sum(&days).share(0.0, 0.0)?;
    let share = |days: &[Evidence]| Evidence::sum(days).share(0.0, 0.0).unwrap_or(0.0);
    for _ in 0..SURPRISING_DAYS {
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

/// What the mixture would have been off by; beyond the source's end, the local forecaster that goes on from it.
pub(super) fn mixed(source: &Errors, local: &Errors, shares: &Shares) -> Errors {
    let none = Vec::new();
    let day = |day: usize| -> Vec<Option<f64>> {
        let (source, local) = (source.get(day).unwrap_or(&none), local.get(day).unwrap_or(&none));
        let of = |errors: &[Option<f64>], lead: usize| errors.get(lead).copied().flatten();
        let apart: ByDay = std::array::from_fn(|day| {
            let both = both_known(source, local, &shares.days.leads(day));
            means(&both).map_or(0.0, |(s, l)| l - s)
        });
        let within = |lead: usize| match (of(source, lead), of(local, lead)) {
            (Some(s), Some(l)) => Some(l - shares.of_source(i64::try_from(lead).unwrap_or(0), l - s, &apart)),
            // Where the source had not spoken yet, a mixture with it is not to be judged.
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

/// Half the width of the 80 % interval for each stretch. `assumed` is the standard error before any is known; a stretch
/// with few errors is no narrower than the one before it.
pub(super) fn widths(errors: &Errors, assumed: f64) -> Stretches {
    let mut before = 0.0;
    Stretches::of(|leads| {
        let mut all: Vec<f64> =
            errors.iter().take(JUDGED_DAYS).flat_map(|day| at_leads(day, &leads)).flatten().copied().collect();
        let few = all.len() < 3 * leads.len();
        let width = width(&mut all, COVERAGE[usize::from(leads.start >= DAY)], assumed);
        before = if few { width.max(before) } else { width };
        before
    })
}

/// Half the width that holds this part of what `errors` tell.
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
        (1..28).map(|day| (0..REACH.min(day * DAY)).map(|lead| Some(errors(day, lead))).collect()).collect()
    }

    /// Alternates, so that neither bias nor correlation speaks for one of two forecasters.
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
            for day in 0..REACH / DAY - 1 {
                assert!(days.leads(day).all(|lead| days.at(lead) == day), "{age:?}");
            }
            assert_eq!(days.at(10 * REACH), REACH / DAY - 1);
        }
    }

    #[test]
    fn a_surprise_gives_no_share_in_the_next_hours() {
        // The local forecaster is off by little, but for two days of which the source knew.
        let local = days(|day, _| if day == 5 || day == 9 { 100.0 } else { 1.0 });
        let source = days(|day, _| if day == 5 || day == 9 { 0.0 } else { 5.0 * sign(day) });
        let shares = Shares::fit(&source, &local, IssueDays::of(None));
        assert!([0, 1, 2].iter().all(|lead| shares.near.at(*lead) < 0.05), "{shares:?}");
        assert!(shares.near.at(3) > 0.9, "further ahead both count: {shares:?}");
    }

    #[test]
    fn a_better_source_is_followed_at_once() {
        let shares = Shares::fit(&days(|day, _| sign(day)), &days(|_, _| 10.0), IssueDays::of(None));
        assert!((0..24).all(|lead| shares.near.at(lead) > 0.9), "{shares:?}");
        assert!(shares.later.iter().take(5).all(|(level, _)| *level > 0.7), "{shares:?}");
    }

    #[test]
    fn a_source_whose_later_days_have_the_wrong_shape_tells_only_their_level() {
        // It knows each day's level; its hours are as they should not be from its second day on, 9 hours from now.
        let wave = |lead: usize| if (lead / 6).is_multiple_of(2) { 20.0 } else { -20.0 };
        let source = days(|_, lead| if lead < 9 { 0.0 } else { wave(lead) });
        let local = days(|day, _| 10.0 * sign(day));
        let shares = Shares::fit(&source, &local, IssueDays::of(Some(TimeDelta::hours(15))));
        let apart: ByDay = std::array::from_fn(|_| 10.0);
        assert!(shares.of_source(5, 10.0, &apart) > 9.0, "{shares:?}");
        for lead in [9, 20, 33] {
            let (level, above) = (shares.of_source(lead, 10.0, &apart), shares.of_source(lead, 30.0, &apart));
            assert!(level > 7.0 && above - level < 1.0, "{lead} h ahead: {level:.2} {above:.2}, {shares:?}");
        }
    }
}
