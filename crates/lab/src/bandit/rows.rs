//! The results of jobs, as rows.

use serde::Serialize;

use super::job::Job;
use super::run::JobRuns;
use wattune_core::bandit::Cost;

/// The row of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HistoryRow {
    /// The policy's name.
    pub policy: &'static str,
    /// The job: dataset/network.
    pub workload: String,
    /// Its GPU.
    pub gpu: String,
    /// The GPU of the summary's row: another one after a switch.
    #[serde(skip)]
    pub first_gpu: String,
    /// The group, in a trace of submissions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Seed of the generators.
    pub seed: u64,
    /// From 1; a run that is repeated has the same.
    pub recurrence: u32,
    /// Samples per step.
    pub batch_size: u64,
    /// The power limit.
    pub power_limit_w: f64,
    /// True if it was at its target.
    pub reached: bool,
    /// Energy.
    pub energy_j: f64,
    /// Duration.
    pub time_s: f64,
    /// Cost, in joules.
    pub cost: f64,
    /// The same in the oracle's expected runs.
    #[serde(skip)]
    pub oracle_runs: f64,
}

/// The row of a job under a policy with a seed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SummaryRow {
    /// The policy's name.
    pub policy: &'static str,
    /// The job: dataset/network.
    pub workload: String,
    /// The GPU.
    pub gpu: String,
    /// The group, in a trace of submissions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Seed of the generators.
    pub seed: u64,
    /// Cost of all runs together, in joules.
    pub cumulative_cost: f64,
    /// Cost beyond the oracle's expected cost, in its expected runs.
    pub cumulative_regret_runs: f64,
    /// The policy's best batch size at the end.
    pub final_batch_size: u64,
    /// The power limit.
    pub final_power_limit_w: f64,
}

/// `{"summary": […], "history": […], "notes": […]}`.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Report {
    /// A row for each job, policy and seed.
    pub summary: Vec<SummaryRow>,
    /// A row for each run, if asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub history: Option<Vec<HistoryRow>>,
    /// Gaps of the traces.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// The policy, job, group and seed of rows.
pub(super) type RowKey<'a> = (&'static str, &'a Job, Option<&'a str>, u64);

/// The oracle's expectation for a recurrence.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Expected {
    pub(super) run: Cost,
    /// The number of runs.
    pub(super) runs: f64,
}

/// Returns the summary of a job of so many recurrences. `expected` returns the oracle's expectation for each.
pub(super) fn summary(
    (policy, job, group, seed): RowKey<'_>,
    job_runs: &JobRuns,
    recurrences: u32,
    expected: impl Fn(u32) -> Expected,
) -> SummaryRow {
    let spent: f64 = job_runs.runs.iter().map(|run| run.cost / expected(run.recurrence).run).sum();
    SummaryRow {
        policy,
        workload: job.workload.clone(),
        gpu: job.gpu.clone(),
        group: group.map(str::to_owned),
        seed,
        cumulative_cost: job_runs.runs.iter().map(|run| run.cost).sum::<Cost>().get(),
        cumulative_regret_runs: spent - (1..=recurrences).map(|r| expected(r).runs).sum::<f64>(),
        final_batch_size: job_runs.batch_size,
        final_power_limit_w: job_runs.limit.get(),
    }
}

/// Returns the rows of a job's runs. `gpu` returns the GPU of each recurrence.
pub(super) fn history<'a>(
    (policy, job, group, seed): RowKey<'_>,
    job_runs: &JobRuns,
    gpu: impl Fn(u32) -> &'a String,
    expected: impl Fn(u32) -> Expected,
) -> impl Iterator<Item = HistoryRow> {
    job_runs.runs.iter().map(move |run| HistoryRow {
        policy,
        workload: job.workload.clone(),
        gpu: gpu(run.recurrence).clone(),
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

/// Returns the mean of something over rows.
#[expect(clippy::cast_precision_loss, reason = "a count of rows")]
pub fn mean_of<T>(rows: &[&T], value: impl Fn(&T) -> f64) -> f64 {
    rows.iter().map(|row| value(row)).sum::<f64>() / rows.len() as f64
}
