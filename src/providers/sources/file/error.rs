//! The error for a fault in a file's content.

/// A fault in a file's content, with its place and the remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{at}: {what}{setting}")]
pub struct ParseError {
    /// Row and column of the fault.
    pub at: String,
    /// Description of the fault, with the remedy in the file.
    pub what: String,
    /// The remedy by a setting, as words that continue `what`; empty if there is none.
    pub setting: String,
}

impl ParseError {
    /// Makes the error of a fault for which no setting is a remedy.
    pub(super) fn new(at: impl Into<String>, what: impl Into<String>) -> Self {
        Self { at: at.into(), what: what.into(), setting: String::new() }
    }

    /// Returns the error for a reader without settings: it names only the remedy in the file.
    #[must_use]
    pub fn without_setting(self) -> Self {
        Self { setting: String::new(), ..self }
    }
}
