//! Lock on a job's key, so that two processes of this machine do not run the same job while no daemon answers.
//!
//! The daemon has separate keys for each user and token, so the lock is by user, token and daemon. Processes in
//! different namespaces of process ids have separate locks: they know each other from the daemon only.

use std::ffi::OsString;
use std::fs::{self, File, TryLockError};
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::environment::pid_namespace;
use crate::cli::ask::{DaemonAddress, TOKEN, TOKEN_FILE, USUAL_SOCKET};
use crate::files;
use wattune_core::ledger::chain::Digest;

/// Directory of the locks: the same for all processes of a user, whatever their environment.
const PLACE: &str = "/tmp";

/// Number of attempts at a lock whose file disappears at each.
const ATTEMPTS: usize = 16;

/// Lock on a key; dropping it frees the key.
#[derive(Debug)]
pub(super) struct KeyLock {
    path: PathBuf,
    file: File,
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
        let tokens = [TOKEN, TOKEN_FILE].map(|name| std::env::var_os(name).unwrap_or_default());
        Self::take_in(Path::new(PLACE), key, addresses, &tokens)
    }

    fn take_in(
        place: &Path,
        key: &str,
        addresses: &[DaemonAddress],
        tokens: &[OsString],
    ) -> Result<Self, KeyLockError> {
        // The usual socket is an address only while a daemon has it open.
        let is_usual = |address: &&DaemonAddress| matches!(address, DaemonAddress::Socket(path) if path == Path::new(USUAL_SOCKET));
        let addresses = addresses.iter().filter(|address| !is_usual(address)).map(|address| address.to_string().into());
        let namespace = pid_namespace().unwrap_or_default().to_string().into();
        let parts = addresses.chain(tokens.iter().cloned()).chain([namespace, OsString::from(key)]);
        let digest = Digest::of(parts.flat_map(|part| [part.as_bytes(), &[0]].concat()).collect::<Vec<u8>>());
        let path = place.join(format!("wattune-key-{}-{:.24}.lock", files::user(), digest.to_string()));
        for _ in 0..ATTEMPTS {
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
            if is_at(&path, &file) {
                // The number is for the message only.
                let _ = file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id()));
                return Ok(Self { path, file });
            }
        }
        Err(io::Error::other(format!("{} disappears again and again", path.display())).into())
    }
}

/// Returns true if the file has this path.
fn is_at(path: &Path, file: &File) -> bool {
    let inode = |found: fs::Metadata| (found.dev(), found.ino());
    fs::symlink_metadata(path).is_ok_and(|found| file.metadata().is_ok_and(|own| inode(own) == inode(found)))
}

impl Drop for KeyLock {
    fn drop(&mut self) {
        // The lock ends when the file is closed, after this. If another program removed the file, another process may
        // have a lock at its path.
        if is_at(&self.path, &self.file) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_has_one_process_until_it_is_freed() {
        let dir = tempfile::tempdir().expect("a directory");
        let at = |port| DaemonAddress::Tcp(([127, 0, 0, 1], port).into());
        let take = |key: &str, port| KeyLock::take_in(dir.path(), key, &[at(port)], &[]);
        let first = take("nightly", 1).expect("free");
        let taken = take("nightly", 1).expect_err("taken");
        assert!(matches!(taken, KeyLockError::Taken(Some(id)) if id == std::process::id()), "{taken:?}");
        let usual = DaemonAddress::Socket(USUAL_SOCKET.into());
        let with_socket = KeyLock::take_in(dir.path(), "nightly", &[usual, at(1)], &[]);
        assert!(matches!(with_socket, Err(KeyLockError::Taken(_))), "the usual socket may come and go");
        let others = [
            take("weekly", 1).expect("another key"),
            take("nightly", 2).expect("another daemon's key"),
            KeyLock::take_in(dir.path(), "nightly", &[at(1)], &["token".into()]).expect("another token's key"),
        ];
        drop(first);
        drop(take("nightly", 1).expect("free again"));
        drop(others);
        assert_eq!(fs::read_dir(dir.path()).expect("readable").count(), 0);
    }

    #[test]
    fn a_lock_whose_file_was_removed_frees_no_other() {
        let dir = tempfile::tempdir().expect("a directory");
        let take = || KeyLock::take_in(dir.path(), "nightly", &[], &[]);
        let first = take().expect("free");
        fs::remove_file(&first.path).expect("removed");
        let second = take().expect("free for all that is known");
        drop(first);
        assert!(matches!(take(), Err(KeyLockError::Taken(_))));
        drop(second);
    }

    #[test]
    fn a_foreign_file_is_no_lock() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("somewhere");
        let taken = KeyLock::take_in(dir.path(), "nightly", &[], &[]).expect("free");
        let name = taken.path.clone();
        drop(taken);
        std::os::unix::fs::symlink(&path, &name).expect("linked");
        assert!(matches!(KeyLock::take_in(dir.path(), "nightly", &[], &[]), Err(KeyLockError::Io(_))));
        assert!(!path.exists());
    }
}
