//! The cap of the settings: a constant, windows of the week, spans of time.

use chrono::Weekday;

use super::level::Level;
use crate::domain::Slot;

/// A window of the week, in UTC. It may pass midnight; then `days` are those on which it begins.
#[derive(Clone, Debug, PartialEq)]
pub struct Window {
    /// The days on which it begins; none means every day.
    pub days: Vec<Weekday>,
    /// When it begins, in seconds since midnight, below 86,400.
    pub from: u32,
    /// When it ends, likewise. At or before `from` it ends on the next day; equal to it, it lasts a whole day.
    pub to: u32,
    /// The cap within it.
    pub level: Level,
}

/// What is set once and holds until it is set otherwise.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StandingCap {
    /// At all times.
    pub constant: Option<Level>,
    /// Week by week.
    pub windows: Vec<Window>,
    /// Once.
    pub spans: Vec<(Slot, Level)>,
}

impl StandingCap {
    /// Whether it says nothing at all.
    pub fn is_empty(&self) -> bool {
        self.constant.is_none() && self.windows.is_empty() && self.spans.is_empty()
    }
}
