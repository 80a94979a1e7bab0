//! Lock on a job's key, so that two processes of this machine do not run the same job while no daemon answers.

use std::fs::{self, File, TryLockError};
use std::io::{self, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::cli::ask::DaemonAddress;
use crate::files;

/// Directory of the locks: the same for all processes of a user, whatever their environment.
const PLACE: &str = "/tmp";

/// Lock on a key; dropping it frees the key.
#[derive(Debug)]
pub(super) struct KeyLock {
    path: PathBuf,
    _file: File,
}

/// Why a key cannot be locked.
#[derive(Debug, thiserror::Error)]
pub(super) enum KeyLockError {
    /// Another process of this machine has the key; contains its process id, if known.
    #[error("the key is in use: its process runs on this machine{}", .0.map_or_else(String::new, |id| format!(" (process {id})")))]
    Taken(Option<u32>),
    /// The file cannot be locked.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl KeyLock {
    /// Locks a key of this user among the jobs of the daemon at these addresses.
    pub(super) fn take(key: &str, addresses: &[DaemonAddress]) -> Result<Self, KeyLockError> {
        Self::take_in(Path::new(PLACE), key, addresses)
    }

    fn take_in(place: &Path, key: &str, addresses: &[DaemonAddress]) -> Result<Self, KeyLockError> {
        let mut digest = Sha256::new();
        for part in addresses.iter().map(ToString::to_string).chain([key.to_owned()]) {
            digest.update(part);
            digest.update([0]);
        }
        let hash: String = digest.finalize()[..12].iter().map(|byte| format!("{byte:02x}")).collect();
        let path = place.join(format!("wattune-key-{}-{hash}.lock", files::user()));
        loop {
            let mut file = files::open(&path)?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => {
                    let text = fs::read_to_string(&path).unwrap_or_default();
                    return Err(KeyLockError::Taken(text.trim().parse().ok()));
                }
                Err(TryLockError::Error(error)) => return Err(error.into()),
            }
            // The file that was opened may have been removed by the process that had the lock.
            let is_current = fs::symlink_metadata(&path).is_ok_and(|found| {
                file.metadata().is_ok_and(|own| (own.dev(), own.ino()) == (found.dev(), found.ino()))
            });
            if is_current {
                file.set_len(0)?;
                writeln!(file, "{}", std::process::id())?;
                return Ok(Self { path, _file: file });
            }
        }
    }
}

impl Drop for KeyLock {
    fn drop(&mut self) {
        // The lock ends when the file is closed, after this.
        let _ = fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_has_one_process_until_it_is_freed() {
        let dir = tempfile::tempdir().expect("a directory");
        let at = |port| DaemonAddress::Tcp(([127, 0, 0, 1], port).into());
        let take = |key: &str, port| KeyLock::take_in(dir.path(), key, &[at(port)]);
        let first = take("nightly", 1).expect("free");
        let taken = take("nightly", 1).expect_err("taken");
        assert!(matches!(taken, KeyLockError::Taken(Some(id)) if id == std::process::id()), "{taken:?}");
        let others = [take("weekly", 1).expect("another key"), take("nightly", 2).expect("another daemon's key")];
        drop(first);
        drop(take("nightly", 1).expect("free again"));
        drop(others);
        assert_eq!(fs::read_dir(dir.path()).expect("readable").count(), 0);
    }

    #[test]
    fn a_foreign_file_is_no_lock() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("somewhere");
        drop(KeyLock::take_in(dir.path(), "nightly", &[]).expect("free"));
        let taken = KeyLock::take_in(dir.path(), "nightly", &[]).expect("free");
        let name = taken.path.clone();
        drop(taken);
        std::os::unix::fs::symlink(&path, &name).expect("linked");
        assert!(matches!(KeyLock::take_in(dir.path(), "nightly", &[]), Err(KeyLockError::Io(_))));
        assert!(!path.exists());
    }
}
