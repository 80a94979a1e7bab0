//! Files that only the daemon's user can read and write, in places that only that user and root can change.
//!
//! A path is checked from the root on, because a user who can replace one of its directories can redirect the daemon to
//! another file. The last part of a path is opened without following a link.

pub mod regular;

use std::ffi::OsString;
use std::fs::{self, File, Metadata, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};

use rustix::fs::OFlags;
use rustix::process::{getegid, geteuid, getgroups};

/// The mode of every file that the daemon keeps.
pub const FILE_MODE: u32 = 0o600;
/// The mode of directories that the daemon creates: the group may list them, but not read the files in them.
pub const DIRECTORY_MODE: u32 = 0o750;

/// The name of the file in a state directory whose lock makes a process the owner of the directory.
pub const LOCK: &str = "lock";

const STICKY: u32 = 0o1000;
/// The maximum number of symbolic links followed on a path; more are taken for a loop.
const MAX_LINKS: usize = 40;

/// The reason why a file or directory is not safe to use.
#[expect(missing_docs, reason = "the messages explain the fields")]
#[derive(Debug, thiserror::Error)]
pub enum Distrust {
    /// The file or directory belongs to another user, who could replace its content.
    #[error(
        "{what} {} belongs to user {owner}, who could replace its content; give it to the daemon's user (chown \
         {us} {}), or choose another place", path.display(), path.display()
    )]
    Owner {
        /// "the directory" or "the file".
        what: &'static str,
        path: PathBuf,
        owner: u32,
        us: u32,
    },
    /// A directory or a link on the way to the path belongs to another user, who keeps it: it may be that user's home.
    #[error(
        "{what} {} belongs to user {owner}, who could replace what is in it; choose another place, or run this as user \
         {owner}", path.display()
    )]
    OnTheWay {
        /// "the directory" or "the symbolic link".
        what: &'static str,
        path: PathBuf,
        owner: u32,
    },
    /// Other users can replace the directory's content.
    #[error(
        "others may write in the directory {} (mode {mode:04o}) and replace its files; take that right from them \
         (chmod go-w {}), or choose another place", path.display(), path.display()
    )]
    Writable { path: PathBuf, mode: u32 },
    /// The path is a symbolic link where none is allowed, a file with several hard links, or a loop of links.
    #[error("{} is a {kind} link where wattune needs a regular file; move it away", path.display())]
    Link {
        path: PathBuf,
        /// "symbolic" or "hard".
        kind: &'static str,
    },
    /// The path is not a regular file, so reading it may never end.
    #[error("{} is not a regular file (pipe, socket or device); move it away", path.display())]
    NoFile { path: PathBuf },
    /// The system refused to inspect the path.
    #[error("cannot inspect {}: {why}", path.display())]
    Io { path: PathBuf, why: io::Error },
}

fn inspecting(path: &Path) -> impl FnOnce(io::Error) -> Distrust + '_ {
    |source| Distrust::Io { path: path.to_owned(), why: source }
}

/// Returns the effective user id of this process.
pub fn user() -> u32 {
    geteuid().as_raw()
}

/// Returns true if `owner` may replace the daemon's files: root or the daemon's own user. Inside a container's user
/// namespace, also returns true for the overflow user id, because files of the host's root appear there with that user
/// id.
pub fn trusts(owner: u32) -> bool {
    owner == 0 || owner == user() || unmapped_user() == Some(owner)
}

/// Returns the number that stands for all users whom this process's user namespace does not know; `None` outside of
/// one.
pub fn unmapped_user() -> Option<u32> {
    const EVERYBODY: &str = "0 0 4294967295";
    let number = |path| fs::read_to_string(path).ok().and_then(|text| text.trim().parse().ok());
    let is_inside = || {
        let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
        !map.is_empty() && map.split_whitespace().collect::<Vec<_>>().join(" ") != EVERYBODY
    };
    if is_inside() { number("/proc/sys/kernel/overflowuid") } else { None }
}

/// Returns true if this process belongs to `group`.
pub fn is_member(group: u32) -> bool {
    getegid().as_raw() == group || getgroups().is_ok_and(|all| all.iter().any(|g| g.as_raw() == group))
}

/// A file that is to stay in its place, with the device number and the inode number that identify it. While a process
/// has the file open, no other file gets these numbers.
#[derive(Clone, Debug)]
pub struct PlacedFile {
    path: PathBuf,
    inode: (u64, u64),
}

impl PlacedFile {
    /// Returns the file that is at `path` now; `None` if there is none.
    pub fn at(path: PathBuf) -> Option<Self> {
        let found = fs::metadata(&path).ok()?;
        Some(Self { path, inode: (found.dev(), found.ino()) })
    }

    /// Returns true if the path still leads to this file.
    pub fn is_in_place(&self) -> bool {
        fs::metadata(&self.path).is_ok_and(|found| (found.dev(), found.ino()) == self.inode)
    }
}

/// Checks that only root and this process's user can replace the directory at `path` or its content, and returns its
/// real path. Follows symbolic links that belong to root or this user.
///
/// # Errors
/// The first part of the path that other users could replace.
pub fn check_path(path: &Path) -> Result<PathBuf, Distrust> {
    let full = std::path::absolute(path).map_err(inspecting(path))?;
    let mut rest: Vec<OsString> = full.components().rev().map(|c| c.as_os_str().to_owned()).collect();
    let (mut at, mut links) = (PathBuf::from("/"), 0);
    while let Some(name) = rest.pop() {
        match Path::new(&name).components().next() {
            Some(Component::Normal(_)) => {}
            Some(Component::ParentDir) => {
                at.pop();
                continue;
            }
            Some(Component::RootDir) => {
                at = PathBuf::from("/");
                continue;
            }
            _ => continue,
        }
        check_parent(&at)?;
        let next = at.join(&name);
        let found = match fs::symlink_metadata(&next) {
            Ok(found) => found,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                at = next;
                at.extend(rest.into_iter().rev());
                return Ok(at);
            }
            Err(source) => return Err(Distrust::Io { path: next, why: source }),
        };
        if !found.is_symlink() {
            at = next;
            continue;
        }
        check_owner_on_the_way("the symbolic link", &next, &found)?;
        links += 1;
        if links > MAX_LINKS {
            return Err(Distrust::Link { path: next, kind: "circular symbolic" });
        }
        let target = fs::read_link(&next).map_err(inspecting(&next))?;
        rest.extend(target.components().rev().map(|c| c.as_os_str().to_owned()));
    }
    Ok(at)
}

/// Checks that other users cannot remove or rename this user's files in the directory at `path`.
fn check_parent(path: &Path) -> Result<(), Distrust> {
    let found = fs::symlink_metadata(path).map_err(inspecting(path))?;
    check_owner_on_the_way("the directory", path, &found)?;
    let mode = found.mode() & 0o7777;
    // Group write permission is accepted for root's group and this user's own, which often has no other member.
    let by_group = mode & 0o020 != 0 && ![0, getegid().as_raw()].contains(&found.gid());
    if (by_group || mode & 0o002 != 0) && mode & STICKY == 0 {
        return Err(Distrust::Writable { path: path.to_owned(), mode });
    }
    Ok(())
}

fn check_owner_on_the_way(what: &'static str, path: &Path, found: &Metadata) -> Result<(), Distrust> {
    if trusts(found.uid()) {
        return Ok(());
    }
    Err(Distrust::OnTheWay { what, path: path.to_owned(), owner: found.uid() })
}

/// Checks that a file is safe to use: no link, no pipe, socket or device, and not another user's. Returns the file's
/// metadata, `None` if it does not exist. A directory passes the check; the caller handles it.
///
/// # Errors
/// If the path is a link, a pipe, a socket or a device, has several hard links, or belongs to another user.
pub fn check_file(path: &Path) -> Result<Option<Metadata>, Distrust> {
    let found = match fs::symlink_metadata(path) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(Distrust::Io { path: path.to_owned(), why: source }),
    };
    if found.is_symlink() {
        return Err(Distrust::Link { path: path.to_owned(), kind: "symbolic" });
    }
    if !trusts(found.uid()) {
        return Err(Distrust::Owner { what: "the file", path: path.to_owned(), owner: found.uid(), us: user() });
    }
    if found.is_dir() {
        return Ok(Some(found));
    }
    let kind = found.file_type();
    if kind.is_fifo() || kind.is_socket() || kind.is_block_device() || kind.is_char_device() {
        return Err(Distrust::NoFile { path: path.to_owned() });
    }
    if found.nlink() > 1 {
        return Err(Distrust::Link { path: path.to_owned(), kind: "hard" });
    }
    Ok(Some(found))
}

/// Returns true if other users may read or write a file with this metadata.
pub fn is_open(found: &Metadata) -> bool {
    found.mode() & 0o077 != 0
}

/// Removes the permissions of all other users on a file with the metadata `found`. Does nothing if the file is not this
/// user's.
pub fn close(path: &Path, found: &Metadata) -> Result<(), Distrust> {
    if !is_open(found) || found.uid() != user() {
        return Ok(());
    }
    fs::set_permissions(path, Permissions::from_mode(FILE_MODE)).map_err(inspecting(path))
}

/// Opens or creates a file for writing, for this user only, without following a link and without waiting for the other
/// end of a pipe.
///
/// # Errors
/// If the file cannot be opened or [`check_file`] rejects it.
pub fn open(path: &Path) -> io::Result<File> {
    check_file(path).map_err(io::Error::other)?;
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let mut options = OpenOptions::new();
    options.create(true).truncate(false).write(true).mode(FILE_MODE).custom_flags(flags.bits().cast_signed());
    let file = options.open(path)?;
    let found = file.metadata()?;
    // The umask may have removed permissions from a new file, and an older file may have too many.
    if found.uid() == user() && found.mode() & 0o7777 != FILE_MODE {
        file.set_permissions(Permissions::from_mode(FILE_MODE))?;
    }
    Ok(file)
}

/// Opens a file like [`open`] and empties it.
pub fn create(path: &Path) -> io::Result<File> {
    let file = open(path)?;
    file.set_len(0)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_path_is_resolved_over_trusted_links() {
        let dir = tempfile::tempdir().expect("a directory");
        let dir = dir.path().canonicalize().expect("there");
        fs::create_dir_all(dir.join("a/b")).expect("made");
        symlink("a", dir.join("relative")).expect("linked");
        symlink(dir.join("a/b"), dir.join("absolute")).expect("linked");
        symlink("circle", dir.join("circle")).expect("linked");
        let table = [
            ("a/b", "a/b"),
            ("relative/b", "a/b"),
            ("absolute", "a/b"),
            ("absolute/../b/new/dir", "a/b/new/dir"),
            ("./missing/x", "missing/x"),
        ];
        for (given, expected) in table {
            assert_eq!(check_path(&dir.join(given)).expect(given), dir.join(expected), "{given}");
        }
        let error = check_path(&dir.join("circle/x")).expect_err("endless").to_string();
        assert!(error.contains("circular"), "{error}");
        let file = dir.join("file");
        fs::write(&file, "").expect("written");
        assert!(check_path(&file.join("x")).is_err(), "a file is no directory");
    }

    #[test]
    fn files_are_created_private_and_links_are_refused() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("file");
        fs::write(&path, "old").expect("written");
        fs::set_permissions(&path, Permissions::from_mode(0o666)).expect("changed");
        let file = open(&path).expect("open");
        assert_eq!(
            (file.metadata().expect("known").len(), fs::metadata(&path).expect("known").mode() & 0o777),
            (3, 0o600)
        );
        assert_eq!(create(&path).expect("open").metadata().expect("known").len(), 0);
        let (victim, link) = (dir.path().join("victim"), dir.path().join("link"));
        fs::write(&victim, "precious").expect("written");
        symlink(&victim, &link).expect("linked");
        let error = create(&link).expect_err("a link").to_string();
        assert!(error.contains("is a symbolic link") && error.contains("move it away"), "{error}");
        fs::remove_file(&link).expect("removed");
        fs::hard_link(&victim, &link).expect("linked");
        assert!(create(&link).expect_err("a link").to_string().contains("hard link"));
        assert_eq!(fs::read_to_string(&victim).expect("there"), "precious");
        fs::create_dir(dir.path().join("directory")).expect("made");
        assert_eq!(create(&dir.path().join("directory")).expect_err("no file").kind(), io::ErrorKind::IsADirectory);
    }
}
