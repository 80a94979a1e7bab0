//! Export format of a recurring job (a training that runs again and again), for backup or transfer to another daemon.

use std::collections::HashSet;

use chrono::{DateTime, Datelike, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::RecurringSpec;
use crate::store::StoredRecurring;
use wattune_core::bandit::{Cost, EarlierJob, Generator, InvalidSpec, Job, Kind, Outcome, Run, State, Terms, Trial};
use wattune_core::domain::{JobId, JobName, Owners};
use wattune_core::units::{Joules, Seconds};

/// Highest number that an imported trial may have; the numbers of later trials continue from the last imported number.
const HIGHEST_IMPORTED_NUMBER: u32 = 1_000_000_000;
/// Upper bound of a trial's costs and energy in joules, and of its time in seconds.
const MOST: f64 = Cost::MOST.get();

/// Maximum length in characters of the key that a client sends with its request for a trial.
pub const LONGEST_KEY: usize = 200;

/// Version of the format that this program writes and reads.
const VERSION: u32 = 1;

/// All data of a recurring job, as an export returns and an import accepts them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RecurringDocument {
    /// Version of the format: 1.
    pub wattune_recurring: u32,
    /// Name of the job at the time of export.
    pub name: String,
    /// Time at which the job was created.
    pub created_at: DateTime<Utc>,
    /// Specification of the job.
    pub spec: RecurringSpec,
    /// State of the random generator that the policy uses (PCG64).
    #[schema(value_type = std::collections::BTreeMap<String, serde_json::Value>)]
    pub generator: Generator,
    /// All trials, in ascending order of their numbers.
    pub trials: Vec<TrialDocument>,
}

/// All data of a trial.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TrialDocument {
    /// Number of the trial, from 1.
    pub number: u32,
    /// Batch size of the trial.
    pub batch_size: u64,
    /// Reason why the policy chose this batch size.
    pub kind: TrialKind,
    /// State of the trial.
    pub state: TrialState,
    /// Number of completed epochs.
    pub epochs: u32,
    /// Cost of the trial so far: eta × energy + (1 − eta) × time × maximum power; raised if the target counts as out of
    /// reach, with the policy zeus.
    pub cost_j: f64,
    /// Mean cost of an epoch; null before the first epoch has ended. The epochs up to `first_epochs`, which include the
    /// search for the power limit, are left out once there are later ones.
    pub epoch_cost_j: Option<f64>,
    /// Energy of the trial's GPUs so far.
    pub energy_j: f64,
    /// Training time so far.
    pub time_s: f64,
    /// Metric of the last report.
    pub metric: Option<f64>,
    /// Number of completed epochs at the first report with a completed epoch.
    pub first_epochs: Option<u32>,
    /// Cost at the first report with a completed epoch.
    pub first_cost_j: Option<f64>,
    /// Key that the client sent with the request that began the trial; null if it sent none.
    pub key: Option<String>,
    /// Training run whose account in wattune's ledger supplies the energy; null if the client reports energy itself.
    pub job_id: Option<String>,
    /// Training runs that reported before `job_id`, each with its part of the trial's energy and time (`job_id`,
    /// `energy_j`, `time_s`). Absent without them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<std::collections::BTreeMap<String, serde_json::Value>>)]
    pub earlier_jobs: Vec<EarlierJob>,
    /// Time at which the trial began.
    pub begun_at: DateTime<Utc>,
    /// Time at which the trial counts as lost, unless the client reports before.
    pub lease_until: DateTime<Utc>,
    /// Time at which the trial ended; null while the trial runs.
    pub ended_at: Option<DateTime<Utc>>,
    /// Explanation of the trial's state, in words.
    pub reason: String,
}

/// Reason why the policy chose a batch size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum TrialKind {
    /// The trial explores this batch size, to learn the cost of a run with it.
    Exploration,
    /// The trial uses the best known batch size, because another trial explores at the same time.
    Concurrent,
    /// The policy chose the batch size by its current estimates of the cost of each batch size.
    Regular,
}

/// State of a trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum TrialState {
    /// The trial is in progress.
    Running,
    /// The trial ended because it reached its target.
    Reached,
    /// The trial ended without reaching its target: it used all epochs, or the target is out of reach.
    NotReached,
    /// The trial was stopped because its cost was too high.
    Stopped,
    /// The client withdrew the trial; the policy ignores it.
    Withdrawn,
    /// The client did not report before the trial's lease ended; the policy ignores the trial.
    Lost,
}

impl From<Kind> for TrialKind {
    fn from(kind: Kind) -> Self {
        match kind {
            Kind::Exploration => Self::Exploration,
            Kind::Concurrent => Self::Concurrent,
            Kind::Regular => Self::Regular,
        }
    }
}

impl From<TrialKind> for Kind {
    fn from(kind: TrialKind) -> Self {
        match kind {
            TrialKind::Exploration => Self::Exploration,
            TrialKind::Concurrent => Self::Concurrent,
            TrialKind::Regular => Self::Regular,
        }
    }
}

impl From<State> for TrialState {
    fn from(state: State) -> Self {
        match state {
            State::Running => Self::Running,
            State::Ended(Outcome::Reached) => Self::Reached,
            State::Ended(Outcome::NotReached) => Self::NotReached,
            State::Ended(Outcome::Stopped) => Self::Stopped,
            State::Ended(Outcome::Withdrawn) => Self::Withdrawn,
            State::Ended(Outcome::Lost) => Self::Lost,
        }
    }
}

impl From<TrialState> for State {
    fn from(state: TrialState) -> Self {
        match state {
            TrialState::Running => Self::Running,
            TrialState::Reached => Self::Ended(Outcome::Reached),
            TrialState::NotReached => Self::Ended(Outcome::NotReached),
            TrialState::Stopped => Self::Ended(Outcome::Stopped),
            TrialState::Withdrawn => Self::Ended(Outcome::Withdrawn),
            TrialState::Lost => Self::Ended(Outcome::Lost),
        }
    }
}

impl From<&Run> for TrialDocument {
    fn from(run: &Run) -> Self {
        let Run { trial, .. } = run;
        Self {
            number: trial.number,
            batch_size: trial.batch_size,
            kind: trial.kind.into(),
            state: trial.state.into(),
            epochs: trial.epochs,
            cost_j: trial.cost.get(),
            epoch_cost_j: trial.epoch_cost.map(Cost::get),
            energy_j: run.energy.get(),
            time_s: run.time.get(),
            metric: run.metric,
            first_epochs: run.first.map(|f| f.0),
            first_cost_j: run.first.map(|f| f.1.get()),
            key: run.key.clone(),
            job_id: run.job.as_ref().map(ToString::to_string),
            earlier_jobs: run.earlier_jobs.clone(),
            begun_at: run.begun_at,
            lease_until: run.lease_until,
            ended_at: trial.ended_at,
            reason: run.reason.clone(),
        }
    }
}

impl From<&StoredRecurring> for RecurringDocument {
    fn from(stored: &StoredRecurring) -> Self {
        Self {
            wattune_recurring: VERSION,
            name: stored.name.to_string(),
            created_at: stored.created_at,
            spec: (&stored.job.terms).into(),
            generator: stored.job.generator.clone(),
            trials: stored.job.runs.iter().map(TrialDocument::from).collect(),
        }
    }
}

impl RecurringDocument {
    /// Checks the document and returns its recurring job under a new name.
    pub(super) fn read(self, name: JobName) -> Result<StoredRecurring, InvalidSpec> {
        if self.wattune_recurring != VERSION {
            let why = format!("is {}; this version reads {VERSION}", self.wattune_recurring);
            return Err(InvalidSpec { field: "wattune_recurring", why });
        }
        let terms = Terms::try_from(self.spec)?;
        if !is_plausible_time(&self.created_at) {
            return Err(InvalidSpec { field: "created_at", why: IMPLAUSIBLE_TIME.into() });
        }
        if !self.generator.is_sound() {
            let why = "is even; PCG64 needs an odd increment, so give the generator as exported".into();
            return Err(InvalidSpec { field: "generator.increment", why });
        }
        let mut runs: Vec<Run> = Vec::with_capacity(self.trials.len());
        let mut keys = HashSet::new();
        for trial in self.trials {
            let number = trial.number;
            let wrong = |why: String| InvalidSpec { field: "trials", why: format!("has a trial {number} {why}") };
            if runs.last().map_or(0, |r| r.trial.number) >= number {
                return Err(wrong("out of order; numbers start at 1 and increase".into()));
            }
            if number > HIGHEST_IMPORTED_NUMBER {
                return Err(wrong(format!(
                    "above {HIGHEST_IMPORTED_NUMBER}, the highest number that an import may have"
                )));
            }
            if trial.epochs > terms.spec.max_epochs {
                return Err(wrong(format!("with {} epochs, more than max_epochs", trial.epochs)));
            }
            if terms.spec.place(trial.batch_size).is_none() {
                return Err(wrong(format!("of batch size {}, which is not among batch_sizes", trial.batch_size)));
            }
            if trial.key.as_ref().is_some_and(|key| !keys.insert(key.clone())) {
                return Err(wrong("with the key of another trial".into()));
            }
            let run = trial.read().map_err(wrong)?;
            // Reports of Zeus clients need not be consistent with one another.
            if terms.spec.zeus.is_none() {
                run.check(&terms.spec.knob).map_err(wrong)?;
            }
            runs.push(run);
        }
        let job = Job { terms, generator: self.generator, earlier: 0, past_trials: Vec::new(), runs };
        Ok(StoredRecurring {
            name,
            created_at: self.created_at,
            job,
            owners: Owners::default(),
            members: Owners::default(),
        })
    }
}

const IMPLAUSIBLE_TIME: &str = "is outside the years 1970 to 9999";

/// Returns true if a time can be that of a trial, from 1970 to 9999: no trial is older, and RFC 3339 has no later
/// years.
fn is_plausible_time(at: &DateTime<Utc>) -> bool {
    (1970..=9999).contains(&at.year())
}

impl TrialDocument {
    fn read(self) -> Result<Run, String> {
        let own = [Some(self.cost_j), self.epoch_cost_j, Some(self.energy_j), Some(self.time_s), self.first_cost_j];
        let earlier = self.earlier_jobs.iter().flat_map(|job| [job.energy.get(), job.time.get()]);
        let quantities: Vec<f64> = own.into_iter().flatten().chain(earlier).collect();
        if quantities.iter().any(|q| *q < 0.0) {
            return Err("with a negative cost, energy or time".into());
        }
        if quantities.iter().any(|q| *q > MOST) {
            return Err(format!("with a cost, energy or time above {MOST:e}"));
        }
        let earlier: Joules = self.earlier_jobs.iter().map(|job| job.energy).sum();
        // A sum may differ in its last digits.
        if earlier.get() > self.energy_j * (1.0 + 1e-9) {
            return Err(format!("whose earlier_jobs have {} J, more than its energy_j", earlier.get()));
        }
        let times = [Some(self.begun_at), Some(self.lease_until), self.ended_at];
        if times.iter().flatten().any(|at| !is_plausible_time(at)) {
            return Err(format!("with a time that {IMPLAUSIBLE_TIME}"));
        }
        if (self.state == TrialState::Running) != self.ended_at.is_none() {
            return Err(
                "whose state and ended_at contradict each other; ended_at is null exactly while state is running"
                    .into(),
            );
        }
        if let Some(key) = &self.key
            && !(1..=LONGEST_KEY).contains(&key.chars().count())
        {
            let characters = key.chars().count();
            return Err(format!("whose key has {characters} characters; give 1 to {LONGEST_KEY}, or null"));
        }
        let first = self.first_epochs.zip(self.first_cost_j.map(Cost::new));
        let job = self.job_id.map(JobId::new).transpose().map_err(|e| format!("with a wrong job_id: {e}"))?;
        Ok(Run {
            trial: Trial {
                number: self.number,
                batch_size: self.batch_size,
                kind: self.kind.into(),
                state: self.state.into(),
                cost: Cost::new(self.cost_j),
                epochs: self.epochs,
                epoch_cost: self.epoch_cost_j.map(Cost::new),
                ended_at: self.ended_at,
            },
            energy: Joules::new(self.energy_j),
            time: Seconds::new(self.time_s),
            metric: self.metric,
            first,
            key: self.key,
            job,
            earlier_jobs: self.earlier_jobs,
            begun_at: self.begun_at,
            lease_until: self.lease_until,
            reason: self.reason,
            owners: Owners::default(),
        })
    }
}
