//! The error of files.

/// A fault in a file: place, and remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{at}: {what}")]
pub struct ParseError {
    /// Row and column.
    pub at: String,
    /// The fault, and the remedy.
    pub what: String,
}
