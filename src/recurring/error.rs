//! Errors of the service for recurring jobs.

use crate::store::StoreError;
use wattune_core::bandit::{InvalidSpec, Refused};

/// Reason why a request was rejected. Each message names the remedy.
#[derive(Debug, thiserror::Error)]
pub enum RecurringError {
    /// The recurring job does not exist.
    #[error("no recurring job {0:?}; PUT /v1/recurring/{{name}} creates one")]
    NotFound(String),
    /// The recurring job exists already.
    #[error("{0}")]
    Conflict(String),
    /// The specification is invalid.
    #[error(transparent)]
    Invalid(#[from] InvalidSpec),
    /// The trial is in a state that does not permit the request.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// The recurring job belongs to other users.
    #[error("{0}")]
    Forbidden(String),
    /// The database failed; nothing was changed.
    #[error("the database cannot be read or written now: {0}")]
    Store(#[from] StoreError),
}
