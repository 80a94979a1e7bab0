//! Clocks, which other modules get as an argument: only this module asks the system for the time.
//!
//! Two kinds of time are separate. [`Clock::utc`] names times (keys of the ledger, slots of a forecast) and may jump
//! when the system's clock is set. [`Clock::monotonic`] measures durations and never runs backwards.

use std::sync::Mutex;

use chrono::{DateTime, TimeDelta, Utc};
use wattune_core::time::{Monotonic, Now};
use wattune_core::units::Seconds;

/// A source of time.
pub trait Clock: Send + Sync {
    /// Returns the wall-clock time in UTC, which jumps when the clock is set.
    fn utc(&self) -> DateTime<Utc>;
    /// Returns the time to measure durations with, which never runs backwards.
    fn monotonic(&self) -> Monotonic;
    /// Returns the wall-clock time and the monotonic time together.
    fn now(&self) -> Now {
        Now { utc: self.utc(), monotonic: self.monotonic() }
    }
    /// Returns the machine's uptime including sleep, if known. Setting the wall clock does not change the uptime.
    fn uptime(&self) -> Option<Seconds> {
        None
    }
    /// Returns the number of seconds that pass on this clock in one second of the machine's.
    fn speed(&self) -> f64 {
        1.0
    }
}

/// The clocks of the operating system.
#[derive(Debug)]
pub struct SystemClock {
    origin: std::time::Instant,
}

impl SystemClock {
    /// Creates the system's clock; its monotonic time counts from this call.
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

/// A clock that runs faster than the machine's, for simulated GPUs: hours of a grid pass in seconds.
#[derive(Debug)]
pub struct AcceleratedClock {
    machine: SystemClock,
    speed: f64,
    /// Time at which this clock and the machine's show the same.
    start: DateTime<Utc>,
}

impl AcceleratedClock {
    /// Creates a clock on which `speed` seconds pass in one second of the machine's, and which shows the machine's time
    /// at `start`. A clock that is created again with the same values shows the time as if it had run meanwhile.
    pub fn since(start: DateTime<Utc>, speed: u32) -> Self {
        Self { machine: SystemClock::start(), speed: f64::from(speed), start }
    }

    fn scaled(&self, span: Seconds) -> Seconds {
        span * self.speed
    }
}

impl Clock for AcceleratedClock {
    fn utc(&self) -> DateTime<Utc> {
        let passed = self.scaled(Seconds::from_delta(self.machine.utc() - self.start));
        self.start.checked_add_signed(passed.to_delta()).unwrap_or(self.start)
    }

    fn monotonic(&self) -> Monotonic {
        Monotonic::default().after(self.scaled(self.machine.monotonic().since(Monotonic::default())))
    }

    fn uptime(&self) -> Option<Seconds> {
        self.machine.uptime().map(|uptime| self.scaled(uptime))
    }

    fn speed(&self) -> f64 {
        self.speed
    }
}

/// Returns the time in seconds on the machine's monotonic clock, which all processes of the machine share; in Python,
/// it is `time.monotonic()`.
pub fn shared_monotonic() -> Seconds {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Seconds::new(now.tv_sec as f64 + now.tv_nsec as f64 * 1e-9)
}

/// Returns the time in seconds since the machine's start, including time in sleep mode. Setting the wall clock does not
/// change it.
pub fn since_boot() -> Seconds {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Seconds::new(now.tv_sec as f64 + now.tv_nsec as f64 * 1e-9)
}

/// A clock that moves only on command: for tests, simulation and the demo.
#[derive(Debug)]
pub struct ManualClock {
    state: Mutex<Now>,
}

impl ManualClock {
    /// Creates a clock that shows `utc`, with a monotonic time of zero.
    pub fn at(utc: DateTime<Utc>) -> Self {
        Self { state: Mutex::new(Now { utc, monotonic: Monotonic::default() }) }
    }

    /// Moves the wall clock and the monotonic time forward by `duration`.
    pub fn advance(&self, duration: Seconds) {
        let mut now = self.lock();
        now.utc += duration.to_delta();
        now.monotonic = now.monotonic.after(duration);
    }

    /// Moves the wall clock only, as an administrator or NTP does.
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
    fn an_accelerated_clock_goes_on_where_an_earlier_one_was() {
        let start = SystemClock::start().utc() - TimeDelta::minutes(1);
        let (first, again) = (AcceleratedClock::since(start, 60), AcceleratedClock::since(start, 60));
        let (before, after) = (first.now(), again.now());
        assert!(before.utc - start >= TimeDelta::hours(1), "{}", before.utc);
        assert!(after.utc >= before.utc && after.utc - before.utc < TimeDelta::hours(1));
        assert_eq!((first.speed(), SystemClock::start().speed()), (60.0, 1.0));
        let (from, monotonic) = (SystemClock::start().monotonic(), first.monotonic());
        assert!(monotonic >= from && first.monotonic() >= monotonic);
    }

    #[test]
    fn a_jump_of_the_wall_clock_does_not_change_durations() {
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
