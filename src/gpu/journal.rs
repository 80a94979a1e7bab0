//! The write-ahead journal of original settings: the settings of a GPU before wattune's first write.
//!
//! The journal is one small JSON file, replaced atomically and synced to disk before the first write to a GPU, and a list
//! of the limits written since, which is not synced: a kill of the daemon does not lose it, and after a power failure
//! those limits are no longer in force. The two files are in `file` and `writes`. However the daemon ends, the next
//! daemon or `wattune restore` knows the original limit, the limits that wattune wrote, and whether the machine or its
//! driver restarted since. An entry is removed when the GPU has its settings back, or when
//! an external writer changed the GPU's limit and no other setting is to be restored: wattune then leaves the GPU alone. While the GPU's job continues, the
//! journal keeps the external limit, so that the next daemon leaves the GPU alone, too.
//!
//! The journal records a GPU's original limit as soon as a job controls the GPU, before any write, and keeps it while
//! the job is open. After a kill, the next daemon can then recognise a limit that an external writer set; after a
//! reboot, it can recognise the driver's default limit.
//!
//! No driver reports a clock lock. So wattune locks clocks only if they were free before, and records the lock in the
//! journal; restoring the clocks means unlocking them.

mod decision;
mod entry;
mod error;
mod file;
mod writes;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use chrono::{DateTime, Utc};

pub use decision::{ObservedLimit, RestoreAction, is_undecided, restore_action};
pub use entry::{Entry, ExternalLimit};
pub use error::JournalError;
pub(crate) use file::UNKNOWN_BOOT;

use entry::{Contents, Original};
use file::JournalFile;

use crate::files::{LOCK, PlacedFile};
use wattune_core::domain::{ClockLimit, GpuId, PowerLimit};
use wattune_core::units::Millijoules;

/// The name of the journal's file in the state directory.
pub const FILE_NAME: &str = "found-limits.json";

/// The journal of one state directory. Each method that returns a `Result` stores its change before it returns: limits
/// that wattune writes so that they survive the end of the process, everything else so that it survives a power failure.
/// If the method fails, nothing must be written to the GPU.
#[derive(Debug)]
pub struct Journal {
    file: JournalFile,
    /// The state directory's lock file; `None` if no process has locked the directory.
    lock: Option<PlacedFile>,
    boot_id: String,
    contents: Contents,
}

impl Journal {
    /// Opens the journal; a missing file counts as an empty journal. Changes nothing on disk.
    ///
    /// # Errors
    /// If one of the two files cannot be read or is damaged, or if the list of written limits does not belong to the
    /// journal; the files must then not be overwritten.
    pub fn open(state_dir: &Path, boot_id: String) -> Result<Self, JournalError> {
        let (file, contents) = JournalFile::open(state_dir.join(FILE_NAME), &boot_id)?;
        Ok(Self { file, lock: PlacedFile::at(state_dir.join(LOCK)), boot_id, contents })
    }

    /// Returns the entries of all GPUs that wattune has written to.
    pub fn entries(&self) -> impl Iterator<Item = (&GpuId, &Entry)> {
        self.contents.entries.iter()
    }

    /// Returns the entry of a GPU; `None` if wattune has not written to the GPU.
    pub fn entry(&self, gpu: &GpuId) -> Option<&Entry> {
        self.contents.entries.get(gpu)
    }

    /// Returns the GPUs for which an original limit is recorded, in an entry or for a job.
    pub fn gpus(&self) -> BTreeSet<&GpuId> {
        self.contents.entries.keys().chain(self.contents.originals.keys()).collect()
    }

    /// Returns true if no GPU has an entry and no job's original limit is recorded.
    pub fn is_empty(&self) -> bool {
        self.contents.entries.is_empty() && self.contents.originals.is_empty()
    }

    /// Returns the original limit of a GPU, if recorded.
    pub fn original_limit(&self, gpu: &GpuId) -> Option<PowerLimit> {
        self.entry(gpu).map(|e| e.original).or_else(|| Some(self.contents.originals.get(gpu)?.limit))
    }

    /// Returns the entry by which to restore a GPU: the GPU's own entry, or else one made from the original limit that
    /// was recorded when a job took control of the GPU. `None` without either.
    pub fn restore_entry(&self, gpu: &GpuId) -> Option<Entry> {
        let of_job = || {
            let original = self.contents.originals.get(gpu)?;
            Some(Entry {
                boot_id: original.boot_id.clone(),
                counter: original.counter,
                ..self.new_entry(original.limit, original.observed_at)
            })
        };
        self.entry(gpu).cloned().or_else(of_job)
    }

    /// Raises a GPU's recorded energy counter, in memory only, to at least `counter`: a later value, known from the
    /// GPU's checkpoint (counter reading up to which the ledger has the energy). If the GPU then reports a smaller
    /// value, the driver was reloaded.
    pub fn update_counter(&mut self, gpu: &GpuId, counter: Millijoules) {
        let entry = self.contents.entries.get_mut(gpu).map(|entry| &mut entry.counter);
        let original = self.contents.originals.get_mut(gpu).map(|original| &mut original.counter);
        for recorded in entry.into_iter().chain(original) {
            *recorded = Some(recorded.map_or(counter, |earlier| earlier.max(counter)));
        }
    }

    /// Records the original limit of a GPU that a job controls: the one that is recorded already, in the GPU's entry or
    /// for a job, or else `current`. If an original limit was recorded for a job in an earlier boot and the GPU has
    /// that limit now, records the present boot with it.
    pub fn record_original(
        &mut self,
        gpu: &GpuId,
        current: PowerLimit,
        counter: Option<Millijoules>,
        now: DateTime<Utc>,
    ) -> Result<(), JournalError> {
        match self.contents.originals.get(gpu) {
            // Keeps the latest boot in which the GPU had its original limit: if the present boot is another one, the
            // machine was rebooted since.
            Some(recorded) if recorded.boot_id == self.boot_id || !current.same_as(recorded.limit) => return Ok(()),
            _ => {}
        }
        let limit = self.original_limit(gpu).unwrap_or(current);
        let original = Original { limit, observed_at: now, boot_id: self.boot_id.clone(), counter };
        self.change(|contents| drop(contents.originals.insert(gpu.clone(), original)))
    }

    /// Removes the recorded original limit of a GPU whose job has ended. The GPU's entry, if any, is kept.
    pub fn forget_original(&mut self, gpu: &GpuId) -> Result<(), JournalError> {
        self.change(|contents| drop(contents.originals.remove(gpu)))
    }

    /// Records that `limit` is about to be written to a GPU that has `current`. Syncs to disk if that is the first write
    /// to the GPU. If no original limit is recorded for the GPU yet, `current` becomes its original limit.
    pub fn record_write(
        &mut self,
        gpu: &GpuId,
        current: PowerLimit,
        limit: PowerLimit,
        counter: Option<Millijoules>,
        now: DateTime<Utc>,
    ) -> Result<(), JournalError> {
        let mut entry = self.entry_or_new(gpu, current, now);
        // wattune may have set the current limit and is about to set the next one; failed writes in between had no
        // effect.
        let ours = (!current.same_as(entry.original)).then_some(current);
        entry.written = ours.into_iter().chain([limit]).collect();
        entry.move_to_boot(&self.boot_id);
        entry.counter = counter;
        self.put(gpu, entry)
    }

    /// Records that the last write succeeded and that the GPU has reported `shown` since. The limit before that write
    /// no longer counts as wattune's: if that limit reappears, an external writer set it.
    pub fn record_written(&mut self, gpu: &GpuId, shown: PowerLimit) -> Result<(), JournalError> {
        let Some(mut entry) = self.entry(gpu).cloned() else { return Ok(()) };
        let Some(asked) = entry.written.last().copied() else { return Ok(()) };
        // Some GPUs round limits, and some apply them with a delay: both limits then count as wattune's.
        entry.written = vec![shown, asked];
        self.put(gpu, entry)
    }

    /// Records that the clocks of a GPU whose power limit is `limit` are about to be locked, and syncs to disk. The
    /// clocks must be free or locked by wattune.
    pub fn record_lock(
        &mut self,
        gpu: &GpuId,
        clock: ClockLimit,
        limit: PowerLimit,
        now: DateTime<Utc>,
    ) -> Result<(), JournalError> {
        let mut entry = self.entry_or_new(gpu, limit, now);
        entry.move_to_boot(&self.boot_id);
        entry.locked = Some(clock);
        self.put(gpu, entry)
    }

    /// Records that persistence mode is about to be changed from `original` on a GPU whose limit is `limit`, and syncs
    /// to disk. An original mode that is recorded already is kept.
    pub fn record_persistence(
        &mut self,
        gpu: &GpuId,
        original: bool,
        limit: PowerLimit,
        now: DateTime<Utc>,
    ) -> Result<(), JournalError> {
        let mut entry = self.entry_or_new(gpu, limit, now);
        entry.original_persistence.get_or_insert(original);
        self.put(gpu, entry)
    }

    /// Returns a GPU's entry, or a new one. The original limit of a new entry is the one recorded for the GPU's job, or
    /// else `current`.
    fn entry_or_new(&self, gpu: &GpuId, current: PowerLimit, now: DateTime<Utc>) -> Entry {
        let original = self.original_limit(gpu).unwrap_or(current);
        self.entry(gpu).cloned().unwrap_or_else(|| self.new_entry(original, now))
    }

    fn put(&mut self, gpu: &GpuId, entry: Entry) -> Result<(), JournalError> {
        self.change(|contents| drop(contents.entries.insert(gpu.clone(), entry)))
    }

    fn new_entry(&self, original: PowerLimit, now: DateTime<Utc>) -> Entry {
        Entry {
            original,
            original_persistence: None,
            written: Vec::new(),
            locked: None,
            memory_locked: None,
            observed_at: now,
            boot_id: self.boot_id.clone(),
            counter: None,
        }
    }

    /// Removes the recorded clock lock of a GPU whose clocks are now free, or locked by an external writer.
    pub fn forget_lock(&mut self, gpu: &GpuId) -> Result<(), JournalError> {
        self.change(|contents| contents.remove_lock(gpu, |entry| entry.locked.take()))
    }

    /// Records that the memory's clocks of a GPU whose power limit is `limit` are about to be locked for a client, and
    /// syncs to disk.
    pub fn record_memory_lock(
        &mut self,
        gpu: &GpuId,
        clock: ClockLimit,
        limit: PowerLimit,
        now: DateTime<Utc>,
    ) -> Result<(), JournalError> {
        let mut entry = self.entry_or_new(gpu, limit, now);
        entry.move_to_boot(&self.boot_id);
        entry.memory_locked = Some(clock);
        self.put(gpu, entry)
    }

    /// Removes the recorded lock of the memory's clocks of a GPU whose memory's clocks are now free.
    pub fn forget_memory_lock(&mut self, gpu: &GpuId) -> Result<(), JournalError> {
        self.change(|contents| contents.remove_lock(gpu, |entry| entry.memory_locked.take()))
    }

    /// Removes the limits recorded for a GPU on which an external writer has set the limit `theirs`. A clock lock and the
    /// original persistence mode stay recorded, together with `theirs` as the original limit.
    pub fn yield_limit(&mut self, gpu: &GpuId, theirs: PowerLimit) -> Result<(), JournalError> {
        self.change(|contents| contents.yield_limit(gpu, theirs))
    }

    /// Does the same as [`Self::yield_limit`], and also records the external limit for the next daemon, since the GPU's
    /// job continues.
    pub fn yield_to_external(&mut self, gpu: &GpuId, external: ExternalLimit) -> Result<(), JournalError> {
        let boot_id = self.boot_id.clone();
        self.change(|contents| {
            contents.yield_limit(gpu, external.limit);
            contents.set_external(gpu, external, &boot_id);
        })
    }

    /// Removes the entry of a restored GPU. The original limit that was recorded for the GPU's job is kept.
    pub fn forget(&mut self, gpu: &GpuId) -> Result<(), JournalError> {
        self.change(|contents| drop(contents.entries.remove(gpu)))
    }

    /// Removes the entry and the original limit of a GPU whose limit an external writer changed, and records the
    /// external limit for the next daemon.
    pub fn forget_for_external(&mut self, gpu: &GpuId, external: ExternalLimit) -> Result<(), JournalError> {
        let boot_id = self.boot_id.clone();
        self.change(|contents| {
            contents.entries.remove(gpu);
            contents.originals.remove(gpu);
            contents.set_external(gpu, external, &boot_id);
        })
    }

    /// Removes everything that is recorded for these GPUs, in one change: for GPUs that do not come back.
    pub fn remove<'a>(&mut self, gpus: impl Iterator<Item = &'a GpuId>) -> Result<(), JournalError> {
        self.change(|contents| gpus.for_each(|gpu| contents.remove(gpu)))
    }

    /// Returns the recorded external limit of a GPU, updated to the GPU's present limit, `shown`, if known. After a
    /// reboot, the present limit counts as external only if it differs from the driver's `default` limit; otherwise, or
    /// if one of the two is unknown, returns `None`.
    pub fn external_limit(
        &self,
        gpu: &GpuId,
        shown: Option<PowerLimit>,
        default: Option<PowerLimit>,
    ) -> Option<ExternalLimit> {
        let recorded = self.contents.external.get(gpu)?;
        let is_theirs = |shown: &PowerLimit| default.is_some_and(|default| !shown.same_as(default));
        if recorded.boot_id != self.boot_id && !shown.as_ref().is_some_and(is_theirs) {
            return None;
        }
        Some(ExternalLimit { limit: shown.unwrap_or(recorded.limit.limit), ..recorded.limit })
    }

    /// Records the external limit of a GPU; `None` removes it.
    pub fn set_external_limit(&mut self, gpu: &GpuId, external: Option<ExternalLimit>) -> Result<(), JournalError> {
        if self.contents.external.get(gpu).map(|recorded| recorded.limit) == external {
            return Ok(());
        }
        let boot_id = self.boot_id.clone();
        self.change(|contents| match external {
            Some(limit) => contents.set_external(gpu, limit, &boot_id),
            None => drop(contents.external.remove(gpu)),
        })
    }

    /// Returns true if `limit` is one that wattune may have written to the GPU.
    pub fn is_ours(&self, gpu: &GpuId, limit: PowerLimit) -> bool {
        self.entry(gpu).is_some_and(|e| e.written.iter().any(|w| w.same_as(limit)))
    }

    /// Returns the id of the machine's present boot.
    pub fn boot_id(&self) -> &str {
        &self.boot_id
    }

    /// Returns the path of the journal file.
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// Applies a change to the journal's content: stores the new content, then keeps it in memory.
    fn change(&mut self, change: impl FnOnce(&mut Contents)) -> Result<(), JournalError> {
        self.check_place()?;
        let mut contents = self.contents.clone();
        change(&mut contents);
        if contents == self.contents && self.file.is_durable() {
            return Ok(());
        }
        self.file.store(&mut self.contents, contents, &self.boot_id)
    }

    /// Checks that the state directory is the one that this process has locked. Another one may be a second daemon's,
    /// which does not see the limits of this one.
    ///
    /// # Errors
    /// If it is another one, or its lock file is gone.
    pub fn check_place(&self) -> Result<(), JournalError> {
        if self.lock.as_ref().is_none_or(PlacedFile::is_in_place) {
            return Ok(());
        }
        Err(JournalError::Replaced(self.path().parent().map_or_else(PathBuf::new, Path::to_path_buf)))
    }
}

/// Returns the kernel's id of this boot. If the kernel reports none, returns "unknown", so that all such boots count as
/// the same one.
pub fn boot_id() -> String {
    let read = fs::read_to_string("/proc/sys/kernel/random/boot_id");
    read.map_or_else(|_| file::UNKNOWN_BOOT.into(), |id| id.trim().to_owned())
}

#[cfg(test)]
#[path = "journal_tests.rs"]
mod tests;
