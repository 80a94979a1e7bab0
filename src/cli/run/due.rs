//! Points in time that `wattune run` must not miss, even if the machine's clocks are set meanwhile.

use std::time::Duration;

use chrono::{DateTime, Utc};
use serde_json::Value;

use crate::cli::values::time_of;
use crate::clock::{Clock as _, SystemClock, since_boot};
use wattune_core::units::Seconds;

/// Readings of the machine's clocks at one instant.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Reading {
    /// Wall-clock time, which jumps when the clock is set.
    pub(super) wall: DateTime<Utc>,
    /// Time since the machine's start, including time in sleep mode.
    pub(super) boot: Seconds,
}

impl Reading {
    /// Reads the system's clocks.
    pub(super) fn now() -> Self {
        Self { wall: SystemClock::start().utc(), boot: since_boot() }
    }
}

/// A point in time on both clocks. It has passed as soon as one of the clocks has reached it. So a wall clock that is
/// set back does not delay the command. Nor does a virtual machine that was stopped, whose time since boot stood still.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Due {
    wall: DateTime<Utc>,
    boot: Seconds,
}

impl Due {
    /// Returns the point in time that is this long after a reading.
    pub(super) fn after(now: &Reading, wait: Seconds) -> Self {
        Self { wall: now.wall + wait.to_delta(), boot: now.boot + wait }
    }

    /// Returns a point in time on the wall clock.
    pub(super) fn at(now: &Reading, wall: DateTime<Utc>) -> Self {
        let wait = Seconds::new((wall - now.wall).as_seconds_f64());
        Self { wall, boot: now.boot + wait }
    }

    /// Returns the point in time on the wall clock.
    pub(super) fn wall(&self) -> DateTime<Utc> {
        self.wall
    }

    /// Returns the point in time that lies `span` before this one.
    pub(super) fn before(&self, span: Duration) -> Self {
        let span = Seconds::new(span.as_secs_f64());
        Self { wall: self.wall - span.to_delta(), boot: self.boot - span }
    }

    /// Returns true once one of the clocks has reached the point.
    pub(super) fn has_passed(&self, now: &Reading) -> bool {
        self.left(now).get() <= 0.0
    }

    /// Returns the time left by the clock that reaches the point first.
    pub(super) fn left(&self, now: &Reading) -> Seconds {
        let wall = (self.wall - now.wall).as_seconds_f64();
        Seconds::new(wall.min((self.boot - now.boot).get()))
    }
}

/// The clock of a daemon whose time differs from this machine's: a simulated clock, which may run at another speed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct OtherClock {
    /// Readings of this machine's clocks at the time when the daemon's clock showed `theirs`.
    here: Reading,
    theirs: DateTime<Utc>,
    /// Seconds that pass on the daemon's clock in one second here.
    speed: f64,
}

/// Difference of the clocks in seconds below which the daemon's clock counts as this machine's.
const SAME_CLOCK_S: f64 = 120.0;

impl OtherClock {
    /// Reads the daemon's clock from its status, which the daemon reported at `here`; `None` if it is this machine's
    /// clock.
    pub(super) fn of(status: &Value, here: Reading) -> Option<Self> {
        let theirs = time_of(&status["now"])?;
        let speed = status["clock_speed"].as_f64().filter(|speed| *speed > 0.0).unwrap_or(1.0);
        let is_same = speed == 1.0 && (theirs - here.wall).as_seconds_f64().abs() < SAME_CLOCK_S;
        (!is_same).then_some(Self { here, theirs, speed })
    }

    /// Returns the point in time on this machine's clocks at which the daemon's clock shows `theirs`.
    pub(super) fn here(&self, theirs: DateTime<Utc>) -> Due {
        Due::after(&self.here, Seconds::new((theirs - self.theirs).as_seconds_f64() / self.speed))
    }

    /// Converts a duration on this machine's clocks to one on the daemon's clock.
    pub(super) fn theirs(&self, here: Seconds) -> Seconds {
        here * self.speed
    }
}

#[cfg(test)]
mod tests {
    use chrono::TimeDelta;

    use super::*;

    #[test]
    fn a_daemon_may_keep_another_time() {
        use serde_json::json;

        let here = Reading { wall: DateTime::UNIX_EPOCH, boot: Seconds::new(500.0) };
        let clock = |now: &str, speed: f64| OtherClock::of(&json!({"now": now, "clock_speed": speed}), here);
        assert_eq!(clock("1970-01-01T00:01:00Z", 1.0), None, "clocks differ a little");
        assert_eq!(OtherClock::of(&json!({"gpus": []}), here), None, "an older daemon");
        let simulated = clock("2021-07-01T00:00:00Z", 60.0).expect("another clock");
        let theirs = "2021-07-01T02:00:00Z".parse().expect("a time");
        assert_eq!(simulated.here(theirs).left(&here), Seconds::new(120.0));
        assert_eq!(simulated.theirs(Seconds::new(120.0)), Seconds::new(7200.0));
        assert!(clock("1970-01-01T00:00:00Z", 60.0).is_some(), "at another speed");
    }

    #[test]
    fn a_point_passes_with_the_first_clock() {
        let begin = Reading { wall: DateTime::UNIX_EPOCH, boot: Seconds::new(500.0) };
        let due = Due::after(&begin, Seconds::new(3600.0));
        assert_eq!(due, Due::at(&begin, DateTime::UNIX_EPOCH + TimeDelta::hours(1)));
        // Wall clock and uptime, each after so many seconds.
        for (wall, boot, left) in [
            (0, 0.0, 3600.0),
            (3599, 3599.0, 1.0),
            // The machine slept: both went on.
            (7200, 7200.0, -3600.0),
            // The wall clock was set back by a day.
            (-86_400, 3600.0, 0.0),
            // The virtual machine was stopped for a day.
            (86_400, 60.0, -82_800.0),
        ] {
            let now = Reading { wall: begin.wall + TimeDelta::seconds(wall), boot: begin.boot + Seconds::new(boot) };
            assert_eq!((due.left(&now).get(), due.has_passed(&now)), (left, left <= 0.0), "{wall} {boot}");
        }
    }
}
