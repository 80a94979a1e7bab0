//! Correction of a source's forecast for its recent errors.
//!
//! With r = actual − forecast, hourly over the last 28 days (a day weighs 0.98 times as much as the next more recent
//! one; r is clipped at four robust standard deviations):
//!
//! ```text
//! corrected(h) = forecast + s·b + z(k)·m(k) + a·φ^(h+1)·y(0)
//! b     mean of r; s = t²/(1 + t²), t = b over its standard error (by the number of independent hours)
//! m(k)  mean of r − b at time of day k; z(k) = t²/(2 + t²) with the t of m(k), 0.7 before two days are known
//! y     residual of r after s·b and z·m are subtracted; φ its autocorrelation over an hour
//! a     fraction of y that persisted over the next hours from this time of day on, on past days, in [0, 1]
//! ```
//!
//! Each part vanishes without evidence, so an unbiased forecast does not change. `a` distinguishes a source whose
//! forecast has just been renewed (its last error says little about the next) from one whose forecast is older. All
//! grids share one set of constants. The constants are round and none is at the edge of its tested range. They had to
//! be chosen on the same forecasts on which they are tested, because no others are available: those of the second half
//! of 2021 and the MISO trace.

use chrono::{DateTime, Utc};

use super::hourly_window::{DAY, HourlyWindow, closed, over, place, weights};
use crate::domain::Slot;

/// Weight of a day relative to the next more recent one.
const PER_DAY: f64 = 0.98;
/// Robust standard deviations from the median at which residuals are clipped.
const CLIP_SIGMAS: f64 = 4.0;
/// Ratio of standard deviation to median absolute deviation for a normal distribution.
const MAD_TO_SIGMA: f64 = 1.4826;
/// Values of t² (squared ratio of an estimate to its standard error) at which an estimate counts for half: for the
/// level of the errors (`LEVEL_SHRINKAGE`), and for their mean at a time of day (`HOUR_SHRINKAGE`).
const LEVEL_SHRINKAGE: f64 = 1.0;
const HOUR_SHRINKAGE: f64 = 2.0;
/// Factor on the daily pattern of errors while only one day is known.
const ONE_DAY_SHARE: f64 = 0.7;
/// Assumed autocorrelation of forecast errors before it can be measured.
const PERSISTENCE: f64 = 0.9;
/// Weight, in hours of data, of the prior that errors have no autocorrelation.
const INDEPENDENT_HOURS: f64 = 12.0;
/// Weight, in days of data, of the prior that the last error persists in full.
const SURVIVAL_DAYS: f64 = 3.0;
/// Minimum number of hours for measuring the autocorrelation of residuals.
const LEAST_HOURS: usize = 4;

/// Fitted correction of a source's forecast.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Correction {
    anchor: DateTime<Utc>,
    /// Sum of the level and the daily pattern of the errors, by hours after the anchor.
    usual: [f64; DAY],
    /// Latest residual (`last`, at lead −1), and its autocorrelation over an hour (`persistence`).
    last: f64,
    persistence: f64,
    survival: f64,
}

/// Sums over the hours at one time of day.
#[derive(Clone, Copy, Default)]
struct Sums {
    weight: f64,
    weight_squared: f64,
    value: f64,
    squares: f64,
}

impl Correction {
    /// Fits a correction to `errors` (actual less forecast); `None` without errors.
    pub(super) fn fit(errors: &HourlyWindow, anchor: DateTime<Utc>) -> Option<Self> {
        let cut = without_outliers(errors)?;
        let known = || cut.iter().enumerate().filter_map(|(age, r)| Some((age, (*r)?)));
        let weight = weights(PER_DAY);
        let (mut total, mut squared, mut sum) = (0.0, 0.0, 0.0);
        for (age, r) in known() {
            total += weight[age];
            squared += weight[age] * weight[age];
            sum += weight[age] * r;
        }
        let mean = sum / total;
        let off: Vec<_> = cut.iter().map(|r| Some((*r)? - mean)).collect();
        let variance = known().map(|(age, r)| weight[age] * (r - mean) * (r - mean)).sum::<f64>() / total;
        let hours = errors.known();
        let together = if hours < 6 { PERSISTENCE } else { autocorrelation(&off, 0.0).clamp(0.0, 0.97) };
        let independent = (total * total / squared * (1.0 - together) / (1.0 + together)).max(1.0);
        let level = mean * shrinkage(mean * mean, variance / independent, LEVEL_SHRINKAGE);

        let days = by_time_of_day(&off, &weight);
        let shape = shape(&off, &weight, &days, hours);
        let usual: [f64; DAY] = std::array::from_fn(|k| level + shape[k]);
        let left: Vec<_> = cut.iter().enumerate().map(|(age, r)| Some((*r)? - usual[place(age)])).collect();
        let persistence =
            if hours < LEAST_HOURS { 0.0 } else { autocorrelation(&left, INDEPENDENT_HOURS).clamp(0.0, 0.985) };
        let last = left[0].unwrap_or(0.0);
        let survival = survival(&left, persistence);
        Some(Self { anchor, usual, last, persistence, survival })
    }

    /// Returns the correction of a slot's forecast in g/kWh: level and daily pattern of the errors, and what remains of
    /// the latest error of `newest`, unless the data are `old`.
    pub(super) fn at(&self, newest: &Self, slot: &Slot, old: bool) -> f64 {
        over(slot, self.anchor, |lead| self.usual(lead) + if old { 0.0 } else { newest.left(lead) })
    }

    /// Returns the sum of the errors' level and daily pattern at a lead in hours.
    pub(super) fn usual(&self, lead: i64) -> f64 {
        self.usual[usize::try_from(lead.rem_euclid(24)).unwrap_or(0)]
    }

    /// Returns the part of the latest error that remains at a lead in hours.
    pub(super) fn left(&self, lead: i64) -> f64 {
        let fading = i32::try_from(lead.max(-1) + 1).map_or(0.0, |hours| self.persistence.powi(hours));
        self.survival * fading * self.last
    }
}

/// Returns the shrinkage factor of an estimate from its square and its variance; `doubt` is the ratio of the two (t²)
/// at which the factor is one half.
fn shrinkage(square: f64, variance: f64, doubt: f64) -> f64 {
    if square > 0.0 { square / (square + doubt * variance) } else { 0.0 }
}

fn without_outliers(errors: &HourlyWindow) -> Option<Vec<Option<f64>>> {
    let mut all: Vec<f64> = errors.hours().iter().flatten().copied().collect();
    let middle = median(&mut all)?;
    if all.len() < DAY {
        return Some(errors.hours().to_vec());
    }
    for r in &mut all {
        *r = (*r - middle).abs();
    }
    let most = CLIP_SIGMAS * MAD_TO_SIGMA * median(&mut all)?;
    Some(errors.hours().iter().map(|r| Some((*r)?.clamp(middle - most, middle + most))).collect())
}

fn median(values: &mut [f64]) -> Option<f64> {
    let half = values.len() / 2;
    (half < values.len()).then(|| *values.select_nth_unstable_by(half, f64::total_cmp).1)
}

/// Returns the lag-1 autocorrelation, shrunk towards zero by a prior that weighs `doubt` hours of data.
fn autocorrelation(values: &[Option<f64>], doubt: f64) -> f64 {
    let (mut product, mut squares, mut hours) = (0.0, 0.0, 0.0);
    for (age, value) in values.iter().enumerate() {
        let Some(value) = value else { continue };
        squares += value * value;
        hours += 1.0;
        product += values.get(age + 1).copied().flatten().map_or(0.0, |earlier| value * earlier);
    }
    if squares > 0.0 { product / (squares * (1.0 + doubt / hours)) } else { 0.0 }
}

fn by_time_of_day(values: &[Option<f64>], weight: &[f64]) -> [Sums; DAY] {
    let mut days = [Sums::default(); DAY];
    for (age, value) in values.iter().enumerate() {
        let Some(value) = value else { continue };
        let (day, w) = (&mut days[place(age)], weight[age]);
        day.weight += w;
        day.weight_squared += w * w;
        day.value += w * value;
        day.squares += w * value * value;
    }
    days
}

/// Returns the daily pattern of the errors, shrunk by its uncertainty.
fn shape(off: &[Option<f64>], weight: &[f64], days: &[Sums; DAY], hours: usize) -> [f64; DAY] {
    let mean = |day: &Sums| if day.weight > 0.0 { day.value / day.weight } else { 0.0 };
    if hours < 2 * DAY {
        // Unknown hours are interpolated between the nearest known ones, which may be the latest.
        let seen = closed(&std::array::from_fn(|k| (days[k].weight > 0.0).then(|| mean(&days[k]))));
        return seen.unwrap_or_default().map(|m| ONE_DAY_SHARE * m);
    }
    let rest = |(age, r): (usize, &Option<f64>)| Some(weight[age] * ((*r)? - mean(&days[place(age)])).powi(2));
    let total: f64 = days.iter().map(|day| day.weight).sum();
    let common = off.iter().enumerate().filter_map(rest).sum::<f64>() / total;
    std::array::from_fn(|k| {
        let day = &days[k];
        if day.weight <= 0.0 {
            return 0.0;
        }
        let own = (day.squares / day.weight - mean(day).powi(2)).max(0.0);
        let variance = 0.5 * (own + common) * day.weight_squared / (day.weight * day.weight);
        mean(day) * shrinkage(mean(day).powi(2), variance, HOUR_SHRINKAGE)
    })
}

/// Returns the fraction, in 0 to 1, of the residuals at this time of day on past days that persisted over the next
/// hours as the autocorrelation `persistence` predicts.
fn survival(left: &[Option<f64>], persistence: f64) -> f64 {
    let at = |age: usize| left.get(age).copied().flatten();
    let squares = || left.iter().flatten().map(|y| y * y);
    let mut fading = [0.0; DAY];
    let mut now = 1.0;
    for f in &mut fading {
        now *= persistence;
        *f = now;
    }
    let paths: f64 = fading.iter().map(|f| f * f).sum();
    #[expect(clippy::cast_precision_loss, reason = "at most 672 hours")]
    let usual = squares().sum::<f64>() / (squares().count().max(1) as f64) * paths * SURVIVAL_DAYS;
    let (mut product, mut total) = (usual, usual);
    for origin in (DAY..left.len()).step_by(DAY) {
        let Some(then) = at(origin) else { continue };
        for (lead, f) in fading.iter().enumerate() {
            let Some(after) = at(origin - lead - 1) else { continue };
            product += then * f * after;
            total += then * then * f * f;
        }
    }
    if total > 0.0 { (product / total).clamp(0.0, 1.0) } else { 0.0 }
}
