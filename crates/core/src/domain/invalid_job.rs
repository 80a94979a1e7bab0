//! The refusal of a request: the field, and what would be right.

/// Why a job cannot be accepted as asked for: which field, and what would be right.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{field}: {why}")]
pub struct InvalidJob {
    /// The field's path in the request.
    pub field: &'static str,
    /// What is wrong, and what would be right.
    pub why: String,
}
