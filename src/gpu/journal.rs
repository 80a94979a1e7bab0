//! The write-ahead journal of found settings: what a board had before wattune touched it, and the way back.
//!
//! One small JSON file, replaced atomically and synced to disk before the first write to a board and before each
//! later one. Whatever ends the daemon, the next reader of this file knows which limit was found, which ones wattune
//! wrote, and whether the machine or its driver was restarted since. An entry goes when its board has its settings
//! back, or when somebody else has set it: then the board is theirs. While a job goes on there that is noted too, so that
//! the next daemon leaves the board alone like this one.
//!
//! The limit that a job finds on a GPU is noted as soon as the job controls it, before anything is written, and stays
//! noted for as long as the job is open. Whatever the next daemon meets there can be told apart from it: an external
//! writer's limit after a kill, or the driver's default after a reboot.
//!
//! No driver tells what a board's clocks are locked to. So clocks are locked only where they were seen free before, the
//! journal notes that and to what, and the way back is to unlock them.

mod way_back;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

pub use way_back::{Standing, WayBack, way_back};

use crate::files;
use wattune_core::domain::{ClockLimit, GpuId, PowerLimit};
use wattune_core::units::Millijoules;

/// The journal's file in the state directory.
pub const FILE_NAME: &str = "found-limits.json";

/// The format this program writes: that of versions which knew no clocks, unless there is a lock that they would
/// forget.
const VERSION: u32 = 1;
const WITH_CLOCKS: u32 = 2;

/// Thousands of GPUs take less, in bytes.
const LONGEST: u64 = 16 << 20;

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

/// The limit that a job found on a GPU when it took control of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Original {
    #[serde(rename = "limit_mw")]
    limit: PowerLimit,
    found_at: DateTime<Utc>,
    /// The boot in which the GPU showed it last.
    boot_id: String,
    #[serde(rename = "counter_mj")]
    counter: Option<Millijoules>,
}

/// Everything that stands in the journal.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Contents {
    boards: BTreeMap<GpuId, Entry>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    left_to_others: BTreeMap<GpuId, Left>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    originals: BTreeMap<GpuId, Original>,
}

impl Contents {
    /// Forgets the limit of a board that somebody else has set to `theirs`. What is left to give back is a lock of the
    /// clocks, if there is one.
    fn yield_limit(&mut self, gpu: &GpuId, theirs: PowerLimit) {
        self.originals.remove(gpu);
        let Some(entry) = self.boards.get_mut(gpu) else { return };
        if entry.locked.is_some() {
            entry.found = theirs;
            entry.written.clear();
            entry.found_persistence = None;
        } else {
            self.boards.remove(gpu);
        }
    }

    fn leave(&mut self, gpu: &GpuId, to: Foreign, boot_id: &str) {
        self.left_to_others.insert(gpu.clone(), Left { to, boot_id: boot_id.to_owned() });
    }
}

#[derive(Serialize, Deserialize)]
struct Document {
    version: u32,
    #[serde(flatten)]
    contents: Contents,
}

/// The journal of one state directory.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    boot_id: String,
    contents: Contents,
}

impl Journal {
    /// Reads what an earlier process left behind; a file that is not there is an empty journal.
    ///
    /// # Errors
    /// If it cannot be read, or is damaged: then nothing must be written over it.
    pub fn open(state_dir: &Path, boot_id: String) -> Result<Self, JournalError> {
        let path = state_dir.join(FILE_NAME);
        let contents = match files::regular::read(&path, LONGEST) {
            Ok(bytes) => {
                let document: Document = serde_json::from_slice(&bytes)
                    .map_err(|source| JournalError::Damaged { path: path.clone(), source })?;
                if ![VERSION, WITH_CLOCKS].contains(&document.version) {
                    return Err(JournalError::Newer { path, version: document.version });
                }
                document.contents
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Contents::default(),
            Err(source) => return Err(JournalError::Io { what: "read", path, source }),
        };
        Ok(Self { path, boot_id, contents })
    }

    /// What stands in it, board by board.
    pub fn entries(&self) -> impl Iterator<Item = (&GpuId, &Entry)> {
        self.contents.boards.iter()
    }

    /// What stands in it for one board.
    pub fn entry(&self, gpu: &GpuId) -> Option<&Entry> {
        self.contents.boards.get(gpu)
    }

    /// Whether nothing is to be given back, and no job's GPU is to be looked at.
    pub fn is_empty(&self) -> bool {
        self.contents.boards.is_empty() && self.contents.originals.is_empty()
    }

    /// The limit that the GPU had before wattune or its job came.
    pub fn found(&self, gpu: &GpuId) -> Option<PowerLimit> {
        self.entry(gpu).map(|e| e.found).or_else(|| Some(self.contents.originals.get(gpu)?.limit))
    }

    /// What the way back goes by: the GPU's entry, else the original limit that its job found there.
    pub fn owed(&self, gpu: &GpuId) -> Option<Entry> {
        let of_job = || {
            let original = self.contents.originals.get(gpu)?;
            Some(Entry {
                boot_id: original.boot_id.clone(),
                counter: original.counter,
                ..self.new_entry(original.limit, original.found_at)
            })
        };
        self.entry(gpu).cloned().or_else(of_job)
    }

    /// Takes in what a GPU's energy counter showed since the last write, as far as something else has kept that. A smaller
    /// one later means that the driver was reloaded. What is noted next holds it too.
    pub fn learn_counter(&mut self, gpu: &GpuId, counter: Millijoules) {
        let entry = self.contents.boards.get_mut(gpu).map(|entry| &mut entry.counter);
        let original = self.contents.originals.get_mut(gpu).map(|original| &mut original.counter);
        for known in entry.into_iter().chain(original) {
            *known = Some(known.map_or(counter, |known| known.max(counter)));
        }
    }

    /// Notes the original limit of a GPU that a job controls, unless it is noted already, and that the GPU shows it in
    /// this boot. A limit that the entry calls found goes before `current`.
    ///
    /// # Errors
    /// If it cannot be written: then the GPU must not be.
    pub fn note_original(
        &mut self,
        gpu: &GpuId,
        current: PowerLimit,
        counter: Option<Millijoules>,
        now: DateTime<Utc>,
    ) -> Result<(), JournalError> {
        match self.contents.originals.get(gpu) {
            // Until the GPU shows it again, the boot in which it did so last is what tells a reboot.
            Some(known) if known.boot_id == self.boot_id || !current.same_as(known.limit) => return Ok(()),
            _ => {}
        }
        let limit = self.found(gpu).unwrap_or(current);
        let original = Original { limit, found_at: now, boot_id: self.boot_id.clone(), counter };
        self.change(|contents| drop(contents.originals.insert(gpu.clone(), original)))
    }

    /// Forgets the original limit of a GPU whose job has ended. An entry stays.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn forget_original(&mut self, gpu: &GpuId) -> Result<(), JournalError> {
        self.change(|contents| drop(contents.originals.remove(gpu)))
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
        let mut entry = self.entry_or_new(gpu, current, now);
        // What the board has now and what it may have next; writes that failed in between never were.
        let ours = (!current.same_as(entry.found)).then_some(current);
        entry.written = ours.into_iter().chain([limit]).collect();
        entry.date(&self.boot_id);
        entry.counter = counter;
        self.put(gpu, entry)
    }

    /// Notes that the last write noted was done and the board shows `shown` since: what it had before is nobody's any
    /// more, so that a limit like it is somebody else's.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn note_done(&mut self, gpu: &GpuId, shown: PowerLimit) -> Result<(), JournalError> {
        let Some(mut entry) = self.entry(gpu).cloned() else { return Ok(()) };
        let Some(asked) = entry.written.last().copied() else { return Ok(()) };
        // Some boards round, and some take what they were told a moment later.
        entry.written = if shown.same_as(asked) { vec![asked] } else { vec![shown, asked] };
        self.put(gpu, entry)
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
        let mut entry = self.entry_or_new(gpu, limit, now);
        entry.date(&self.boot_id);
        entry.locked = Some(clock);
        self.put(gpu, entry)
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
        let mut entry = self.entry_or_new(gpu, limit, now);
        entry.found_persistence.get_or_insert(found);
        self.put(gpu, entry)
    }

    /// A board's entry; a new one where there is none, with its job's original limit if that is known.
    fn entry_or_new(&self, gpu: &GpuId, current: PowerLimit, now: DateTime<Utc>) -> Entry {
        let found = self.found(gpu).unwrap_or(current);
        self.entry(gpu).cloned().unwrap_or_else(|| self.new_entry(found, now))
    }

    fn put(&mut self, gpu: &GpuId, entry: Entry) -> Result<(), JournalError> {
        self.change(|contents| drop(contents.boards.insert(gpu.clone(), entry)))
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
        self.change(|contents| {
            let Some(entry) = contents.boards.get_mut(gpu).filter(|e| e.locked.is_some()) else { return };
            entry.locked = None;
            if entry.written.is_empty() && entry.found_persistence.is_none() {
                contents.boards.remove(gpu);
            }
        })
    }

    /// Forgets the limit of a board that somebody else has set to `theirs`. What is left to give back is a lock of the
    /// clocks, if there is one.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn yield_limit(&mut self, gpu: &GpuId, theirs: PowerLimit) -> Result<(), JournalError> {
        self.change(|contents| contents.yield_limit(gpu, theirs))
    }

    /// The same of a board on which a job goes on: it is left to them, also by the next daemon.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn yield_to(&mut self, gpu: &GpuId, foreign: Foreign) -> Result<(), JournalError> {
        let boot_id = self.boot_id.clone();
        self.change(|contents| {
            contents.yield_limit(gpu, foreign.limit);
            contents.leave(gpu, foreign, &boot_id);
        })
    }

    /// Forgets a board that has its settings back. The original limit that its job found stays noted.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn forget(&mut self, gpu: &GpuId) -> Result<(), JournalError> {
        self.change(|contents| drop(contents.boards.remove(gpu)))
    }

    /// Forgets a board that somebody else has set. If a job is open there, the next daemon leaves it to them.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn forget_to(&mut self, gpu: &GpuId, foreign: Foreign) -> Result<(), JournalError> {
        let boot_id = self.boot_id.clone();
        self.change(|contents| {
            contents.boards.remove(gpu);
            contents.originals.remove(gpu);
            contents.leave(gpu, foreign, &boot_id);
        })
    }

    /// Whose limit a board is left to, that has the limit `shown` now, as far as that is known: it may have been changed
    /// again. The driver's `default` after a reboot is nobody's wish.
    pub fn left_to_others(
        &self,
        gpu: &GpuId,
        shown: Option<PowerLimit>,
        default: Option<PowerLimit>,
    ) -> Option<Foreign> {
        let left = self.contents.left_to_others.get(gpu)?;
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
        if self.contents.left_to_others.get(gpu).map(|left| left.to) == foreign {
            return Ok(());
        }
        let boot_id = self.boot_id.clone();
        self.change(|contents| match foreign {
            Some(to) => contents.leave(gpu, to, &boot_id),
            None => drop(contents.left_to_others.remove(gpu)),
        })
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

    /// Puts the changed contents on disk, and only then in memory: what could not be written down does not count.
    fn change(&mut self, change: impl FnOnce(&mut Contents)) -> Result<(), JournalError> {
        let mut contents = self.contents.clone();
        change(&mut contents);
        if contents == self.contents {
            return Ok(());
        }
        let version = if contents.boards.values().any(|e| e.locked.is_some()) { WITH_CLOCKS } else { VERSION };
        let document = Document { version, contents };
        let write = || -> io::Result<()> {
            let next = self.path.with_extension("json.new");
            // What an interrupted write left there, or anything else that lies in the way.
            match fs::remove_file(&next) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            // In one piece: token by token it would be some thousand writes.
            let mut text = serde_json::to_vec_pretty(&document)?;
            text.push(b'\n');
            let mut file = files::create(&next)?;
            file.write_all(&text)?;
            file.sync_all()?;
            fs::rename(&next, &self.path)?;
            // The rename itself must survive a power cut too.
            self.path.parent().map_or(Ok(()), |dir| File::open(dir)?.sync_all())
        };
        write().map_err(|source| JournalError::Io { what: "write", path: self.path.clone(), source })?;
        self.contents = document.contents;
        Ok(())
    }
}

/// The kernel's id of this boot; "unknown" where it does not say, which reads as the same boot.
pub fn boot_id() -> String {
    let read = fs::read_to_string("/proc/sys/kernel/random/boot_id");
    read.map_or_else(|_| "unknown".into(), |id| id.trim().to_owned())
}

#[cfg(test)]
#[path = "journal_tests.rs"]
mod tests;
