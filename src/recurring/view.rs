//! API representation of recurring jobs.

use chrono::{DateTime, Utc};
use serde::Serialize;
use utoipa::ToSchema;

use super::{RecurringSpec, TrialKind, TrialState};
use crate::store::{ListedRecurring, StoredRecurring};
use wattune_core::bandit::{
    Belief, Cost, Job, Kind, Reward, Run, State, Trial, Verdict, beliefs, favourite, unit_warnings,
};
use wattune_core::units::JOULES_PER_KWH;

/// Entry in the list of recurring jobs.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct RecurringEntry {
    /// Name of the recurring job.
    pub name: String,
    /// Time at which the job was created.
    pub created_at: DateTime<Utc>,
    /// Number of trials so far.
    pub trials: u32,
    /// Number of running trials.
    pub running: u32,
}

/// Stage of the search for the best batch size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum RecurringStage {
    /// The policy still explores batch sizes.
    Exploring,
    /// The policy chooses batch sizes by its estimates of their costs, and trials refine the estimates.
    Exploiting,
    /// No batch size has reached the target, and none is left to try.
    NoneConverges,
}

/// A recurring job: a training that runs again and again, whose batch size wattune chooses.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct RecurringView {
    /// Name of the recurring job.
    pub name: String,
    /// Time at which the job was created.
    pub created_at: DateTime<Utc>,
    /// Specification of the job.
    pub spec: RecurringSpec,
    /// Stage of the search for the best batch size.
    pub stage: RecurringStage,
    /// Batch size with the least cost by current estimates.
    pub favourite: u64,
    /// Number of trials so far.
    pub trials: usize,
    /// Number of running trials.
    pub running: usize,
    /// Estimated cost for each batch size, in ascending order of batch sizes.
    pub arms: Vec<ArmView>,
}

/// Estimated cost of a trial with one batch size.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ArmView {
    /// Batch size.
    pub batch_size: u64,
    /// True if this batch size has the least cost by current estimates.
    pub favourite: bool,
    /// Number of trials with this batch size and a result.
    pub runs: usize,
    /// Number of these trials that reached their target.
    pub reached: usize,
    /// Expected cost of a trial: eta × energy + (1 − eta) × time × maximum power. Absent if unknown.
    pub mean_cost_j: Option<f64>,
    /// Standard deviation of the expected cost.
    pub deviation_j: Option<f64>,
    /// Emissions that the expected cost amounts to at the reference intensity; only with the objective carbon.
    pub mean_cost_g: Option<f64>,
}

/// A trial: one run of a recurring job, with a batch size that the policy chose.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct TrialView {
    /// Number, from 1, in one sequence for all trials of a name: a job that is deleted and created again continues the
    /// sequence.
    pub number: u32,
    /// Batch size to use.
    pub batch_size: u64,
    /// Reason why the policy chose this batch size.
    pub kind: TrialKind,
    /// State of the trial.
    pub state: TrialState,
    /// Number of epochs after which the trial is stopped, by current estimates; absent once the trial has ended.
    pub max_epochs: Option<u32>,
    /// Best power limit for each of the trial's GPUs at this batch size, measured by earlier runs; absent if unknown.
    pub power_limit_w: Option<f64>,
    /// Number of completed epochs.
    pub epochs: u32,
    /// Energy of the trial's GPUs so far.
    pub energy_j: f64,
    /// Training time so far.
    pub time_s: f64,
    /// Cost that counts for the policy: the actual cost, or more if the target counts as out of reach and the policy is
    /// zeus.
    pub cost_j: f64,
    /// Emissions that `cost_j` amounts to at the reference intensity; only with the objective carbon.
    pub cost_g: Option<f64>,
    /// Metric of the last report.
    pub metric: Option<f64>,
    /// Key that the client sent with the request that began the trial.
    pub key: Option<String>,
    /// Training run whose account in wattune's ledger supplies the energy; the last one, if several reported.
    pub job_id: Option<String>,
    /// Time at which the trial began.
    pub begun_at: DateTime<Utc>,
    /// Time at which the trial counts as lost, unless the client reports before.
    pub lease_until: DateTime<Utc>,
    /// Time at which the trial ended; absent while the trial runs.
    pub ended_at: Option<DateTime<Utc>>,
    /// Explanation of the trial's state, in words.
    pub reason: String,
    /// Likely mistakes in the trial's energy and time, such as a wrong unit, and what the client most likely meant.
    pub warnings: Vec<String>,
}

/// Response to a trial's report.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct VerdictView {
    /// Number of the trial.
    pub number: u32,
    /// True if the client must stop training. The trial has ended; no further call is needed.
    pub stop: bool,
    /// True if the trial ended because it reached its target.
    pub reached: bool,
    /// Number of epochs after which the trial is stopped, by current estimates; once the trial has ended, its completed
    /// epochs.
    pub max_epochs: u32,
    /// Explanation of the trial's state, in words.
    pub reason: String,
    /// Time from this response on within which the client must report again; otherwise the trial counts as lost.
    pub lease_s: f64,
    /// Likely mistakes in the trial's energy and time, such as a wrong unit, and what the client most likely meant.
    pub warnings: Vec<String>,
}

impl From<ListedRecurring> for RecurringEntry {
    fn from(listed: ListedRecurring) -> Self {
        let ListedRecurring { name, created_at, trials, running } = listed;
        Self { name: name.to_string(), created_at, trials, running }
    }
}

impl From<&StoredRecurring> for RecurringView {
    fn from(stored: &StoredRecurring) -> Self {
        let (job, spec) = (&stored.job, &stored.job.terms.spec);
        let trials = job.trials();
        let favourite = favourite(spec, &trials);
        Self {
            name: stored.name.to_string(),
            created_at: stored.created_at,
            spec: (&job.terms).into(),
            stage: match job.outlook().map(|choice| choice.kind) {
                Ok(Kind::Exploration | Kind::Concurrent) => RecurringStage::Exploring,
                Ok(Kind::Regular) => RecurringStage::Exploiting,
                Err(_) => RecurringStage::NoneConverges,
            },
            favourite,
            trials: trials.len(),
            running: trials.iter().filter(|t| t.is_running()).count(),
            arms: (spec.batch_sizes.iter().zip(beliefs(spec, &trials)))
                .map(|(batch_size, belief)| arm(job, &trials, *batch_size, belief, *batch_size == favourite))
                .collect(),
        }
    }
}

fn arm(job: &Job, trials: &[Trial], batch_size: u64, belief: Option<Belief>, favourite: bool) -> ArmView {
    let of_arm = || trials.iter().filter(|t| t.batch_size == batch_size);
    ArmView {
        batch_size,
        favourite,
        runs: of_arm().filter(|t| t.has_result()).count(),
        reached: of_arm().filter(|t| t.reached()).count(),
        mean_cost_j: belief.map(|b| b.mean.get()),
        deviation_j: belief.map(|b| b.deviation.get()),
        mean_cost_g: belief.and_then(|b| grams(job, b.mean)),
    }
}

fn grams(job: &Job, cost: Cost) -> Option<f64> {
    match job.terms.reward {
        Reward::Energy => None,
        Reward::Carbon { reference } => Some(cost.get() / JOULES_PER_KWH * reference.get()),
    }
}

impl TrialView {
    pub(super) fn of(job: &Job, run: &Run, power_limit_w: Option<f64>) -> Self {
        let Run { trial, .. } = run;
        Self {
            number: trial.number,
            batch_size: trial.batch_size,
            kind: trial.kind.into(),
            state: trial.state.into(),
            max_epochs: (trial.state == State::Running).then(|| job.max_epochs(trial.number)),
            power_limit_w,
            epochs: trial.epochs,
            energy_j: run.energy.get(),
            time_s: run.time.get(),
            cost_j: trial.cost.get(),
            cost_g: grams(job, trial.cost),
            metric: run.metric,
            key: run.key.clone(),
            job_id: run.job.as_ref().map(ToString::to_string),
            begun_at: run.begun_at,
            lease_until: run.lease_until,
            ended_at: trial.ended_at,
            reason: run.reason.clone(),
            warnings: unit_warnings(run, &job.terms),
        }
    }
}

impl VerdictView {
    pub(super) fn of(job: &Job, run: &Run, verdict: Verdict) -> Self {
        Self {
            number: run.trial.number,
            stop: verdict.stop,
            reached: verdict.reached,
            max_epochs: verdict.max_epochs,
            reason: if verdict.late {
                format!("{}; this report came later and is not counted", run.reason)
            } else {
                run.reason.clone()
            },
            lease_s: job.terms.lease.get(),
            warnings: unit_warnings(run, &job.terms),
        }
    }
}
