//! The state directory: created or checked before use, and owned by one process at a time.

use std::fs::{self, DirBuilder, File, Metadata, Permissions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::files::{self, DIRECTORY_MODE, Distrust, LOCK};
use crate::gpu::journal;
use crate::store;

/// The reason why a state directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum LockError {
    #[error("cannot make the state directory {}; give another one with --state-dir", dir.display())]
    Make {
        dir: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("the state directory {} is not safe (--state-dir, state_dir)", dir.display())]
    Unsafe {
        dir: PathBuf,
        #[source]
        source: Distrust,
    },
    #[error(
        "the state directory {} can be written by others (mode {mode:04o}) and {why}; give wattune a directory of its own \
         with --state-dir", dir.display()
    )]
    Shared { dir: PathBuf, mode: u32, why: &'static str },
    #[error("cannot write in the state directory {}", dir.display())]
    Write {
        dir: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error(
        "another wattune owns the state directory {}; stop it first, or give another one with --state-dir", .0.display()
    )]
    Taken(PathBuf),
}

/// The ownership of a state directory, held by a file lock that the kernel releases when the process ends.
pub(super) struct Lock {
    _file: File,
}

impl Lock {
    /// Takes ownership of the state directory; creates it if necessary, and removes other users' access to its files.
    pub(super) fn take(state_dir: &Path) -> Result<Self, LockError> {
        prepare(state_dir)?;
        let dir = || state_dir.to_owned();
        let failed = |source| LockError::Write { dir: dir(), source };
        let distrusted = |source| LockError::Unsafe { dir: dir(), source };
        let path = state_dir.join(LOCK);
        let was_open = files::check_file(&path).map_err(distrusted)?.is_some_and(|found| files::is_open(&found));
        let mut file = files::open(&path).map_err(failed)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::Error(source)) => return Err(failed(source)),
            Err(TryLockError::WouldBlock) if was_open && only_others_hold(&file).map_err(failed)? => {
                tracing::warn!(
                    "lock file {} was accessible to other users and locked by one; recreating it",
                    path.display()
                );
            }
            Err(TryLockError::WouldBlock) => return Err(LockError::Taken(dir())),
        }
        if was_open {
            // A user who opened the lock file before could lock it at any time, so the file is replaced.
            file = replace_lock(&path).map_err(failed)?;
        }
        close_files(state_dir).map_err(distrusted)?;
        Ok(Self { _file: file })
    }
}

/// Checks if a daemon could use this directory, regardless of the process that owns it now. Changes nothing.
pub(super) fn check(state_dir: &Path) -> Result<(), LockError> {
    let distrusted = |source| LockError::Unsafe { dir: state_dir.to_owned(), source };
    let real = files::check_path(state_dir).map_err(distrusted)?;
    if let Ok(found) = fs::symlink_metadata(&real) {
        required_mode(state_dir, &real, &found)?;
        own_files(&real)
            .and_then(|own| own.iter().try_for_each(|path| files::check_file(path).map(drop)))
            .map_err(distrusted)?;
    }
    Ok(())
}

/// Creates the directory if it is missing. Removes other users' access to it if the directory is only for this daemon.
fn prepare(state_dir: &Path) -> Result<(), LockError> {
    let dir = || state_dir.to_owned();
    let make = |source| LockError::Make { dir: dir(), source };
    let real = match files::check_path(state_dir) {
        Ok(real) => real,
        Err(Distrust::Io { why, .. }) => return Err(make(why)),
        Err(source) => return Err(LockError::Unsafe { dir: dir(), source }),
    };
    DirBuilder::new().recursive(true).mode(DIRECTORY_MODE).create(&real).map_err(make)?;
    let found = fs::symlink_metadata(&real).map_err(make)?;
    let Some(mode) = required_mode(state_dir, &real, &found)? else { return Ok(()) };
    tracing::info!("removed other users' access to {} (mode was {:04o})", state_dir.display(), found.mode() & 0o7777);
    fs::set_permissions(&real, Permissions::from_mode(mode)).map_err(make)
}

/// Returns the mode that the directory must get if other users have too much access; `None` if it may stay as it is.
fn required_mode(state_dir: &Path, real: &Path, found: &Metadata) -> Result<Option<u32>, LockError> {
    let dir = || state_dir.to_owned();
    let distrusted = |source| LockError::Unsafe { dir: dir(), source };
    let path = || real.to_owned();
    let (owner, mode) = (found.uid(), found.mode() & 0o7777);
    if !files::trusts(owner) {
        return Err(distrusted(Distrust::Owner { what: "the directory", path: path(), owner, us: files::user() }));
    }
    if owner != files::user() {
        // Accepts root's directory for a daemon that is not root, such as a volume that the daemon's group may write.
        let by_others = mode & 0o002 != 0 || mode & 0o020 != 0 && !files::is_member(found.gid());
        return if by_others { Err(distrusted(Distrust::Writable { path: path(), mode })) } else { Ok(None) };
    }
    if mode & !DIRECTORY_MODE & 0o777 == 0 {
        return Ok(None);
    }
    let shared = |why| Err(LockError::Shared { dir: dir(), mode, why });
    match is_for_wattune(real).map_err(|source| LockError::Make { dir: dir(), source })? {
        true if mode & 0o1000 == 0 => Ok(Some(mode & (DIRECTORY_MODE | 0o7000))),
        true => shared("is shared by all users"),
        false if mode & 0o022 != 0 => shared("holds other things"),
        // Other users have no write access: they can only list names in this directory.
        false => Ok(None),
    }
}

/// Returns true if no subdirectory indicates another purpose of the directory, such as a user's home.
fn is_for_wattune(dir: &Path) -> io::Result<bool> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name();
        // The root directory of a file system has a `lost+found`.
        if entry.file_type()?.is_dir() && name != "lost+found" && !is_own(&name.to_string_lossy()) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Returns true if wattune keeps a file or a set of files with this name in its state directory.
fn is_own(name: &str) -> bool {
    let cached = ["carbon-", "price-", "requests-"].iter().any(|begin| name.starts_with(begin));
    let stems = [store::FILE_NAME, journal::FILE_NAME];
    name == LOCK || stems.iter().any(|stem| name.starts_with(stem)) || cached && name.contains(".json")
}

/// Returns the paths of wattune's files in its state directory.
fn own_files(dir: &Path) -> Result<Vec<PathBuf>, Distrust> {
    let looking = |source| Distrust::Io { path: dir.to_owned(), why: source };
    let mut own = Vec::new();
    for entry in fs::read_dir(dir).map_err(looking)? {
        let entry = entry.map_err(looking)?;
        if is_own(&entry.file_name().to_string_lossy()) {
            own.push(entry.path());
        }
    }
    Ok(own)
}

/// Checks wattune's files in an owned directory, and removes other users' access to them.
fn close_files(dir: &Path) -> Result<(), Distrust> {
    for path in own_files(dir)? {
        let Some(found) = files::check_file(&path)?.filter(|found| !found.is_dir()) else { continue };
        // SQLite recreates the missing index file. It is removed because a process that opened it before could lock it
        // forever; no other process has the database open, since this process owns the directory.
        let is_index = path.to_string_lossy().ends_with("-shm");
        if is_index && files::is_open(&found) && found.uid() == files::user() {
            fs::remove_file(&path).map_err(|source| Distrust::Io { path, why: source })?;
        } else {
            files::close(&path, &found)?;
        }
    }
    Ok(())
}

/// Replaces the lock file by a new file that this process has locked.
fn replace_lock(path: &Path) -> io::Result<File> {
    let next = path.with_extension("new");
    match fs::remove_file(&next) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let file = files::open(&next)?;
    file.try_lock()?;
    fs::rename(&next, path)?;
    Ok(file)
}

/// Returns true if only processes of other users visibly hold the file's lock, and none of this user or of root. A lock
/// held in another container is invisible.
fn only_others_hold(file: &File) -> io::Result<bool> {
    let own = file.metadata()?;
    let is_it = |found: Metadata| (found.dev(), found.ino()) == (own.dev(), own.ino());
    let lockers = lock_holders(&fs::read_to_string("/proc/locks")?, own.ino());
    let mut others = false;
    for process in fs::read_dir("/proc")?.flatten() {
        let Some(pid) = process.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        // If the owner cannot be read, the process may have ended.
        let Ok(owner) = process.metadata().map(|found| found.uid()) else { continue };
        if pid == std::process::id() {
            continue;
        }
        // Only root can see the open files of other users' processes.
        let open = fs::read_dir(process.path().join("fd")).ok().into_iter().flatten().flatten();
        let holds = |fd: fs::DirEntry| {
            let locks = || fs::read_to_string(process.path().join("fdinfo").join(fd.file_name())).unwrap_or_default();
            fs::metadata(fd.path()).is_ok_and(is_it) && locks().contains("FLOCK")
        };
        if lockers.contains(&pid) || open.into_iter().any(holds) {
            if files::trusts(owner) {
                return Ok(false);
            }
            others = true;
        }
    }
    Ok(others)
}

/// Parses the ids of processes that locked a file from `proc_locks(5)`, in lines such as `1: FLOCK ADVISORY WRITE 4711
/// fe:00:815 0 EOF`. Misses a process that inherited the open file from one that has ended.
fn lock_holders(locks: &str, inode: u64) -> Vec<u32> {
    let file = format!(":{inode}");
    let of_line = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        (words.get(1) == Some(&"FLOCK") && words.get(5)?.ends_with(&file)).then(|| words.get(4)?.parse().ok())?
    };
    locks.lines().filter_map(of_line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_own_files_are_touched() {
        let own = [
            "lock",
            "wattune.db",
            "wattune.db-wal",
            "found-limits.json",
            "found-limits.json.new",
            "found-limits.json.writes",
            "carbon-uk-GB.json",
            "price-x.json.tmp",
            "requests-watttime.json",
        ];
        assert!(own.iter().all(|name| is_own(name)));
        assert!(
            !["lock.txt", "wattune.toml", "log.txt", "carbon-notes.txt", "wattune.sock"]
                .iter()
                .any(|name| is_own(name))
        );
    }

    #[test]
    fn lock_holders_are_parsed() {
        let locks = "1: FLOCK  ADVISORY  WRITE 4711 fe:00:815 0 EOF\n1: -> FLOCK  ADVISORY  WRITE 7 fe:00:815 0 EOF\n\
                     2: POSIX  ADVISORY  READ 12 fe:00:815 128 128\n3: FLOCK  ADVISORY  READ 13 fe:00:1815 0 EOF\n";
        assert_eq!(lock_holders(locks, 815), [4711]);
        assert!(lock_holders("nonsense\n\n1: FLOCK", 815).is_empty());
    }

    #[test]
    fn a_directory_with_other_things_keeps_its_mode() {
        let dir = tempfile::tempdir().expect("a directory");
        let mode = |path: &Path| fs::metadata(path).expect("there").mode() & 0o777;
        fs::create_dir(dir.path().join("somebodys")).expect("made");
        fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).expect("changed");
        let lock = Lock::take(dir.path()).map(Some).expect("taken");
        assert_eq!((mode(dir.path()), mode(&dir.path().join(LOCK))), (0o755, 0o600));
        assert!(matches!(Lock::take(dir.path()), Err(LockError::Taken(_))));
        drop(lock);
        fs::remove_dir(dir.path().join("somebodys")).expect("removed");
        let _lock = Lock::take(dir.path()).map(Some).expect("taken");
        assert_eq!(mode(dir.path()), 0o750);
    }
}
