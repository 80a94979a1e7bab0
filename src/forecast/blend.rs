//! How two forecasts of the same hours are mixed, and how far each is off, judged on the days before.
//!
//! On each past day, from this time of day on, the corrected source and the local forecaster would have been off by
//! eₛ and eₗ, both fitted to what was known then. For each stretch of the time ahead the share of the source is
//!
//! ```text
//! w = (Σ eₗ(eₗ − eₛ) + κu) / (Σ (eₗ − eₛ)² + κ)     cut to [0, 1]
//! ```
//!
//! which minimises the squared error of the mixture. Within three hours u is 0 and κ three days' worth of Σ (eₗ − eₛ)²,
//! up to a day u is 1 and κ one day's worth: the source is trusted until there is evidence against it. On each later day
//! u is a half and κ three days' worth, and there are two shares: of the day's mean, and of what lies off it. Who knows
//! the weather knows how windy a day will be; who knows the grid knows at which hours it is cleanest. Such a day is
//! counted from the newest outcome.

use chrono::{DateTime, TimeDelta, Utc};

use super::known::decayed;
use super::trail::DAY;

/// Errors are looked at so many hours ahead; what holds at the last of them holds beyond.
pub(super) const REACH: usize = 7 * DAY;
/// Where one stretch of the time ahead ends and the next begins, in hours ahead.
const STRETCHES: [usize; 9] = [1, 3, 8, 16, DAY, 2 * DAY, 3 * DAY, 4 * DAY, REACH];
/// How many days the trust in the source is worth against what was measured, on the first day ahead.
const TRUST_DAYS: f64 = 1.0;
/// Within so many hours ahead the last outcomes say most, and few past hours tell how much: the source's share begins
/// with nothing there.
const NOW: usize = 3;
/// How many days that is worth against what was measured, as are equal shares beyond the first day ahead.
const EQUAL_DAYS: f64 = 3.0;
/// What part of past errors an interval holds, so that it holds 80 % of those to come, on the first day ahead and
/// beyond: the last weeks' errors are not those of the next days, and far ahead they speak of few days apart.
pub(super) const COVERAGE: [f64; 2] = [0.81, 0.835];
/// How many past days are judged at the most: on those before, forecasters had less than a week to learn from.
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

/// The source's shares in the mixture.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Shares {
    /// On the first day ahead.
    near: Stretches,
    /// On each later one: of the day's mean, and of what lies off it.
    later: [(f64, f64); REACH / DAY - 1],
}

/// By how much the corrected source lies above the local forecaster on each of the days ahead, in g/kWh: the mean over
/// the hours for which both are known.
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
        let day = day_of(usize::try_from(lead).unwrap_or(0));
        match day.checked_sub(1).map(|day| self.later[day]) {
            None => self.near.at(lead) * above,
            Some((level, shape)) => level * apart[day] + shape * (above - apart[day]),
        }
    }

    /// The shares that would have been best on the past days.
    pub(super) fn fit(source: &Errors, local: &Errors) -> Self {
        let mut before = 1.0;
        let near = Stretches::of(|leads| {
            let mut evidence = Evidence::default();
            for (s, l) in source.iter().zip(local) {
                let pairs = at_leads(s, &leads).iter().zip(at_leads(l, &leads));
                let both: Vec<_> = pairs.filter_map(|(s, l)| Some(((*s)?, (*l)?))).collect();
                evidence.add(&both, 0.0, 0.0);
            }
            let (usual, trust) = if leads.end <= NOW { (0.0, EQUAL_DAYS) } else { (1.0, TRUST_DAYS) };
            before = evidence.share(usual, trust).unwrap_or(before);
            before
        });
        let mut before = (0.5, 0.5);
        let later = std::array::from_fn(|day| {
            let leads = DAY * (day + 1)..DAY * (day + 2);
            let (mut level, mut shape) = (Evidence::default(), Evidence::default());
            for (s, l) in source.iter().zip(local) {
                let pairs = at_leads(s, &leads).iter().zip(at_leads(l, &leads));
                let both: Vec<_> = pairs.filter_map(|(s, l)| Some(((*s)?, (*l)?))).collect();
                let Some((s, l)) = means(&both) else { continue };
                level.add(&[(s, l)], 0.0, 0.0);
                shape.add(&both, s, l);
            }
            let share = |evidence: Evidence, before| evidence.share(0.5, EQUAL_DAYS).unwrap_or(before);
            before = (share(level, before.0), share(shape, before.1));
            before
        });
        Self { near, later }
    }
}

/// What speaks for the one forecaster and for the other.
#[derive(Clone, Copy, Debug, Default)]
struct Evidence {
    product: f64,
    squares: f64,
    days: f64,
}

impl Evidence {
    /// A day's errors of source and local forecaster, of which these means are taken off.
    fn add(&mut self, both: &[(f64, f64)], source: f64, local: f64) {
        for (s, l) in both.iter().map(|(s, l)| (s - source, l - local)) {
            self.product += l * (l - s);
            self.squares += (l - s) * (l - s);
        }
        self.days += if both.is_empty() { 0.0 } else { 1.0 };
    }

    /// `usual` is worth so many days. `None` without evidence.
    fn share(&self, usual: f64, days: f64) -> Option<f64> {
        let trust = days * self.squares / self.days;
        (self.squares > 0.0).then(|| ((self.product + trust * usual) / (self.squares + trust)).clamp(0.0, 1.0))
    }
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
            let leads = DAY * day..DAY * (day + 1);
            let pairs = at_leads(source, &leads).iter().zip(at_leads(local, &leads));
            let both: Vec<_> = pairs.filter_map(|(s, l)| Some(((*s)?, (*l)?))).collect();
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
