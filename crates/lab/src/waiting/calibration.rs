//! Comparison of stated probabilities of losing with the observed frequency.

use serde::Serialize;

use super::row::WaitingRow;

/// Number of bins of equal width, from 0 to 1.
const BINS: u32 = 5;

/// Submissions that waited and whose stated probability of losing lies in one bin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct CalibrationBin {
    /// Lower bound of the stated probability.
    pub from: f64,
    /// Upper bound of the stated probability.
    pub to: f64,
    /// Number of submissions.
    pub submissions: usize,
    /// Mean of the stated probabilities; `None` without submissions.
    pub stated: Option<f64>,
    /// Part of the submissions that emitted more than when starting at once; `None` without submissions.
    pub observed: Option<f64>,
}

/// Returns the bins of all rows that state a probability.
#[expect(clippy::cast_precision_loss, reason = "a count of rows")]
pub fn calibration(rows: &[WaitingRow]) -> Vec<CalibrationBin> {
    let width = 1.0 / f64::from(BINS);
    let stated: Vec<(f64, bool)> =
        rows.iter().filter_map(|row| Some((row.loss_probability?, row.carbon_reduction_pct < -1e-9))).collect();
    let bin = |number: u32| {
        let (from, to) = (f64::from(number) * width, f64::from(number + 1) * width);
        let last = number + 1 == BINS;
        let within: Vec<_> = stated.iter().filter(|(p, _)| *p >= from && (*p < to || last)).collect();
        let count = within.len() as f64;
        let mean = |value: &dyn Fn(&(f64, bool)) -> f64| {
            (!within.is_empty()).then(|| within.iter().map(|row| value(row)).sum::<f64>() / count)
        };
        CalibrationBin {
            from,
            to,
            submissions: within.len(),
            stated: mean(&|(p, _)| *p),
            observed: mean(&|(_, lost)| f64::from(u8::from(*lost))),
        }
    };
    (0..BINS).map(bin).collect()
}
