//! Values that describe the control of a GPU: overrides, writes of limits, deviations, locked clocks.

use chrono::{DateTime, Utc};

use crate::controller::requests::Caller;
use crate::gpu::journal::ExternalLimit;
use crate::gpu::{GpuError, Write};
use wattune_core::domain::{ClockLimit, PowerLimit};
use wattune_core::time::{Monotonic, Now};
use wattune_core::units::Seconds;

/// Part of its highest clock at which a GPU runs at least, under load and without a reason, if its clocks are free. GPUs
/// that never reach their highest clock on paper count as locked and keep their clocks: the milder mistake.
pub(super) const FREE: f64 = 0.9;
/// Drivers round what they are given; a clock this much above the lock is another one.
pub(super) const ABOVE: f64 = 1.03;
/// Time for which the clock must differ from what is known before the difference counts.
pub(super) const PERSISTENT: Seconds = Seconds::new(5.0);

/// A manual override and its expiry.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Override {
    pub(crate) limit: PowerLimit,
    /// Expiry on the duration clock.
    pub(crate) until: Monotonic,
    /// Expiry on the wall clock, for people.
    pub(crate) until_utc: DateTime<Utc>,
    pub(crate) by: Caller,
}

/// Result of acting on a GPU.
#[derive(Debug, PartialEq)]
pub(crate) enum Act {
    /// Nothing to do, or nothing that can be done now.
    Nothing,
    /// A limit was requested.
    Requested { from: PowerLimit, to: PowerLimit },
    /// A change of clocks was requested; its description.
    Clocks(String),
    /// An external writer's limit was found.
    Yielded(ExternalLimit),
    /// The original limit is back, and the journal's entry gone.
    Restored(PowerLimit),
}

/// Limit at which wattune holds a GPU: because it wrote it, or because it was in force already.
#[derive(Clone, Copy, Debug)]
pub(super) struct WrittenLimit {
    pub(super) requested: PowerLimit,
    /// Limit that the GPU showed right after the write: some round, some ignore.
    pub(super) shown: Option<PowerLimit>,
}

/// Finished write of a limit, for the ledger.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FinishedWrite {
    pub(crate) before: Option<PowerLimit>,
    pub(crate) asked: PowerLimit,
    pub(crate) shown: Option<PowerLimit>,
    pub(crate) failed: bool,
}

/// Writes to a GPU and their results.
#[derive(Debug, Default)]
pub(super) struct Writes {
    pub(super) limit: Option<WrittenLimit>,
    pub(super) in_flight: Option<(Write, Monotonic)>,
    pub(super) finished: Option<FinishedWrite>,
    /// Limit before the last write of one.
    pub(super) before: Option<PowerLimit>,
    pub(super) last_request: Option<Monotonic>,
    /// Limit requested last, whatever became of it.
    pub(super) last_limit: Option<PowerLimit>,
    /// Failure of the last write of a limit; `None` if it succeeded.
    pub(super) error: Option<GpuError>,
    /// [`crate::gpu::Observation::restarts`] when the GPU last showed the limit that it is held at.
    pub(super) restarts_seen: u32,
    /// True if the last write of a limit was to restore the original one.
    pub(super) is_restoring: bool,
    /// Number of restores in a row that did not bring the original limit back.
    pub(super) failed_restores: u32,
    /// True if a limit was written and the journal does not know yet that this is done.
    pub(super) is_unconfirmed: bool,
}

/// A wanted limit that is not in force.
#[derive(Clone, Debug)]
pub(crate) struct LimitDeviation {
    pub(super) since: Now,
    /// Number of ticks that have found it: between two ticks of a fast clock much time passes.
    pub(super) ticks: u32,
    pub(super) wanted: PowerLimit,
    pub(super) shown: PowerLimit,
    /// Failure of the last write; `None` if the driver accepted it.
    pub(super) error: Option<GpuError>,
}

/// State of a GPU's clocks.
#[derive(Debug, Default)]
pub(crate) struct Clocks {
    /// Lock written by wattune.
    pub(super) held: Option<LockedClock>,
    /// True if the lock was removed, or never came to be, and the journal does not know it yet.
    pub(super) unlocked: bool,
    /// True if nothing was locked before the last requested lock.
    pub(super) first: bool,
    /// True if unlocking was refused.
    pub(super) refused: bool,
    /// Clock of the last lock that was to be removed.
    pub(super) last_lock: Option<ClockLimit>,
    /// Removal of a lock that the driver accepted and the clock has not confirmed yet.
    pub(super) unlocking: Option<Unlocking>,
    /// Time since which accepted locks have had no effect.
    pub(super) ignored_since: Option<Monotonic>,
    /// True if an external writer has locked the clocks and the journal does not know it yet.
    pub(super) taken: bool,
    /// Time since which locking has failed.
    pub(super) failing: Option<Monotonic>,
    /// Reason why the clocks of this GPU are left alone.
    pub(super) off: Option<String>,
    /// Highest clock while the GPU worked and nothing lowered it, wattune's lock included, and the time of the first
    /// such reading.
    pub(super) free: Option<(u32, Monotonic)>,
}

/// Lock written by wattune.
#[derive(Clone, Copy, Debug)]
pub(super) struct LockedClock {
    pub(super) clock: ClockLimit,
    /// True once the GPU has shown a clock that agrees with it.
    pub(super) shown: bool,
    /// True if the last clock without a reason was above it.
    pub(super) is_above: bool,
    /// Time since which it shows another one.
    pub(super) deviating_since: Option<Monotonic>,
    /// [`crate::gpu::Observation::restarts`] at the write: a driver that starts anew forgets the lock.
    pub(super) restarts: u32,
}

/// Removal of a lock that the driver accepted. No driver reports a lock, so the clock under load has to confirm it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unlocking {
    pub(super) lock: ClockLimit,
    /// Time since which the clock has neither confirmed nor contradicted it.
    pub(super) unjudged_since: Monotonic,
    /// Clock at or below the lock without a reason, and the time since which it has been there.
    pub(super) still: Option<(u32, Monotonic)>,
    /// True if that has lasted: the driver ignores the removal.
    pub(super) is_ignored: bool,
}

impl Unlocking {
    /// Compares the lock with the clock of a working GPU that nothing lowers; `None` if it has none. Returns whether the
    /// lock counts as removed.
    pub(super) fn is_done(&mut self, clock: Option<u32>, at: Monotonic) -> bool {
        match clock {
            Some(clock) if f64::from(clock) > f64::from(self.lock.megahertz()) * ABOVE => true,
            Some(clock) => {
                let (_, since) = *self.still.get_or_insert((clock, at));
                self.is_ignored |= at.since(since) >= PERSISTENT;
                self.unjudged_since = at;
                false
            }
            None if self.is_ignored => false,
            None => {
                self.still = None;
                at.since(self.unjudged_since) >= PERSISTENT
            }
        }
    }
}

impl LockedClock {
    /// Compares the lock with a clock that nothing else lowers. Returns whether an external writer has replaced it.
    pub(super) fn compare(&mut self, clock: u32, at: Monotonic) -> bool {
        let (clock, lock) = (f64::from(clock), f64::from(self.clock.megahertz()));
        self.is_above = clock > lock * ABOVE;
        let is_off = self.is_above || clock < lock * FREE;
        if !is_off {
            self.shown = true;
            self.deviating_since = None;
        }
        let since = is_off.then(|| *self.deviating_since.get_or_insert(at));
        // GPUs that never showed the lock round strangely, or do not keep it.
        self.shown && since.is_some_and(|since| at.since(since) >= PERSISTENT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_running_clock_confirms_or_contradicts_an_unlock_and_an_idle_gpu_does_neither() {
        let at = |seconds: f64| Monotonic::default().after(Seconds::new(seconds));
        let new = Unlocking {
            lock: ClockLimit::from_megahertz(930),
            unjudged_since: at(0.0),
            still: None,
            is_ignored: false,
        };
        assert!({ new }.is_done(Some(1740), at(0.5)), "it runs above the lock");
        let mut ignored = new;
        assert!(!ignored.is_done(Some(930), at(1.0)) && !ignored.is_ignored, "it may need a moment");
        assert!(!ignored.is_done(Some(930), at(6.0)) && ignored.is_ignored);
        assert!(!ignored.is_done(None, at(60.0)), "what was seen under load holds while it is idle");
        assert!(ignored.is_done(Some(1740), at(61.0)));
        let mut idle = new;
        assert!(!idle.is_done(None, at(4.0)) && idle.is_done(None, at(5.0)));
    }
}
