//! Restores the original settings of GPUs, and forgets those of GPUs that do not come back.

use std::collections::BTreeMap;
use std::sync::mpsc;
use std::thread;

use super::handle::GpuHandle;
use super::journal::{
    Entry, ExternalLimit, Journal, JournalError, ObservedLimit, RestoreAction, is_undecided, restore_action,
};
use super::worker::{Observation, Write};
use wattune_core::domain::{ClockLimit, GpuId, PowerLimit};
use wattune_core::units::Seconds;

/// The effect that restoring a GPU has on its clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clocks {
    /// The restore changed no clock: wattune had not locked the clocks.
    Untouched,
    /// wattune unlocked the clocks, which it had locked.
    Unlocked,
    /// The driver accepted the unlocking, but the GPU is idle, so the clock cannot confirm the unlocking.
    Unverified,
}

impl std::fmt::Display for Clocks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Untouched => "",
            Self::Unlocked => ", its clocks unlocked",
            Self::Unverified => ", the driver has unlocked its clocks (only a GPU under load shows the effect)",
        })
    }
}

/// The outcome of restoring a GPU.
#[derive(Clone, Debug, PartialEq)]
pub enum Restored {
    /// The GPU already had its original limit.
    AlreadyRestored(PowerLimit, Clocks),
    /// The GPU has its original limit again.
    Written(PowerLimit, Clocks),
    /// An external writer has set another limit since, which wattune left alone.
    LeftExternal(PowerLimit, Clocks),
    /// The cap on the node's power allows no higher limit, so that the original limit is not restored yet; the journal
    /// keeps the entry.
    HeldByCap {
        /// The limit that the GPU has now.
        limit: PowerLimit,
        /// The original limit, to be restored once the cap ends.
        original: PowerLimit,
    },
    /// The restore failed or its result cannot be read back; the journal keeps the entry for the next attempt.
    Failed {
        /// The original limit, which the GPU should have.
        original: PowerLimit,
        /// The limit read back, if there is one.
        shown: Option<PowerLimit>,
        /// The reason for the failure.
        why: String,
    },
}

impl std::fmt::Display for Restored {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::AlreadyRestored(limit, clocks) => write!(f, "already at its original limit of {limit}{clocks}"),
            Self::Written(limit, clocks) => write!(f, "restored to its original limit of {limit}{clocks}"),
            Self::LeftExternal(limit, clocks) => {
                write!(f, "left at {limit}, set by an external writer since{clocks}")
            }
            Self::HeldByCap { limit, original } => write!(
                f,
                "stays at {limit} under the node's cap; the next daemon restores its original limit of {original} once the cap \
                 lifts, or `wattune restore` does"
            ),
            Self::Failed { original, shown: Some(shown), why } if !shown.same_as(*original) => {
                write!(f, "NOT restored to {original}, stays at {shown}: {why}")
            }
            Self::Failed { original, why, .. } => write!(f, "NOT restored to {original}: {why}"),
        }
    }
}

impl Restored {
    /// Returns the outcome for a journal that is not in its place any more: no later daemon restores the rest.
    fn without_journal(self, gpu: &GpuId) -> Self {
        let by_hand = |why: &str, original: PowerLimit| {
            let watts = original.watts().get();
            format!(
                "{why}; the journal is not in the state directory any more, so no daemon restores the limit later: set it \
                 with nvidia-smi -i {gpu} -pl {watts}"
            )
        };
        match self {
            Self::HeldByCap { limit, original } => {
                let why = by_hand("the node's cap allows no more", original);
                Self::Failed { original, shown: Some(limit), why }
            }
            Self::Failed { original, shown, why } if !shown.is_some_and(|shown| shown.same_as(original)) => {
                let why = by_hand(&why, original);
                Self::Failed { original, shown, why }
            }
            other => other,
        }
    }
}

/// The longest wait for a written limit to be read back.
const READ_BACK_TIMEOUT: Seconds = Seconds::new(1.0);

const READ_BACK_INTERVAL: Seconds = Seconds::new(0.1);

/// Restores every GPU in the journal, all in parallel, so that a hanging GPU delays no other. Each step of a restore
/// (read, clocks, limit, persistence mode) may take `timeout`. Returns the outcome for each GPU. Blocks the calling
/// thread: not for async tasks.
pub fn restore_all(journal: &mut Journal, handles: &[GpuHandle], timeout: Seconds) -> Vec<(GpuId, Restored)> {
    let all: Vec<_> = handles.iter().map(|handle| (handle.clone(), None)).collect();
    let mut outcomes = restore_only(journal, &all, timeout);
    outcomes.extend(absent(journal, handles));
    outcomes
}

/// Returns a failure for each journalled GPU that is not among `handles`. The journal keeps the entries.
pub fn absent(journal: &Journal, handles: &[GpuHandle]) -> Vec<(GpuId, Restored)> {
    let is_absent = |id: &GpuId| handles.iter().all(|handle| handle.identity().id != *id);
    let is_in_place = journal.check_place().is_ok();
    let outcome = |id: &GpuId, original| {
        let why = "the GPU is missing; run `wattune restore` or start the daemon once it is back";
        let failed = |why| Restored::Failed { original, shown: None, why };
        match is_in_place {
            true => failed(format!("{why}, or `wattune restore --forget {id}` if it was removed for good")),
            false => failed(why.to_owned()).without_journal(id),
        }
    };
    let missing = journal.entries().filter(|(id, _)| is_absent(id));
    let missing = missing.map(|(id, entry)| (id.clone(), outcome(id, entry.original)));
    missing.inspect(|(id, outcome)| tracing::error!(gpu.uuid = %id, "GPU {id}: {outcome}")).collect()
}

/// The reason why no GPU was forgotten.
#[derive(Debug, thiserror::Error)]
pub enum ForgetError {
    /// The journal does not have the GPU.
    #[error("the journal has no GPU {gpu}; it has {known}")]
    NotRecorded {
        /// The GPU that was to be forgotten.
        gpu: GpuId,
        /// The UUIDs of the GPUs that the journal has, for the message.
        known: String,
    },
    /// The GPU is present, so its settings can be restored.
    #[error("GPU {0} is present; `wattune restore` without --forget restores its original limit")]
    Present(GpuId),
    /// The journal cannot be written.
    #[error(transparent)]
    Journal(#[from] JournalError),
}

/// Removes GPUs that are absent, so not among `handles`, from the journal: their settings are not restored any more. A
/// GPU may be absent for a moment only, so this is for GPUs that a person names. Returns their original limits.
///
/// # Errors
/// If the journal does not have one of the GPUs or cannot be written, or if one of the GPUs is present. Then no GPU is
/// removed from the journal.
pub fn forget_absent(
    journal: &mut Journal,
    gpus: &[GpuId],
    handles: &[GpuHandle],
) -> Result<BTreeMap<GpuId, PowerLimit>, ForgetError> {
    let mut forgotten = BTreeMap::new();
    for gpu in gpus {
        let Some(original) = journal.original_limit(gpu) else {
            let known: Vec<&str> = journal.gpus().into_iter().map(GpuId::as_str).collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            return Err(ForgetError::NotRecorded { gpu: gpu.clone(), known });
        };
        if handles.iter().any(|handle| handle.identity().id == *gpu) {
            return Err(ForgetError::Present(gpu.clone()));
        }
        forgotten.insert(gpu.clone(), original);
    }
    if !forgotten.is_empty() {
        journal.remove(forgotten.keys())?;
    }
    Ok(forgotten)
}

/// Restores these GPUs. If a GPU comes with a limit, its power limit is raised to at most that limit, because a power
/// cap allows no more.
pub fn restore_only(
    journal: &mut Journal,
    gpus: &[(GpuHandle, Option<PowerLimit>)],
    timeout: Seconds,
) -> Vec<(GpuId, Restored)> {
    let boot_id = journal.boot_id().to_owned();
    let (sender, outcomes) = mpsc::channel();
    thread::scope(|scope| {
        for (handle, part) in gpus {
            let id = &handle.identity().id;
            let Some(entry) = journal.restore_entry(id) else { continue };
            let attempt =
                Attempt { is_ours: journal.entry(id).is_some(), entry, boot_id: &boot_id, gpu: handle, timeout };
            if let Some(limit) = *part
                && let Err(error) = record_part(journal, handle, limit)
            {
                drop(sender.send((handle, Some(attempt.failed(error.to_string())))));
                continue;
            }
            let (done, failed) = (sender.clone(), attempt.failed("cannot start a thread".into()));
            let body = move || drop(done.send((handle, attempt.restore(*part))));
            if thread::Builder::new().spawn_scoped(scope, body).is_err() {
                drop(sender.send((handle, Some(failed))));
            }
        }
        drop(sender);
        let done = outcomes.iter().filter_map(|(gpu, outcome): (&GpuHandle, _)| Some((gpu, outcome?)));
        done.map(|(gpu, outcome)| {
            let outcome = match journal.check_place() {
                Ok(()) => outcome,
                Err(_) => outcome.without_journal(&gpu.identity().id),
            };
            record_outcome(journal, gpu, &outcome);
            (gpu.identity().id.clone(), outcome)
        })
        .collect()
    })
}

fn record_outcome(journal: &mut Journal, gpu: &GpuHandle, outcome: &Restored) {
    let id = &gpu.identity().id;
    let recorded = match outcome {
        Restored::Failed { .. } => return tracing::error!(gpu.uuid = %id, "GPU {id}: {outcome}"),
        Restored::HeldByCap { .. } => {
            tracing::warn!(gpu.uuid = %id, "GPU {id}: {outcome}");
            // The clocks are unlocked regardless of the cap, so the journal drops their lock.
            if let Err(error) = journal.forget_lock(id).and_then(|()| journal.forget_memory_lock(id)) {
                tracing::error!(gpu.uuid = %id, "GPU {id}: its clocks are unlocked, but the clock lock cannot be removed from the journal: {error}");
            }
            return;
        }
        Restored::AlreadyRestored(..) | Restored::Written(..) => journal.forget(id),
        // If the GPU's job continues, the external limit stays in force. It is recorded as external, so that it does
        // not count as the original limit later.
        Restored::LeftExternal(limit, _) => match gpu.observe().at {
            Some(at) => journal.forget_for_external(id, ExternalLimit { limit: *limit, since: at.utc }),
            None => journal.forget(id),
        },
    };
    tracing::info!(gpu.uuid = %id, "GPU {id}: {outcome}");
    if let Err(error) = recorded {
        tracing::error!(gpu.uuid = %id, "GPU {id} is restored but cannot be removed from the journal: {error}");
    }
}

/// Records that a GPU is about to get `limit`, which lies between its current and its original limit. A journal that is
/// not in its place any more is no reason to leave the GPU below that limit.
fn record_part(journal: &mut Journal, gpu: &GpuHandle, limit: PowerLimit) -> Result<(), JournalError> {
    let seen = gpu.observe();
    match (seen.reading.requested, seen.at) {
        (Some(current), Some(at)) if !current.same_as(limit) => {
            match journal.record_write(&gpu.identity().id, current, limit, seen.counter, at.utc) {
                Err(JournalError::Replaced(_)) => Ok(()),
                recorded => recorded,
            }
        }
        _ => Ok(()),
    }
}

/// Returns the power limit that the GPU reports: the requested one, or else the one in force.
fn shown_limit(seen: &Observation) -> Option<PowerLimit> {
    seen.reading.requested.or(seen.reading.enforced)
}

struct Attempt<'a> {
    entry: Entry,
    /// True if wattune has written to the GPU; false if only the original limit is recorded, since a job took control
    /// of the GPU.
    is_ours: bool,
    boot_id: &'a str,
    gpu: &'a GpuHandle,
    timeout: Seconds,
}

impl Attempt<'_> {
    fn failed(&self, why: String) -> Restored {
        Restored::Failed { original: self.entry.original, shown: shown_limit(&self.gpu.observe()), why }
    }

    /// Restores the GPU, with a power limit of at most `part` if given. Returns `None` if wattune has written nothing
    /// to the GPU and nothing needs to be restored.
    fn restore(&self, part: Option<PowerLimit>) -> Option<Restored> {
        // The read waits for queued writes, so that none of them follows the restore.
        let seen = match self.gpu.read_and_wait(self.timeout) {
            Ok(seen) => seen,
            Err(error) => return self.is_ours.then(|| self.failed(error.to_string())),
        };
        let Some(current) = shown_limit(&seen) else {
            return self.is_ours.then(|| self.failed("the GPU does not report its limit".into()));
        };
        let default = self.gpu.capabilities().limits.as_ref().ok().map(|range| range.default);
        let observed = ObservedLimit { current, default, counter: seen.counter, restarted: seen.restarts() > 0 };
        let action = restore_action(&self.entry, self.boot_id, &observed);
        if !self.is_ours && !matches!(action, RestoreAction::Write(_)) {
            return None;
        }
        // A failure to unlock the clocks does not stop the restore of the limit.
        let unlocked = self.unlock_all();
        let clocks = *unlocked.as_ref().unwrap_or(&Clocks::Untouched);
        let outcome = self.restore_limit(action, part, &observed, clocks).and_then(|outcome| {
            unlocked.map_err(|error| format!("the clocks are still locked: {error}"))?;
            self.restore_persistence(outcome, &seen)
        });
        Some(outcome.unwrap_or_else(|why| self.failed(why)))
    }

    /// Removes wattune's lock of the clocks, then a client's lock of the memory's clocks.
    fn unlock_all(&self) -> Result<Clocks, String> {
        let clocks = match self.entry.locked.filter(|_| self.entry.holds_lock(self.boot_id)) {
            Some(lock) => self.unlock(lock)?,
            None => Clocks::Untouched,
        };
        self.unlock_memory().map(|()| clocks)
    }

    /// Carries out `action`, with a power limit of at most `part` if given. Returns the outcome with `clocks` in it.
    fn restore_limit(
        &self,
        action: RestoreAction,
        part: Option<PowerLimit>,
        observed: &ObservedLimit,
        clocks: Clocks,
    ) -> Result<Restored, String> {
        let set = |limit| if observed.current.same_as(limit) { Ok(()) } else { self.set(limit) };
        match action {
            RestoreAction::AlreadyRestored => Ok(Restored::AlreadyRestored(self.entry.original, clocks)),
            RestoreAction::LeaveExternal(_) if is_undecided(&self.entry, self.boot_id, observed) => {
                let why = "the GPU or its driver has restarted, and the driver does not report its default limit, so \
                           wattune cannot tell whether an external writer set the present one";
                Err(why.to_owned())
            }
            RestoreAction::LeaveExternal(limit) => Ok(Restored::LeftExternal(limit, clocks)),
            RestoreAction::Write(original) => match part.filter(|limit| *limit < original) {
                Some(limit) => set(limit).map(|()| Restored::HeldByCap { limit, original }),
                None => set(original).map(|()| Restored::Written(original, clocks)),
            },
        }
    }

    /// Restores persistence mode after the limit, whose restore had the outcome `outcome`. Returns the outcome of both.
    /// `seen` is the state before the restore.
    fn restore_persistence(&self, outcome: Restored, seen: &Observation) -> Result<Restored, String> {
        // A limit that a cap holds back keeps its entry in the journal, and persistence mode comes back with the limit.
        let is_final = !matches!(outcome, Restored::HeldByCap { .. });
        let persistence = self.entry.original_persistence.filter(|_| is_final);
        let differs = |on: &bool| seen.reading.persistence.is_some_and(|now| now != *on);
        match persistence.filter(differs).map(|on| self.persist(on)) {
            Some(Err(why)) if matches!(outcome, Restored::LeftExternal(..)) => {
                tracing::warn!("GPU {}: persistence mode is not restored: {why}", self.gpu.identity().index);
                Ok(outcome)
            }
            Some(Err(why)) => Err(format!("the limit is restored, persistence mode is not: {why}")),
            Some(Ok(())) | None => Ok(outcome),
        }
    }

    /// Unlocks the clocks and waits until the clock under load confirms the unlocking, because no driver reports a
    /// lock.
    fn unlock(&self, lock: ClockLimit) -> Result<Clocks, String> {
        self.gpu.write_and_wait(Write::ResetClocks, self.timeout).map_err(|error| error.to_string())?;
        if !self.gpu.capabilities().can_verify_unlock(lock) {
            return Ok(Clocks::Unlocked);
        }
        let mut waited = Seconds::ZERO;
        loop {
            // Drivers round a requested clock, so only a clock more than 3 % above the lock shows that the lock is
            // gone.
            match self.gpu.observe().unexplained_clock() {
                Some(clock) if clock > lock.megahertz() * 103 / 100 => return Ok(Clocks::Unlocked),
                Some(clock) if waited >= READ_BACK_TIMEOUT.min(self.timeout) => {
                    return Err(format!(
                        "the driver accepted the request to unlock them from {lock}, but the GPU runs at {clock} MHz and reports no \
                         other reason"
                    ));
                }
                Some(_) => {}
                None => return Ok(Clocks::Unverified),
            }
            thread::sleep(READ_BACK_INTERVAL.to_std());
            waited += READ_BACK_INTERVAL;
            self.gpu.read_and_wait(self.timeout).map_err(|error| format!("the clock cannot be read back: {error}"))?;
        }
    }

    /// Removes a lock of the memory's clocks that a client left.
    fn unlock_memory(&self) -> Result<(), String> {
        if !self.entry.holds_memory_lock(self.boot_id) {
            return Ok(());
        }
        let unlocked = self.gpu.write_and_wait(Write::ResetMemoryClocks, self.timeout);
        unlocked.map_err(|error| format!("memory: {error}"))
    }

    /// Sets a limit and waits until it is read back.
    fn set(&self, limit: PowerLimit) -> Result<(), String> {
        let read_back = || shown_limit(&self.gpu.observe());
        self.gpu.write_and_wait(Write::PowerLimit(limit), self.timeout).map_err(|error| error.to_string())?;
        let mut waited = Seconds::ZERO;
        while read_back().is_none_or(|shown| !shown.same_as(limit)) {
            if waited >= READ_BACK_TIMEOUT.min(self.timeout) {
                return Err(match read_back() {
                    Some(shown) => format!("the driver accepted {limit}, but the GPU still reports {shown}"),
                    None => format!("the driver accepted {limit}, but the GPU does not report its limit"),
                });
            }
            thread::sleep(READ_BACK_INTERVAL.to_std());
            waited += READ_BACK_INTERVAL;
            self.gpu.read_and_wait(self.timeout).map_err(|error| format!("{limit} cannot be read back: {error}"))?;
        }
        Ok(())
    }

    fn persist(&self, on: bool) -> Result<(), String> {
        self.gpu.write_and_wait(Write::Persistence(on), self.timeout).map_err(|error| error.to_string())?;
        match self.gpu.observe().reading.persistence == Some(!on) {
            true => Err(format!("the driver accepted it, but it is still {}", if on { "off" } else { "on" })),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
#[path = "restore_tests.rs"]
mod tests;
