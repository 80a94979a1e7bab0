//! Keys that sign and verify access tokens: the raw bytes of files that only the daemon's user can read.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use super::revoked::{ListError, RevokedTokens};
use super::stamp::{Stamp, stamp};
use crate::files::{self, Distrust};

/// Smallest size of a key in bytes: that of the digest (RFC 7518 §3.2).
const SMALLEST: usize = 32;
/// Largest size of a key file in bytes; a larger file is a mistake.
const LARGEST: u64 = 64 << 10;

/// Reason why a key cannot be used.
#[expect(missing_docs, reason = "the messages explain the fields")]
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The file cannot be read.
    #[error("{}: cannot read it: {why}; `openssl rand -base64 48 > FILE` makes a key", path.display())]
    Unreadable { path: PathBuf, why: io::Error },
    /// Other users could replace the file.
    #[error(transparent)]
    Unsafe(#[from] Distrust),
    /// The path names no regular file.
    #[error("{0:?} is not a regular file; give the path of a key file")]
    NoFile(PathBuf),
    /// Other users can read the file.
    #[error("{} can be read by other users (mode {mode:04o}), who could sign tokens; chmod 600 {}", path.display(), path.display())]
    Open { path: PathBuf, mode: u32 },
    /// The key is too short or too long.
    #[error(
        "{} has {bytes} bytes; a key has from 32 to 65536: `openssl rand -base64 48 > {}` makes one", path.display(),
        path.display()
    )]
    Size { path: PathBuf, bytes: u64 },
    /// The list of revoked tokens beside the key cannot be used.
    #[error(transparent)]
    Revoked(#[from] ListError),
}

/// Keys of tokens: the first one signs, all of them verify. A file that changes is read again, and a key without its file
/// is not accepted any more.
#[derive(Debug)]
pub struct TokenKeys(Vec<KeyFile>);

/// File of a key, with the list of revoked tokens beside it.
#[derive(Debug)]
pub(super) struct KeyFile {
    pub(super) path: PathBuf,
    content: Mutex<KeyContent>,
    pub(super) revoked: RevokedTokens,
}

/// Key in a file, and the state of the file when it was read last.
#[derive(Default)]
struct KeyContent {
    stamp: Option<Stamp>,
    /// `None` if the file cannot be used.
    secret: Option<Arc<[u8]>>,
}

impl std::fmt::Debug for KeyContent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The key itself must not reach a log.
        f.debug_struct("KeyContent").field("is_usable", &self.secret.is_some()).finish_non_exhaustive()
    }
}

impl KeyError {
    fn is_missing_file(&self) -> bool {
        matches!(self, Self::Unreadable { why, .. } if why.kind() == io::ErrorKind::NotFound)
    }
}

impl TokenKeys {
    /// Reads the keys. Only the file of the first one, which signs, must exist: whoever replaces a key deletes the old
    /// one's file, and may not have removed its path from the settings yet.
    ///
    /// # Errors
    /// The first file that is not a key, or that others could read or replace.
    pub fn load(paths: &[PathBuf]) -> Result<Self, KeyError> {
        let load = |(place, path): (usize, &PathBuf)| -> Result<KeyFile, KeyError> {
            let stamp = stamp(path);
            let secret = match read(path) {
                Ok(secret) => Some(secret),
                Err(error) if place > 0 && error.is_missing_file() => {
                    tracing::warn!("{}", describe_missing(path));
                    None
                }
                Err(error) => return Err(error),
            };
            let content = Mutex::new(KeyContent { stamp, secret });
            Ok(KeyFile { path: path.clone(), content, revoked: RevokedTokens::beside(path)? })
        };
        paths.iter().enumerate().map(load).collect::<Result<_, _>>().map(Self)
    }

    /// Describes the keys without a file, whose paths are still in the settings, in one sentence each.
    pub fn describe_missing(&self) -> impl Iterator<Item = String> {
        self.0.iter().filter(|file| !file.path.exists()).map(|file| describe_missing(&file.path))
    }

    /// Returns the usable keys with their files.
    pub(super) fn secrets(&self) -> impl Iterator<Item = (&KeyFile, Arc<[u8]>)> {
        self.0.iter().filter_map(|file| Some((file, file.secret()?)))
    }

    /// Revokes the token with this id, from now on: adds the id to the lists beside the keys, and returns their paths.
    ///
    /// # Errors
    /// If the text is no id, or a list cannot be read or written.
    pub fn revoke(&self, id: &str) -> Result<Vec<&Path>, ListError> {
        self.0.iter().map(|file| file.revoked.add(id).map(|()| file.revoked.path())).collect()
    }
}

impl KeyFile {
    fn secret(&self) -> Option<Arc<[u8]>> {
        let now = stamp(&self.path);
        let mut content = self.content.lock().unwrap_or_else(PoisonError::into_inner);
        if content.stamp != now {
            let secret =
                read(&self.path).map_err(|error| tracing::warn!("http.token_keys: {error}; it is not accepted"));
            *content = KeyContent { stamp: now, secret: secret.ok() };
        }
        content.secret.clone()
    }
}

fn describe_missing(path: &Path) -> String {
    format!("http.token_keys: {} is missing, so its tokens are refused; remove the path", path.display())
}

fn read(path: &Path) -> Result<Arc<[u8]>, KeyError> {
    let real = files::check_path(path)?;
    let unreadable = |why| KeyError::Unreadable { path: path.to_owned(), why };
    let found = files::check_file(&real)?.ok_or_else(|| unreadable(io::ErrorKind::NotFound.into()))?;
    if !found.is_file() {
        return Err(KeyError::NoFile(path.to_owned()));
    }
    if files::is_open(&found) {
        return Err(KeyError::Open { path: path.to_owned(), mode: found.mode() & 0o7777 });
    }
    let size = |bytes| KeyError::Size { path: path.to_owned(), bytes };
    if found.len() > LARGEST {
        return Err(size(found.len()));
    }
    let secret = fs::read(&real).map_err(unreadable)?;
    if secret.len() < SMALLEST {
        return Err(size(secret.len() as u64));
    }
    Ok(secret.into())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn write(path: &Path, bytes: &[u8], mode: u32) {
        fs::write(path, bytes).expect("written");
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("changed");
    }

    #[test]
    fn keys_that_are_short_or_open_are_refused() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("key");
        let table: [(&[u8], u32, &str); 4] = [
            (b"", 0o600, "has 0 bytes; a key has from 32"),
            (&[7; 31], 0o600, "has 31 bytes"),
            (&[7; 32], 0o640, "can be read by other users (mode 0640)"),
            (&[7; 32], 0o604, "chmod 600"),
        ];
        for (bytes, mode, expected) in table {
            write(&path, bytes, mode);
            let error = TokenKeys::load(std::slice::from_ref(&path)).expect_err(expected).to_string();
            assert!(error.contains(expected), "{error}");
        }
        let missing = TokenKeys::load(&[dir.path().join("missing")]).expect_err("missing").to_string();
        assert!(missing.contains("cannot read it") && missing.contains("openssl rand"), "{missing}");
        let folder = TokenKeys::load(&[dir.path().to_owned()]).expect_err("a folder").to_string();
        assert!(folder.contains("is not a regular file"), "{folder}");
    }

    #[test]
    fn a_key_is_read_again_when_its_file_changes_and_never_shown() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("key");
        write(&path, b"an old key of forty bytes, and a newline\n", 0o600);
        let keys = TokenKeys::load(std::slice::from_ref(&path)).expect("usable");
        let secret = |keys: &TokenKeys| keys.secrets().next().map(|(_, secret)| secret.to_vec());
        assert_eq!(secret(&keys).as_deref(), Some(&b"an old key of forty bytes, and a newline\n"[..]));
        assert!(!format!("{keys:?}").contains("97, 110"), "{keys:?}");
        let next = dir.path().join("next");
        write(&next, &[9; 40], 0o600);
        fs::rename(&next, &path).expect("replaced");
        assert_eq!(secret(&keys), Some(vec![9; 40]));
        write(&path, &[9; 40], 0o644);
        assert_eq!(secret(&keys), None, "others could read it");
        write(&path, &[9; 40], 0o600);
        assert_eq!(secret(&keys), Some(vec![9; 40]));
        fs::remove_file(&path).expect("removed");
        assert_eq!(secret(&keys), None);
    }
}
