//! Time as an argument: the only place that asks the system for it.
//!
//! Two kinds of time are kept apart. [`Clock::utc`] names moments (keys of the books, slots of a forecast) and may
//! jump when somebody sets the clock. [`Clock::monotonic`] measures durations and never runs backwards.

use std::sync::Mutex;

use chrono::{DateTime, TimeDelta, Utc};
use wattune_core::time::{Monotonic, Now};
use wattune_core::units::Seconds;

/// A source of time.
pub trait Clock: Send + Sync {
    /// The wall clock. May jump.
    fn utc(&self) -> DateTime<Utc>;
    /// The duration clock. Never runs backwards.
    fn monotonic(&self) -> Monotonic;
    /// Both at once.
    fn now(&self) -> Now {
        Now { utc: self.utc(), monotonic: self.monotonic() }
    }
    /// How long the machine has run, sleep included: a span over which processes end and begin, and which nobody sets.
    /// `None` where that cannot be told.
    fn uptime(&self) -> Option<Seconds> {
        None
    }
}

/// The machine's clocks.
#[derive(Debug)]
pub struct SystemClock {
    origin: std::time::Instant,
}

impl SystemClock {
    /// Starts the monotonic scale at this moment.
    #[expect(clippy::disallowed_methods, reason = "this is the place")]
    pub fn start() -> Self {
        Self { origin: std::time::Instant::now() }
    }
}

impl Clock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "this is the place")]
    fn utc(&self) -> DateTime<Utc> {
        Utc::now()
    }

    fn monotonic(&self) -> Monotonic {
        Monotonic::new(self.origin.elapsed())
    }

    fn uptime(&self) -> Option<Seconds> {
        let text = std::fs::read_to_string("/proc/uptime").ok()?;
        text.split_whitespace().next()?.parse().ok().filter(|s: &f64| s.is_finite()).map(Seconds::new)
    }
}

/// A clock that moves only when told to: for tests, simulation and the demo.
#[derive(Debug)]
pub struct ManualClock {
    state: Mutex<Now>,
}

impl ManualClock {
    /// Stands at `utc`, with a monotonic reading of zero.
    pub fn at(utc: DateTime<Utc>) -> Self {
        Self { state: Mutex::new(Now { utc, monotonic: Monotonic::default() }) }
    }

    /// Moves both scales on.
    pub fn advance(&self, duration: Seconds) {
        let mut now = self.lock();
        now.utc += duration.to_delta();
        now.monotonic = now.monotonic.after(duration);
    }

    /// Sets the wall clock alone, as an administrator or NTP would.
    pub fn jump(&self, delta: TimeDelta) {
        self.lock().utc += delta;
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Now> {
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl Clock for ManualClock {
    fn utc(&self) -> DateTime<Utc> {
        self.lock().utc
    }

    fn monotonic(&self) -> Monotonic {
        self.lock().monotonic
    }

    fn now(&self) -> Now {
        *self.lock()
    }

    fn uptime(&self) -> Option<Seconds> {
        Some(self.monotonic().since(Monotonic::default()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_jump_of_the_wall_clock_leaves_durations_alone() {
        let clock = ManualClock::at(DateTime::UNIX_EPOCH);
        let before = clock.now();
        clock.advance(Seconds::new(1.5));
        clock.jump(TimeDelta::hours(-2));
        let after = clock.now();
        assert_eq!(after.monotonic.since(before.monotonic), Seconds::new(1.5));
        assert_eq!(after.utc - before.utc, TimeDelta::milliseconds(1500) - TimeDelta::hours(2));
        assert_eq!(before.monotonic.since(after.monotonic), Seconds::ZERO);
    }
}
