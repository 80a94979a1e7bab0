//! The list of written limits beside the journal, which is written without a sync.
//!
//! The file has two places of fixed size, which records take in turns. A record is written in the place that the
//! journal does not need at that time. So wherever a kill or a full disk cuts off a write, the other place has the
//! record from before. A record names its revision and has a checksum: one that is cut off, or belongs to another
//! journal file, is not used.

use std::collections::BTreeMap;
use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::entry::Contents;
use crate::files;
use wattune_core::domain::{GpuId, PowerLimit};
use wattune_core::ledger::chain::Digest;
use wattune_core::units::Millijoules;

/// The size of one of the two places in bytes: records of a hundred GPUs.
const PLACE: usize = 16 << 10;
/// The length of a checksum in hexadecimal digits.
const CHECKSUM: usize = 64;

/// Limits that wattune may have left on a GPU, and the energy counter at its last write.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Writes {
    #[serde(rename = "written_mw")]
    written: Vec<PowerLimit>,
    #[serde(rename = "counter_mj")]
    counter: Option<Millijoules>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Record {
    /// The revision of the journal file that this record extends.
    revision: String,
    /// The number of the record in its revision: the highest one counts.
    sequence: u64,
    /// The writes of every GPU that the journal has an entry for.
    #[serde(rename = "boards")]
    gpus: BTreeMap<GpuId, Writes>,
}

/// The place and number of a record, and its revision.
#[derive(Clone, Debug)]
pub(super) struct Written {
    place: u64,
    sequence: u64,
    revision: String,
}

/// The file of written limits.
#[derive(Debug)]
pub(super) struct WrittenLimits {
    path: PathBuf,
    /// The file and its inode, once this process has written to it.
    open: Option<(File, (u64, u64))>,
    /// The record that the journal file needs; `None` if it needs none.
    needed: Option<Written>,
}

impl WrittenLimits {
    /// Returns the list that belongs to a journal file.
    pub(super) fn beside(journal: &Path) -> Self {
        Self { path: journal.with_extension("json.writes"), open: None, needed: None }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Takes the latest record of this revision into the journal's content. Returns false if there is none, or if the
    /// record has other GPUs than the journal.
    pub(super) fn read_into(&mut self, revision: &str, contents: &mut Contents) -> io::Result<bool> {
        let bytes = match files::regular::read(&self.path, 2 * PLACE as u64) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            read => read?,
        };
        let records = bytes.chunks(PLACE).zip(0..).filter_map(|(place, number)| Some((parse(place)?, number)));
        let latest =
            records.filter(|(record, _)| record.revision == revision).max_by_key(|(record, _)| record.sequence);
        let Some((record, place)) = latest else { return Ok(false) };
        if !record.gpus.keys().eq(contents.entries.keys()) {
            return Ok(false);
        }
        let Record { revision, sequence, gpus } = record;
        for (entry, writes) in contents.entries.values_mut().zip(gpus.into_values()) {
            (entry.written, entry.counter) = (writes.written, writes.counter);
        }
        self.needed = Some(Written { place, sequence, revision });
        Ok(true)
    }

    /// Returns whether the path still has the file that this process wrote to.
    pub(super) fn is_in_place(&self) -> bool {
        let Some((_, inode)) = &self.open else { return false };
        fs::symlink_metadata(&self.path).is_ok_and(|found| inode_of(&found) == *inode)
    }

    /// Opens the file, or makes a new one, unless the path still has the file that this process wrote to.
    ///
    /// # Errors
    /// If the file cannot be opened.
    pub(super) fn ensure_in_place(&mut self) -> io::Result<()> {
        if !self.is_in_place() {
            let file = files::open(&self.path)?;
            let inode = inode_of(&file.metadata()?);
            self.open = Some((file, inode));
        }
        Ok(())
    }

    /// Writes the content's written limits as a record of this revision, and leaves the record that the journal file
    /// needs as it is. The new one is needed only after [`Self::keep`].
    ///
    /// # Errors
    /// If the file was never opened ([`Self::ensure_in_place`]) or cannot be written, or the record is too long for it.
    pub(super) fn write(&mut self, revision: &str, contents: &Contents) -> io::Result<Written> {
        let needed = self.needed.as_ref();
        let sequence = needed.filter(|needed| needed.revision == revision).map_or(0, |needed| needed.sequence + 1);
        let place = needed.map_or(0, |needed| 1 - needed.place);
        let writes = |entry: &super::Entry| Writes { written: entry.written.clone(), counter: entry.counter };
        let gpus = contents.entries.iter().map(|(gpu, entry)| (gpu.clone(), writes(entry))).collect();
        let line = render(&Record { revision: revision.to_owned(), sequence, gpus })?;
        let Some((file, _)) = &self.open else { return Err(io::ErrorKind::NotFound.into()) };
        file.write_all_at(&line, place * PLACE as u64)?;
        Ok(Written { place, sequence, revision: revision.to_owned() })
    }

    /// Notes that the journal file needs this record from now on, and none before.
    pub(super) fn keep(&mut self, record: Written) {
        self.needed = Some(record);
    }
}

fn inode_of(found: &Metadata) -> (u64, u64) {
    (found.dev(), found.ino())
}

fn checksum(json: &[u8]) -> String {
    Digest::of(json).to_string()
}

/// Returns the line of a record: the checksum of its JSON, and the JSON.
fn render(record: &Record) -> io::Result<Vec<u8>> {
    let json = serde_json::to_vec(record)?;
    let line = [checksum(&json).as_bytes(), b" ", &json, b"\n"].concat();
    match line.len() <= PLACE {
        true => Ok(line),
        false => Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("a record is longer than {PLACE} bytes"))),
    }
}

/// Returns the record in a place; `None` if there is none, or it was cut off.
fn parse(place: &[u8]) -> Option<Record> {
    let line = place.split(|byte| *byte == b'\n').next()?;
    let (sum, json) = (line.get(..CHECKSUM)?, line.get(CHECKSUM + 1..)?);
    (checksum(json).as_bytes() == sum).then(|| serde_json::from_slice(json).ok())?
}

#[cfg(test)]
#[path = "writes_tests.rs"]
mod tests;
