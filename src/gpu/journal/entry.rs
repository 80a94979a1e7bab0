//! The records of the journal, as stored on disk.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use wattune_core::domain::{ClockLimit, GpuId, PowerLimit};
use wattune_core::units::Millijoules;

/// The original settings of a GPU, and wattune's writes since.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// The original limit: the power limit in force before wattune's first write.
    #[serde(rename = "found_mw")]
    pub original: PowerLimit,
    /// The original persistence mode, if wattune changed it.
    #[serde(rename = "found_persistence")]
    pub original_persistence: Option<bool>,
    /// The limits that wattune may have left on the GPU: the last one written, and the one before, in case the process
    /// died between the journal entry and the write. Once the GPU has shown the last one: as shown, and as written.
    #[serde(rename = "written_mw")]
    pub written: Vec<PowerLimit>,
    /// The clock to which wattune locked the GPU or was about to lock it; the clocks were free before. `None` without a
    /// lock.
    #[serde(rename = "locked_mhz", default, skip_serializing_if = "Option::is_none")]
    pub locked: Option<ClockLimit>,
    /// The highest clock of a lock of the memory's clocks that a client set or was about to set; `None` without a lock.
    #[serde(rename = "memory_locked_mhz", default, skip_serializing_if = "Option::is_none")]
    pub memory_locked: Option<ClockLimit>,
    /// The time at which the original limit was read.
    #[serde(rename = "found_at")]
    pub observed_at: DateTime<Utc>,
    /// The id of the machine's boot in which wattune last wrote to the GPU.
    pub boot_id: String,
    /// The energy counter at wattune's last write, if known. A smaller value later means that the driver was reloaded.
    #[serde(rename = "counter_mj")]
    pub counter: Option<Millijoules>,
}

impl Entry {
    /// Returns true if wattune locked the clocks in the present boot. A reboot removes locks, so that a lock found in a
    /// later boot is an external writer's.
    pub fn holds_lock(&self, boot_id: &str) -> bool {
        self.locked.is_some() && self.boot_id == boot_id
    }

    /// Returns true if a client locked the memory's clocks in the present boot.
    pub fn holds_memory_lock(&self, boot_id: &str) -> bool {
        self.memory_locked.is_some() && self.boot_id == boot_id
    }

    /// Returns true if the entry records a lock of any clocks.
    pub(super) fn has_lock(&self) -> bool {
        self.locked.is_some() || self.memory_locked.is_some()
    }

    /// Returns true if nothing is left to restore.
    pub(super) fn is_done(&self) -> bool {
        !self.has_lock() && self.written.is_empty() && self.original_persistence.is_none()
    }

    /// Returns true if the two entries differ in wattune's writes and the energy counter at most.
    fn differs_only_in_writes(&self, other: &Self) -> bool {
        let Self {
            original,
            original_persistence,
            written: _,
            locked,
            memory_locked,
            observed_at,
            boot_id,
            counter: _,
        } = self;
        *original == other.original
            && *original_persistence == other.original_persistence
            && *locked == other.locked
            && *memory_locked == other.memory_locked
            && *observed_at == other.observed_at
            && *boot_id == other.boot_id
    }

    /// Sets the entry's boot to the present one, `boot_id`, and drops clock locks of an earlier boot.
    pub(super) fn move_to_boot(&mut self, boot_id: &str) {
        if self.boot_id != boot_id {
            (self.locked, self.memory_locked) = (None, None);
            boot_id.clone_into(&mut self.boot_id);
        }
    }
}

/// A limit that an external writer set on a job's GPU, which wattune leaves alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExternalLimit {
    /// The power limit that the external writer set.
    #[serde(rename = "limit_mw")]
    pub limit: PowerLimit,
    /// The time at which wattune noticed the external limit.
    pub since: DateTime<Utc>,
}

/// An external limit and the boot in which it was recorded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RecordedExternal {
    #[serde(flatten)]
    pub(super) limit: ExternalLimit,
    pub(super) boot_id: String,
}

/// The original limit of a GPU: its limit when a job took control of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Original {
    #[serde(rename = "limit_mw")]
    pub(super) limit: PowerLimit,
    #[serde(rename = "found_at")]
    pub(super) observed_at: DateTime<Utc>,
    /// The id of the latest boot in which the GPU had this limit.
    pub(super) boot_id: String,
    #[serde(rename = "counter_mj")]
    pub(super) counter: Option<Millijoules>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Contents {
    #[serde(rename = "boards")]
    pub(super) entries: BTreeMap<GpuId, Entry>,
    #[serde(rename = "left_to_others", default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) external: BTreeMap<GpuId, RecordedExternal>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) originals: BTreeMap<GpuId, Original>,
}

impl Contents {
    /// Returns true if the other content has the same GPUs, and differs in wattune's writes to them and their energy
    /// counters at most.
    pub(super) fn differs_only_in_writes(&self, other: &Self) -> bool {
        let Self { entries, external, originals } = self;
        *external == other.external
            && *originals == other.originals
            && entries.len() == other.entries.len()
            && entries.iter().zip(&other.entries).all(|(a, b)| a.0 == b.0 && a.1.differs_only_in_writes(b.1))
    }

    /// Removes the limits recorded for a GPU on which an external writer has set the limit `theirs`. A clock lock and
    /// the original persistence mode stay recorded, together with `theirs` as the original limit.
    pub(super) fn yield_limit(&mut self, gpu: &GpuId, theirs: PowerLimit) {
        self.originals.remove(gpu);
        let Some(entry) = self.entries.get_mut(gpu) else { return };
        entry.original = theirs;
        entry.written.clear();
        if entry.is_done() {
            self.entries.remove(gpu);
        }
    }

    /// Removes the lock that `take` takes out of a GPU's entry, and the entry if nothing else is left to restore.
    pub(super) fn remove_lock(&mut self, gpu: &GpuId, take: fn(&mut Entry) -> Option<ClockLimit>) {
        if self.entries.get_mut(gpu).is_some_and(|entry| take(entry).is_some() && entry.is_done()) {
            self.entries.remove(gpu);
        }
    }

    /// Removes everything that is recorded for a GPU.
    pub(super) fn remove(&mut self, gpu: &GpuId) {
        let Self { entries, external, originals } = self;
        entries.remove(gpu);
        external.remove(gpu);
        originals.remove(gpu);
    }

    pub(super) fn set_external(&mut self, gpu: &GpuId, limit: ExternalLimit, boot_id: &str) {
        self.external.insert(gpu.clone(), RecordedExternal { limit, boot_id: boot_id.to_owned() });
    }
}
