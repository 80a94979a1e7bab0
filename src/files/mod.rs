//! Files that only the daemon's user reads and writes, at places that only that user and root can change.
//!
//! A path is walked from the root: whoever could exchange one of its parts could lead the daemon to another file. Only
//! then is what lies at its end opened, without following a link.

pub mod regular;

use std::ffi::OsString;
use std::fs::{self, File, Metadata, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};

use rustix::fs::OFlags;
use rustix::process::{getegid, geteuid, getgroups};

/// Of every file that the daemon keeps.
pub const FILE_MODE: u32 = 0o600;
/// Of directories that it makes: their names are for its group too, what lies in them is not.
pub const DIRECTORY_MODE: u32 = 0o750;

const STICKY: u32 = 0o1000;
/// More links than this lead in a circle.
const MOST_LINKS: usize = 40;

/// Why a place is not used.
#[derive(Debug, thiserror::Error)]
pub enum Distrust {
    /// It belongs to somebody else, who may exchange what lies there.
    #[error(
        "{what} {} belongs to user {owner}, who could exchange what is kept there; give it to the daemon's user (chown \
         {us} {}), or choose another place", path.display(), path.display()
    )]
    Owner {
        /// "the directory", "the symbolic link" or "the file".
        what: &'static str,
        /// Where.
        path: PathBuf,
        /// Whose it is, by number.
        owner: u32,
        /// Who this process is, by number.
        us: u32,
    },
    /// Others may exchange what lies in it.
    #[error(
        "others may write in the directory {} (mode {mode:04o}) and exchange what is kept there; take that from them \
         (chmod go-w {}), or choose another place", path.display(), path.display()
    )]
    Writable {
        /// Where.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// It leads elsewhere.
    #[error("{} is a {kind} link, which is not followed; move it away", path.display())]
    Link {
        /// Where.
        path: PathBuf,
        /// "symbolic" or "hard".
        kind: &'static str,
    },
    /// Reading it may never end.
    #[error("{} is no regular file; move it away", path.display())]
    NoFile {
        /// Where.
        path: PathBuf,
    },
    /// The system refused.
    #[error("cannot look at {}: {source}", path.display())]
    Io {
        /// Where.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

fn looking(path: &Path) -> impl FnOnce(io::Error) -> Distrust + '_ {
    |source| Distrust::Io { path: path.to_owned(), source }
}

/// The user that this process is, by number.
pub fn user() -> u32 {
    geteuid().as_raw()
}

/// Whether a user may exchange what the daemon keeps: itself and root. In a container's user namespace root of the machine
/// has no number of its own.
pub fn trusts(owner: u32) -> bool {
    const EVERYBODY: &str = "0 0 4294967295";
    let number = |path| fs::read_to_string(path).ok().and_then(|text| text.trim().parse().ok());
    let is_inside = || {
        let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
        !map.is_empty() && map.split_whitespace().collect::<Vec<_>>().join(" ") != EVERYBODY
    };
    owner == 0 || owner == user() || (is_inside() && number("/proc/sys/kernel/overflowuid") == Some(owner))
}

/// Whether this process is in a group.
pub fn is_member(group: u32) -> bool {
    getegid().as_raw() == group || getgroups().is_ok_and(|all| all.iter().any(|g| g.as_raw() == group))
}

/// Checks that nobody but root and this process's user can exchange the directory at `path`, or what will be made there,
/// and returns where it really is. Symbolic links on the way are followed if they are root's or this user's.
///
/// # Errors
/// For the first part of the path that others could exchange.
pub fn check_way(path: &Path) -> Result<PathBuf, Distrust> {
    let full = std::path::absolute(path).map_err(looking(path))?;
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
            Err(source) => return Err(Distrust::Io { path: next, source }),
        };
        if !found.is_symlink() {
            at = next;
            continue;
        }
        check_owner("the symbolic link", &next, &found)?;
        links += 1;
        if links > MOST_LINKS {
            return Err(Distrust::Link { path: next, kind: "circular symbolic" });
        }
        let target = fs::read_link(&next).map_err(looking(&next))?;
        rest.extend(target.components().rev().map(|c| c.as_os_str().to_owned()));
    }
    Ok(at)
}

/// A directory in which others may neither remove nor rename what is this user's.
fn check_parent(path: &Path) -> Result<(), Distrust> {
    let found = fs::symlink_metadata(path).map_err(looking(path))?;
    check_owner("the directory", path, &found)?;
    let mode = found.mode() & 0o7777;
    // Users that have a group of their own make directories for it.
    let by_group = mode & 0o020 != 0 && ![0, getegid().as_raw()].contains(&found.gid());
    if (by_group || mode & 0o002 != 0) && mode & STICKY == 0 {
        return Err(Distrust::Writable { path: path.to_owned(), mode });
    }
    Ok(())
}

fn check_owner(what: &'static str, path: &Path, found: &Metadata) -> Result<(), Distrust> {
    if trusts(found.uid()) {
        return Ok(());
    }
    Err(Distrust::Owner { what, path: path.to_owned(), owner: found.uid(), us: user() })
}

/// Checks a file that is about to be used, if it is there: no link, nothing that blocks, nobody else's. A directory of
/// that name is left to whoever opens it.
///
/// # Errors
/// If it is not a file of root's or this user's alone.
pub fn check_file(path: &Path) -> Result<Option<Metadata>, Distrust> {
    let found = match fs::symlink_metadata(path) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(Distrust::Io { path: path.to_owned(), source }),
    };
    if found.is_symlink() {
        return Err(Distrust::Link { path: path.to_owned(), kind: "symbolic" });
    }
    check_owner("the file", path, &found)?;
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

/// Whether others may read or write what has these permissions.
pub fn is_open(found: &Metadata) -> bool {
    found.mode() & 0o077 != 0
}

/// Takes a file from everybody but its owner. Does nothing to those of root where this process is not.
///
/// # Errors
/// If the system refuses.
pub fn close(path: &Path, found: &Metadata) -> Result<(), Distrust> {
    if !is_open(found) || found.uid() != user() {
        return Ok(());
    }
    fs::set_permissions(path, Permissions::from_mode(FILE_MODE)).map_err(looking(path))
}

/// Opens a file for writing, as it is, or makes it: for this user alone, without following a link and without waiting
/// for the other end of a pipe.
///
/// # Errors
/// If it cannot be opened, or is something else than a file of root's or this user's alone.
pub fn open(path: &Path) -> io::Result<File> {
    check_file(path).map_err(io::Error::other)?;
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let mut options = OpenOptions::new();
    options.create(true).truncate(false).write(true).mode(FILE_MODE).custom_flags(flags.bits().cast_signed());
    let file = options.open(path)?;
    let found = file.metadata()?;
    // The mask of the process can only take permissions away, and an older file may have more.
    if found.uid() == user() && found.mode() & 0o7777 != FILE_MODE {
        file.set_permissions(Permissions::from_mode(FILE_MODE))?;
    }
    Ok(file)
}

/// As [`open`], emptied.
///
/// # Errors
/// As [`open`].
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
    fn a_way_is_followed_over_trusted_links_and_named_as_it_is() {
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
            assert_eq!(check_way(&dir.join(given)).expect(given), dir.join(expected), "{given}");
        }
        let error = check_way(&dir.join("circle/x")).expect_err("endless").to_string();
        assert!(error.contains("circular"), "{error}");
        let file = dir.join("file");
        fs::write(&file, "").expect("written");
        assert!(check_way(&file.join("x")).is_err(), "a file is no directory");
    }

    #[test]
    fn files_are_made_for_their_owner_and_links_are_left_alone() {
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
