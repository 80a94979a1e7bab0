//! The journal on disk: the journal file, and the list of written limits beside it.
//!
//! The journal file is replaced and synced. A change of nothing but written limits goes to the list alone, without a
//! sync: it must survive the end of the process, not the end of the boot, because limits do not survive that either.
//!
//! The journal file names the list's revision, a new one at each replacement. A record with this revision is in the
//! list before the file that names it is in place. So in the boot in which the file was written, the list always has a
//! record for it, unless another program removed, replaced or damaged the list.

use std::fs::{self, File, Metadata};
use std::io::{self, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::entry::Contents;
use super::error::JournalError;
use super::writes::WrittenLimits;
use crate::blocking;
use crate::files;

/// Format versions of the file: 1 without clock locks, which older versions of wattune, without clock support, can read
/// too; 2 with clock locks; 3 with locks of the memory's clocks; 4 with written limits in a list beside the file.
const VERSION: u32 = 1;
const WITH_CLOCKS: u32 = 2;
const WITH_MEMORY_CLOCKS: u32 = 3;
const WITH_LIST: u32 = 4;

/// The maximum size of the journal file in bytes; entries of thousands of GPUs take less.
const MAX_LEN: u64 = 16 << 20;

/// The boot's id if the kernel reports none. The list cannot be used then, because its end cannot be recognised.
pub(crate) const UNKNOWN_BOOT: &str = "unknown";

/// The maximum number of readings of the two files: a running daemon may replace both while another process, such as
/// `wattune doctor`, reads them.
const READINGS: usize = 5;

/// The name of the list's records that belong to a journal file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct ListName {
    /// The revision of the records, unique for each written journal file.
    revision: String,
    /// The boot in which the list is certain to have such a record. After a later start of the machine, the list may be
    /// an older one or lost, because it is not synced.
    boot_id: String,
}

#[derive(Serialize, Deserialize)]
struct Document {
    version: u32,
    #[serde(rename = "written_limits", default, skip_serializing_if = "Option::is_none")]
    list: Option<ListName>,
    #[serde(flatten)]
    contents: Contents,
}

/// Identity of a file's content, as far as its metadata show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileIdentity {
    inode: (u64, u64),
    len: u64,
    modified: (i64, i64),
}

impl FileIdentity {
    fn of(found: &Metadata) -> Self {
        Self { inode: (found.dev(), found.ino()), len: found.len(), modified: (found.mtime(), found.mtime_nsec()) }
    }
}

/// The journal's two files.
#[derive(Debug)]
pub(super) struct JournalFile {
    path: PathBuf,
    list: WrittenLimits,
    /// The name of the records that extend the journal file, and the identity of that file; `None` unless this process
    /// wrote it and the records.
    extended: Option<(ListName, FileIdentity)>,
    /// False if the journal file was replaced and the replacement could not be synced.
    is_durable: bool,
}

impl JournalFile {
    /// Reads the journal at `path`; a missing file counts as an empty journal. Changes nothing.
    ///
    /// # Errors
    /// If the files cannot be read or are damaged, or if the list lacks the records of this boot.
    pub(super) fn open(path: PathBuf, boot_id: &str) -> Result<(Self, Contents), JournalError> {
        let mut list = WrittenLimits::beside(&path);
        for reading in 1.. {
            let Some(Document { list: name, mut contents, .. }) = read(&path)? else { break };
            let Some(name) = name else { return Ok((Self::new(path, list), contents)) };
            let is_this_boot = name.boot_id == boot_id;
            match list.read_into(&name.revision, &mut contents) {
                Ok(true) => return Ok((Self::new(path, list), contents)),
                // No limit of the earlier boot is in force now.
                _ if !is_this_boot => return Ok((Self::new(path, list), contents)),
                Ok(false) if reading < READINGS => {}
                Ok(false) => return Err(JournalError::WithoutList { path, list: list.path().to_owned() }),
                Err(source) => {
                    return Err(JournalError::Io { what: "read", path: list.path().to_owned(), source });
                }
            }
        }
        Ok((Self::new(path, list), Contents::default()))
    }

    fn new(path: PathBuf, list: WrittenLimits) -> Self {
        Self { path, list, extended: None, is_durable: true }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns false if the content is in the journal file, but may not survive a power failure.
    pub(super) fn is_durable(&self) -> bool {
        self.is_durable
    }

    /// Stores `next` in place of `current`, in `current` too. After an error, `current` is what the files have.
    pub(super) fn store(&mut self, current: &mut Contents, next: Contents, boot_id: &str) -> Result<(), JournalError> {
        if self.is_extensible(current, &next, boot_id) && self.extend(&next) {
            *current = next;
            return Ok(());
        }
        let stored = blocking::in_place(|| self.replace(current, next, boot_id));
        stored.map_err(|source| JournalError::Io { what: "write", path: self.path.clone(), source })
    }

    /// Returns whether `next` can be stored in the list alone: both files are as this process wrote them, and nothing
    /// else has changed.
    fn is_extensible(&self, current: &Contents, next: &Contents, boot_id: &str) -> bool {
        let Some((name, identity)) = &self.extended else { return false };
        let is_in_place = || fs::symlink_metadata(&self.path).is_ok_and(|found| FileIdentity::of(&found) == *identity);
        self.is_durable
            && name.boot_id == boot_id
            && current.differs_only_in_writes(next)
            && is_in_place()
            && self.list.is_in_place()
    }

    fn extend(&mut self, next: &Contents) -> bool {
        let Some((name, _)) = &self.extended else { return false };
        match self.list.write(&name.revision, next) {
            Ok(record) => {
                self.list.keep(record);
                true
            }
            Err(error) => {
                tracing::debug!("cannot write {}: {error}; writing the journal instead", self.list.path().display());
                false
            }
        }
    }

    /// Replaces the journal file, and syncs it to disk.
    fn replace(&mut self, current: &mut Contents, next: Contents, boot_id: &str) -> io::Result<()> {
        let has_written = next.entries.values().any(|entry| !entry.written.is_empty());
        let revision = (has_written && boot_id != UNKNOWN_BOOT).then(|| uuid::Uuid::new_v4().to_string());
        // Without the list, the journal file does not name one, and each change replaces the file.
        let record = revision.and_then(|revision| {
            match self.list.ensure_in_place().and_then(|()| self.list.write(&revision, &next)) {
                Ok(record) => Some((record, ListName { revision, boot_id: boot_id.to_owned() })),
                Err(error) => {
                    tracing::debug!("cannot write {}: {error}", self.list.path().display());
                    None
                }
            }
        });
        let (record, name) = record.unzip();
        let document = Document { version: version_of(&next, name.as_ref()), list: name, contents: next };
        let next_path = self.path.with_extension("json.new");
        // Removes what an interrupted write left at this path.
        match fs::remove_file(&next_path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        // Serialised first, because the serializer would make thousands of small writes to the file.
        let mut text = serde_json::to_vec_pretty(&document)?;
        text.push(b'\n');
        let mut file = files::create(&next_path)?;
        file.write_all(&text)?;
        file.sync_all()?;
        let identity = FileIdentity::of(&file.metadata()?);
        fs::rename(&next_path, &self.path)?;
        // From here on, the new file counts, whether or not it is durable.
        if let Some(record) = record {
            self.list.keep(record);
        }
        (self.extended, *current) = (document.list.map(|name| (name, identity)), document.contents);
        self.is_durable = false;
        // The rename itself must survive a power failure too.
        self.path.parent().map_or(Ok(()), |dir| File::open(dir)?.sync_all())?;
        self.is_durable = true;
        Ok(())
    }
}

fn version_of(contents: &Contents, list: Option<&ListName>) -> u32 {
    let any = |has: fn(&super::Entry) -> bool| contents.entries.values().any(has);
    match () {
        () if list.is_some() => WITH_LIST,
        () if any(|e| e.memory_locked.is_some()) => WITH_MEMORY_CLOCKS,
        () if any(|e| e.locked.is_some()) => WITH_CLOCKS,
        () => VERSION,
    }
}

/// Reads the journal file; `None` if there is none.
fn read(path: &Path) -> Result<Option<Document>, JournalError> {
    let damaged = |source| JournalError::Damaged { path: path.to_owned(), source };
    let bytes = match files::regular::read(path, MAX_LEN) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(JournalError::Io { what: "read", path: path.to_owned(), source }),
    };
    let document: Document = serde_json::from_slice(&bytes).map_err(damaged)?;
    match document.version {
        VERSION..=WITH_LIST => Ok(Some(document)),
        version => Err(JournalError::Newer { path: path.to_owned(), version }),
    }
}
