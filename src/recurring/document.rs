//! A recurring job as one document: to be kept, or carried to another daemon.

use chrono::{DateTime, Datelike, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{LONGEST_KEY, RecurringSpec};
use crate::store::StoredRecurring;
use wattune_core::bandit::{Cost, Generator, InvalidSpec, Job, Kind, Outcome, Run, State, Terms, Trial};
use wattune_core::domain::{JobId, JobName};
use wattune_core::units::{Joules, Seconds};

/// Imported trials have numbers up to this; those after it go on from there.
const LAST: u32 = 1_000_000_000;
/// More joules or seconds than any trial can have.
const MOST: f64 = Cost::MOST.get();

/// The shape that this version writes and reads.
const VERSION: u32 = 1;

/// All of a recurring job: what `export` answers and `import` takes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RecurringDocument {
    /// The version of this shape: 1.
    pub wattune_recurring: u32,
    /// Its name where it was exported.
    pub name: String,
    /// When it was made.
    pub created_at: DateTime<Utc>,
    /// What it is.
    pub spec: RecurringSpec,
    /// Where its randomness stands.
    #[schema(value_type = std::collections::BTreeMap<String, serde_json::Value>)]
    pub generator: Generator,
    /// All trials by number.
    pub trials: Vec<TrialDocument>,
}

/// A trial with all that is kept of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TrialDocument {
    /// From 1.
    pub number: u32,
    /// Its batch size.
    pub batch_size: u64,
    /// Why that.
    pub kind: TrialKind,
    /// How it stands.
    pub state: TrialState,
    /// Whole epochs done.
    pub epochs: u32,
    /// What it has cost.
    pub cost_j: f64,
    /// What one of its epochs costs, without finding the limit.
    pub epoch_cost_j: Option<f64>,
    /// Its energy.
    pub energy_j: f64,
    /// Its time.
    pub time_s: f64,
    /// Its last metric.
    pub metric: Option<f64>,
    /// Epochs by its first report with an epoch.
    pub first_epochs: Option<u32>,
    /// Its cost then.
    pub first_cost_j: Option<f64>,
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
}

/// Why a batch size was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum TrialKind {
    /// To learn about it.
    Exploration,
    /// Because it is the best known, while an exploration is under way.
    Concurrent,
    /// By what was learnt.
    Regular,
}

/// How a trial stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum TrialState {
    /// It goes on.
    Running,
    /// It ended at its target.
    Reached,
    /// It had all its epochs, or could not get there.
    NotReached,
    /// It was given up because it had become too dear.
    Stopped,
    /// Its client took it back, and it counts as if it had not been.
    Withdrawn,
    /// It fell silent, and counts as if it had not been.
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
            begun_at: run.begun_at,
            lease_until: run.lease_until,
            ended_at: run.ended_at,
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
    /// What it says, under this name.
    ///
    /// # Errors
    /// Says which field is wrong, and what would be right.
    pub(super) fn read(self, name: JobName) -> Result<StoredRecurring, InvalidSpec> {
        if self.wattune_recurring != VERSION {
            let why = format!("is {}; this version reads {VERSION}", self.wattune_recurring);
            return Err(InvalidSpec { field: "wattune_recurring", why });
        }
        let terms = Terms::try_from(self.spec)?;
        if !is_of_these_times(&self.created_at) {
            return Err(InvalidSpec { field: "created_at", why: LATER_TIMES.into() });
        }
        if !self.generator.is_sound() {
            let why = "is even; that of PCG64 is odd: give the generator as export answered it".into();
            return Err(InvalidSpec { field: "generator.increment", why });
        }
        let mut runs: Vec<Run> = Vec::with_capacity(self.trials.len());
        for trial in self.trials {
            let number = trial.number;
            let wrong = |why: String| InvalidSpec { field: "trials", why: format!("has a trial {number} {why}") };
            if runs.last().map_or(0, |r| r.trial.number) >= number {
                return Err(wrong("out of order; numbers begin at 1 and rise".into()));
            }
            if number > LAST {
                return Err(wrong(format!("beyond {LAST}, the last number that an import may have")));
            }
            if trial.epochs > terms.spec.max_epochs {
                return Err(wrong(format!("with {} epochs, more than max_epochs", trial.epochs)));
            }
            if terms.spec.place(trial.batch_size).is_none() {
                return Err(wrong(format!("of batch size {}, which is not among batch_sizes", trial.batch_size)));
            }
            if trial.key.is_some() && runs.iter().any(|r| r.key == trial.key) {
                return Err(wrong("whose key another one has".into()));
            }
            let run = trial.read().map_err(wrong)?;
            run.check(&terms.spec.knob).map_err(wrong)?;
            runs.push(run);
        }
        let job = Job { terms, generator: self.generator, earlier: 0, past: Vec::new(), runs };
        Ok(StoredRecurring { name, created_at: self.created_at, job })
    }
}

const LATER_TIMES: &str = "is outside the years 1970 to 9999";

/// RFC 3339 has no later years, and no trial an earlier one.
fn is_of_these_times(at: &DateTime<Utc>) -> bool {
    (1970..=9999).contains(&at.year())
}

impl TrialDocument {
    fn read(self) -> Result<Run, String> {
        let quantities =
            [Some(self.cost_j), self.epoch_cost_j, Some(self.energy_j), Some(self.time_s), self.first_cost_j];
        if quantities.into_iter().flatten().any(|q| q < 0.0) {
            return Err("with a negative cost, energy or time".into());
        }
        if quantities.into_iter().flatten().any(|q| q > MOST) {
            return Err(format!("with a cost, energy or time beyond {MOST:e}"));
        }
        let times = [Some(self.begun_at), Some(self.lease_until), self.ended_at];
        if times.iter().flatten().any(|at| !is_of_these_times(at)) {
            return Err(format!("with a time that {LATER_TIMES}"));
        }
        if (self.state == TrialState::Running) != self.ended_at.is_none() {
            return Err("that runs and has ended; ended_at is null exactly while state is running".into());
        }
        if let Some(key) = &self.key
            && !(1..=LONGEST_KEY).contains(&key.chars().count())
        {
            let characters = key.chars().count();
            return Err(format!("whose key has {characters} characters; give from 1 to {LONGEST_KEY}, or null"));
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
            },
            energy: Joules::new(self.energy_j),
            time: Seconds::new(self.time_s),
            metric: self.metric,
            first,
            key: self.key,
            job,
            begun_at: self.begun_at,
            lease_until: self.lease_until,
            ended_at: self.ended_at,
            reason: self.reason,
        })
    }
}
