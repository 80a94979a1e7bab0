//! Values that describe the control of a GPU: overrides, writes of limits, deviations, locked clocks.

use chrono::{DateTime, Utc};

use crate::controller::requests::Caller;
use crate::gpu::journal::ExternalLimit;
use crate::gpu::{GpuError, Write};
use wattune_core::domain::{ClockLimit, PowerLimit};
use wattune_core::time::{Monotonic, Now};
use wattune_core::units::Seconds;

/// Minimum ratio of the clock under load to the highest clock at which a GPU's clocks count as unlocked, while the GPU
/// reports no reason for a lower clock. A GPU that never reaches its nominal highest clock counts as locked, so wattune
/// leaves its clocks alone, which is the milder mistake.
pub(super) const FREE: f64 = 0.9;
/// Ratio of the clock to the lock above which the lock is not in force; a smaller excess is the driver's rounding.
pub(super) const ABOVE: f64 = 1.03;
/// Time for which the clock must contradict the assumed state (locked or unlocked) before the contradiction counts.
pub(super) const PERSISTENT: Seconds = Seconds::new(5.0);

/// A manual override of a GPU's power limit, and the override's expiry.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Override {
    pub(crate) limit: PowerLimit,
    pub(crate) end: OverrideEnd,
    pub(crate) by: Caller,
    /// True if the override ends as soon as a job controls the GPU.
    pub(crate) yields_to_jobs: bool,
    /// True if the override's client has locked the GPU's clocks.
    pub(crate) locks_clocks: bool,
    /// True if the override's client has locked the clocks of the GPU's memory.
    pub(crate) locks_memory: bool,
}

/// End of a manual override. The override ends earlier if there is another write or an external writer, or if the
/// daemon ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum OverrideEnd {
    /// Expiry.
    At {
        /// Expiry on the monotonic clock.
        until: Monotonic,
        /// Expiry on the wall clock, for people.
        until_utc: DateTime<Utc>,
    },
    /// The override ends when its client's process ends; the caller reports that.
    WithProcess,
    /// Time after which a GPU without processes is given up.
    Unused {
        /// Time without processes.
        after: Seconds,
        /// Time since which the GPU has no process; `None` while it has one.
        since: Option<Monotonic>,
    },
    /// The override has no end of its own.
    Kept,
}

impl OverrideEnd {
    /// Returns the reason why an override with this end has ended.
    pub(super) const fn describe(&self) -> &'static str {
        match self {
            Self::At { .. } => "its time is over",
            Self::WithProcess => "its client's process has ended",
            Self::Unused { .. } => "no process has used the GPU for the time given in zeus.unused_s",
            Self::Kept => "another write has replaced it",
        }
    }
}

impl Override {
    /// Returns the expiry on the wall clock; `None` if the override has none.
    pub(crate) fn until_utc(&self) -> Option<DateTime<Utc>> {
        match self.end {
            OverrideEnd::At { until_utc, .. } => Some(until_utc),
            _ => None,
        }
    }

    /// Returns whether the override is over. `processes` is the number of processes on the GPU, if known.
    pub(super) fn is_over(&mut self, processes: Option<u32>, now: Monotonic) -> bool {
        match &mut self.end {
            OverrideEnd::At { until, .. } => *until < now,
            OverrideEnd::Unused { after, since } => {
                match processes {
                    Some(0) => drop(since.get_or_insert(now)),
                    Some(_) => *since = None,
                    None => {}
                }
                since.is_some_and(|since| now.since(since) >= *after)
            }
            OverrideEnd::WithProcess | OverrideEnd::Kept => false,
        }
    }
}

/// Step that was done towards a GPU's target.
#[derive(Debug, PartialEq)]
pub(crate) enum Act {
    /// There is nothing to do, or nothing that can be done now.
    Nothing,
    /// The write of a limit was requested.
    Requested { from: PowerLimit, to: PowerLimit },
    /// The locking or unlocking of clocks was requested; the text describes it.
    Clocks(String),
    /// An external limit was detected.
    Yielded(ExternalLimit),
    /// The original limit is restored, and its journal entry is removed.
    Restored(PowerLimit),
}

/// Limit that wattune keeps on a GPU: wattune has written it, or it was in force already when it became wanted.
#[derive(Clone, Copy, Debug)]
pub(super) struct WrittenLimit {
    pub(super) requested: PowerLimit,
    /// Limit that the GPU reported right after the write: some GPUs round the requested limit, and some ignore it.
    pub(super) shown: Option<PowerLimit>,
}

/// Finished write to a GPU, for the ledger and the audit log.
#[derive(Clone, Debug)]
pub(crate) struct FinishedWrite {
    pub(crate) at: DateTime<Utc>,
    pub(crate) write: Write,
    pub(crate) before: Before,
    /// Power limit reported after the write.
    pub(crate) shown: Option<PowerLimit>,
    pub(crate) error: Option<GpuError>,
    /// Request that led to the write; `None` if the daemon wrote of its own accord.
    pub(crate) request: Option<WriteRequest>,
    /// True if the write was to restore the original limit.
    pub(crate) is_restoring: bool,
}

/// Request of a caller that leads to a write.
#[derive(Clone, Debug)]
pub(crate) struct WriteRequest {
    pub(crate) by: Caller,
    /// Power limit that the caller requests; the GPU's maximum usable limit or the node's cap may lower it. `None` for
    /// another setting.
    pub(crate) limit: Option<PowerLimit>,
}

/// Settings of a GPU right before a write, as far as they are known.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Before {
    pub(crate) limit: Option<PowerLimit>,
    pub(crate) persistence: Option<bool>,
    /// Clock to which wattune has locked the GPU's clocks.
    pub(crate) clock: Option<ClockLimit>,
}

/// Manual override that ended without a request for that, and the reason.
#[derive(Clone, Debug)]
pub(crate) struct EndedOverride {
    pub(crate) manual: Override,
    pub(crate) why: &'static str,
}

/// Writes to a GPU and their results.
#[derive(Debug, Default)]
pub(super) struct Writes {
    pub(super) limit: Option<WrittenLimit>,
    pub(super) in_flight: Option<(Write, Monotonic)>,
    /// Time at which the last write of a limit ended.
    pub(super) limit_at: Option<Monotonic>,
    /// Finished writes that are not in the audit log yet, oldest first.
    pub(super) finished: Vec<FinishedWrite>,
    /// Last finished write of a limit; `None` once the ledger has it.
    pub(super) changed_limit: Option<FinishedWrite>,
    /// Request for which the next write is made; `None` if no caller has requested one.
    pub(super) next_request: Option<WriteRequest>,
    /// Request for which the last write was made; `None` if the daemon writes of its own accord.
    pub(super) request: Option<WriteRequest>,
    /// Settings before the last write.
    pub(super) before: Before,
    /// Overrides that ended and are not in the audit log yet.
    pub(super) ended: Vec<EndedOverride>,
    /// Failure of a write that the audit log has last; `None` once a write succeeds.
    pub(super) recorded_failure: Option<(Write, String)>,
    pub(super) last_request: Option<Monotonic>,
    /// Limit requested last, whether or not it was written.
    pub(super) last_limit: Option<PowerLimit>,
    /// Failure of the last write of a limit; `None` if it succeeded.
    pub(super) error: Option<GpuError>,
    /// Limit whose write the driver last reported as failed, though not as refused; it may come into force all the same.
    /// `None` once a write succeeds.
    pub(super) failed_limit: Option<PowerLimit>,
    /// Value of [`crate::gpu::Observation::restarts`] when the GPU last showed wattune's limit.
    pub(super) restarts_seen: u32,
    /// True if the last write of a limit was to restore the original one.
    pub(super) is_restoring: bool,
    /// Number of restores in a row that did not bring the original limit back.
    pub(super) failed_restores: u32,
    /// True if a limit was written and the journal does not yet record that the write took effect.
    pub(super) is_unconfirmed: bool,
}

/// A wanted limit that is not in force.
#[derive(Clone, Debug)]
pub(crate) struct LimitDeviation {
    pub(super) since: Now,
    /// Number of ticks that found the deviation. Its duration alone is not enough, because with a fast simulated clock
    /// much time passes between two ticks.
    pub(super) ticks: u32,
    pub(super) wanted: PowerLimit,
    pub(super) shown: PowerLimit,
    /// Failure of the last write; `None` if the driver accepted it.
    pub(super) error: Option<GpuError>,
}

/// State of wattune's control of a GPU's clocks.
#[derive(Debug, Default)]
pub(crate) struct Clocks {
    /// Lock that wattune has written and that is assumed to be in force.
    pub(super) locked: Option<LockedClock>,
    /// True if the lock was removed or never took effect, and the journal does not record that yet.
    pub(super) unlocked: bool,
    /// True if wattune held no lock before the last requested lock.
    pub(super) first: bool,
    /// True if the driver refused the last unlocking.
    pub(super) refused: bool,
    /// Clock of the last lock that was to be removed.
    pub(super) last_lock: Option<ClockLimit>,
    /// Unlocking that the driver accepted and the observed clock has not confirmed yet.
    pub(super) unlocking: Option<Unlocking>,
    /// Time since which accepted locks have had no effect.
    pub(super) ignored_since: Option<Monotonic>,
    /// True if an external writer has changed the clocks and the journal does not record that yet.
    pub(super) taken: bool,
    /// Time since which locking has failed.
    pub(super) failing: Option<Monotonic>,
    /// Reason why wattune leaves the GPU's clocks alone.
    pub(super) left_alone_because: Option<String>,
    /// First the highest clock, in MHz, observed under load while neither a reported reason nor a lock of wattune's
    /// lowered the clock; second the time of the first such reading.
    pub(super) free: Option<(u32, Monotonic)>,
}

/// Lock of clocks that wattune has written.
#[derive(Clone, Copy, Debug)]
pub(super) struct LockedClock {
    pub(super) clock: ClockLimit,
    /// True once the GPU has run at a clock that agrees with the lock.
    pub(super) shown: bool,
    /// True if the clock was above the lock when it was last read without a reported reason for a lower clock.
    pub(super) is_above: bool,
    /// Time since which the GPU's clock disagrees with the lock.
    pub(super) deviating_since: Option<Monotonic>,
    /// Value of [`crate::gpu::Observation::restarts`] at the write: a driver that restarts forgets the lock.
    pub(super) restarts: u32,
}

/// Unlocking of clocks that the driver accepted. No driver reports locked clocks, so the clock under load has to
/// confirm that they are unlocked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unlocking {
    pub(super) lock: ClockLimit,
    /// Time since which the clock has neither confirmed nor contradicted the unlocking.
    pub(super) unjudged_since: Monotonic,
    /// First a clock, in MHz, at or below the lock although the GPU reports no reason for a low clock; second the time
    /// since which the GPU has run at such clocks. `None` while it does not.
    pub(super) still_low: Option<(u32, Monotonic)>,
    /// True if the clock has stayed at or below the lock for so long that the driver must have ignored the unlocking.
    pub(super) is_ignored: bool,
}

impl Unlocking {
    /// Compares the lock with the GPU's clock in MHz; `clock` is `None` if the GPU is idle or reports a reason for a
    /// low clock. Returns whether the lock counts as removed.
    pub(super) fn is_done(&mut self, clock: Option<u32>, at: Monotonic) -> bool {
        match clock {
            Some(clock) if f64::from(clock) > f64::from(self.lock.megahertz()) * ABOVE => true,
            Some(clock) => {
                let (_, since) = *self.still_low.get_or_insert((clock, at));
                self.is_ignored |= at.since(since) >= PERSISTENT;
                self.unjudged_since = at;
                false
            }
            None if self.is_ignored => false,
            None => {
                self.still_low = None;
                at.since(self.unjudged_since) >= PERSISTENT
            }
        }
    }
}

impl LockedClock {
    /// Compares the lock with the GPU's clock in MHz, while the GPU reports no reason for a low clock. Returns whether
    /// an external writer has replaced the lock.
    pub(super) fn compare(&mut self, clock: u32, at: Monotonic) -> bool {
        let (clock, lock) = (f64::from(clock), f64::from(self.clock.megahertz()));
        self.is_above = clock > lock * ABOVE;
        let is_off = self.is_above || clock < lock * FREE;
        if !is_off {
            self.shown = true;
            self.deviating_since = None;
        }
        let since = is_off.then(|| *self.deviating_since.get_or_insert(at));
        // A GPU that never showed the lock rounds it or does not keep it, which is no sign of an external writer.
        self.shown && since.is_some_and(|since| at.since(since) >= PERSISTENT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controller::Client;

    #[test]
    fn an_override_over_tcp_ends_after_a_time_without_processes() {
        let at = |seconds: f64| Monotonic::default().after(Seconds::new(seconds));
        let mut manual = Override {
            limit: PowerLimit::from_milliwatts(200_000),
            end: OverrideEnd::Unused { after: Seconds::new(600.0), since: None },
            by: Caller::Zeus(Client { user: Some(1000), ..Client::default() }),
            yields_to_jobs: true,
            locks_clocks: false,
            locks_memory: false,
        };
        let table = [
            (0.0, Some(0), false),
            (500.0, Some(1), false),
            (700.0, Some(0), false),
            // An unknown number of processes is not zero, and does not count as one either.
            (1200.0, None, false),
            (1299.0, Some(0), false),
            (1300.0, Some(0), true),
        ];
        for (seconds, processes, over) in table {
            assert_eq!(manual.is_over(processes, at(seconds)), over, "{seconds} s");
        }
        manual.end = OverrideEnd::Kept;
        assert!(!manual.is_over(Some(0), at(1e6)));
    }

    #[test]
    fn the_running_clock_confirms_or_contradicts_an_unlock_and_an_idle_gpu_does_neither() {
        let at = |seconds: f64| Monotonic::default().after(Seconds::new(seconds));
        let new = Unlocking {
            lock: ClockLimit::from_megahertz(930),
            unjudged_since: at(0.0),
            still_low: None,
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
