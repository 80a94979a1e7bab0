//! Giving boards their found settings back.

use std::sync::mpsc;
use std::thread;

use super::journal::{Entry, Journal, JournalError, Standing, WayBack, way_back};
use super::thread::GpuHandle;
use super::worker::Write;
use crate::domain::{GpuId, PowerLimit};
use crate::units::Seconds;

/// What had to be done to a board's clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clocks {
    /// Nothing: wattune had not locked them.
    Untouched,
    /// They were locked, and are free again.
    Unlocked,
}

impl std::fmt::Display for Clocks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Untouched => "",
            Self::Unlocked => ", its clocks unlocked",
        })
    }
}

/// How giving a board back ended.
#[derive(Clone, Debug, PartialEq)]
pub enum Restored {
    /// It had the found limit already.
    AlreadyThere(PowerLimit, Clocks),
    /// It has the found limit again.
    Written(PowerLimit, Clocks),
    /// Somebody else's limit was left alone.
    LeftToOthers(PowerLimit, Clocks),
    /// The node's cap allows no more; the journal keeps the entry.
    HeldByCap {
        /// What it has.
        limit: PowerLimit,
        /// What it should have once the cap lifts.
        found: PowerLimit,
    },
    /// It could not be done; the journal keeps the entry for the next try.
    Failed {
        /// What should have been restored.
        found: PowerLimit,
        /// Why it was not.
        why: String,
    },
}

impl std::fmt::Display for Restored {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::AlreadyThere(limit, clocks) => write!(f, "already at its found limit of {limit}{clocks}"),
            Self::Written(limit, clocks) => write!(f, "back at its found limit of {limit}{clocks}"),
            Self::LeftToOthers(limit, clocks) => {
                write!(f, "left at {limit}, which somebody else has set since{clocks}")
            }
            Self::HeldByCap { limit, found } => write!(
                f,
                "stays at {limit} under the node's cap; its found limit of {found} comes back with the next daemon once the \
                 cap lifts, or with `wattune restore`"
            ),
            Self::Failed { found, why } => write!(f, "NOT restored to {found}: {why}"),
        }
    }
}

/// Gives every board that the journal knows back, and says how that ended. All at once, so that a board that hangs
/// holds up no other. Each step (looking, clocks, limit, persistence mode) may take `timeout`. Blocks: not for async tasks.
pub fn restore_all(journal: &mut Journal, handles: &[GpuHandle], timeout: Seconds) -> Vec<(GpuId, Restored)> {
    let all: Vec<_> = handles.iter().map(|handle| (handle.clone(), None)).collect();
    restore_only(journal, &all, timeout)
}

/// As [`restore_all`], for these boards; those with a limit come back no further than to it.
pub fn restore_only(
    journal: &mut Journal,
    boards: &[(GpuHandle, Option<PowerLimit>)],
    timeout: Seconds,
) -> Vec<(GpuId, Restored)> {
    let boot_id = journal.boot_id().to_owned();
    let (sender, outcomes) = mpsc::channel();
    thread::scope(|scope| {
        for (handle, part) in boards {
            let id = &handle.board().id;
            let Some(entry) = journal.entry(id).cloned() else { continue };
            let found = entry.found;
            if let Some(limit) = *part
                && let Err(error) = note_part(journal, handle, limit)
            {
                drop(sender.send((id.clone(), Restored::Failed { found, why: error.to_string() })));
                continue;
            }
            let (done, boot_id) = (sender.clone(), &boot_id);
            let body = move || drop(done.send((id.clone(), give_back(&entry, boot_id, handle, *part, timeout))));
            if let Err(error) = thread::Builder::new().spawn_scoped(scope, body) {
                let outcome = Restored::Failed { found, why: format!("no thread for it: {error}") };
                drop(sender.send((id.clone(), outcome)));
            }
        }
        drop(sender);
        outcomes.iter().inspect(|(id, outcome)| settle(journal, id, outcome)).collect()
    })
}

fn settle(journal: &mut Journal, id: &GpuId, outcome: &Restored) {
    match outcome {
        Restored::Failed { .. } => return tracing::error!(gpu.uuid = %id, "GPU {id}: {outcome}"),
        Restored::HeldByCap { .. } => {
            tracing::warn!(gpu.uuid = %id, "GPU {id}: {outcome}");
            // Its clocks are free all the same.
            if let Err(error) = journal.forget_lock(id) {
                tracing::error!(gpu.uuid = %id, "GPU {id}: its clocks are unlocked, and stay in the journal: {error}");
            }
            return;
        }
        Restored::AlreadyThere(..) | Restored::Written(..) | Restored::LeftToOthers(..) => {}
    }
    tracing::info!(gpu.uuid = %id, "GPU {id}: {outcome}");
    if let Err(error) = journal.forget(id) {
        tracing::error!(gpu.uuid = %id, "GPU {id} is done with, but stays in the journal: {error}");
    }
}

/// Notes that a board is about to get a limit between its present and its found one.
fn note_part(journal: &mut Journal, gpu: &GpuHandle, limit: PowerLimit) -> Result<(), JournalError> {
    let seen = gpu.observe();
    match (seen.reading.requested, seen.at) {
        (Some(current), Some(at)) if !current.same_as(limit) => {
            journal.note_write(&gpu.board().id, current, limit, seen.counter, at.utc)
        }
        _ => Ok(()),
    }
}

fn give_back(entry: &Entry, boot_id: &str, gpu: &GpuHandle, part: Option<PowerLimit>, timeout: Seconds) -> Restored {
    let failed = |why: String| Restored::Failed { found: entry.found, why };
    // Waits for every write that is still on its way, so that none of them comes after this.
    let seen = match gpu.read_and_wait(timeout) {
        Ok(seen) => seen,
        Err(error) => return failed(error.to_string()),
    };
    let Some(current) = seen.reading.requested.or(seen.reading.enforced) else {
        return failed("the board does not say which limit it has".into());
    };
    let default = gpu.capabilities().limits.as_ref().ok().map(|range| range.default);
    let board = Standing { current, default, counter: seen.counter, restarted: seen.restarts() > 0 };
    // Whatever comes of the clocks, the limit is given back.
    let unlocked = match entry.holds_lock(boot_id) {
        true => gpu.write_and_wait(Write::ResetClocks, timeout).map(|()| Clocks::Unlocked),
        false => Ok(Clocks::Untouched),
    };
    let clocks = *unlocked.as_ref().unwrap_or(&Clocks::Untouched);
    let outcome = match way_back(entry, boot_id, &board) {
        WayBack::AlreadyThere => Restored::AlreadyThere(entry.found, clocks),
        WayBack::Theirs(limit) => Restored::LeftToOthers(limit, clocks),
        WayBack::Write(found) if part.is_some_and(|limit| limit < found) => {
            let limit = part.unwrap_or(found);
            let written = current.same_as(limit) || gpu.write_and_wait(Write::PowerLimit(limit), timeout).is_ok();
            Restored::HeldByCap { limit: if written { limit } else { current }, found }
        }
        WayBack::Write(found) => match gpu.write_and_wait(Write::PowerLimit(found), timeout) {
            Ok(()) => Restored::Written(found, clocks),
            Err(error) => return failed(error.to_string()),
        },
    };
    if let Err(error) = unlocked {
        return failed(format!("the limit is done with, the clocks are still locked: {error}"));
    }
    match entry
        .found_persistence
        .filter(|_| !matches!(outcome, Restored::LeftToOthers(..) | Restored::HeldByCap { .. }))
    {
        Some(on) if seen.reading.persistence.is_some_and(|now| now != on) => {
            match gpu.write_and_wait(Write::Persistence(on), timeout) {
                Ok(()) => outcome,
                Err(error) => failed(format!("the limit is back, persistence mode is not: {error}")),
            }
        }
        _ => outcome,
    }
}
