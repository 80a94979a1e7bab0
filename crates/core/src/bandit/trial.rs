//! One run of a recurring job.

use serde::{Deserialize, Serialize};

use super::Cost;

/// Why a batch size was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// To learn about it.
    Exploration,
    /// Because it is the best known, while an exploration is under way.
    Concurrent,
    /// By what was learnt.
    Regular,
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// At its target metric.
    Reached,
    /// After all the epochs it may have, without the target.
    NotReached,
    /// Given up before, because it had become too dear.
    Stopped,
    /// Its client took it back. It counts as if it had not been.
    Withdrawn,
    /// Without a word: its lease ran out. It counts as if it had not been.
    Lost,
}

impl Outcome {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Reached, Self::NotReached, Self::Stopped, Self::Withdrawn, Self::Lost];
}

/// Whether a run goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// It does.
    Running,
    /// It has ended so.
    Ended(Outcome),
}

/// One run, as far as policies look at it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    /// From 1 or later, one sequence for all trials of a job.
    pub number: u32,
    /// Its batch size.
    pub batch_size: u64,
    /// Why that.
    pub kind: Kind,
    /// Whether it goes on.
    pub state: State,
    /// What it has cost so far; at the end, in all.
    pub cost: Cost,
    /// Whole epochs done.
    pub epochs: u32,
    /// What an epoch costs at the power limit that suits this batch size, without what was spent on finding that; `None`
    /// before one is done.
    pub epoch_cost: Option<Cost>,
}

impl Trial {
    /// Whether it has ended with a result: at its target or not.
    pub fn has_result(&self) -> bool {
        matches!(self.state, State::Ended(Outcome::Reached | Outcome::NotReached | Outcome::Stopped))
    }

    /// Whether it has ended without one, and counts as if it had not been.
    pub fn is_void(&self) -> bool {
        matches!(self.state, State::Ended(Outcome::Withdrawn | Outcome::Lost))
    }

    /// Whether it reached its target.
    pub fn reached(&self) -> bool {
        self.state == State::Ended(Outcome::Reached)
    }

    /// Whether it goes on.
    pub fn is_running(&self) -> bool {
        self.state == State::Running
    }
}
