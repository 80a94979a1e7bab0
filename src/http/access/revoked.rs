//! Revoked tokens: a list of their ids beside each key, which is read again when it changes.

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use rustix::fs::OFlags;

use super::stamp::{Stamp, stamp};
use crate::files::{self, Distrust};

/// Mode of a list. The daemon may run as another user than the operator who revokes a token, and ids are no secrets.
const MODE: u32 = 0o644;
/// Largest size of a list in bytes, enough for 100,000 ids; a larger file is a mistake.
const LARGEST: u64 = 4 << 20;
/// Longest id in bytes.
const LONGEST: usize = 128;

/// Reason why a list of revoked tokens cannot be used.
#[expect(missing_docs, reason = "the messages explain the fields")]
#[derive(Debug, thiserror::Error)]
pub enum ListError {
    /// The list cannot be read.
    #[error("cannot read the list of revoked tokens {}: {why}", path.display())]
    Unreadable { path: PathBuf, why: io::Error },
    /// The list cannot be written.
    #[error("cannot write the list of revoked tokens {}: {why}", path.display())]
    Unwritable { path: PathBuf, why: io::Error },
    /// Other users could replace the list.
    #[error(transparent)]
    Unsafe(#[from] Distrust),
    /// Other users can write the list.
    #[error("other users can write {} (mode {mode:04o}), and so make revoked tokens valid again; chmod go-w {}", path.display(), path.display())]
    Open { path: PathBuf, mode: u32 },
    /// The text is no id.
    #[error("{0:?} is no id of a token: give the id that `wattune token inspect` shows, up to 128 visible characters")]
    NoId(String),
}

/// List of the revoked tokens of one key.
#[derive(Debug)]
pub(super) struct RevokedTokens {
    path: PathBuf,
    content: Mutex<Content>,
}

/// Ids in the list, and the state of the file when it was read last. Without a file, nothing is revoked.
#[derive(Debug)]
struct Content {
    stamp: Option<Stamp>,
    /// `None` if the list cannot be used.
    ids: Option<BTreeSet<String>>,
}

impl RevokedTokens {
    /// Reads the list beside a key; a missing list is empty.
    ///
    /// # Errors
    /// If the list cannot be read, or others could change it.
    pub(super) fn beside(key: &Path) -> Result<Self, ListError> {
        // Beside the file itself, however the path names it: a list that is elsewhere would revoke nothing.
        let mut path = files::check_path(key)?.into_os_string();
        path.push(".revoked");
        let path = PathBuf::from(path);
        let stamp = stamp(&path);
        let ids = ids(&read(&path)?).map(str::to_owned).collect();
        Ok(Self { path, content: Mutex::new(Content { stamp, ids: Some(ids) }) })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Checks that a token with this id is accepted. No token is, while the list cannot be used.
    ///
    /// # Errors
    /// The reason why the token is refused.
    pub(super) fn check(&self, id: Option<&str>) -> Result<(), &'static str> {
        let now = stamp(&self.path);
        let mut content = self.content.lock().unwrap_or_else(PoisonError::into_inner);
        if content.stamp != now {
            let text =
                read(&self.path).map_err(|error| tracing::error!("http.token_keys: {error}; no token is accepted"));
            let ids = text.ok().map(|text| ids(&text).map(str::to_owned).collect());
            *content = Content { stamp: now, ids };
        }
        match &content.ids {
            None => Err("the list of revoked tokens cannot be used"),
            Some(revoked) if id.is_some_and(|id| revoked.contains(id)) => Err("it is revoked"),
            Some(_) => Ok(()),
        }
    }

    /// Adds an id to the list, unless it is there.
    ///
    /// # Errors
    /// If the text is no id, or the list cannot be read or written.
    pub(super) fn add(&self, id: &str) -> Result<(), ListError> {
        if id.is_empty() || id.len() > LONGEST || id.contains('#') || !id.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(ListError::NoId(id.chars().take(80).collect()));
        }
        let text = read(&self.path)?;
        if ids(&text).any(|listed| listed == id) {
            return Ok(());
        }
        // The last line of a list that was edited by hand may have no end.
        let end = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
        let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
        let add = || {
            let file = OpenOptions::new().create(true).append(true).mode(MODE).custom_flags(flags).open(&self.path);
            let mut file = file?;
            if file.metadata()?.uid() == files::user() {
                // The umask may have removed the permission to read it.
                file.set_permissions(fs::Permissions::from_mode(MODE))?;
            }
            file.write_all(format!("{end}{id}\n").as_bytes())?;
            file.sync_all()?;
            // A list that is new has to survive a power failure, too.
            self.path.parent().map_or(Ok(()), |directory| fs::File::open(directory)?.sync_all())
        };
        add().map_err(|why| ListError::Unwritable { path: self.path.clone(), why })
    }
}

/// Reads a list; a missing one is empty.
fn read(path: &Path) -> Result<String, ListError> {
    let real = files::check_path(path)?;
    let Some(found) = files::check_file(&real)? else { return Ok(String::new()) };
    let unreadable = |why| ListError::Unreadable { path: path.to_owned(), why };
    if found.mode() & 0o022 != 0 {
        return Err(ListError::Open { path: path.to_owned(), mode: found.mode() & 0o7777 });
    }
    if found.len() > LARGEST {
        return Err(unreadable(io::ErrorKind::FileTooLarge.into()));
    }
    fs::read_to_string(&real).map_err(unreadable)
}

/// Returns the ids in a list: one a line, without comments, which begin with `#`.
fn ids(text: &str) -> impl Iterator<Item = &str> {
    text.lines().map(|line| line.split('#').next().unwrap_or_default().trim()).filter(|id| !id.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("changed");
    }

    #[test]
    fn an_id_in_the_list_is_refused_from_then_on() {
        let dir = tempfile::tempdir().expect("a directory");
        let list = RevokedTokens::beside(&dir.path().join("key")).expect("no list");
        assert_eq!(list.path(), dir.path().join("key.revoked"));
        assert_eq!((list.check(Some("a1")), list.check(None)), (Ok(()), Ok(())));
        list.add("a1").expect("written");
        list.add("a1").expect("there already");
        assert_eq!(fs::read_to_string(list.path()).expect("a list"), "a1\n");
        assert_eq!(fs::metadata(list.path()).expect("a list").mode() & 0o7777, MODE);
        assert_eq!((list.check(Some("a1")), list.check(Some("a"))), (Err("it is revoked"), Ok(())));
        fs::write(list.path(), "# by hand\n b2 # ada's\n\nc3").expect("written");
        assert_eq!((list.check(Some("a1")), list.check(Some("b2"))), (Ok(()), Err("it is revoked")));
        list.add("d4").expect("written");
        assert_eq!((list.check(Some("c3")), list.check(Some("d4"))), (Err("it is revoked"), Err("it is revoked")));
        for wrong in ["", "a b", "a#b", "a\nb", "é", &"x".repeat(129)] {
            assert!(matches!(list.add(wrong), Err(ListError::NoId(_))), "{wrong:?}");
        }
    }

    #[test]
    fn a_list_that_others_can_change_or_that_cannot_be_read_lets_no_token_pass() {
        let dir = tempfile::tempdir().expect("a directory");
        let key = dir.path().join("key");
        let list = RevokedTokens::beside(&key).expect("no list");
        list.add("a1").expect("written");
        set_mode(list.path(), 0o664);
        assert_eq!(list.check(Some("b2")), Err("the list of revoked tokens cannot be used"));
        assert!(RevokedTokens::beside(&key).is_err_and(|error| error.to_string().contains("chmod go-w")));
        assert!(list.add("b2").is_err());
        set_mode(list.path(), 0o644);
        assert_eq!(list.check(Some("b2")), Ok(()));
        fs::write(list.path(), b"\xff\xfe").expect("written");
        assert_eq!(list.check(None), Err("the list of revoked tokens cannot be used"));
    }
}
