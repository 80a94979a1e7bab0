//! Error for an invalid field of a request.

/// Error for an invalid field: what is wrong and what would be right.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{field}: {why}")]
pub struct InvalidJob {
    /// Path of the field in the request.
    pub field: &'static str,
    /// The problem and a valid alternative.
    pub why: String,
}
