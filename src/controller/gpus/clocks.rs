//! Clock control of one GPU: permission to lock its clocks, locking and unlocking.
//!
//! No driver reports locked clocks, so wattune's last lock counts as in force unless the clock under load contradicts
//! the lock. For the same reason wattune could not restore a lock that another program set before. So wattune locks
//! clocks only on GPUs that it has observed to run with free clocks, and restores such a GPU by unlocking its clocks.

use super::control_state::{ABOVE, Act, FREE, LockedClock, PERSISTENT, Unlocking};
use super::gpu::Gpu;
use super::steering::LASTING;
use crate::controller::settings::Locking;
use crate::gpu::journal::{Journal, JournalError};
use crate::gpu::{GpuError, Write};
use wattune_core::domain::{ClockLimit, ClockRange, PowerLimit};
use wattune_core::time::Now;
use wattune_core::units::Seconds;

/// Pause before a refused lock is tried again.
const TRY_AGAIN: Seconds = Seconds::new(2.0);

impl Gpu {
    /// Compares the reported clock with wattune's lock or, without a lock, records the highest clock.
    pub(crate) fn observe_clocks(&mut self) {
        let restarts = self.observed.restarts();
        if self.clocks.locked.is_some_and(|h| h.restarts != restarts) {
            self.clocks.locked = None;
        }
        let (clock, at) = (self.observed.unexplained_clock(), self.observed.at.map(|at| at.monotonic));
        if let (Some(unlocking), Some(at)) = (&mut self.clocks.unlocking, at)
            && unlocking.is_done(clock, at)
        {
            let (id, lock) = (&self.handle.identity().id, unlocking.lock);
            if clock.is_some() {
                tracing::info!(gpu.uuid = %id, "GPU {id}: clocks unlocked");
            } else {
                tracing::info!(gpu.uuid = %id, "GPU {id}: the driver accepted the request to remove wattune's clock limit of \
                    {lock}; the GPU is idle, limited for another reason, or reports no reasons, so its clock does not show the effect");
            }
            (self.clocks.unlocking, self.clocks.unlocked) = (None, true);
        }
        let (Some(clock), Some(at)) = (clock, at) else {
            if let Some(locked) = &mut self.clocks.locked {
                locked.deviating_since = None;
            }
            return;
        };
        match &mut self.clocks.locked {
            Some(locked) => {
                let is_taken = locked.compare(clock, at);
                let is_ignored = locked.is_above && !locked.shown;
                let since = is_ignored.then(|| *self.clocks.ignored_since.get_or_insert(at));
                self.clocks.ignored_since = since;
                if since.is_some_and(|since| at.since(since) > LASTING) {
                    self.clocks.left_alone_because = Some(format!(
                        "its clocks were locked to {} and run at {clock} MHz: the driver accepts the lock and does not keep it; \
                         wattune does not lock this GPU's clocks until its next job",
                        locked.clock
                    ));
                }
                if is_taken {
                    let why = format!(
                        "an external writer has set its clocks: it runs at {clock} MHz where wattune had locked {}; wattune does not lock this GPU's clocks until its next job",
                        locked.clock
                    );
                    self.clocks.locked = None;
                    self.clocks.taken = true;
                    self.clocks.left_alone_because = Some(why);
                }
            }
            None => {
                let (highest, since) = self.clocks.free.unwrap_or((clock, at));
                self.clocks.free = Some((highest.max(clock), since));
            }
        }
    }

    /// Applies the result of a write that locks or unlocks the GPU's clocks.
    pub(crate) fn apply_clock_outcome(&mut self, write: Write, result: &Result<(), GpuError>) {
        match (write, result) {
            (Write::LockClocks(clock), Ok(())) => {
                let restarts = self.observed.restarts();
                let locked = LockedClock { clock, shown: false, is_above: false, deviating_since: None, restarts };
                (self.clocks.locked, self.clocks.unlocking) = (Some(locked), None);
                self.clocks.failing = None;
            }
            (Write::LockClocks(_), Err(error)) if !matches!(error, GpuError::Lost { .. }) => {
                let refused = matches!(error, GpuError::NoPermission { .. }) || error.is_unsupported();
                self.clocks.unlocked = self.clocks.first && refused;
                let now = self.observed.at.map(|at| at.monotonic).unwrap_or_default();
                let since = *self.clocks.failing.get_or_insert(now);
                // A refusal may pass within seconds, but missing permission does not.
                if now.since(since) <= LASTING && !matches!(error, GpuError::NoPermission { .. }) {
                    return;
                }
                self.clocks.left_alone_because = Some(format!("its clocks are left alone: {error}"));
            }
            (Write::ResetClocks, Ok(())) => {
                self.clocks.locked = None;
                self.clocks.refused = false;
                let (now, last) = (self.observed.at.map(|at| at.monotonic).unwrap_or_default(), self.clocks.last_lock);
                match last.filter(|lock| self.handle.capabilities().can_verify_unlock(*lock)) {
                    Some(lock) => {
                        let new = Unlocking { lock, unjudged_since: now, still_low: None, is_ignored: false };
                        self.clocks.unlocking.get_or_insert(new);
                    }
                    None => self.clocks.unlocked = true,
                }
            }
            (Write::ResetClocks, Err(error)) => {
                self.clocks.refused = true;
                self.remark = Some(format!("its clocks are still locked: {error}"));
            }
            _ => {}
        }
    }

    /// Forgets wattune's own lock, which a client's lock has replaced.
    pub(super) fn replace_clock_lock(&mut self) {
        (self.clocks.locked, self.clocks.unlocking, self.clocks.refused) = (None, None, false);
    }

    /// Removes the lock of the memory's clocks that a client has left, unless the client's override lasts. Returns
    /// whether a write was requested.
    pub(super) fn unlock_memory(&mut self, journal: &mut Journal, now: Now) -> Result<bool, JournalError> {
        let id = self.id().clone();
        if self.memory_unlocked {
            journal.forget_memory_lock(&id)?;
            self.memory_unlocked = false;
        }
        let is_held = self.manual.as_ref().is_some_and(|manual| manual.locks_memory);
        let is_left = journal.entry(&id).is_some_and(|entry| entry.holds_memory_lock(journal.boot_id()));
        if is_held || !is_left || self.is_writing() || self.memory_unlock_rests(now) {
            return Ok(false);
        }
        Ok(self.request_write(Write::ResetMemoryClocks, now))
    }

    /// Returns whether the unlocking of the memory's clocks failed lately.
    fn memory_unlock_rests(&self, now: Now) -> bool {
        let failed = self
            .observed
            .last_write
            .as_ref()
            .is_some_and(|last| last.write == Write::ResetMemoryClocks && last.result.is_err());
        failed && self.requested_recently(now)
    }

    /// Clears the reasons for which clocks were left alone: for a new owner they may be lockable again.
    pub(crate) fn reset_clock_state(&mut self) {
        self.clocks.left_alone_because = None;
        self.clocks.failing = None;
        self.clocks.free = None;
        self.clocks.ignored_since = None;
    }

    pub(crate) fn clock_lock(&self) -> Option<ClockLimit> {
        self.clocks.locked.map(|h| h.clock)
    }

    /// Returns the clock lock in force, judged by the observed clock. A lock that had no effect does not count as in
    /// force; a lock whose removal had no effect does. `None` if no lock is in force.
    pub(crate) fn clock_in_force(&self) -> Option<ClockLimit> {
        match self.clocks.locked {
            Some(locked) => Some(locked.clock).filter(|_| locked.shown || !locked.is_above),
            None => {
                self.clocks.unlocking.filter(|unlocking| unlocking.still_low.is_some()).map(|unlocking| unlocking.lock)
            }
        }
    }

    /// Returns why the GPU's clocks are still locked although they were to be unlocked, once that is certain.
    pub(crate) fn describe_clock_deviation(&self) -> Option<String> {
        if self.clocks.refused {
            return Some("its clocks are still locked: the driver refuses to unlock them; wattune tries again".into());
        }
        let Unlocking { lock, still_low, .. } = self.clocks.unlocking.filter(|unlocking| unlocking.is_ignored)?;
        Some(format!(
            "its clocks are still locked: the driver accepts the request to unlock them from {lock}, but they run at {} MHz and \
             the GPU reports no other reason; wattune tries again",
            still_low?.0
        ))
    }

    /// Returns why wattune may not lock the GPU's clocks, in one sentence; `None` if it may.
    pub(crate) fn why_no_clocks(&self) -> Option<String> {
        self.handle.capabilities().why_no_clocks().or_else(|| self.clocks.left_alone_because.clone())
    }

    /// Does the next step towards the clock lock `wanted`, or with `None` towards unlocked clocks. `limit` is the power
    /// limit in force.
    pub(crate) fn pursue_clocks(
        &mut self,
        wanted: Option<ClockLimit>,
        limit: PowerLimit,
        journal: &mut Journal,
        now: Now,
    ) -> Result<Act, JournalError> {
        let id = self.id().clone();
        if self.clocks.taken {
            journal.forget_lock(&id)?;
            self.clocks.taken = false;
        }
        let ours = journal.entry(&id).is_some_and(|e| e.holds_lock(journal.boot_id()));
        let Some(clock) = wanted.filter(|_| self.why_no_clocks().is_none()) else {
            return self.unlock(ours, journal, now);
        };
        let waits = self.clocks.failing.is_some() && self.requested_within(TRY_AGAIN, now);
        if self.clock_lock() == Some(clock) || waits || (!ours && !self.runs_freely(now)) {
            return Ok(Act::Nothing);
        }
        journal.record_lock(&id, clock, limit, now.utc)?;
        self.clocks.unlocked = false;
        if self.clocks.failing.is_none() {
            self.clocks.first = !ours;
        }
        let is_sent = self.request_write(Write::LockClocks(clock), now);
        Ok(if is_sent { Act::Clocks(format!("clocks locked to {clock}")) } else { Act::Nothing })
    }

    fn unlock(&mut self, ours: bool, journal: &mut Journal, now: Now) -> Result<Act, JournalError> {
        if !ours {
            self.clocks.locked = None;
            return Ok(Act::Nothing);
        }
        if self.clocks.unlocked {
            journal.forget_lock(&self.id().clone())?;
            self.clocks.unlocked = false;
            return Ok(Act::Nothing);
        }
        let is_pending = self.clocks.unlocking.is_some_and(|unlocking| !unlocking.is_ignored);
        // A refused unlocking is tried again, but not at every tick, which would only fill the log.
        let has_failed = self.clocks.refused || self.clocks.unlocking.is_some();
        if is_pending || (has_failed && self.requested_recently(now)) {
            return Ok(Act::Nothing);
        }
        self.clocks.last_lock = journal.entry(self.id()).and_then(|entry| entry.locked).or(self.clocks.last_lock);
        let is_sent = self.request_write(Write::ResetClocks, now);
        Ok(if is_sent && !has_failed { Act::Clocks("unlocking its clocks".into()) } else { Act::Nothing })
    }

    /// Returns whether the GPU's clocks are unlocked, judged by the clock under load. If they seem to be locked by
    /// another program, records why wattune leaves the clocks alone.
    fn runs_freely(&mut self, now: Now) -> bool {
        let capabilities = self.handle.capabilities();
        let Ok(range) = &capabilities.clocks else { return false };
        let Some((highest, since)) = self.clocks.free else {
            // A driver that does not even report the present clock gives no reason to assume a lock.
            return self.observed.at.is_some() && self.observed.reading.sm_clock_mhz.is_none();
        };
        if f64::from(highest) >= f64::from(range.max().megahertz()) * FREE {
            return true;
        }
        let is_ours = |lock: ClockLimit| (f64::from(highest) / f64::from(lock.megahertz()) - 1.0).abs() < ABOVE - 1.0;
        if now.monotonic.since(since) < PERSISTENT {
            return false;
        }
        self.clocks.left_alone_because = Some(match self.clocks.last_lock.filter(|lock| is_ours(*lock)) {
            Some(lock) => format!(
                "its clocks are left alone: under load it runs at {highest} MHz at most, its highest clock is {}, and no reason is \
                 reported. wattune had locked the clocks to {lock}, and the driver accepted the request to unlock them without \
                 effect (nvidia-smi -rgc unlocks them)",
                range.max()
            ),
            None => format!(
                "its clocks are left alone: under load it runs at {highest} MHz at most, its highest clock is {}, and no reason is \
                 reported. So an external writer has locked the clocks; no driver reports such locks (nvidia-smi -rgc unlocks them)",
                range.max()
            ),
        });
        false
    }

    /// Returns the clocks that the GPU may be locked to; `None` if the settings or the GPU do not permit it.
    pub(crate) fn lockable_clocks(&self, locking: Locking) -> Option<ClockRange> {
        let capabilities = self.handle.capabilities();
        let wanted = locking == Locking::Auto && capabilities.why_no_clocks().is_none();
        capabilities.clocks.as_ref().ok().filter(|_| wanted).cloned()
    }

    /// Returns the reason, in the settings or the GPU, why wattune leaves the clocks alone; `None` if it may lock them.
    pub(crate) fn why_clocks_left_alone(&self, locking: Locking) -> Option<String> {
        let off = (locking == Locking::Off).then(|| "switched off (control.clocks = \"off\")".to_owned());
        off.or_else(|| self.why_no_clocks())
    }
}
