//! Trials of a recurring job, choices of their batch sizes, and estimates of their costs.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use super::Cost;

/// Reason for which a policy chooses a batch size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Exploration of a batch size about which little is known.
    Exploration,
    /// The best known batch size, because the run that explores another one is still in progress.
    Concurrent,
    /// The batch size that the policy's cost estimates favour.
    Regular,
}

/// Outcome of an ended run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The run reached its target metric.
    Reached,
    /// The run did not reach the target within the maximum number of epochs, or cannot reach it.
    NotReached,
    /// The run was stopped because its cost was too high.
    Stopped,
    /// The client withdrew the run; policies ignore it.
    Withdrawn,
    /// The run's lease expired because the client did not report in time; policies ignore the run.
    Lost,
}

impl Outcome {
    /// All outcomes.
    pub const ALL: [Self; 5] = [Self::Reached, Self::NotReached, Self::Stopped, Self::Withdrawn, Self::Lost];
}

/// State of a run of a recurring job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// The run is in progress.
    Running,
    /// The run has ended with this outcome.
    Ended(Outcome),
}

/// Data of one run of a recurring job, as far as policies need them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    /// Number of the trial; all trials of a job share one sequence of numbers.
    pub number: u32,
    /// Batch size of the run.
    pub batch_size: u64,
    /// Reason for choosing this batch size.
    pub kind: Kind,
    /// State of the run.
    pub state: State,
    /// Cost of the run so far; if the run failed, including the charge for the failure.
    pub cost: Cost,
    /// Number of completed epochs.
    pub epochs: u32,
    /// Cost of an epoch at the best power limit, without the search for that limit; `None` before the first epoch ends.
    pub epoch_cost: Option<Cost>,
    /// Time at which the run ended; `None` while it runs. Simulations leave it `None`: their runs end in the order of
    /// their numbers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<DateTime<Utc>>,
}

impl Trial {
    /// Returns true if the run ended with a result that policies use, whether it reached its target or not.
    pub fn has_result(&self) -> bool {
        matches!(self.state, State::Ended(Outcome::Reached | Outcome::NotReached | Outcome::Stopped))
    }

    /// Returns true if the run ended without a result, so that policies ignore it.
    pub fn is_void(&self) -> bool {
        matches!(self.state, State::Ended(Outcome::Withdrawn | Outcome::Lost))
    }

    /// Returns true if the run reached its target.
    pub fn reached(&self) -> bool {
        self.state == State::Ended(Outcome::Reached)
    }

    /// Returns true if the run is in progress.
    pub fn is_running(&self) -> bool {
        self.state == State::Running
    }
}

/// Batch size of the next run, as chosen by a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Chosen batch size.
    pub batch_size: u64,
    /// Reason for choosing this batch size.
    pub kind: Kind,
}

/// Error: no batch size of the job reached the target, and none is left to try.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "no batch size reaches the target metric; create the job again (DELETE it, or use another name) with other batch \
     sizes, more epochs, or an easier target"
)]
pub struct NoneConverges;

/// Estimated cost of a run with one batch size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Belief {
    /// Expected cost of a run.
    pub mean: Cost,
    /// Standard deviation of the estimate `mean`; single runs vary more.
    pub deviation: Cost,
}
