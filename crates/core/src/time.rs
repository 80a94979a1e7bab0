//! Clock readings, which callers pass as arguments: one of the monotonic clock, or one of the monotonic clock and one
//! of the wall clock taken together.

use std::time::Duration;

use chrono::{DateTime, Datelike as _, TimeDelta, Utc};

use crate::units::Seconds;

/// A reading of a monotonic clock. Only differences between readings are meaningful.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Monotonic(Duration);

impl Monotonic {
    /// Creates the reading at the duration `since_origin` after the clock's origin.
    pub const fn new(since_origin: Duration) -> Self {
        Self(since_origin)
    }

    /// Returns the time since the reading `earlier`, or zero if `earlier` is later than this reading.
    pub fn since(self, earlier: Self) -> Seconds {
        self.0.saturating_sub(earlier.0).into()
    }

    /// Returns the reading that is `duration` later.
    #[must_use]
    pub fn after(self, duration: Seconds) -> Self {
        Self(self.0 + duration.to_std())
    }
}

/// Readings of the wall clock and the monotonic clock at one instant.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Now {
    /// Wall-clock time, for timestamps.
    pub utc: DateTime<Utc>,
    /// Reading of the monotonic clock, for durations.
    pub monotonic: Monotonic,
}

impl Now {
    /// Returns the readings of both clocks at the instant of the earlier monotonic reading `earlier`. The wall-clock
    /// time is right only if the wall clock was not set between `earlier` and this instant.
    #[must_use]
    pub fn back_to(self, earlier: Monotonic) -> Self {
        Self { utc: self.utc - self.monotonic.since(earlier).to_delta(), monotonic: earlier }
    }
}

/// Returns true if a time lies in the years 1970 to 2999. Other times in requests are mistakes, and adding to the last or
/// first possible ones panics.
pub fn is_usable(time: DateTime<Utc>) -> bool {
    (1970..=2999).contains(&time.year())
}

/// Returns the time `by` after `t`, or the last representable time if the sum would be later.
pub fn later(t: DateTime<Utc>, by: TimeDelta) -> DateTime<Utc> {
    t.checked_add_signed(by).unwrap_or(DateTime::<Utc>::MAX_UTC)
}
