//! Ridge regression of each hour's intensity on the 25 hours before it: the second part of the local forecaster.
//!
//! ```text
//! y(t) = c(k) + Σ b(l)·y(t − l) + g·w(t),     l = 1 … 25 h
//! ```
//!
//! with c(k) free for each time of day k and w 1 on weekends, else 0, by weighted least squares over 28 days (a day
//! weighs 0.97 times as much as the next more recent one). The penalty on each coefficient weighs as much as five hours
//! of data. Later hours are forecast from the forecasts of the hours before them. Regression and daily profile err in
//! different places, so their blend is better than either.

use chrono::{DateTime, TimeDelta, Utc};

use super::hourly_window::{DAY, HOURS, HourlyWindow, place, weekend};

/// Number of preceding hours that are used as regressors.
const LAGS: usize = DAY + 1;
/// Number of regressors: the lags and the weekend.
const TERMS: usize = LAGS + 1;
/// Weight of a day relative to the next more recent one.
const PER_DAY: f64 = 0.97;
/// Weight of the ridge penalty, in hours of data.
const PENALTY_HOURS: f64 = 5.0;
/// Maximum excess of a forecast over the range of known values, as a fraction of that range.
const OUTSIDE: f64 = 0.25;

/// Regressors of one hour, and the value of that hour as last entry.
type Row = [f64; TERMS + 1];

/// Weighted sums over rows of training data.
#[derive(Clone)]
struct Sums {
    rows: f64,
    /// Total weight (`weight`) and weighted sums of the rows (`sum`) by time of day.
    weight: [f64; DAY],
    sum: [Row; DAY],
    /// Weighted sums of the products of any two entries of a row, as lower triangle.
    products: [Row; TERMS + 1],
}

/// Training data as known on each of the past days.
pub(super) struct Design {
    /// Mean of all values, subtracted from them for numerical accuracy.
    mean: f64,
    lowest: f64,
    highest: f64,
    /// Sums over the rows that were known n days before the anchor, at index n.
    sums: Vec<Sums>,
}

impl Design {
    /// Collects the training data. `anchor` is the end of the window's latest hour.
    pub(super) fn new(actual: &HourlyWindow, anchor: DateTime<Utc>) -> Self {
        let mean = actual.mean().unwrap_or(0.0);
        let known_values = || actual.hours().iter().flatten().copied();
        let (lowest, highest) = (known_values().fold(mean, f64::min), known_values().fold(mean, f64::max));
        let mut sums = Sums::none();
        let mut by_day = Vec::with_capacity(HOURS / DAY);
        for day in (0..HOURS / DAY).rev() {
            sums.fade();
            for age in day * DAY..(day + 1) * DAY {
                if let Some(row) = row(actual, anchor, age, mean) {
                    sums.add(place(age), &row);
                }
            }
            by_day.push(sums.clone());
        }
        by_day.reverse();
        Self { mean, lowest, highest, sums: by_day }
    }

    /// Forecasts the first `lead_hours` hours after the time that lies `days` days before the anchor. `lagged_value`
    /// returns the value of an hour before that time by its age (0 is the latest). Returns the forecasts (first) and
    /// the number of training rows (second); `None` if there are too few rows.
    pub(super) fn path(
        &self,
        days: usize,
        anchor: DateTime<Utc>,
        lagged_value: impl Fn(usize) -> f64,
        lead_hours: usize,
    ) -> Option<(Vec<f64>, f64)> {
        let sums = self.sums.get(days)?;
        let (effects, means) = sums.solved()?;
        let margin = OUTSIDE * (self.highest - self.lowest);
        let (lowest, highest) = (self.lowest - margin - self.mean, self.highest + margin - self.mean);
        let then = anchor - TimeDelta::days(i64::try_from(days).ok()?);
        // Preceding values, the latest first.
        let mut before: [f64; LAGS] = std::array::from_fn(|age| lagged_value(age) - self.mean);
        let mut path = Vec::with_capacity(lead_hours);
        for lead in 0..lead_hours {
            let mean = &means[lead % DAY];
            let mut value = mean[TERMS] + effects[LAGS] * (weekend_at(then, lead) - mean[LAGS]);
            for lag in 0..LAGS {
                value += effects[lag] * (before[lag] - mean[lag]);
            }
            let value = value.clamp(lowest, highest);
            before.copy_within(0..LAGS - 1, 1);
            before[0] = value;
            path.push((value + self.mean).max(0.0));
        }
        Some((path, sums.rows))
    }
}

fn row(actual: &HourlyWindow, anchor: DateTime<Utc>, age: usize, mean: f64) -> Option<Row> {
    let mut row = [0.0; TERMS + 1];
    for (lag, value) in row.iter_mut().enumerate().take(LAGS) {
        *value = actual.get(age + lag + 1)? - mean;
    }
    let lead = -1 - i64::try_from(age).ok()?;
    row[LAGS] = if weekend(anchor, lead) { 1.0 } else { 0.0 };
    row[TERMS] = actual.get(age)? - mean;
    Some(row)
}

fn weekend_at(anchor: DateTime<Utc>, lead: usize) -> f64 {
    if i64::try_from(lead).is_ok_and(|lead| weekend(anchor, lead)) { 1.0 } else { 0.0 }
}

impl Sums {
    fn none() -> Self {
        let row = [0.0; TERMS + 1];
        Self { rows: 0.0, weight: [0.0; DAY], sum: [row; DAY], products: [row; TERMS + 1] }
    }

    fn fade(&mut self) {
        self.weight.iter_mut().for_each(|w| *w *= PER_DAY);
        self.sum.iter_mut().chain(&mut self.products).flatten().for_each(|v| *v *= PER_DAY);
    }

    fn add(&mut self, k: usize, row: &Row) {
        self.rows += 1.0;
        self.weight[k] += 1.0;
        for i in 0..=TERMS {
            self.sum[k][i] += row[i];
            for j in 0..=i {
                self.products[i][j] += row[i] * row[j];
            }
        }
    }

    /// Returns the coefficients (first) and the mean rows by time of day (second); `None` if a time of day has no data.
    fn solved(&self) -> Option<([f64; TERMS], [Row; DAY])> {
        if self.weight.iter().any(|w| *w <= 0.0) {
            return None;
        }
        let means: [Row; DAY] = std::array::from_fn(|k| self.sum[k].map(|s| s / self.weight[k]));
        let mut products = self.products;
        for (k, mean) in means.iter().enumerate() {
            for i in 0..=TERMS {
                for j in 0..=i {
                    products[i][j] -= self.weight[k] * mean[i] * mean[j];
                }
            }
        }
        let total: f64 = self.weight.iter().sum();
        let mut system = [[0.0; TERMS]; TERMS];
        for i in 0..TERMS {
            system[i][..=i].copy_from_slice(&products[i][..=i]);
            system[i][i] *= 1.0 + PENALTY_HOURS / total;
            // A constant regressor gets the coefficient 0.
            if system[i][i] <= total * 1e-9 {
                system[i] = [0.0; TERMS];
                system[i][i] = 1.0;
            }
        }
        let right = std::array::from_fn(|i| products[TERMS][i]);
        Some((solve(system, right)?, means))
    }
}

/// Solves a symmetric positive definite system, given its lower triangle, by Cholesky decomposition; `None` if the
/// system is not positive definite.
pub(super) fn solve<const N: usize>(mut a: [[f64; N]; N], mut b: [f64; N]) -> Option<[f64; N]> {
    for i in 0..N {
        for j in 0..=i {
            let sum: f64 = (0..j).map(|k| a[i][k] * a[j][k]).sum();
            let rest = a[i][j] - sum;
            if i == j {
                a[i][i] = (rest > 0.0 && rest.is_finite()).then(|| rest.sqrt())?;
            } else {
                a[i][j] = rest / a[j][j];
            }
        }
    }
    for i in 0..N {
        b[i] = (b[i] - (0..i).map(|k| a[i][k] * b[k]).sum::<f64>()) / a[i][i];
    }
    for i in (0..N).rev() {
        b[i] = (b[i] - (i + 1..N).map(|k| a[k][i] * b[k]).sum::<f64>()) / a[i][i];
    }
    b.iter().all(|x| x.is_finite()).then_some(b)
}
