//! Means of results over submissions.

use serde::Serialize;

use super::row::WaitingRow;

/// Reduction of clairvoyant, in percent, below which the captured part of it is noise.
const LEAST_REDUCTION: f64 = 0.1;
/// Loss against starting at once, in percent, from which it is counted as large.
const LARGE_LOSS: f64 = 2.0;

/// Mean of the rows of one policy, grid, duration and freedom over all submissions.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WaitingMean {
    /// Name of the policy, as for `--policy`.
    pub policy: &'static str,
    /// Name of the grid.
    pub grid: String,
    /// Duration of the jobs, in hours.
    pub duration_h: f64,
    /// Time for which the starts may wait, in hours.
    pub within_h: f64,
    /// Number of submissions.
    pub submissions: usize,
    /// Mean reduction of emissions against starting at once, in percent.
    pub carbon_reduction_pct: f64,
    /// Mean reduction of the policy clairvoyant, in percent.
    pub best_reduction_pct: f64,
    /// The mean reduction as a part of that of clairvoyant; `None` if the latter is only noise.
    pub captured: Option<f64>,
    /// Mean time from submission to start, in hours.
    pub waited_h: f64,
    /// Part of the submissions that emit more than when starting at once, in percent.
    pub losing_pct: f64,
    /// Part of the submissions that emit over 2 % more than when starting at once, in percent.
    pub losing_over_2_pct: f64,
    /// Largest loss of a submission against starting at once, in percent; 0 if none loses.
    pub worst_loss_pct: f64,
}

/// Returns the means of rows that differ only in the submission, in the order in which their first rows appear.
pub fn waiting_means(rows: &[WaitingRow]) -> Vec<WaitingMean> {
    let same = |a: &WaitingRow, b: &WaitingRow| {
        a.policy == b.policy && a.grid == b.grid && a.duration_h == b.duration_h && a.within_h == b.within_h
    };
    let mut groups: Vec<Vec<&WaitingRow>> = Vec::new();
    for row in rows {
        match groups.iter_mut().find(|group| same(group[0], row)) {
            Some(group) => group.push(row),
            None => groups.push(vec![row]),
        }
    }
    groups.iter().map(|group| mean_of(group)).collect()
}

#[expect(clippy::cast_precision_loss, reason = "a count of rows")]
fn mean_of(group: &[&WaitingRow]) -> WaitingMean {
    let count = group.len() as f64;
    let mean = |value: fn(&WaitingRow) -> f64| group.iter().map(|row| value(row)).sum::<f64>() / count;
    let part = |loses: &dyn Fn(f64) -> bool| {
        100.0 * group.iter().filter(|row| loses(-row.carbon_reduction_pct)).count() as f64 / count
    };
    let (reduction, best) = (mean(|row| row.carbon_reduction_pct), mean(|row| row.best_reduction_pct));
    WaitingMean {
        policy: group[0].policy,
        grid: group[0].grid.clone(),
        duration_h: group[0].duration_h,
        within_h: group[0].within_h,
        submissions: group.len(),
        carbon_reduction_pct: reduction,
        best_reduction_pct: best,
        captured: (best >= LEAST_REDUCTION).then(|| reduction / best),
        waited_h: mean(|row| row.waited_h),
        losing_pct: part(&|loss| loss > 1e-9),
        losing_over_2_pct: part(&|loss| loss > LARGE_LOSS),
        worst_loss_pct: group.iter().map(|row| -row.carbon_reduction_pct).fold(0.0, f64::max),
    }
}
