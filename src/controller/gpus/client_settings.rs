//! Settings that a client of another protocol writes to a GPU. The journal records each before it is sent to the GPU,
//! so that it is undone however the client or the daemon ends.

use super::Gpus;
use super::control_state::Override;
use super::gpu::Gpu;
use crate::controller::error::in_full;
use crate::gpu::journal::{Journal, JournalError};
use crate::gpu::{GpuError, Write};
use wattune_core::domain::{ClockLimit, GpuId, PowerLimit};
use wattune_core::time::Now;

impl Gpus {
    /// Sends a setting other than the power limit to a GPU whose limit is `current`.
    ///
    /// # Errors
    /// If the journal cannot be written; then nothing is written to the GPU.
    pub(crate) fn send_setting(
        &mut self,
        id: &GpuId,
        write: Write,
        current: PowerLimit,
        now: Now,
    ) -> Result<(), String> {
        let Some(gpu) = self.all.get_mut(id) else { return Ok(()) };
        gpu.send_setting(write, current, &mut self.journal, now).map_err(|error| in_full(&error))
    }
}

impl Gpu {
    fn send_setting(
        &mut self,
        write: Write,
        current: PowerLimit,
        journal: &mut Journal,
        now: Now,
    ) -> Result<(), JournalError> {
        let id = self.id().clone();
        let highest = ClockLimit::from_megahertz;
        match write {
            Write::Persistence(on) if self.observed.reading.persistence == Some(!on) => {
                journal.record_persistence(&id, !on, current, now.utc)?;
                self.persistence_denied = None;
            }
            Write::LockClockRange { max_mhz, .. } => {
                journal.record_lock(&id, highest(max_mhz), current, now.utc)?;
                // What the journal did not record of an earlier lock does not concern this one.
                (self.clocks.unlocked, self.clocks.taken) = (false, false);
            }
            Write::LockMemoryClocks { max_mhz, .. } => {
                journal.record_memory_lock(&id, highest(max_mhz), current, now.utc)?;
                self.memory_unlocked = false;
            }
            Write::ResetClocks => {
                let lock = journal.entry(&id).and_then(|entry| entry.locked);
                self.clocks.last_lock = lock.or(self.clocks.last_lock);
            }
            _ => {}
        }
        self.request_write_for_caller(write, now);
        Ok(())
    }

    /// Returns the result of the setting that was sent last; `None` if it is not `write`.
    pub(crate) fn sent(&self, write: Write) -> Option<Result<(), GpuError>> {
        let last = self.observed.last_write.as_ref().filter(|last| last.write == write)?;
        Some(last.result.clone())
    }

    /// Records in the override which clocks its client has locked, after a successful write. After a failed one, has
    /// the journal forget a lock that never took effect.
    pub(crate) fn settle_client_lock(&mut self, write: Write, succeeded: bool) {
        let Some(manual) = &mut self.manual else { return };
        match (write, succeeded) {
            (Write::LockClockRange { .. }, true) => manual.locks_clocks = true,
            (Write::LockClockRange { .. }, false) => self.clocks.unlocked |= !manual.locks_clocks,
            (Write::LockMemoryClocks { .. }, true) => manual.locks_memory = true,
            (Write::LockMemoryClocks { .. }, false) => self.memory_unlocked |= !manual.locks_memory,
            (Write::ResetClocks, true) => manual.locks_clocks = false,
            (Write::ResetMemoryClocks, true) => manual.locks_memory = false,
            _ => {}
        }
    }

    /// Replaces the override by a client's, and clears the records of failed writes, so that the new override's writes
    /// are tried at once.
    pub(crate) fn replace_override(&mut self, manual: Override) {
        self.manual = Some(manual);
        (self.external, self.denied, self.deviation) = (None, None, None);
        self.writes.error = None;
    }

    /// Returns why the last write of `limit` failed, if it did.
    pub(crate) fn limit_error(&self, limit: PowerLimit) -> Option<GpuError> {
        self.writes.error.clone().filter(|_| self.writes.last_limit == Some(limit))
    }
}
