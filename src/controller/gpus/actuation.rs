//! Control of one GPU: writes its wanted set point or restores its original limit, one write at a time. The journal
//! records each write before it is sent to the GPU.

use super::control_state::{Act, WrittenLimit};
use super::gpu::Gpu;
use super::steering::{LASTING, is_rounded};
use crate::gpu::Write;
use crate::gpu::journal::{self, ExternalLimit, Journal, JournalError, ObservedLimit, RestoreAction};
use wattune_core::domain::{PowerLimit, SetPoint};
use wattune_core::time::Now;
use wattune_core::units::Seconds;

/// Time between two attempts to restore an original limit that the driver refuses.
const RETRY_REFUSED: Seconds = Seconds::new(10.0);
/// Number of failed attempts in a row to restore an original limit after which `RETRY_REFUSED` applies.
const IMMEDIATE_RESTORES: u32 = 3;

impl Gpu {
    /// Does the next step towards `wanted`, or with `None` towards the original limit. Called at each tick, so that a
    /// failed step is tried again by the next tick.
    ///
    /// # Errors
    /// If the journal cannot be written; then nothing is written to the GPU but its original settings.
    pub(crate) fn act(
        &mut self,
        wanted: Option<SetPoint>,
        journal: &mut Journal,
        now: Now,
    ) -> Result<Act, JournalError> {
        let Some(current) = self.free_to_set() else { return Ok(Act::Nothing) };
        if let Some(external) = self.yielded(current, journal, now)? {
            return Ok(Act::Yielded(external));
        }
        let memory = self.unlock_memory(journal, now);
        if matches!(memory, Ok(true)) {
            return Ok(Act::Nothing);
        }
        let is_wanted = wanted.is_some();
        let wanted = wanted.filter(|_| self.why_no_control().is_none());
        self.compare(wanted.map(|set| set.limit), current, now);
        let Some(set) = wanted else {
            // A journal that cannot be written does not keep the original limit from being restored.
            let _ = self.confirm(current, journal);
            // The clocks are unlocked first, so that they do not stay locked if the limit cannot be restored.
            let clocks = self.pursue_clocks(None, current, journal, now);
            if matches!(clocks, Ok(Act::Clocks(_))) {
                return clocks;
            }
            let done = self.restore(current, journal, now)?;
            if done == Act::Nothing && journal.entry(self.id()).is_none() {
                self.probe_denial(is_wanted, current, now);
            }
            return match done {
                Act::Nothing => memory.and(clocks),
                // The caller has to know of a write; the next tick returns the journal's error.
                done => Ok(done),
            };
        };
        memory?;
        let pursued = self.pursue(set.limit, current, journal, now)?;
        if pursued == Act::Nothing {
            self.confirm(current, journal)?;
        }
        match pursued {
            Act::Nothing if self.manual.as_ref().is_some_and(|manual| manual.locks_clocks) => Ok(Act::Nothing),
            Act::Nothing => self.pursue_clocks(set.clock, current, journal, now),
            setting => Ok(setting),
        }
    }

    /// Writes nothing, because other GPUs have to be lowered first under the cap. Still detects an external limit.
    pub(crate) fn wait(&mut self, journal: &mut Journal, now: Now) -> Result<Act, JournalError> {
        self.deviation = None;
        let Some(current) = self.free_to_set() else { return Ok(Act::Nothing) };
        Ok(self.yielded(current, journal, now)?.map_or(Act::Nothing, Act::Yielded))
    }

    /// Returns the present limit if the GPU responds and no write is in flight.
    fn free_to_set(&self) -> Option<PowerLimit> {
        self.observed.reading.requested.filter(|_| self.writes.in_flight.is_none() && self.observed.fault.is_none())
    }

    /// Records in the journal that wattune's last write took effect, once `current` shows it. The limit that the GPU
    /// had before the write then no longer counts as wattune's.
    fn confirm(&mut self, current: PowerLimit, journal: &mut Journal) -> Result<(), JournalError> {
        if self.writes.is_unconfirmed && self.shows_written(current) {
            journal.record_written(&self.id().clone(), current)?;
            self.writes.is_unconfirmed = false;
        }
        Ok(())
    }

    /// Returns whether `current` is the limit that the GPU reported after wattune's last write; the GPU may have
    /// rounded the written limit.
    fn shows_written(&self, current: PowerLimit) -> bool {
        self.writes.limit.and_then(|written| written.shown).is_some_and(|shown| shown.same_as(current))
    }

    /// Records the GPU's original limit in the journal, if a job controls the GPU and wattune may set its limit.
    pub(super) fn journal_original(&self, journal: &mut Journal, now: Now) -> Result<(), JournalError> {
        let is_free_to_set = self.owner.is_some() && !self.is_writing() && self.why_no_control().is_none();
        match self.observed.reading.requested.filter(|_| is_free_to_set) {
            Some(current) => journal.record_original(self.id(), current, self.observed.counter, now.utc),
            None => Ok(()),
        }
    }

    /// Takes from the journal the external limit (set by another program than wattune) that an earlier daemon found on
    /// the GPU. This limit is left alone.
    pub(super) fn respect_external_limit(&mut self, journal: &Journal) {
        let default = self.range().map(|range| range.default);
        self.external = journal.external_limit(self.id(), self.observed.reading.requested, default);
    }

    /// Yields to an external writer if one has set the present limit: records the limit in the journal as external, and
    /// returns it. `None` if wattune need not yield.
    fn yielded(
        &mut self,
        current: PowerLimit,
        journal: &mut Journal,
        now: Now,
    ) -> Result<Option<ExternalLimit>, JournalError> {
        match self.detect_external_limit(current, now) {
            Some(external) => journal.yield_to_external(&self.id().clone(), external).map(|()| Some(external)),
            None => self.detect_earlier_external_limit(current, journal, now),
        }
    }

    /// Detects an external limit: any limit other than wattune's last one, except one whose write seemed to fail, and the
    /// driver's default limit after a restart of the GPU or its driver. Also updates a known external limit that an
    /// external writer has changed again.
    fn detect_external_limit(&mut self, current: PowerLimit, now: Now) -> Option<ExternalLimit> {
        if let Some(external) = self.external.as_mut().filter(|external| !external.limit.same_as(current)) {
            *external = ExternalLimit { limit: current, since: now.utc };
        }
        let written = self.writes.limit?;
        if current.same_as(written.requested) || self.shows_written(current) {
            self.writes.restarts_seen = self.observed.restarts();
            return None;
        }
        let is_recent = self.writes.limit_at.is_some_and(|at| now.monotonic.since(at) < LASTING);
        if let Some(failed) = self.writes.failed_limit.filter(|failed| is_recent && is_rounded(*failed, current)) {
            self.apply_written(failed, Some(current));
            self.remark = Some(format!("the driver reported that {failed} could not be set, and set it"));
            return None;
        }
        if self.has_restarted() {
            // As long as the default limit is unknown, the present one may be the default or an external writer's.
            let default = self.range()?.default;
            if default.same_as(current) {
                self.writes.limit = None;
                return None;
            }
        }
        self.writes.limit = None;
        self.end_override("an external writer set another limit");
        self.remark = Some(format!("an external writer set {current} over wattune's {}", written.requested));
        Some(self.yield_to(current, now))
    }

    fn yield_to(&mut self, limit: PowerLimit, now: Now) -> ExternalLimit {
        let external = ExternalLimit { limit, since: now.utc };
        self.external = Some(external);
        self.yields += 1;
        self.record_restored();
        external
    }

    /// Detects an external limit that replaced a limit of an earlier daemon, so that nothing is to be restored. If a
    /// job controls the GPU, the limit is left alone like one that is set while the daemon runs.
    fn detect_earlier_external_limit(
        &mut self,
        current: PowerLimit,
        journal: &mut Journal,
        now: Now,
    ) -> Result<Option<ExternalLimit>, JournalError> {
        let id = self.id().clone();
        let Some(entry) = journal.restore_entry(&id).filter(|_| self.writes.limit.is_none()) else { return Ok(None) };
        if journal::is_undecided(&entry, journal.boot_id(), &self.observed_limit(current)) {
            return Ok(None);
        }
        match journal::restore_action(&entry, journal.boot_id(), &self.observed_limit(current)) {
            RestoreAction::LeaveExternal(limit) if self.owner.is_some() && self.manual.is_none() => {
                let external = self.yield_to(limit, now);
                journal.yield_to_external(&id, external)?;
                Ok(Some(external))
            }
            RestoreAction::LeaveExternal(limit) => journal.yield_limit(&id, limit).map(|()| None),
            RestoreAction::AlreadyRestored => {
                // No restart so far has changed the limit: if it is the default limit later, an external writer has set it.
                self.writes.restarts_seen = self.observed.restarts();
                self.arrived_late = false;
                Ok(None)
            }
            RestoreAction::Write(_) => Ok(None),
        }
    }

    fn observed_limit(&self, current: PowerLimit) -> ObservedLimit {
        let default = self.range().map(|range| range.default);
        ObservedLimit { current, default, counter: self.observed.counter, restarted: self.has_restarted() }
    }

    /// Returns whether the GPU or its driver may have restarted since the GPU last showed wattune's limit.
    fn has_restarted(&self) -> bool {
        self.arrived_late || self.observed.restarts() > self.writes.restarts_seen
    }

    fn pursue(
        &mut self,
        limit: PowerLimit,
        current: PowerLimit,
        journal: &mut Journal,
        now: Now,
    ) -> Result<Act, JournalError> {
        if current.same_as(limit) {
            // Nothing to write, but any later change is external.
            self.writes.limit.get_or_insert(WrittenLimit { requested: limit, shown: Some(current) });
            return Ok(Act::Nothing);
        }
        let is_requested = self.writes.limit.is_some_and(|written| written.requested == limit);
        if is_requested {
            self.remark = Some(format!("the GPU was set to {limit} and shows {current}"));
        }
        // The driver rounded or did not keep the limit, or the last attempt to write it failed.
        let has_failed = is_requested || (self.writes.error.is_some() && self.writes.last_limit == Some(limit));
        if (is_requested && self.deviation.is_none()) || (has_failed && self.is_backing_off(now)) {
            return Ok(Act::Nothing);
        }
        // This also records that the write before took effect.
        journal.record_write(&self.id().clone(), current, limit, self.observed.counter, now.utc)?;
        (self.writes.is_restoring, self.writes.is_unconfirmed) = (false, false);
        let is_sent = self.request_write_for_caller(Write::PowerLimit(limit), now);
        Ok(if is_sent { Act::Requested { from: current, to: limit } } else { Act::Nothing })
    }

    /// Does the next step of restoring the GPU: first the original limit, then persistence mode; the journal's entry is
    /// removed last.
    fn restore(&mut self, current: PowerLimit, journal: &mut Journal, now: Now) -> Result<Act, JournalError> {
        let id = self.id().clone();
        let Some(mut entry) = journal.restore_entry(&id) else {
            self.writes.limit = None;
            return Ok(Act::Nothing);
        };
        let is_ours = journal.entry(&id).is_some();
        if is_ours && self.shows_written(current) {
            // The limit to which the GPU rounded wattune's last write is wattune's, even before the journal records it.
            entry.written.push(current);
        }
        let observed = self.observed_limit(current);
        if journal::is_undecided(&entry, journal.boot_id(), &observed) {
            return Ok(Act::Nothing);
        }
        match journal::restore_action(&entry, journal.boot_id(), &observed) {
            RestoreAction::AlreadyRestored if !is_ours => {
                self.writes.limit = None;
                self.forget_original(journal).map(|()| Act::Nothing)
            }
            RestoreAction::AlreadyRestored => match entry.original_persistence {
                // Persistence mode keeps the external limit in force while the job's process comes and goes.
                Some(_) if self.external.is_some() && self.owner.is_some() => Ok(Act::Nothing),
                Some(on) if self.observed.reading.persistence == Some(!on) && self.persistence_denied.is_none() => {
                    self.request_write(Write::Persistence(on), now);
                    Ok(Act::Nothing)
                }
                // The journal's entry stays until the clocks are unlocked.
                _ if entry.holds_lock(journal.boot_id()) || entry.holds_memory_lock(journal.boot_id()) => {
                    Ok(Act::Nothing)
                }
                _ => {
                    journal.forget(&id)?;
                    self.forget_original(journal)?;
                    self.writes.limit = None;
                    self.record_restored();
                    Ok(Act::Restored(current))
                }
            },
            RestoreAction::LeaveExternal(limit) => {
                journal.yield_limit(&id, limit)?;
                self.writes.limit = None;
                self.yields += 1;
                self.record_restored();
                Ok(Act::Yielded(ExternalLimit { limit, since: now.utc }))
            }
            // A refused write is tried again, but not at every tick, which would only fill the log.
            RestoreAction::Write(_) if self.rests_from_restoring(now) => Ok(Act::Nothing),
            RestoreAction::Write(original) => {
                self.writes.limit = None;
                self.writes.is_restoring = self.request_write(Write::PowerLimit(original), now);
                let is_sent = self.writes.is_restoring;
                Ok(if is_sent { Act::Requested { from: current, to: original } } else { Act::Nothing })
            }
        }
    }

    fn rests_from_restoring(&self, now: Now) -> bool {
        let is_refused = self.denied.is_some() || self.writes.failed_restores >= IMMEDIATE_RESTORES;
        is_refused && self.requested_recently(now)
    }

    /// Removes the original limit from the journal, unless a job still controls the GPU.
    fn forget_original(&self, journal: &mut Journal) -> Result<(), JournalError> {
        match self.owner {
            Some(_) => Ok(()),
            None => journal.forget_original(self.id()),
        }
    }

    /// Turns persistence mode on if it is off, may be changed, and was not changed before.
    ///
    /// # Errors
    /// If the journal cannot be written; then nothing is written to the GPU.
    pub(crate) fn persist(&mut self, journal: &mut Journal, now: Now) -> Result<(), JournalError> {
        let (off, limit) = (self.observed.reading.persistence == Some(false), self.observed.reading.requested);
        let id = self.id().clone();
        let tried = journal.entry(&id).is_some_and(|e| e.original_persistence.is_some());
        let hindered = tried || self.persistence_denied.is_some() || self.why_no_control().is_some();
        if let Some(limit) = limit.filter(|_| off && !hindered && !self.is_writing()) {
            journal.record_persistence(&id, false, limit, now.utc)?;
            self.request_write(Write::Persistence(true), now);
        }
        Ok(())
    }

    pub(super) fn requested_recently(&self, now: Now) -> bool {
        self.requested_within(RETRY_REFUSED, now)
    }
}
