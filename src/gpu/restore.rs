//! Giving boards their found settings back.

use std::sync::mpsc;
use std::thread;

use super::journal::{Entry, Foreign, Journal, JournalError, Standing, WayBack, way_back};
use super::thread::GpuHandle;
use super::worker::Write;
use wattune_core::domain::{GpuId, PowerLimit};
use wattune_core::units::Seconds;

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
    /// It could not be done, or the GPU does not show it; the journal keeps the entry for the next try.
    Failed {
        /// What should have been restored.
        found: PowerLimit,
        /// The limit that the GPU shows, if it shows any.
        shown: Option<PowerLimit>,
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
            Self::Failed { found, shown: Some(shown), why } if !shown.same_as(*found) => {
                write!(f, "NOT restored to {found}, it stays at {shown}: {why}")
            }
            Self::Failed { found, why, .. } => write!(f, "NOT restored to {found}: {why}"),
        }
    }
}

/// A limit that was written shows within so long, or it is not back.
const SETTLING: Seconds = Seconds::new(1.0);

/// A limit that does not show yet is read again after so long.
const READ_AGAIN: Seconds = Seconds::new(0.1);

/// Gives every board that the journal knows back, and says how that ended. All at once, so that a board that hangs
/// holds up no other. Each step (looking, clocks, limit, persistence mode) may take `timeout`. Blocks: not for async tasks.
pub fn restore_all(journal: &mut Journal, handles: &[GpuHandle], timeout: Seconds) -> Vec<(GpuId, Restored)> {
    let all: Vec<_> = handles.iter().map(|handle| (handle.clone(), None)).collect();
    let mut outcomes = restore_only(journal, &all, timeout);
    outcomes.extend(absent(journal, handles));
    outcomes
}

/// The GPUs of the journal that are not among these: what is owed to them stays owed.
pub fn absent(journal: &Journal, handles: &[GpuHandle]) -> Vec<(GpuId, Restored)> {
    let is_absent = |id: &GpuId| handles.iter().all(|handle| handle.board().id != *id);
    let why = "the GPU is not there; run `wattune restore` once it is back, or start wattune again";
    let failed = |found| Restored::Failed { found, shown: None, why: why.into() };
    let missing = journal.entries().filter(|(id, _)| is_absent(id));
    let missing = missing.map(|(id, entry)| (id.clone(), failed(entry.found)));
    missing.inspect(|(id, outcome)| tracing::error!(gpu.uuid = %id, "GPU {id}: {outcome}")).collect()
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
            let Some(entry) = journal.owed(id) else { continue };
            let attempt =
                Attempt { is_ours: journal.entry(id).is_some(), entry, boot_id: &boot_id, gpu: handle, timeout };
            if let Some(limit) = *part
                && let Err(error) = note_part(journal, handle, limit)
            {
                drop(sender.send((handle, Some(attempt.failed(error.to_string())))));
                continue;
            }
            let (done, failed) = (sender.clone(), attempt.failed("no thread for it".into()));
            let body = move || drop(done.send((handle, attempt.give_back(*part))));
            if thread::Builder::new().spawn_scoped(scope, body).is_err() {
                drop(sender.send((handle, Some(failed))));
            }
        }
        drop(sender);
        let done = outcomes.iter().filter_map(|(gpu, outcome): (&GpuHandle, _)| Some((gpu, outcome?)));
        done.map(|(gpu, outcome)| {
            settle(journal, gpu, &outcome);
            (gpu.board().id.clone(), outcome)
        })
        .collect()
    })
}

fn settle(journal: &mut Journal, gpu: &GpuHandle, outcome: &Restored) {
    let id = &gpu.board().id;
    let settled = match outcome {
        Restored::Failed { .. } => return tracing::error!(gpu.uuid = %id, "GPU {id}: {outcome}"),
        Restored::HeldByCap { .. } => {
            tracing::warn!(gpu.uuid = %id, "GPU {id}: {outcome}");
            // Its clocks are free all the same.
            if let Err(error) = journal.forget_lock(id) {
                tracing::error!(gpu.uuid = %id, "GPU {id}: its clocks are unlocked, and stay in the journal: {error}");
            }
            return;
        }
        Restored::AlreadyThere(..) | Restored::Written(..) => journal.forget(id),
        // A job that goes on there must not take the external limit for the original one.
        Restored::LeftToOthers(limit, _) => match gpu.observe().at {
            Some(at) => journal.forget_to(id, Foreign { limit: *limit, since: at.utc }),
            None => journal.forget(id),
        },
    };
    tracing::info!(gpu.uuid = %id, "GPU {id}: {outcome}");
    if let Err(error) = settled {
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

/// What one GPU is to be given back.
struct Attempt<'a> {
    entry: Entry,
    /// Whether wattune has written it; else its job has only found it as the entry says.
    is_ours: bool,
    boot_id: &'a str,
    gpu: &'a GpuHandle,
    timeout: Seconds,
}

impl Attempt<'_> {
    fn failed(&self, why: String) -> Restored {
        let reading = self.gpu.observe().reading;
        Restored::Failed { found: self.entry.found, shown: reading.requested.or(reading.enforced), why }
    }

    /// Gives the GPU back, no further than to `part`. `None` where wattune has changed nothing and nothing is to be done.
    fn give_back(&self, part: Option<PowerLimit>) -> Option<Restored> {
        // Waits for every write that is still on its way, so that none of them comes after this.
        let seen = match self.gpu.read_and_wait(self.timeout) {
            Ok(seen) => seen,
            Err(error) => return self.is_ours.then(|| self.failed(error.to_string())),
        };
        let Some(current) = seen.reading.requested.or(seen.reading.enforced) else {
            return self.is_ours.then(|| self.failed("the board does not say which limit it has".into()));
        };
        let default = self.gpu.capabilities().limits.as_ref().ok().map(|range| range.default);
        let board = Standing { current, default, counter: seen.counter, restarted: seen.restarts() > 0 };
        let way = way_back(&self.entry, self.boot_id, &board);
        if !self.is_ours && !matches!(way, WayBack::Write(_)) {
            return None;
        }
        // Whatever comes of the clocks, the limit is given back.
        let unlocked = match self.entry.holds_lock(self.boot_id) {
            true => self.gpu.write_and_wait(Write::ResetClocks, self.timeout).map(|()| Clocks::Unlocked),
            false => Ok(Clocks::Untouched),
        };
        let clocks = *unlocked.as_ref().unwrap_or(&Clocks::Untouched);
        let set = |limit| if current.same_as(limit) { Ok(()) } else { self.set(limit) };
        let outcome = match way {
            WayBack::AlreadyThere => Ok(Restored::AlreadyThere(self.entry.found, clocks)),
            WayBack::Theirs(limit) => Ok(Restored::LeftToOthers(limit, clocks)),
            WayBack::Write(found) => match part.filter(|limit| *limit < found) {
                Some(limit) => set(limit).map(|()| Restored::HeldByCap { limit, found }),
                None => set(found).map(|()| Restored::Written(found, clocks)),
            },
        };
        let outcome = match (outcome, unlocked) {
            (Err(why), _) => return Some(self.failed(why)),
            (_, Err(error)) => {
                return Some(self.failed(format!("the limit is done with, the clocks are still locked: {error}")));
            }
            (Ok(outcome), Ok(_)) => outcome,
        };
        let is_found = matches!(outcome, Restored::AlreadyThere(..) | Restored::Written(..));
        let persistence = self.entry.found_persistence.filter(|_| is_found);
        Some(match persistence.filter(|on| seen.reading.persistence.is_some_and(|now| now != *on)) {
            Some(on) => match self.persist(on) {
                Ok(()) => outcome,
                Err(why) => self.failed(format!("the limit is back, persistence mode is not: {why}")),
            },
            None => outcome,
        })
    }

    /// Sets a limit and waits until the GPU shows it.
    fn set(&self, limit: PowerLimit) -> Result<(), String> {
        let read_back = |gpu: &GpuHandle| {
            let reading = gpu.observe().reading;
            reading.requested.or(reading.enforced)
        };
        self.gpu.write_and_wait(Write::PowerLimit(limit), self.timeout).map_err(|error| error.to_string())?;
        let mut waited = Seconds::ZERO;
        while read_back(self.gpu).is_none_or(|shown| !shown.same_as(limit)) {
            if waited >= SETTLING.min(self.timeout) {
                return Err(match read_back(self.gpu) {
                    Some(shown) => format!("the driver accepted {limit}, and the GPU still shows {shown}"),
                    None => format!("the driver accepted {limit}, and the GPU does not say which limit it has"),
                });
            }
            thread::sleep(READ_AGAIN.to_std());
            waited += READ_AGAIN;
            self.gpu.read_and_wait(self.timeout).map_err(|error| format!("{limit} cannot be read back: {error}"))?;
        }
        Ok(())
    }

    fn persist(&self, on: bool) -> Result<(), String> {
        self.gpu.write_and_wait(Write::Persistence(on), self.timeout).map_err(|error| error.to_string())?;
        match self.gpu.observe().reading.persistence == Some(!on) {
            true => Err(format!("the driver accepted it, and it is still {}", if on { "off" } else { "on" })),
            false => Ok(()),
        }
    }
}
