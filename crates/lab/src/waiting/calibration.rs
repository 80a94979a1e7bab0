//! Comparison of stated probabilities of losing with the observed frequency.

use serde::Serialize;

use super::row::WaitingRow;

/// Number of bins of equal width, from 0 to 1.
const BINS: u32 = 5;

/// Submissions whose stated probability of losing lies in one bin, whether or not the job waited.
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
    /// Part of the submissions for which the window that looked best emitted more than starting at once; `None` without
    /// submissions.
    pub observed: Option<f64>,
    /// Number of submissions whose job waited.
    pub waited: usize,
    /// Fraction of the waiting jobs that emitted more than a start at once would have; `None` if none waited.
    pub lost_waiting: Option<f64>,
}

/// Outcome of a submission for which a probability of losing was stated.
struct Stated {
    probability: f64,
    /// True if the window that looked best emitted more than starting at once.
    lost: bool,
    /// True if the job emitted more than a start at once would have; `None` if it did not wait.
    lost_waiting: Option<bool>,
}

/// Returns the bins of all rows that state a probability.
#[expect(clippy::cast_precision_loss, reason = "a count of rows")]
pub fn calibration(rows: &[WaitingRow]) -> Vec<CalibrationBin> {
    let width = 1.0 / f64::from(BINS);
    let loses = |reduction_pct: f64| reduction_pct < -1e-9;
    let stated: Vec<Stated> = rows
        .iter()
        .filter_map(|row| {
            Some(Stated {
                probability: row.loss_probability?,
                lost: loses(row.stated_window_reduction_pct?),
                lost_waiting: (row.waited_h > 0.0).then(|| loses(row.carbon_reduction_pct)),
            })
        })
        .collect();
    let bin = |number: u32| {
        let (from, to) = (f64::from(number) * width, f64::from(number + 1) * width);
        let last = number + 1 == BINS;
        let within = |s: &&Stated| s.probability >= from && (s.probability < to || last);
        let within: Vec<&Stated> = stated.iter().filter(within).collect();
        let waited: Vec<bool> = within.iter().filter_map(|s| s.lost_waiting).collect();
        let part = |losses: usize, of: usize| (of > 0).then(|| losses as f64 / of as f64);
        let probabilities: f64 = within.iter().map(|s| s.probability).sum();
        CalibrationBin {
            from,
            to,
            submissions: within.len(),
            stated: (!within.is_empty()).then(|| probabilities / within.len() as f64),
            observed: part(within.iter().filter(|s| s.lost).count(), within.len()),
            waited: waited.len(),
            lost_waiting: part(waited.iter().filter(|lost| **lost).count(), waited.len()),
        }
    };
    (0..BINS).map(bin).collect()
}
