//! The refusals of a recurring job: what is not done, and why.

use chrono::{DateTime, Utc};

use super::NoneConverges;
use crate::domain::JobId;

/// So many trials of a job may run at once.
pub(super) const MOST_RUNNING: usize = 1000;

/// Why something is not done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// There is no such trial.
    #[error("there is no trial {0}")]
    NoSuchTrial(u32),
    /// It fell silent, or was withdrawn.
    #[error("trial {number} is over since {}: {why}; ask for a new trial", .at.format("%FT%TZ"))]
    Void {
        /// Which.
        number: u32,
        /// Since when.
        at: DateTime<Utc>,
        /// Why.
        why: String,
    },
    /// It has ended, and this is not what its last report said, nor can have come after that.
    #[error("{field} {why}; trial {number} has ended at {}: {reason}", .at.format("%FT%TZ"))]
    Ended {
        /// Which.
        number: u32,
        /// When.
        at: DateTime<Utc>,
        /// How.
        reason: String,
        /// The field that contradicts its last report, as users write it.
        field: &'static str,
        /// In what.
        why: String,
    },
    /// Nothing is left to choose from.
    #[error(transparent)]
    NoneConverges(#[from] NoneConverges),
    /// Too many trials run.
    #[error("{MOST_RUNNING} trials of this job are running; end some, or wait for their leases to end")]
    TooMany,
    /// The report cannot be true.
    #[error("{field} {why}")]
    Contradiction {
        /// The field, as users write it.
        field: &'static str,
        /// What is wrong, and what would be right.
        why: String,
    },
    /// The training run is another trial's.
    #[error("job {job} reports for trial {number} already; register a job for each trial")]
    Taken {
        /// Which run.
        job: JobId,
        /// Whose it is.
        number: u32,
    },
}
