//! Reports of Zeus clients and the responses to them.

/// Progress report of a Zeus client, with values since the trial's beginning.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ZeusReport {
    /// Time in seconds.
    pub time: f64,
    /// Energy in joules.
    pub energy: f64,
    /// Metric after the last epoch; NaN if the training diverged.
    pub metric: f64,
    /// Number of the last epoch.
    pub epoch: i64,
}

/// Response to a report of a Zeus client.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ZeusVerdict {
    /// The client continues the training.
    Continue,
    /// The trial ended: it reached its target.
    Reached,
    /// The trial ended: it exceeded the cost limit.
    TooExpensive {
        /// Cost of the trial.
        cost: f64,
        /// Multiple of the least cost at which trials are stopped.
        beta: f64,
        /// Least cost of a trial that reached its target.
        least: f64,
    },
    /// The trial ended: it completed all epochs without reaching its target, or its cost is not a number.
    NotReached {
        /// Number of epochs of a trial.
        max_epochs: i64,
    },
    /// The trial had ended before the report, which changed nothing.
    Ended {
        /// True if the trial had reached its target.
        reached: bool,
    },
}

/// Reason for rejecting a request of a Zeus client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ZeusRefused {
    /// The job has no trial with this number and batch size.
    #[error("there is no such trial")]
    NoSuchTrial,
    /// The client ended the trial without a result.
    #[error("the trial was withdrawn")]
    Withdrawn,
    /// The report ends the trial, but its time or energy is negative or not a number.
    #[error("time or energy is negative or not a number")]
    NotAQuantity {
        /// True if the time is wrong.
        time: bool,
        /// True if the energy is wrong.
        energy: bool,
    },
    /// No batch size is left to try.
    #[error("no batch size reaches the target")]
    NoneConverges,
    /// The next batch size to explore is below 1.
    #[error("the next batch size is {0}")]
    Impossible(i64),
}
