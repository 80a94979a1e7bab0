//! The kinds of rules that a cap is made of.

use crate::domain::EventId;

/// Which rule makes the cap what it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CapSource {
    /// The constant.
    Constant,
    /// A window of the week.
    Window,
    /// A span of the settings.
    Span,
    /// A demand-response event, its ramps included.
    Event(EventId),
    /// What an event leaves behind: limits may not return to more than this yet.
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
