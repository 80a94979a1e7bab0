//! The configured cap: a constant, weekly windows, spans of time.

use chrono::Weekday;

use super::level::Level;
use crate::domain::Slot;

/// A weekly window in UTC. It may cross midnight; `days` are those on which it starts.
#[derive(Clone, Debug, PartialEq)]
pub struct Window {
    /// Days on which it starts; empty means every day.
    pub days: Vec<Weekday>,
    /// Start in seconds since midnight, below 86,400.
    pub from: u32,
    /// End in seconds since midnight. At or before `from` it is on the next day; equal to it, the window lasts a day.
    pub to: u32,
    /// Cap within it.
    pub level: Level,
}

/// The cap from the settings.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ConfiguredCap {
    /// Cap at all times.
    pub constant: Option<Level>,
    /// Weekly caps.
    pub windows: Vec<Window>,
    /// Caps for single spans of time.
    pub spans: Vec<(Slot, Level)>,
}

impl ConfiguredCap {
    /// Returns whether there is no cap.
    pub fn is_empty(&self) -> bool {
        self.constant.is_none() && self.windows.is_empty() && self.spans.is_empty()
    }
}
