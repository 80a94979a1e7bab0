//! Rejected requests to a recurring job, with the reasons.

use chrono::{DateTime, Utc};

use super::NoneConverges;
use crate::domain::JobId;

/// Maximum number of running trials of a job.
pub(super) const MAX_RUNNING: usize = 1000;

/// Reason for a rejection.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The trial does not exist.
    #[error("there is no trial {0}")]
    NoSuchTrial(u32),
    /// The trial was lost or withdrawn.
    #[error("trial {number} ended at {}: {why}; request a new trial", .at.format("%FT%TZ"))]
    Void {
        /// Number of the trial.
        number: u32,
        /// Time of its end.
        at: DateTime<Utc>,
        /// Reason.
        why: String,
    },
    /// The trial has ended, and the report contradicts its last one.
    #[error("{field} {why}; trial {number} has ended at {}: {reason}", .at.format("%FT%TZ"))]
    Ended {
        /// Number of the trial.
        number: u32,
        /// Time of its end.
        at: DateTime<Utc>,
        /// Reason of its end.
        reason: String,
        /// Field that contradicts the last report, as users write it.
        field: &'static str,
        /// Contradiction.
        why: String,
    },
    /// No batch size is left to try.
    #[error(transparent)]
    NoneConverges(#[from] NoneConverges),
    /// Too many trials run.
    #[error("{MAX_RUNNING} trials of this job are running; end some, or wait for their leases to expire")]
    TooMany,
    /// The report is impossible.
    #[error("{field} {why}")]
    Contradiction {
        /// Field, as users write it.
        field: &'static str,
        /// Error and valid values.
        why: String,
    },
    /// The training run belongs to another trial.
    #[error("job {job} already reports for trial {number}; register a job for each trial")]
    Taken {
        /// Training run.
        job: JobId,
        /// Number of that trial.
        number: u32,
    },
}
