//! The errors of the journal.

use std::io;
use std::path::PathBuf;

/// The reason why the journal cannot be used.
#[expect(missing_docs, reason = "the messages explain the fields")]
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The file cannot be read or written.
    #[error("cannot {what} the restore journal {}", path.display())]
    Io {
        /// "read" or "write".
        what: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// The file's content is not a journal.
    #[error(
        "the restore journal {} is damaged; set the limits it names by hand (nvidia-smi -pl), unlock the clocks \
         (nvidia-smi -rgc), and move the file away",
        path.display()
    )]
    Damaged {
        path: PathBuf,
        #[source]
        source: serde_json::Error,
    },
    /// The list of written limits was removed, replaced or damaged in this boot, so wattune's own limits cannot be
    /// distinguished from those of others.
    #[error(
        "the restore journal {} needs the list of written limits {}, which is missing, damaged or another journal's; set \
         the limits that the journal names by hand (nvidia-smi -pl), unlock the clocks (nvidia-smi -rgc), and move both \
         files away",
        path.display(), list.display()
    )]
    WithoutList { path: PathBuf, list: PathBuf },
    /// The state directory is not the one that this process has locked, so another process may own it.
    #[error(
        "the lock file of the state directory {} is gone or is another one, so nothing can be journalled; restart the \
         daemon to begin with the directory that is there",
        .0.display()
    )]
    Replaced(PathBuf),
    /// A newer wattune wrote the file.
    #[error(
        "the restore journal {} is of format {version}, which this wattune does not know: restore the GPUs with the \
         newer one (`wattune restore`)",
        path.display()
    )]
    Newer { path: PathBuf, version: u32 },
}
