//! The write-ahead journal of found settings: what a board had before wattune touched it, and the way back.
//!
//! One small JSON file, replaced atomically and synced to disk before the first write to a board and before each
//! later one. Whatever ends the daemon, the next reader of this file knows which limit was found, which ones wattune
//! wrote, and whether the machine or its driver was restarted since. An entry goes when its board has its settings
//! back, or when somebody else has set it: then the board is theirs.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use super::GpuError;
use super::thread::GpuHandle;
use super::worker::{Observation, Write};
use crate::domain::{GpuId, PowerLimit};
use crate::units::{Millijoules, Seconds};

/// The journal's file in the state directory.
pub const FILE_NAME: &str = "found-limits.json";

/// Why the journal cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// It cannot be read or written.
    #[error("cannot {what} the restore journal {}", path.display())]
    Io {
        /// "read" or "write".
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The reason.
        #[source]
        source: io::Error,
    },
    /// It is not what this program wrote.
    #[error(
        "the restore journal {} is damaged; look at the limits it names, set them by hand (nvidia-smi -pl), and move \
         the file away",
        path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The reason.
        #[source]
        source: serde_json::Error,
    },
}

/// What was found on one board, and what wattune did to it since.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// The limit found.
    #[serde(rename = "found_mw")]
    pub found: PowerLimit,
    /// Persistence mode as found, if wattune changed it.
    pub found_persistence: Option<bool>,
    /// The limits wattune may have left the board at: the one it wrote last, and the one before, in case the process
    /// died between noting a write and doing it.
    #[serde(rename = "written_mw")]
    pub written: Vec<PowerLimit>,
    /// When it was found.
    pub found_at: DateTime<Utc>,
    /// The boot it was written in.
    pub boot_id: String,
    /// The energy counter at the last write: a smaller one later means that the driver was reloaded.
    #[serde(rename = "counter_mj")]
    pub counter: Option<Millijoules>,
}

#[derive(Serialize, Deserialize)]
struct Document {
    version: u32,
    boards: BTreeMap<GpuId, Entry>,
}

/// The journal of one state directory.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    boot_id: String,
    boards: BTreeMap<GpuId, Entry>,
}

impl Journal {
    /// Reads what an earlier process left behind; a file that is not there is an empty journal.
    ///
    /// # Errors
    /// If it cannot be read, or is damaged: then nothing must be written over it.
    pub fn open(state_dir: &Path, boot_id: String) -> Result<Self, JournalError> {
        let path = state_dir.join(FILE_NAME);
        let boards = match fs::read(&path) {
            Ok(bytes) => {
                let document: Document = serde_json::from_slice(&bytes)
                    .map_err(|source| JournalError::Damaged { path: path.clone(), source })?;
                document.boards
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => BTreeMap::new(),
            Err(source) => return Err(JournalError::Io { what: "read", path, source }),
        };
        Ok(Self { path, boot_id, boards })
    }

    /// What stands in it, board by board.
    pub fn entries(&self) -> impl Iterator<Item = (&GpuId, &Entry)> {
        self.boards.iter()
    }

    /// What stands in it for one board.
    pub fn entry(&self, gpu: &GpuId) -> Option<&Entry> {
        self.boards.get(gpu)
    }

    /// Notes that `limit` is about to be written to a board found at `found`, and syncs that to disk. What was found
    /// by an earlier call stays.
    ///
    /// # Errors
    /// If it cannot be written: then the board must not be.
    pub fn note_write(
        &mut self,
        gpu: &GpuId,
        found: PowerLimit,
        limit: PowerLimit,
        counter: Option<Millijoules>,
        now: DateTime<Utc>,
    ) -> Result<(), JournalError> {
        let boot_id = self.boot_id.clone();
        let entry = self.boards.entry(gpu.clone()).or_insert_with(|| Entry {
            found,
            found_persistence: None,
            written: Vec::new(),
            found_at: now,
            boot_id: boot_id.clone(),
            counter,
        });
        if entry.written.last() != Some(&limit) {
            entry.written.push(limit);
        }
        let surplus = entry.written.len().saturating_sub(2);
        entry.written.drain(..surplus);
        entry.boot_id = boot_id;
        entry.counter = counter;
        self.sync()
    }

    /// Notes that persistence mode is about to be changed from `found` on a board whose limit is `limit`.
    ///
    /// # Errors
    /// If it cannot be written: then the board must not be.
    pub fn note_persistence(
        &mut self,
        gpu: &GpuId,
        found: bool,
        limit: PowerLimit,
        now: DateTime<Utc>,
    ) -> Result<(), JournalError> {
        let boot_id = self.boot_id.clone();
        let entry = self.boards.entry(gpu.clone()).or_insert_with(|| Entry {
            found: limit,
            found_persistence: None,
            written: Vec::new(),
            found_at: now,
            boot_id,
            counter: None,
        });
        entry.found_persistence.get_or_insert(found);
        self.sync()
    }

    /// Forgets a board: it has its settings back, or belongs to somebody else now.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn forget(&mut self, gpu: &GpuId) -> Result<(), JournalError> {
        match self.boards.remove(gpu) {
            Some(_) => self.sync(),
            None => Ok(()),
        }
    }

    /// Whether wattune wrote the limit that the board has, so that it is wattune's to take back.
    pub fn is_ours(&self, gpu: &GpuId, limit: PowerLimit) -> bool {
        self.entry(gpu).is_some_and(|e| e.written.iter().any(|w| w.same_as(limit)))
    }

    fn sync(&self) -> Result<(), JournalError> {
        let write = || -> io::Result<()> {
            let document = Document { version: 1, boards: self.boards.clone() };
            let next = self.path.with_extension("json.new");
            let mut file = File::create(&next)?;
            serde_json::to_writer_pretty(&mut file, &document)?;
            file.write_all(b"\n")?;
            file.sync_all()?;
            fs::rename(&next, &self.path)?;
            // The rename itself must survive a power cut too.
            self.path.parent().map_or(Ok(()), |dir| File::open(dir)?.sync_all())
        };
        write().map_err(|source| JournalError::Io { what: "write", path: self.path.clone(), source })
    }
}

/// What has to be done to give a board its found limit back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WayBack {
    /// It has it already.
    AlreadyThere,
    /// Write it.
    Write(PowerLimit),
    /// Somebody else has set the board since: it is theirs.
    Theirs(PowerLimit),
}

/// Decides from the journal's entry and what the board says now.
///
/// A limit that wattune wrote is taken back. So is the driver's default after a reboot or a driver reload: that is
/// nobody's wish. Any other limit was set by somebody else.
pub fn way_back(
    entry: &Entry,
    boot_id: &str,
    current: PowerLimit,
    default: Option<PowerLimit>,
    counter: Option<Millijoules>,
) -> WayBack {
    if current.same_as(entry.found) {
        return WayBack::AlreadyThere;
    }
    if entry.written.iter().any(|w| w.same_as(current)) {
        return WayBack::Write(entry.found);
    }
    let reloaded = matches!((entry.counter, counter), (Some(then), Some(now)) if now < then);
    if default.is_some_and(|d| d.same_as(current)) && (entry.boot_id != boot_id || reloaded) {
        return WayBack::Write(entry.found);
    }
    WayBack::Theirs(current)
}

/// How giving a board back ended.
#[derive(Clone, Debug, PartialEq)]
pub enum Restored {
    /// It had the found limit already.
    AlreadyThere(PowerLimit),
    /// It has the found limit again.
    Written(PowerLimit),
    /// Somebody else's limit was left alone.
    LeftToOthers(PowerLimit),
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
            Self::AlreadyThere(limit) => write!(f, "already at its found limit of {limit}"),
            Self::Written(limit) => write!(f, "back at its found limit of {limit}"),
            Self::LeftToOthers(limit) => write!(f, "left at {limit}, which somebody else has set since"),
            Self::Failed { found, why } => write!(f, "NOT restored to {found}: {why}"),
        }
    }
}

/// Gives one board back, if the journal knows it. Blocks for at most `timeout` per write: not for async tasks.
///
/// # Errors
/// If the journal itself cannot be written; the board's own troubles are in the answer.
pub fn restore(journal: &mut Journal, gpu: &GpuHandle, timeout: Seconds) -> Result<Option<Restored>, JournalError> {
    let id = &gpu.board().id;
    let Some(entry) = journal.entry(id).cloned() else { return Ok(None) };
    let outcome = give_back(&entry, &journal.boot_id, gpu, timeout);
    if !matches!(outcome, Restored::Failed { .. }) {
        journal.forget(id)?;
    }
    Ok(Some(outcome))
}

fn give_back(entry: &Entry, boot_id: &str, gpu: &GpuHandle, timeout: Seconds) -> Restored {
    let failed = |why: String| Restored::Failed { found: entry.found, why };
    let observation = match first_answer(gpu, timeout) {
        Ok(observation) => observation,
        Err(error) => return failed(error.to_string()),
    };
    let Some(current) = observation.reading.requested.or(observation.reading.enforced) else {
        return failed("the board does not say which limit it has".into());
    };
    let default = gpu.capabilities().limits.as_ref().ok().map(|range| range.default);
    let outcome = match way_back(entry, boot_id, current, default, observation.counter) {
        WayBack::AlreadyThere => Restored::AlreadyThere(entry.found),
        WayBack::Theirs(limit) => Restored::LeftToOthers(limit),
        WayBack::Write(found) => match gpu.write_and_wait(Write::PowerLimit(found), timeout) {
            Ok(()) => Restored::Written(found),
            Err(error) => return failed(error.to_string()),
        },
    };
    match entry.found_persistence {
        Some(on) if observation.reading.persistence != Some(on) => {
            match gpu.write_and_wait(Write::Persistence(on), timeout) {
                Ok(()) => outcome,
                Err(error) => failed(format!("the limit is back, persistence mode is not: {error}")),
            }
        }
        _ => outcome,
    }
}

/// A board whose thread has just started may not have answered yet.
fn first_answer(gpu: &GpuHandle, timeout: Seconds) -> Result<Observation, GpuError> {
    let mut left = timeout;
    let step = Seconds::new(0.01);
    gpu.refresh();
    loop {
        let observation = gpu.observe();
        match &observation.fault {
            Some((error, _)) => return Err(error.clone()),
            None if observation.at.is_some() => return Ok(observation),
            None if left <= Seconds::ZERO => {
                return Err(GpuError::TimedOut { call: "reading the board", after: timeout });
            }
            None => std::thread::sleep(step.to_std()),
        }
        left -= step;
    }
}

/// The kernel's id of this boot; "unknown" where it does not say, which reads as the same boot.
pub fn boot_id() -> String {
    let read = fs::read_to_string("/proc/sys/kernel/random/boot_id");
    read.map_or_else(|_| "unknown".into(), |id| id.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn w(watts: u32) -> PowerLimit {
        PowerLimit::from_milliwatts(watts * 1000)
    }

    fn entry() -> Entry {
        Entry {
            found: w(250),
            found_persistence: None,
            written: vec![w(225), w(200)],
            found_at: DateTime::UNIX_EPOCH,
            boot_id: "boot-1".into(),
            counter: Some(Millijoules::new(1_000)),
        }
    }

    #[test]
    fn what_wattune_wrote_goes_back_and_what_others_set_stays() {
        let more = Some(Millijoules::new(2_000));
        let decide = |current| way_back(&entry(), "boot-1", current, Some(w(300)), more);
        assert_eq!(decide(w(250)), WayBack::AlreadyThere);
        assert_eq!(decide(w(200)), WayBack::Write(w(250)));
        assert_eq!(decide(w(225)), WayBack::Write(w(250)));
        assert_eq!(decide(w(180)), WayBack::Theirs(w(180)));
        assert_eq!(decide(w(300)), WayBack::Theirs(w(300)), "the default, but nothing was restarted: a wish");
    }

    #[test]
    fn a_default_after_a_restart_is_nobodys_wish() {
        let rebooted = way_back(&entry(), "boot-2", w(300), Some(w(300)), None);
        assert_eq!(rebooted, WayBack::Write(w(250)));
        let reloaded = way_back(&entry(), "boot-1", w(300), Some(w(300)), Some(Millijoules::new(10)));
        assert_eq!(reloaded, WayBack::Write(w(250)));
        let set_after_reboot = way_back(&entry(), "boot-2", w(280), Some(w(300)), None);
        assert_eq!(set_after_reboot, WayBack::Theirs(w(280)));
    }

    #[test]
    fn it_survives_its_process_and_keeps_what_was_found_first() {
        let dir = tempfile::tempdir().expect("a directory");
        let gpu = GpuId::new("GPU-1").expect("an id");
        let now = DateTime::UNIX_EPOCH;
        let mut journal = Journal::open(dir.path(), "boot-1".into()).expect("empty");
        journal.note_write(&gpu, w(250), w(300), None, now).expect("written");
        journal.note_write(&gpu, w(300), w(275), None, now).expect("written");
        journal.note_write(&gpu, w(275), w(200), None, now).expect("written");
        let mut reread = Journal::open(dir.path(), "boot-1".into()).expect("readable");
        let entry = reread.entry(&gpu).expect("noted").clone();
        assert_eq!((entry.found, entry.written), (w(250), vec![w(275), w(200)]));
        assert!(reread.is_ours(&gpu, w(200)) && !reread.is_ours(&gpu, w(300)));
        reread.forget(&gpu).expect("written");
        assert_eq!(Journal::open(dir.path(), "boot-1".into()).expect("readable").entries().count(), 0);
    }

    #[test]
    fn a_damaged_journal_is_never_written_over() {
        let dir = tempfile::tempdir().expect("a directory");
        fs::write(dir.path().join(FILE_NAME), "{\"version\":1,\"boa").expect("written");
        let error = Journal::open(dir.path(), "b".into()).expect_err("damaged").to_string();
        assert!(error.contains("found-limits.json") && error.contains("by hand"), "{error}");
    }
}
