//! The local forecaster against a plain ridge regression on the same 28 days.

use super::trace;
use chrono::TimeDelta;
use wattune_core::forecast::{PublishedForecasts, backtest};

const DAYS: usize = 28;
/// A day and an hour, and the same time of the second, third and seventh day before.
const LAGS: [usize; 28] =
    [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 48, 72, 168];
/// Sums of squares of standardised regressors are increased by so much.
const PENALTY: f64 = 5.0;

/// The lags, and which hour of the day and which day of the week it is.
fn regressors(values: &[f64], t: usize, lags: &[usize]) -> Vec<f64> {
    let mut x: Vec<f64> = lags.iter().map(|lag| values[t - lag]).collect();
    let is = |yes: bool| if yes { 1.0 } else { 0.0 };
    x.extend((0..24).map(|hour| is(t % 24 == hour)));
    x.extend((0..7).map(|day| is(t / 24 % 7 == day)));
    x
}

#[expect(clippy::cast_precision_loss, reason = "hours of a month")]
fn mean(values: impl Iterator<Item = f64> + Clone) -> f64 {
    values.clone().sum::<f64>() / values.count() as f64
}

/// Gauss's elimination with pivots on the diagonal: the system is positive definite.
fn eliminated(mut a: Vec<Vec<f64>>) -> Vec<f64> {
    let n = a.len();
    for k in 0..n {
        let pivot = a[k].clone();
        for row in &mut a[k + 1..] {
            let factor = row[k] / pivot[k];
            row.iter_mut().zip(&pivot).skip(k).for_each(|(v, p)| *v -= factor * p);
        }
    }
    let mut b = vec![0.0; n];
    for k in (0..n).rev() {
        let known: f64 = (k + 1..n).map(|j| a[k][j] * b[j]).sum();
        b[k] = (a[k][n] - known) / a[k][k];
    }
    b
}

/// The 24 hours from `now` on, each from those before it.
fn ridge(values: &[f64], now: usize, lags: &[usize]) -> Vec<f64> {
    let longest = lags.iter().copied().max().expect("lags");
    let rows: Vec<Vec<f64>> = (now - DAYS * 24 + longest..now).map(|t| regressors(values, t, lags)).collect();
    let targets = &values[now - DAYS * 24 + longest..now];
    let count = rows[0].len();
    let centre: Vec<f64> = (0..count).map(|i| mean(rows.iter().map(|row| row[i]))).collect();
    let scale: Vec<f64> =
        (0..count).map(|i| mean(rows.iter().map(|row| (row[i] - centre[i]).powi(2))).sqrt().max(1e-9)).collect();
    let standard = |x: &[f64]| -> Vec<f64> { (0..count).map(|i| (x[i] - centre[i]) / scale[i]).collect() };
    let middle = mean(targets.iter().copied());
    let mut system = vec![vec![0.0; count + 1]; count];
    for (row, target) in rows.iter().zip(targets) {
        let x = standard(row);
        for i in 0..count {
            (0..count).for_each(|j| system[i][j] += x[i] * x[j]);
            system[i][count] += x[i] * (target - middle);
        }
    }
    (0..count).for_each(|i| system[i][i] += PENALTY);
    let effects = eliminated(system);
    let mut known = values[..now].to_vec();
    for t in now..now + 24 {
        let x = standard(&regressors(&known, t, lags));
        known.push(middle + x.iter().zip(&effects).map(|(x, b)| x * b).sum::<f64>());
    }
    known.split_off(now)
}

#[test]
#[ignore = "takes minutes unoptimised; `cargo test --release -p wattune-benches --test slow -- --ignored` runs it"]
fn the_local_forecaster_is_no_worse_than_a_ridge_regression() {
    for zone in ["CISO", "PJM", "DE", "SE"] {
        let Some(came) = trace(&format!("{zone}_2021_hourly.csv")) else { return };
        let values: Vec<f64> = came.actual.points().iter().map(|(_, i)| i.value.get()).collect();
        let start = came.actual.start().expect("not empty");
        // Every fifth day of the year, at different hours.
        let moments: Vec<usize> = (0..64).map(|i| (40 + 5 * i) * 24 + 7 * i % 24).collect();
        let hours = |h: usize| TimeDelta::hours(i64::try_from(h).expect("a year"));
        let local = mean(moments.iter().map(|now| {
            let (from, to) = (start + hours(*now), start + hours(now + 24));
            let rows = backtest(&came.actual, PublishedForecasts::Nothing, from, to, &[24]);
            rows.iter().find(|row| row.source == "local").and_then(|row| row.score.mape_pct).expect("scored")
        }));
        for lags in [&LAGS[..], &LAGS[..25], &[1, 24, 48, 168]] {
            let errors = moments.iter().map(|now| {
                let forecast = ridge(&values, *now, lags);
                100.0 * mean(forecast.iter().zip(&values[*now..]).map(|(f, came)| (f - came).abs() / came))
            });
            let plain = mean(errors);
            println!("{zone}: local {local:.2} %, ridge on {} lags {plain:.2} %", lags.len());
            assert!(local <= 1.02 * plain, "{zone}: local {local:.2} %, ridge on {} lags {plain:.2} %", lags.len());
        }
    }
}
