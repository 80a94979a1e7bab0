//! The time by which a call must be done.

use std::time::Duration;

use crate::clock::{Clock as _, SystemClock};
use wattune_core::time::Monotonic;
use wattune_core::units::Seconds;

/// A time by which some work must be finished.
#[derive(Debug)]
pub(super) struct Deadline {
    clock: SystemClock,
    at: Monotonic,
}

impl Deadline {
    /// Returns the time that is `patience` from now.
    pub(super) fn within(patience: Duration) -> Self {
        let clock = SystemClock::start();
        let at = clock.monotonic().after(Seconds::new(patience.as_secs_f64()));
        Self { clock, at }
    }

    /// Returns the time left; zero once it is over.
    pub(super) fn left(&self) -> Duration {
        self.at.since(self.clock.monotonic()).to_std()
    }

    /// Returns true once the time is over.
    pub(super) fn is_over(&self) -> bool {
        self.left().is_zero()
    }

    /// Returns the earlier of this deadline and the time that is `patience` from now.
    pub(super) fn or_within(&self, patience: Duration) -> Self {
        Self::within(patience.min(self.left()))
    }
}
