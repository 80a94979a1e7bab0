//! What the controller refuses, and why it cannot start.

use crate::gpu::journal::JournalError;
use crate::store::StoreError;
use wattune_core::domain::InvalidJob;

/// Why a request is not carried out. Each says what would be right.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// There is no such thing.
    #[error("no {what} {given:?}{hint}")]
    NotFound {
        /// "GPU", "job".
        what: &'static str,
        /// What was asked for.
        given: String,
        /// What there is instead; empty, or begins with punctuation.
        hint: String,
    },
    /// The request makes no sense.
    #[error(transparent)]
    Invalid(#[from] InvalidJob),
    /// Somebody else has it.
    #[error("{0}")]
    Conflict(String),
    /// There are as many as are allowed.
    #[error("{0}")]
    TooMany(String),
    /// It may not or cannot be done here.
    #[error("{0}")]
    Forbidden(String),
    /// The restore journal cannot be written, so that no limit may be set. Nothing was changed.
    #[error("no limit is set: {0}; the limit that was found could not be given back")]
    Journal(String),
    /// The database failed; nothing was changed.
    #[error("the books cannot be read or written now: {0}")]
    Store(#[from] StoreError),
}

impl ControlError {
    /// There is no such thing; `hint` says what there is.
    pub(super) fn not_found(what: &'static str, given: impl ToString, hint: String) -> Self {
        Self::NotFound { what, given: given.to_string(), hint }
    }
}

/// Why the daemon cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The restore journal is unusable.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The database is unusable.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The node's cap makes no sense; the settings are checked before, so this is a mistake of the program.
    #[error("cap: {0}")]
    Cap(String),
}

/// Returns an error with its cause: which file, and why not.
pub(super) fn in_full(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}
