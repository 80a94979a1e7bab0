//! Time as an argument: monotonic clock readings, and instants on both clocks.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};

use crate::units::Seconds;

/// A reading of a monotonic clock. Only differences are meaningful.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Monotonic(Duration);

impl Monotonic {
    /// Creates the reading `since_origin` after the clock's origin.
    pub const fn new(since_origin: Duration) -> Self {
        Self(since_origin)
    }

    /// Returns the time since `earlier`, or zero if that is later.
    pub fn since(self, earlier: Self) -> Seconds {
        self.0.saturating_sub(earlier.0).into()
    }

    /// Returns the reading a duration later.
    #[must_use]
    pub fn after(self, duration: Seconds) -> Self {
        Self(self.0 + duration.to_std())
    }
}

/// An instant on both clocks, read together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Now {
    /// Wall-clock time, for timestamps.
    pub utc: DateTime<Utc>,
    /// Monotonic reading, for durations.
    pub monotonic: Monotonic,
}

impl Now {
    /// Returns the instant of an earlier monotonic reading, assuming that the wall clock was not set since.
    #[must_use]
    pub fn back_to(self, earlier: Monotonic) -> Self {
        Self { utc: self.utc - self.monotonic.since(earlier).to_delta(), monotonic: earlier }
    }
}

/// Returns the time `by` after `t`, or the last representable one.
pub fn later(t: DateTime<Utc>, by: TimeDelta) -> DateTime<Utc> {
    t.checked_add_signed(by).unwrap_or(DateTime::<Utc>::MAX_UTC)
}
