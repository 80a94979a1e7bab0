//! What is shown of recurring jobs.

use chrono::{DateTime, Utc};
use serde::Serialize;
use utoipa::ToSchema;

use super::{RecurringSpec, TrialKind, TrialState};
use crate::store::{ListedRecurring, StoredRecurring};
use wattune_core::bandit::{Belief, Cost, Job, Kind, Reward, Run, State, Trial, Verdict, beliefs, doubts, favourite};
use wattune_core::units::JOULES_PER_KWH;

/// One entry of the list.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct RecurringEntry {
    /// Its name.
    pub name: String,
    /// When it was made.
    pub created_at: DateTime<Utc>,
    /// Trials so far.
    pub trials: u32,
    /// Trials that run.
    pub running: u32,
}

/// How far learning has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum RecurringStage {
    /// Batch sizes are still tried out.
    Exploring,
    /// Trials go by what was learnt, and refine it.
    Exploiting,
    /// No batch size reached the target: there is nothing left to choose from.
    NoneConverges,
}

/// A recurring job.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct RecurringView {
    /// Its name.
    pub name: String,
    /// When it was made.
    pub created_at: DateTime<Utc>,
    /// What its owner wants.
    pub spec: RecurringSpec,
    /// How far learning has come.
    pub stage: RecurringStage,
    /// The batch size that is held for the best so far.
    pub favourite: u64,
    /// Trials so far.
    pub trials: usize,
    /// Trials that run.
    pub running: usize,
    /// What is believed of each batch size, ascending.
    pub arms: Vec<ArmView>,
}

/// What is believed of a batch size.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ArmView {
    /// The batch size.
    pub batch_size: u64,
    /// Whether it is held for the best.
    pub favourite: bool,
    /// Trials with a result.
    pub runs: usize,
    /// Those of them that reached their target.
    pub reached: usize,
    /// Expected cost of a trial: eta times energy, and the rest times time at the largest power. Absent while nothing is
    /// known of it.
    pub mean_cost_j: Option<f64>,
    /// The standard deviation of that mean.
    pub deviation_j: Option<f64>,
    /// The expected cost at the reference intensity, with the objective carbon.
    pub mean_cost_g: Option<f64>,
}

/// A trial.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct TrialView {
    /// One sequence for all trials of a name, from 1: a job that is deleted and made anew goes on with it.
    pub number: u32,
    /// The batch size that it is to take.
    pub batch_size: u64,
    /// Why that.
    pub kind: TrialKind,
    /// How it stands.
    pub state: TrialState,
    /// Up to how many epochs it may go on, by what is known now; absent once it has ended.
    pub max_epochs: Option<u32>,
    /// The limit for each of its boards that suits this batch size best, by what earlier runs measured; absent where that
    /// is not known.
    pub power_limit_w: Option<f64>,
    /// Whole epochs done.
    pub epochs: u32,
    /// Energy of its boards.
    pub energy_j: f64,
    /// Time spent training.
    pub time_s: f64,
    /// What it counts as: its cost, or more where its client said that it does not get there.
    pub cost_j: f64,
    /// The same at the reference intensity, with the objective carbon.
    pub cost_g: Option<f64>,
    /// Its last metric.
    pub metric: Option<f64>,
    /// The key that it was asked for with.
    pub key: Option<String>,
    /// The training run whose books know its energy.
    pub job_id: Option<String>,
    /// When it began.
    pub begun_at: DateTime<Utc>,
    /// Until when its client may be silent.
    pub lease_until: DateTime<Utc>,
    /// When it ended.
    pub ended_at: Option<DateTime<Utc>>,
    /// How it stands, in words.
    pub reason: String,
    /// What looks like a mistake in its energy and time, with what was most likely meant.
    pub warnings: Vec<String>,
}

/// What a trial is told after a report.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct VerdictView {
    /// Its number.
    pub number: u32,
    /// Whether it is to stop training. It has ended then; no further call is needed.
    pub stop: bool,
    /// Whether it ended at its target.
    pub reached: bool,
    /// Up to how many epochs it may go on.
    pub max_epochs: u32,
    /// Why, in words.
    pub reason: String,
    /// How long it may be silent from now on.
    pub lease_s: f64,
    /// What looks like a mistake in its energy and time, with what was most likely meant.
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
            ended_at: run.ended_at,
            reason: run.reason.clone(),
            warnings: doubts(run, &job.terms),
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
                format!("{}; this report came after that and is not counted", run.reason)
            } else {
                run.reason.clone()
            },
            lease_s: job.terms.lease.get(),
            warnings: doubts(run, &job.terms),
        }
    }
}
