//! The results of simulated recurring jobs, as rows.

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
    /// GPU of the job before a switch, as in the job's summary row; differs from `gpu` after a switch to another GPU.
    #[serde(skip)]
    pub first_gpu: String,
    /// Group of the submission; all submissions of a group are runs of one recurring job. `None` without a trace of
    /// submissions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Seed of the random numbers.
    pub seed: u64,
    /// Number of the recurrence, from 1; runs that repeat a failed run have the same number.
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
    /// Cost of the run as a multiple of the cost that the oracle expects for a run.
    #[serde(skip)]
    pub oracle_runs: f64,
}

/// Result of all runs of a job under one policy with one seed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SummaryRow {
    /// Name of the policy.
    pub policy: &'static str,
    /// Name of the job: dataset/network.
    pub workload: String,
    /// GPU of the job; before a switch, if there is one.
    pub gpu: String,
    /// Group of the submissions (the recurring job); `None` without a trace of submissions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Seed of the random numbers.
    pub seed: u64,
    /// Cost of all runs, in joules.
    pub cumulative_cost: f64,
    /// Regret: cost of all runs beyond the cost that the oracle expects, in units of the oracle's expected cost of a
    /// run.
    pub cumulative_regret_runs: f64,
    /// Batch size that the policy considers best at the end.
    pub final_batch_size: u64,
    /// Power limit that the policy considers best at the end, in watts.
    pub final_power_limit_w: f64,
}

/// Results of a study, written as `{"summary": […], "history": […], "notes": […]}`.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Report {
    /// One row for each job, policy and seed.
    pub summary: Vec<SummaryRow>,
    /// One row for each run; `None` if the study has no history.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub history: Option<Vec<HistoryRow>>,
    /// Notes on what the traces lack or have incompletely.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// Key of rows: name of the policy, job, group of submissions (`None` without a trace of submissions) and seed.
pub(super) type RowKey<'a> = (&'static str, &'a Job, Option<&'a str>, u64);

/// Cost that the oracle expects for a recurrence: `runs` times the cost `run`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Expected {
    pub(super) run: Cost,
    /// Number of average runs to which the recurrence amounts: 1, or the runtime ratio of a submission.
    pub(super) runs: f64,
}

/// Returns the summary of a job with a number of recurrences; `expected` returns the oracle's cost of a recurrence by
/// the number of the recurrence, from 1.
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

/// Returns the rows of a job's runs. `gpu` returns the name of the GPU, and `expected` the oracle's cost, by the number
/// of the recurrence, from 1.
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
