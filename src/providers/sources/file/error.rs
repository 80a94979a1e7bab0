//! The error for a fault in a file's content.

/// A fault in a file's content, with its place and the remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{at}: {what}")]
pub struct ParseError {
    /// Row and column of the fault.
    pub at: String,
    /// Description of the fault, with the remedy.
    pub what: String,
}
