//! What came of jobs, as rows.

use serde::Serialize;

use super::{Ends, Job};
use wattune_core::bandit::Cost;

/// A run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HistoryRow {
    /// The policy's name.
    pub policy: &'static str,
    /// As dataset/network.
    pub workload: String,
    /// The board that it was on.
    pub gpu: String,
    /// The board of the summary's row: another, after a switch to a new one.
    #[serde(skip)]
    pub first_gpu: String,
    /// The group, where a trace of submissions names it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Of the generators.
    pub seed: u64,
    /// From 1; a run that is repeated has the same.
    pub recurrence: u32,
    /// Samples per step.
    pub batch_size: u64,
    /// Its limit.
    pub power_limit_w: f64,
    /// Whether it was at its target.
    pub reached: bool,
    /// What it took.
    pub energy_j: f64,
    /// How long.
    pub time_s: f64,
    /// What it cost, in joules.
    pub cost: f64,
    /// The same in the oracle's expected runs.
    #[serde(skip)]
    pub oracle_runs: f64,
}

/// A job under a policy with a seed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SummaryRow {
    /// The policy's name.
    pub policy: &'static str,
    /// As dataset/network.
    pub workload: String,
    /// The board.
    pub gpu: String,
    /// The group, where a trace of submissions names it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Of the generators.
    pub seed: u64,
    /// What all runs cost together, in joules.
    pub cumulative_cost: f64,
    /// How much more than the oracle's expected cost, in its expected runs.
    pub cumulative_regret_runs: f64,
    /// The batch size that the policy holds for the best at the end.
    pub final_batch_size: u64,
    /// Its limit.
    pub final_power_limit_w: f64,
}

/// `{"summary": […], "history": […], "notes": […]}`.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Report {
    /// A row for each job, policy and seed.
    pub summary: Vec<SummaryRow>,
    /// A row for each run, where asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub history: Option<Vec<HistoryRow>>,
    /// What the traces lack.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// Which job, under which policy, in which group, with which seed.
pub type What<'a> = (&'static str, &'a Job, Option<&'a str>, u64);

/// What the oracle expects.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Expected {
    /// Of a run: its cost.
    pub run: Cost,
    /// Of a recurrence: so many runs.
    pub runs: f64,
}

/// The summary of a job of so many recurrences. `expected` says what the oracle expects of each.
pub fn summary(
    (policy, job, group, seed): What<'_>,
    ends: &Ends,
    recurrences: u32,
    expected: impl Fn(u32) -> Expected,
) -> SummaryRow {
    let spent: f64 = ends.runs.iter().map(|run| run.cost / expected(run.recurrence).run).sum();
    SummaryRow {
        policy,
        workload: job.workload.clone(),
        gpu: job.gpu.clone(),
        group: group.map(str::to_owned),
        seed,
        cumulative_cost: ends.runs.iter().map(|run| run.cost).sum::<Cost>().get(),
        cumulative_regret_runs: spent - (1..=recurrences).map(|r| expected(r).runs).sum::<f64>(),
        final_batch_size: ends.batch_size,
        final_power_limit_w: ends.limit.get(),
    }
}

/// The runs of a job. `board` says on which each recurrence was.
pub fn history<'a>(
    (policy, job, group, seed): What<'_>,
    ends: &Ends,
    board: impl Fn(u32) -> &'a str,
    expected: impl Fn(u32) -> Expected,
) -> impl Iterator<Item = HistoryRow> {
    ends.runs.iter().map(move |run| HistoryRow {
        policy,
        workload: job.workload.clone(),
        gpu: board(run.recurrence).to_owned(),
        first_gpu: job.gpu.clone(),
        group: group.map(str::to_owned),
        seed,
        recurrence: run.recurrence,
        batch_size: run.batch_size,
        power_limit_w: run.limit.get(),
        reached: run.reached,
        energy_j: run.energy.get(),
        time_s: run.time.get(),
        cost: run.cost.get(),
        oracle_runs: run.cost / expected(run.recurrence).run,
    })
}

/// The mean of something over rows.
#[expect(clippy::cast_precision_loss, reason = "a count of rows")]
pub fn mean_of<T>(rows: &[&T], value: impl Fn(&T) -> f64) -> f64 {
    rows.iter().map(|row| value(row)).sum::<f64>() / rows.len() as f64
}
