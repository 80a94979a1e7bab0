//! A run of a recurring job, the choice of its batch size, and the estimate of its cost.

use serde::{Deserialize, Serialize};

use super::Cost;

/// Reason for a batch size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// To learn about it.
    Exploration,
    /// It is the best known one while an exploration is in progress.
    Concurrent,
    /// Chosen by the estimates.
    Regular,
}

/// End of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It reached its target metric.
    Reached,
    /// It did not reach the target within the maximum number of epochs.
    NotReached,
    /// It was stopped because its cost was too high.
    Stopped,
    /// Its client withdrew it; it is ignored.
    Withdrawn,
    /// Its lease expired; it is ignored.
    Lost,
}

impl Outcome {
    /// All outcomes.
    pub const ALL: [Self; 5] = [Self::Reached, Self::NotReached, Self::Stopped, Self::Withdrawn, Self::Lost];
}

/// State of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// In progress.
    Running,
    /// Ended.
    Ended(Outcome),
}

/// Data of a run that policies need.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    /// Number, in one sequence for all trials of a job.
    pub number: u32,
    /// Batch size.
    pub batch_size: u64,
    /// Reason for the batch size.
    pub kind: Kind,
    /// State.
    pub state: State,
    /// Cost so far.
    pub cost: Cost,
    /// Completed epochs.
    pub epochs: u32,
    /// Cost of an epoch at the best power limit, without the search for that limit; `None` before the first epoch ends.
    pub epoch_cost: Option<Cost>,
}

impl Trial {
    /// Returns true if it ended with a result, at its target or not.
    pub fn has_result(&self) -> bool {
        matches!(self.state, State::Ended(Outcome::Reached | Outcome::NotReached | Outcome::Stopped))
    }

    /// Returns true if it ended without a result and is ignored.
    pub fn is_void(&self) -> bool {
        matches!(self.state, State::Ended(Outcome::Withdrawn | Outcome::Lost))
    }

    /// Returns true if it reached its target.
    pub fn reached(&self) -> bool {
        self.state == State::Ended(Outcome::Reached)
    }

    /// Returns true if it is in progress.
    pub fn is_running(&self) -> bool {
        self.state == State::Running
    }
}

/// Choice for the next run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Batch size.
    pub batch_size: u64,
    /// Reason for it.
    pub kind: Kind,
}

/// Error: no batch size of the job reached the target, and none is left to try.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "no batch size reaches the target metric; create the job again (DELETE it, or use another name) with other batch \
     sizes, more epochs, or an easier target"
)]
pub struct NoneConverges;

/// Estimate of the cost of a run with a batch size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Belief {
    /// Mean.
    pub mean: Cost,
    /// Standard deviation of the mean.
    pub deviation: Cost,
}
