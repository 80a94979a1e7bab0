//! The local forecaster: a daily profile of the last 28 days, the weekend's part in it, and what is left of the
//! latest deviations, mixed with a ridge regression on the day before (`ridge`).
//!
//! With y the hourly intensities, k the time of day and w(k) 1 on weekends:
//!
//! ```text
//! expected(h) = p(k) + g(k)·w(k) + d(h)
//! p(k) = Σ 0.93^day · (y − g·w) / Σ 0.93^day                     the profile, younger days counting more
//! g(k) = 0.4 · n/(n+1) · (mean on weekends − mean on weekdays)   smoothed over three hours, n weekend days known
//! d(h) = ¼ · 0.965^h · e(0) + ¾ · AR(h)                          deviations e = y − p − g·w, going on
//! AR: e(t) = Σ a(l)·e(t − l), l = 1, 2, 3, 23, 24, 25            fitted to the deviations, drawn to (0.97, 0, …, 0)
//! local(h) = (1 − s) · expected(h) + s · ridge(h)                s = ½ · n/(n + 168), n hours learnt from
//! ```
//!
//! One set of constants for every grid. They were searched for on January to June 2021 of CISO, PJM, DE and SE together,
//! and where neighbours did equally well there, the second half of the year had a say; none is on an edge (a step
//! either way changes the errors by about 0.1 points). The part of the regression was chosen on both halves of the year.

use chrono::{DateTime, TimeDelta, Utc};

use super::ridge::{Design, solve};
use super::trail::{DAY, HOURS, Trail, closed, over, place, weekend, weights};
use crate::domain::Slot;

/// What a day counts against the next younger one, in the profile.
const PROFILE_PER_DAY: f64 = 0.93;
/// The same where weekends are told from weekdays and deviations are learnt from: a weekend is a week away.
const SLOW_PER_DAY: f64 = 0.97;
/// How much of the difference between weekend and weekday is believed; in full it made three of four grids worse.
const WEEKEND_SHARE: f64 = 0.4;
/// What remains of the newest deviation after an hour, in the half that is not learnt.
const HELD: f64 = 0.965;
/// The same in the half that is learnt, before anything is, and in both what fades after a day.
const PERSISTENCE: f64 = 0.97;
/// How many hours the persistence above is worth against what was learnt.
const PRIOR_HOURS: f64 = 1.5;
/// Fewer deviations than this teach nothing.
const LEAST_ROWS: usize = 24;
/// How far ahead deviations are followed; nothing is left of them then.
const REACH: usize = 10 * DAY;
/// The deviations that explain the next one: their distance in hours.
const LAGS: [usize; 6] = [1, 2, 3, 23, 24, 25];
/// The part of the learnt deviations against those that are merely held.
const LEARNT: f64 = 0.75;
/// The share of the ridge regression, if it could learn from ever so many hours.
const RIDGE_SHARE: f64 = 0.5;
/// From so many hours it gets half of that.
const RIDGE_ROWS: f64 = 168.0;
/// From so many hours ahead on its share fades.
const FADES_FROM: i64 = 7 * 24;

/// The forecaster, fitted.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Local {
    anchor: DateTime<Utc>,
    profile: [f64; DAY],
    weekend: [f64; DAY],
    /// Deviations to come, by lead in hours.
    coming: Vec<f64>,
    /// Deviations that were, by age, from the profile of the other days.
    past: Vec<Option<f64>>,
    ar: [f64; LAGS.len()],
    /// How many of the day's hours were ever seen.
    hours_seen: usize,
}

impl Local {
    /// `None` without any value. `anchor` is where the trail's newest hour ends.
    pub(super) fn fit(actual: &Trail, anchor: DateTime<Utc>) -> Option<Self> {
        Self::of_days_ago(0, actual, anchor, &Design::new(actual, anchor))
    }

    /// The forecaster as it would have been so many days before `anchor`.
    pub(super) fn of_days_ago(days: usize, actual: &Trail, anchor: DateTime<Utc>, design: &Design) -> Option<Self> {
        let mut local = Self::of_profile(&actual.days_ago(days), anchor - TimeDelta::days(i64::try_from(days).ok()?))?;
        let shape = |age: usize| local.shape(before(age));
        let past = |age: usize| actual.get(days * DAY + age).unwrap_or_else(|| shape(age));
        if let Some((path, rows)) = design.path(days, anchor, past, REACH) {
            let share = RIDGE_SHARE * rows / (rows + RIDGE_ROWS);
            for (lead, value) in (0..).zip(path) {
                let shape = local.shape(lead);
                let fading = if lead < FADES_FROM {
                    1.0
                } else {
                    PERSISTENCE.powi(i32::try_from(lead - FADES_FROM).unwrap_or(0))
                };
                if let Some(coming) = usize::try_from(lead).ok().and_then(|lead| local.coming.get_mut(lead)) {
                    *coming += share * fading * (value - shape - *coming);
                }
            }
        }
        Some(local)
    }

    fn of_profile(actual: &Trail, anchor: DateTime<Utc>) -> Option<Self> {
        let ages = 0..HOURS;
        let is_weekend: Vec<bool> = ages.map(|age| weekend(anchor, before(age))).collect();
        let extra = weekend_part(actual, &is_weekend);
        let plain = |age: usize, y: f64| if is_weekend[age] { y - extra[place(age)] } else { y };
        let weight = weights(PROFILE_PER_DAY);
        let (mut sums, mut totals) = ([0.0; DAY], [0.0; DAY]);
        for (age, y) in known(actual) {
            sums[place(age)] += weight[age] * plain(age, y);
            totals[place(age)] += weight[age];
        }
        let hours_seen = totals.iter().filter(|t| **t > 0.0).count();
        let profile = closed(&std::array::from_fn(|k| (totals[k] > 0.0).then(|| sums[k] / totals[k])))?;
        let mean = profile.iter().sum::<f64>() / f64::from(24);
        let inside: Vec<_> =
            actual.hours().iter().enumerate().map(|(age, y)| Some(plain(age, (*y)?) - profile[place(age)])).collect();
        // From the mean of the other days: a day that stood alone lies off the overall mean.
        let other = |age: usize, e: f64| {
            let rest = totals[place(age)] - weight[age];
            if rest > 1e-9 { e * totals[place(age)] / rest } else { e + profile[place(age)] - mean }
        };
        let past = inside.iter().enumerate().map(|(age, e)| Some(other(age, (*e)?))).collect();
        let ar = learn(&inside);
        let coming = deviations(&inside, 0, &ar, REACH);
        Some(Self { anchor, profile, weekend: extra, coming, past, ar, hours_seen })
    }

    /// Whether most hours of the day were seen; the others lie on lines between them.
    pub(super) fn is_daily(&self) -> bool {
        self.hours_seen * 4 >= DAY * 3
    }

    /// What is expected in a slot, without the latest deviations if the values are `old`.
    pub(super) fn expected(&self, slot: &Slot, old: bool) -> f64 {
        over(slot, self.anchor, |lead| if old { self.shape(lead) } else { self.ahead(lead) })
    }

    /// What is expected of the hour at a lead.
    pub(super) fn ahead(&self, lead: i64) -> f64 {
        let left = usize::try_from(lead).ok().and_then(|lead| self.coming.get(lead)).copied();
        self.shape(lead) + left.unwrap_or(0.0)
    }

    fn shape(&self, lead: i64) -> f64 {
        let k = usize::try_from(lead.rem_euclid(24)).unwrap_or(0);
        self.profile[k] + if weekend(self.anchor, lead) { self.weekend[k] } else { 0.0 }
    }

    /// Deviations from the profile of the other days, whatever their lead.
    pub(super) fn deviations(&self) -> impl Iterator<Item = f64> + '_ {
        self.past.iter().flatten().copied()
    }
}

/// The hours that are known, with their ages.
fn known(trail: &Trail) -> impl Iterator<Item = (usize, f64)> + '_ {
    trail.hours().iter().enumerate().filter_map(|(age, y)| Some((age, (*y)?)))
}

/// The lead of an hour that has passed.
fn before(age: usize) -> i64 {
    -1 - i64::try_from(age).unwrap_or(i64::MAX - 1)
}

/// What weekends have more than weekdays, by time of day.
fn weekend_part(actual: &Trail, is_weekend: &[bool]) -> [f64; DAY] {
    let weight = weights(SLOW_PER_DAY);
    // Weekday and weekend: sum, weight and count by time of day.
    let mut sides = [[(0.0, 0.0, 0.0); DAY]; 2];
    for (age, y) in known(actual) {
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

/// Least squares of each deviation on those before it, by age, with a ridge towards mere persistence.
fn learn(deviations: &[Option<f64>]) -> [f64; LAGS.len()] {
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

/// How deviations go on from the moment `from` hours before the newest, `reach` hours far. They never exceed those of
/// the week before, and fade after a day whatever was learnt.
fn deviations(past: &[Option<f64>], from: usize, ar: &[f64; LAGS.len()], reach: usize) -> Vec<f64> {
    let at = |age: usize| past.get(age).copied().flatten().unwrap_or(0.0);
    let last = at(from);
    let most = (from..from + 7 * DAY).map(|age| at(age).abs()).fold(0.0, f64::max);
    let (mut held, mut fading) = (1.0, 1.0);
    let mut learnt: Vec<f64> = Vec::with_capacity(reach);
    let mut coming = Vec::with_capacity(reach);
    for lead in 0..reach {
        let term =
            |(lag, a): (&usize, &f64)| a * if *lag <= lead { learnt[lead - lag] } else { at(from + lag - lead - 1) };
        let next: f64 = LAGS.iter().zip(ar).map(term).sum::<f64>().clamp(-most, most);
        learnt.push(next);
        held *= HELD;
        if lead >= DAY {
            fading *= PERSISTENCE;
        }
        coming.push((1.0 - LEARNT) * held * last + LEARNT * fading * next);
    }
    coming
}
