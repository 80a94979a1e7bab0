//! Kinds of rules of a cap.

use crate::domain::EventId;

/// The rule that determines the cap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CapSource {
    /// The constant cap.
    Constant,
    /// A weekly window.
    Window,
    /// A configured span of time.
    Span,
    /// A demand-response event, including its ramps.
    Event(EventId),
    /// The limit on returning to full power after an event.
    Rebound(EventId),
}

impl std::fmt::Display for CapSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Constant => f.write_str("the constant cap"),
            Self::Window => f.write_str("a weekly window"),
            Self::Span => f.write_str("a span of the settings"),
            Self::Event(id) => write!(f, "demand-response event {id}"),
            Self::Rebound(id) => write!(f, "the rebound limit of demand-response event {id}"),
        }
    }
}
