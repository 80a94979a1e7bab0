//! Errors of requests to the controller, and of the daemon's start.

use crate::gpu::journal::JournalError;
use crate::store::StoreError;
use wattune_core::domain::InvalidJob;

/// Error of a request to the controller. Each message states what would be valid.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The named object does not exist.
    #[error("no {what} {given:?}{hint}")]
    NotFound {
        /// Kind of object: "GPU", "job".
        what: &'static str,
        /// Name of the object, as given in the request.
        given: String,
        /// End of the message, which says which objects exist; it is empty or begins with punctuation.
        hint: String,
    },
    /// The request is invalid.
    #[error(transparent)]
    Invalid(#[from] InvalidJob),
    /// The request conflicts with the present state.
    #[error("{0}")]
    Conflict(String),
    /// An open job has the key.
    #[error("{0}")]
    KeyTaken(String),
    /// The maximum number of open jobs is reached.
    #[error("{0}")]
    TooMany(String),
    /// The request is not permitted, or not possible on this machine.
    #[error("{0}")]
    Forbidden(String),
    /// The caller may not use a field of the request as given.
    #[error("{field}: {why}")]
    NotPermitted {
        /// Name of the field in the API.
        field: &'static str,
        /// Reason, and what is permitted.
        why: String,
    },
    /// The journal of original limits cannot be written, so no limit may be set. Nothing was changed.
    #[error(
        "power limits cannot be changed: {0}; nothing was set, since the original limit could not be restored later"
    )]
    Journal(String),
    /// The database failed; nothing was changed.
    #[error("the ledger cannot be read or written now: {0}")]
    Store(#[from] StoreError),
}

impl ControlError {
    /// Returns the error for an object that does not exist.
    pub(super) fn not_found(what: &'static str, given: impl ToString, hint: String) -> Self {
        Self::NotFound { what, given: given.to_string(), hint }
    }
}

/// Error that prevents the daemon from starting.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The journal of original limits is unusable.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The database is unusable.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The node's cap is invalid. The settings are checked earlier, so this is a bug in wattune.
    #[error("cap: {0}")]
    Cap(String),
}

/// Returns the message of an error, followed by the message of its cause.
pub(super) fn in_full(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_that_cannot_be_journalled_is_not_set() {
        let text = ControlError::Journal("cannot write the restore journal /x: no space".into()).to_string();
        assert!(
            text.contains("/x: no space; nothing was set, since the original limit could not be restored later"),
            "{text}"
        );
    }
}
