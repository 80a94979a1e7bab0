//! The write-ahead journal of found settings: what a board had before wattune touched it, and the way back.
//!
//! One small JSON file, replaced atomically and synced to disk before the first write to a board and before each
//! later one. Whatever ends the daemon, the next reader of this file knows which limit was found, which ones wattune
//! wrote, and whether the machine or its driver was restarted since. An entry goes when its board has its settings
//! back, or when somebody else has set it: then the board is theirs. While a job goes on there that is noted too, so that
//! the next daemon leaves the board alone like this one.
//!
//! No driver tells what a board's clocks are locked to. So clocks are locked only where they were seen free before, the
//! journal notes that and to what, and the way back is to unlock them.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use crate::domain::{ClockLimit, GpuId, PowerLimit};
use crate::files;
use crate::units::Millijoules;

/// The journal's file in the state directory.
pub const FILE_NAME: &str = "found-limits.json";

/// The format this program writes: that of versions which knew no clocks, unless there is a lock that they would
/// forget.
const VERSION: u32 = 1;
const WITH_CLOCKS: u32 = 2;

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
        "the restore journal {} is damaged; look at the limits it names, set them by hand (nvidia-smi -pl), unlock clocks \
         (nvidia-smi -rgc), and move the file away",
        path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The reason.
        #[source]
        source: serde_json::Error,
    },
    /// A newer wattune wrote it.
    #[error(
        "the restore journal {} is of format {version}, which this wattune does not know: give the GPUs back with the \
         newer one (`wattune restore`)",
        path.display()
    )]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its format.
        version: u32,
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
    /// What wattune has locked the clocks to, or was about to; they were free before.
    #[serde(rename = "locked_mhz", default, skip_serializing_if = "Option::is_none")]
    pub locked: Option<ClockLimit>,
    /// When it was found.
    pub found_at: DateTime<Utc>,
    /// The boot it was written in.
    pub boot_id: String,
    /// The energy counter at the last write: a smaller one later means that the driver was reloaded.
    #[serde(rename = "counter_mj")]
    pub counter: Option<Millijoules>,
}

impl Entry {
    /// Whether the clocks are to be unlocked. A reboot has done that already: a lock after it is somebody else's.
    pub fn holds_lock(&self, boot_id: &str) -> bool {
        self.locked.is_some() && self.boot_id == boot_id
    }

    /// Something is written in this boot.
    fn date(&mut self, boot_id: &str) {
        if self.boot_id != boot_id {
            self.locked = None;
            boot_id.clone_into(&mut self.boot_id);
        }
    }
}

/// A limit that somebody else set on a job's board, which is left alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Foreign {
    /// What it was set to.
    #[serde(rename = "limit_mw")]
    pub limit: PowerLimit,
    /// When that was noticed.
    pub since: DateTime<Utc>,
}

/// To whom a board is left, and in which boot that was.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Left {
    #[serde(flatten)]
    to: Foreign,
    boot_id: String,
}

#[derive(Serialize, Deserialize)]
struct Document {
    version: u32,
    boards: BTreeMap<GpuId, Entry>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    left_to_others: BTreeMap<GpuId, Left>,
}

/// The journal of one state directory.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    boot_id: String,
    boards: BTreeMap<GpuId, Entry>,
    left_to_others: BTreeMap<GpuId, Left>,
}

impl Journal {
    /// Reads what an earlier process left behind; a file that is not there is an empty journal.
    ///
    /// # Errors
    /// If it cannot be read, or is damaged: then nothing must be written over it.
    pub fn open(state_dir: &Path, boot_id: String) -> Result<Self, JournalError> {
        let path = state_dir.join(FILE_NAME);
        let (boards, left_to_others) = match fs::read(&path) {
            Ok(bytes) => {
                let document: Document = serde_json::from_slice(&bytes)
                    .map_err(|source| JournalError::Damaged { path: path.clone(), source })?;
                if ![VERSION, WITH_CLOCKS].contains(&document.version) {
                    return Err(JournalError::Newer { path, version: document.version });
                }
                (document.boards, document.left_to_others)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Default::default(),
            Err(source) => return Err(JournalError::Io { what: "read", path, source }),
        };
        Ok(Self { path, boot_id, boards, left_to_others })
    }

    /// What stands in it, board by board.
    pub fn entries(&self) -> impl Iterator<Item = (&GpuId, &Entry)> {
        self.boards.iter()
    }

    /// What stands in it for one board.
    pub fn entry(&self, gpu: &GpuId) -> Option<&Entry> {
        self.boards.get(gpu)
    }

    /// Notes that `limit` is about to be written to a board that has `current`, and syncs that to disk. At the first
    /// call `current` is what was found; later it is wattune's own, whatever came of the writes noted before.
    ///
    /// # Errors
    /// If it cannot be written: then the board must not be.
    pub fn note_write(
        &mut self,
        gpu: &GpuId,
        current: PowerLimit,
        limit: PowerLimit,
        counter: Option<Millijoules>,
        now: DateTime<Utc>,
    ) -> Result<(), JournalError> {
        let mut boards = self.boards.clone();
        let entry = boards.entry(gpu.clone()).or_insert_with(|| self.new_entry(current, now));
        // What the board has now and what it may have next; writes that failed in between never were.
        let ours = (!current.same_as(entry.found)).then_some(current);
        entry.written = ours.into_iter().chain([limit]).collect();
        entry.date(&self.boot_id);
        entry.counter = counter;
        self.replace(boards)
    }

    /// Notes that the clocks of a board whose limit is `limit` are about to be locked, and syncs that to disk. They must
    /// have been free before, or locked by wattune.
    ///
    /// # Errors
    /// If it cannot be written: then the board must not be.
    pub fn note_lock(
        &mut self,
        gpu: &GpuId,
        clock: ClockLimit,
        limit: PowerLimit,
        now: DateTime<Utc>,
    ) -> Result<(), JournalError> {
        let mut boards = self.boards.clone();
        let entry = boards.entry(gpu.clone()).or_insert_with(|| self.new_entry(limit, now));
        entry.date(&self.boot_id);
        entry.locked = Some(clock);
        self.replace(boards)
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
        let mut boards = self.boards.clone();
        let entry = boards.entry(gpu.clone()).or_insert_with(|| self.new_entry(limit, now));
        entry.found_persistence.get_or_insert(found);
        self.replace(boards)
    }

    fn new_entry(&self, found: PowerLimit, now: DateTime<Utc>) -> Entry {
        Entry {
            found,
            found_persistence: None,
            written: Vec::new(),
            locked: None,
            found_at: now,
            boot_id: self.boot_id.clone(),
            counter: None,
        }
    }

    /// Forgets that a board's clocks are locked: they are free again, or somebody else's.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn forget_lock(&mut self, gpu: &GpuId) -> Result<(), JournalError> {
        let mut boards = self.boards.clone();
        let Some(entry) = boards.get_mut(gpu).filter(|e| e.locked.is_some()) else { return Ok(()) };
        entry.locked = None;
        if entry.written.is_empty() && entry.found_persistence.is_none() {
            boards.remove(gpu);
        }
        self.replace(boards)
    }

    /// Forgets the limit of a board that somebody else has set to `theirs`. What is left to give back is a lock of the
    /// clocks, if there is one.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn yield_limit(&mut self, gpu: &GpuId, theirs: PowerLimit) -> Result<(), JournalError> {
        match self.yielded(gpu, theirs) {
            Some(boards) => self.replace(boards),
            None => Ok(()),
        }
    }

    /// The same of a board on which a job goes on: it is left to them, also by the next daemon.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn yield_to(&mut self, gpu: &GpuId, foreign: Foreign) -> Result<(), JournalError> {
        let boards = self.yielded(gpu, foreign.limit).unwrap_or_else(|| self.boards.clone());
        self.replace_both(boards, self.left(gpu, Some(foreign)))
    }

    fn yielded(&self, gpu: &GpuId, theirs: PowerLimit) -> Option<BTreeMap<GpuId, Entry>> {
        let mut boards = self.boards.clone();
        let entry = boards.get_mut(gpu)?;
        if entry.locked.is_some() {
            entry.found = theirs;
            entry.written.clear();
            entry.found_persistence = None;
        } else {
            boards.remove(gpu);
        }
        Some(boards)
    }

    /// Forgets a board: it has its settings back, or belongs to somebody else now.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn forget(&mut self, gpu: &GpuId) -> Result<(), JournalError> {
        let mut boards = self.boards.clone();
        match boards.remove(gpu) {
            Some(_) => self.replace(boards),
            None => Ok(()),
        }
    }

    /// Whose limit a board is left to, that has the limit `shown` now, as far as that is known: it may have been changed
    /// again. The driver's `default` after a reboot is nobody's wish.
    pub fn left_to_others(
        &self,
        gpu: &GpuId,
        shown: Option<PowerLimit>,
        default: Option<PowerLimit>,
    ) -> Option<Foreign> {
        let left = self.left_to_others.get(gpu)?;
        let is_theirs = |shown: &PowerLimit| default.is_some_and(|default| !shown.same_as(default));
        if left.boot_id != self.boot_id && !shown.as_ref().is_some_and(is_theirs) {
            return None;
        }
        Some(Foreign { limit: shown.unwrap_or(left.to.limit), ..left.to })
    }

    /// Notes to whose limit a board is left, or that it is left to nobody.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn leave_to_others(&mut self, gpu: &GpuId, foreign: Option<Foreign>) -> Result<(), JournalError> {
        if self.left_to_others.get(gpu).map(|left| left.to) == foreign {
            return Ok(());
        }
        self.replace_both(self.boards.clone(), self.left(gpu, foreign))
    }

    fn left(&self, gpu: &GpuId, foreign: Option<Foreign>) -> BTreeMap<GpuId, Left> {
        let mut left = self.left_to_others.clone();
        match foreign {
            Some(to) => left.insert(gpu.clone(), Left { to, boot_id: self.boot_id.clone() }),
            None => left.remove(gpu),
        };
        left
    }

    /// Whether wattune wrote the limit that the board has, so that it is wattune's to take back.
    pub fn is_ours(&self, gpu: &GpuId, limit: PowerLimit) -> bool {
        self.entry(gpu).is_some_and(|e| e.written.iter().any(|w| w.same_as(limit)))
    }

    /// The boot that entries are written in now.
    pub fn boot_id(&self) -> &str {
        &self.boot_id
    }

    /// Where it lies.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Puts `boards` on disk, and only then in memory: what could not be written down does not count.
    fn replace(&mut self, boards: BTreeMap<GpuId, Entry>) -> Result<(), JournalError> {
        self.replace_both(boards, self.left_to_others.clone())
    }

    fn replace_both(
        &mut self,
        boards: BTreeMap<GpuId, Entry>,
        left_to_others: BTreeMap<GpuId, Left>,
    ) -> Result<(), JournalError> {
        let version = if boards.values().any(|e| e.locked.is_some()) { WITH_CLOCKS } else { VERSION };
        let document = Document { version, boards, left_to_others };
        let write = || -> io::Result<()> {
            let next = self.path.with_extension("json.new");
            let mut file = files::create(&next)?;
            serde_json::to_writer_pretty(&mut file, &document)?;
            file.write_all(b"\n")?;
            file.sync_all()?;
            fs::rename(&next, &self.path)?;
            // The rename itself must survive a power cut too.
            self.path.parent().map_or(Ok(()), |dir| File::open(dir)?.sync_all())
        };
        write().map_err(|source| JournalError::Io { what: "write", path: self.path.clone(), source })?;
        (self.boards, self.left_to_others) = (document.boards, document.left_to_others);
        Ok(())
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

/// What a board says that decides whose its limit is.
#[derive(Clone, Copy, Debug)]
pub struct Standing {
    /// The limit it has.
    pub current: PowerLimit,
    /// The driver's default.
    pub default: Option<PowerLimit>,
    /// Its energy counter.
    pub counter: Option<Millijoules>,
    /// Whether this process saw the board or its driver start anew since wattune's last write.
    pub restarted: bool,
}

/// Decides from the journal's entry and what the board says now.
///
/// A limit that wattune wrote is taken back. So is the driver's default after a reboot or a driver reload: that is
/// nobody's wish. Any other limit was set by somebody else.
pub fn way_back(entry: &Entry, boot_id: &str, board: &Standing) -> WayBack {
    let current = board.current;
    if current.same_as(entry.found) {
        return WayBack::AlreadyThere;
    }
    if entry.written.iter().any(|w| w.same_as(current)) {
        return WayBack::Write(entry.found);
    }
    let counted_anew = matches!((entry.counter, board.counter), (Some(then), Some(now)) if now < then);
    let restarted = board.restarted || entry.boot_id != boot_id || counted_anew;
    if restarted && board.default.is_some_and(|d| d.same_as(current)) {
        return WayBack::Write(entry.found);
    }
    WayBack::Theirs(current)
}

/// The kernel's id of this boot; "unknown" where it does not say, which reads as the same boot.
pub fn boot_id() -> String {
    let read = fs::read_to_string("/proc/sys/kernel/random/boot_id");
    read.map_or_else(|_| "unknown".into(), |id| id.trim().to_owned())
}

#[cfg(test)]
#[path = "journal_tests.rs"]
mod tests;
