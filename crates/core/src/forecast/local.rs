//! The local forecaster: a daily profile of the last 28 days with a weekend effect and recent deviations, blended with
//! a ridge regression on the day before (`ridge`).
//!
//! With y the hourly intensities, h the lead in hours, k the time of day and w(k) 1 on weekends, else 0:
//!
//! ```text
//! expected(h) = p(k) + g(k)·w(k) + d(h)
//! p(k) = Σ 0.93^day · (y − g·w) / Σ 0.93^day                     the profile, recent days weighted more
//! g(k) = 0.4 · n/(n+1) · (mean on weekends − mean on weekdays)   smoothed over three hours, n weekend days known
//! d(h) = ¼ · 0.965^h · e(0) + ¾ · AR(h)                          extrapolated deviations e = y − p − g·w
//! AR: e(t) = Σ a(l)·e(t − l), l = 1, 2, 3, 23, 24, 25            fitted to the deviations, shrunk to (0.97, 0, …, 0)
//! local(h) = (1 − s) · expected(h) + s · ridge(h)                s = ½ · n/(n + 168), n training hours
//! ```
//!
//! All grids share one set of constants, tuned on January to June 2021 of CISO, PJM, DE and SE together; the second
//! half of the year decided between neighbouring values that were equally good. No constant is at the edge of its
//! tested range: a step either way changes errors by about 0.1 points. The share of the regression was chosen on both
//! halves of the year.

use chrono::{DateTime, TimeDelta, Utc};

use super::hourly_window::{DAY, HOURS, HourlyWindow, closed, over, place, weekend, weights};
use super::ridge::{Design, solve};
use crate::domain::Slot;

/// Weight of a day relative to the next more recent one, in the daily profile.
const PROFILE_PER_DAY: f64 = 0.93;
/// Weight of a day relative to the next more recent one, for weekend effects and the fit of deviations; nearer 1 than
/// [`PROFILE_PER_DAY`], because weekends are a week apart.
const SLOW_PER_DAY: f64 = 0.97;
/// Fraction of the measured weekend effect that is used; the full effect made three of four grids worse.
const WEEKEND_SHARE: f64 = 0.4;
/// Fraction of the latest deviation that remains after an hour, in the part of the extrapolation that is not fitted.
const DECAY_PER_HOUR: f64 = 0.965;
/// Prior of the fraction of a deviation that remains after an hour, in the fitted part of the extrapolation; also the
/// factor per hour by which extrapolations fade far ahead.
const PERSISTENCE: f64 = 0.97;
/// Weight of the prior [`PERSISTENCE`], in hours of data.
const PRIOR_HOURS: f64 = 1.5;
/// Minimum number of deviations for fitting the autoregression.
const LEAST_ROWS: usize = 24;
/// Lead in hours up to which deviations are extrapolated.
const MAX_LEAD_HOURS: usize = 10 * DAY;
/// Lags in hours of the autoregression.
const LAGS: [usize; 6] = [1, 2, 3, 23, 24, 25];
/// Share of the fitted part in extrapolated deviations; the rest is the part that simply decays.
const AR_SHARE: f64 = 0.75;
/// Share of the ridge regression in the local forecast if training data were unlimited.
const RIDGE_SHARE: f64 = 0.5;
/// Number of training hours at which the regression gets half of [`RIDGE_SHARE`].
const RIDGE_HALF_ROWS: f64 = 168.0;
/// Lead in hours from which the regression's share fades.
const FADE_FROM: i64 = 7 * 24;

/// Fitted local forecaster.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Local {
    anchor: DateTime<Utc>,
    profile: [f64; DAY],
    weekend: [f64; DAY],
    /// Extrapolated deviations from the daily profile by lead in hours.
    extrapolated: Vec<f64>,
    /// Past deviations by age in hours, each from the daily profile of the other days.
    past_deviations: Vec<Option<f64>>,
    ar: [f64; LAGS.len()],
    /// Number of hours of the day with any known value.
    known_hours: usize,
}

impl Local {
    /// Fits the forecaster; `None` without any actual value. `anchor` is the end of the window's latest hour.
    pub(super) fn fit(actual: &HourlyWindow, anchor: DateTime<Utc>) -> Option<Self> {
        Self::of_days_ago(0, actual, anchor, &Design::new(actual, anchor))
    }

    /// Fits the forecaster with the data known a number of days before `anchor`.
    pub(super) fn of_days_ago(
        days: usize,
        actual: &HourlyWindow,
        anchor: DateTime<Utc>,
        design: &Design,
    ) -> Option<Self> {
        let mut local = Self::of_profile(&actual.days_ago(days), anchor - TimeDelta::days(i64::try_from(days).ok()?))?;
        let shape = |age: usize| local.shape(before(age));
        let lagged_value = |age: usize| actual.get(days * DAY + age).unwrap_or_else(|| shape(age));
        if let Some((path, rows)) = design.path(days, anchor, lagged_value, MAX_LEAD_HOURS) {
            let share = RIDGE_SHARE * rows / (rows + RIDGE_HALF_ROWS);
            for (lead, value) in (0..).zip(path) {
                let shape = local.shape(lead);
                let fading =
                    if lead < FADE_FROM { 1.0 } else { PERSISTENCE.powi(i32::try_from(lead - FADE_FROM).unwrap_or(0)) };
                if let Some(extrapolated) = usize::try_from(lead).ok().and_then(|lead| local.extrapolated.get_mut(lead))
                {
                    *extrapolated += share * fading * (value - shape - *extrapolated);
                }
            }
        }
        Some(local)
    }

    fn of_profile(actual: &HourlyWindow, anchor: DateTime<Utc>) -> Option<Self> {
        let ages = 0..HOURS;
        let is_weekend: Vec<bool> = ages.map(|age| weekend(anchor, before(age))).collect();
        let extra = weekend_part(actual, &is_weekend);
        let plain = |age: usize, y: f64| if is_weekend[age] { y - extra[place(age)] } else { y };
        let weight = weights(PROFILE_PER_DAY);
        let (mut sums, mut totals) = ([0.0; DAY], [0.0; DAY]);
        for (age, y) in known_values(actual) {
            sums[place(age)] += weight[age] * plain(age, y);
            totals[place(age)] += weight[age];
        }
        let known_hours = totals.iter().filter(|t| **t > 0.0).count();
        let profile = closed(&std::array::from_fn(|k| (totals[k] > 0.0).then(|| sums[k] / totals[k])))?;
        let mean = profile.iter().sum::<f64>() / f64::from(24);
        let inside: Vec<_> =
            actual.hours().iter().enumerate().map(|(age, y)| Some(plain(age, (*y)?) - profile[place(age)])).collect();
        // Each deviation is taken from the mean of the other days: from a mean that includes its own day, it would be
        // too small.
        let other = |age: usize, e: f64| {
            let rest = totals[place(age)] - weight[age];
            if rest > 1e-9 { e * totals[place(age)] / rest } else { e + profile[place(age)] - mean }
        };
        let past_deviations = inside.iter().enumerate().map(|(age, e)| Some(other(age, (*e)?))).collect();
        let ar = fit_autoregression(&inside);
        let extrapolated = deviations(&inside, 0, &ar, MAX_LEAD_HOURS);
        Some(Self { anchor, profile, weekend: extra, extrapolated, past_deviations, ar, known_hours })
    }

    /// Returns true if at least three quarters of the day's hours have values; the others are interpolated.
    pub(super) fn is_daily(&self) -> bool {
        self.known_hours * 4 >= DAY * 3
    }

    /// Returns the expected intensity in a slot, without recent deviations if the data are `old`.
    pub(super) fn expected(&self, slot: &Slot, old: bool) -> f64 {
        over(slot, self.anchor, |lead| if old { self.shape(lead) } else { self.ahead(lead) })
    }

    /// Returns the expected intensity of the hour at a lead.
    pub(super) fn ahead(&self, lead: i64) -> f64 {
        let left = usize::try_from(lead).ok().and_then(|lead| self.extrapolated.get(lead)).copied();
        self.shape(lead) + left.unwrap_or(0.0)
    }

    fn shape(&self, lead: i64) -> f64 {
        let k = usize::try_from(lead.rem_euclid(24)).unwrap_or(0);
        self.profile[k] + if weekend(self.anchor, lead) { self.weekend[k] } else { 0.0 }
    }

    /// Returns the past deviations, each from the daily profile of the other days.
    pub(super) fn deviations(&self) -> impl Iterator<Item = f64> + '_ {
        self.past_deviations.iter().flatten().copied()
    }
}

/// Returns the known hours with their ages.
fn known_values(trail: &HourlyWindow) -> impl Iterator<Item = (usize, f64)> + '_ {
    trail.hours().iter().enumerate().filter_map(|(age, y)| Some((age, (*y)?)))
}

/// Returns the (negative) lead of a past hour from its age in hours.
fn before(age: usize) -> i64 {
    -1 - i64::try_from(age).unwrap_or(i64::MAX - 1)
}

/// Returns the weekend effect (weekend less weekday intensity, shrunk) by time of day.
fn weekend_part(actual: &HourlyWindow, is_weekend: &[bool]) -> [f64; DAY] {
    let weight = weights(SLOW_PER_DAY);
    // Weekday and weekend: sum, weight and count by time of day.
    let mut sides = [[(0.0, 0.0, 0.0); DAY]; 2];
    for (age, y) in known_values(actual) {
        let (sum, total, count) = &mut sides[usize::from(is_weekend[age])][place(age)];
        *sum += weight[age] * y;
        *total += weight[age];
        *count += 1.0;
    }
    let raw: [f64; DAY] = std::array::from_fn(|k| {
        let ((a, wa, _), (b, wb, days)) = (sides[0][k], sides[1][k]);
        if wa > 0.0 && wb > 0.0 { days / (days + 1.0) * (b / wb - a / wa) } else { 0.0 }
    });
    std::array::from_fn(|k| WEEKEND_SHARE * (raw[(k + DAY - 1) % DAY] + raw[k] + raw[(k + 1) % DAY]) / 3.0)
}

/// Fits the autoregression by least squares, with a ridge penalty towards plain persistence.
fn fit_autoregression(deviations: &[Option<f64>]) -> [f64; LAGS.len()] {
    const N: usize = LAGS.len();
    let mut prior = [0.0; N];
    prior[0] = PERSISTENCE;
    let weight = weights(SLOW_PER_DAY);
    let (mut gram, mut right, mut rows, mut squares, mut total) = ([[0.0; N]; N], [0.0; N], 0, 0.0, 0.0);
    for age in 0..HOURS.saturating_sub(LAGS[N - 1]) {
        let Some(e) = deviations[age] else { continue };
        let mut x = [0.0; N];
        let complete = LAGS.iter().zip(&mut x).all(|(lag, x)| {
            deviations[age + lag].is_some_and(|e| {
                *x = e;
                true
            })
        });
        if !complete {
            continue;
        }
        let w = weight[age];
        let rest = e - PERSISTENCE * x[0];
        for i in 0..N {
            right[i] += w * x[i] * rest;
            for j in 0..=i {
                gram[i][j] += w * x[i] * x[j];
            }
        }
        rows += 1;
        squares += w * e * e;
        total += w;
    }
    if rows < LEAST_ROWS || squares <= 0.0 {
        return prior;
    }
    for (i, row) in gram.iter_mut().enumerate() {
        row[i] += PRIOR_HOURS * squares / total;
    }
    match solve(gram, right) {
        Some(change) => std::array::from_fn(|i| prior[i] + change[i]),
        None => prior,
    }
}

/// Extrapolates deviations over the `lead_hours` hours that begin `from` hours before the end of the latest value. The
/// fitted part never exceeds the largest deviation of the week before that time, and fades after a day.
fn deviations(past_deviations: &[Option<f64>], from: usize, ar: &[f64; LAGS.len()], lead_hours: usize) -> Vec<f64> {
    let at = |age: usize| past_deviations.get(age).copied().flatten().unwrap_or(0.0);
    let last = at(from);
    let most = (from..from + 7 * DAY).map(|age| at(age).abs()).fold(0.0, f64::max);
    let (mut decay, mut fading) = (1.0, 1.0);
    let mut fitted: Vec<f64> = Vec::with_capacity(lead_hours);
    let mut extrapolated = Vec::with_capacity(lead_hours);
    for lead in 0..lead_hours {
        let term =
            |(lag, a): (&usize, &f64)| a * if *lag <= lead { fitted[lead - lag] } else { at(from + lag - lead - 1) };
        let next: f64 = LAGS.iter().zip(ar).map(term).sum::<f64>().clamp(-most, most);
        fitted.push(next);
        decay *= DECAY_PER_HOUR;
        if lead >= DAY {
            fading *= PERSISTENCE;
        }
        extrapolated.push((1.0 - AR_SHARE) * decay * last + AR_SHARE * fading * next);
    }
    extrapolated
}
