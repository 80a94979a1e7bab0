//! The results of recurring jobs, as rows.

use serde::Serialize;

use super::job::Job;
use super::run::JobRuns;
use wattune_core::bandit::Cost;

/// Result of one run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HistoryRow {
    /// Name of the policy.
    pub policy: &'static str,
    /// Name of the job: dataset/network.
    pub workload: String,
    /// GPU of the run.
    pub gpu: String,
    /// GPU of the job's summary row, which differs from `gpu` after a switch.
    #[serde(skip)]
    pub first_gpu: String,
    /// Group of the submission; absent without a trace of submissions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Seed of the random numbers.
    pub seed: u64,
    /// Number of the recurrence, from 1; repeated runs have the same number.
    pub recurrence: u32,
    /// Batch size: samples per step.
    pub batch_size: u64,
    /// Power limit of the run, in watts.
    pub power_limit_w: f64,
    /// True if the run reached its target.
    pub reached: bool,
    /// Energy of the run, in joules.
    pub energy_j: f64,
    /// Duration of the run, in seconds.
    pub time_s: f64,
    /// Cost of the run, in joules.
    pub cost: f64,
    /// Cost of the run as a multiple of the oracle's expected cost.
    #[serde(skip)]
    pub oracle_runs: f64,
}

/// Result of a job under a policy with a seed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SummaryRow {
    /// Name of the policy.
    pub policy: &'static str,
    /// Name of the job: dataset/network.
    pub workload: String,
    /// GPU of the job.
    pub gpu: String,
    /// Group of the submissions; absent without a trace of submissions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Seed of the random numbers.
    pub seed: u64,
    /// Cost of all runs, in joules.
    pub cumulative_cost: f64,
    /// Cost beyond the oracle's expected cost (regret), as a number of the oracle's expected runs.
    pub cumulative_regret_runs: f64,
    /// Best batch size of the policy at the end.
    pub final_batch_size: u64,
    /// Best power limit of the policy at the end, in watts.
    pub final_power_limit_w: f64,
}

/// Results of a study, written as `{"summary": […], "history": […], "notes": […]}`.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Report {
    /// One row for each job, policy and seed.
    pub summary: Vec<SummaryRow>,
    /// One row for each run, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub history: Option<Vec<HistoryRow>>,
    /// Notes on gaps of the traces.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// Policy, job, group and seed of rows.
pub(super) type RowKey<'a> = (&'static str, &'a Job, Option<&'a str>, u64);

/// The oracle's expected cost of a recurrence.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Expected {
    pub(super) run: Cost,
    /// Number of runs to which the recurrence amounts.
    pub(super) runs: f64,
}

/// Returns the summary of a job with this number of recurrences; `expected` returns the oracle's cost of each.
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

/// Returns the rows of a job's runs; `gpu` returns the GPU of each recurrence.
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

/// Returns the mean of a value over rows.
#[expect(clippy::cast_precision_loss, reason = "a count of rows")]
pub fn mean_of<T>(rows: &[&T], value: impl Fn(&T) -> f64) -> f64 {
    rows.iter().map(|row| value(row)).sum::<f64>() / rows.len() as f64
}
