//! What is known of a GPU's clocks: the lock that was written, and the clocks that it shows.

use wattune_core::domain::ClockLimit;
use wattune_core::time::Monotonic;
use wattune_core::units::Seconds;

/// Under load and without a reason, a free board runs at this part of its highest clock at least. Boards with a higher
/// clock on paper than they ever reach are taken for locked, and their clocks left alone: the milder mistake.
pub(super) const FREE: f64 = 0.9;
/// Drivers round what they are given; a clock this much above the lock is another one.
pub(super) const ABOVE: f64 = 1.03;
/// How long the shown clock must speak against what is known before it is believed.
pub(super) const PERSISTENT: Seconds = Seconds::new(5.0);

/// What is known of one board's clocks.
#[derive(Debug, Default)]
pub(in crate::controller) struct Clocks {
    /// The lock that wattune has written.
    pub(super) held: Option<LockedClock>,
    /// Whether the lock was taken away, or never came to be, which the journal does not know yet.
    pub(super) unlocked: bool,
    /// Whether nothing was locked before the lock that was asked for last.
    pub(super) first: bool,
    /// Whether unlocking was refused.
    pub(super) refused: bool,
    /// Whether somebody else has taken the clocks over, which the journal does not know yet.
    pub(super) taken: bool,
    /// Since when locking them has failed.
    pub(super) failing: Option<Monotonic>,
    /// Why they are left alone on this board.
    pub(super) off: Option<String>,
    /// The highest clock seen while the board worked and nothing lowered it, wattune's lock included; and since when
    /// one was seen at all.
    pub(super) free: Option<(u32, Monotonic)>,
}

/// A lock that wattune has written.
#[derive(Clone, Copy, Debug)]
pub(super) struct LockedClock {
    pub(super) clock: ClockLimit,
    /// Whether the board has shown a clock that goes with it.
    pub(super) shown: bool,
    /// Since when it shows another one.
    pub(super) astray: Option<Monotonic>,
    /// [`crate::gpu::Observation::restarts`] when it was written: a driver that starts anew forgets it.
    pub(super) restarts: u32,
}

impl LockedClock {
    /// Compares the lock with a clock that nothing else lowers. Answers whether it is somebody else's now.
    pub(super) fn compare(&mut self, clock: u32, at: Monotonic) -> bool {
        let (clock, lock) = (f64::from(clock), f64::from(self.clock.megahertz()));
        if clock <= lock * ABOVE && clock >= lock * FREE {
            self.shown = true;
            self.astray = None;
        }
        let is_off = clock > lock * ABOVE || clock < lock * FREE;
        let since = is_off.then(|| *self.astray.get_or_insert(at));
        // Boards that never showed the lock round strangely, or do not keep it.
        self.shown && since.is_some_and(|since| at.since(since) >= PERSISTENT)
    }
}
