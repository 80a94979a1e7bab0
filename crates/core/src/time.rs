//! Time as an argument: a duration clock's reading, and a moment on both scales.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};

use crate::units::Seconds;

/// A reading of a clock that never runs backwards. Only differences mean something.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Monotonic(Duration);

impl Monotonic {
    /// The reading `since_origin` after the clock's origin.
    pub const fn new(since_origin: Duration) -> Self {
        Self(since_origin)
    }

    /// How long after `earlier` this was; zero if it was before.
    pub fn since(self, earlier: Self) -> Seconds {
        self.0.saturating_sub(earlier.0).into()
    }

    /// The reading a duration later.
    #[must_use]
    pub fn after(self, duration: Seconds) -> Self {
        Self(self.0 + duration.to_std())
    }
}

/// A point in time on both scales, read together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Now {
    /// Names the moment.
    pub utc: DateTime<Utc>,
    /// Measures from and to it.
    pub monotonic: Monotonic,
}

impl Now {
    /// What both scales showed at `earlier`, if nobody has set the wall clock since.
    #[must_use]
    pub fn back_to(self, earlier: Monotonic) -> Self {
        Self { utc: self.utc - self.monotonic.since(earlier).to_delta(), monotonic: earlier }
    }
}

/// The moment that lies `by` after `t`; where there is no such moment, the last one that there is.
pub fn later(t: DateTime<Utc>, by: TimeDelta) -> DateTime<Utc> {
    t.checked_add_signed(by).unwrap_or(DateTime::<Utc>::MAX_UTC)
}
