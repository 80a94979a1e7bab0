//! The Unix socket of the API, with its mode, owner and group from the moment it exists.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::net::{UnixListener, UnixStream};

use super::settings::{Settings, SocketMode};
use crate::files::{self, Distrust};

/// The group that gets the socket by default, if it exists.
const USUAL_GROUP: &str = "wattune";

/// The reason why the Unix socket cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// Another daemon answers at the path.
    #[error("another daemon answers at {0:?}; stop it (`ss -lxp src {0:?}` says which it is), or choose another path")]
    Live(PathBuf),
    /// The path holds something that is not a socket.
    #[error("{0:?} exists and is not a socket; wattune does not touch it: move it away, or choose another path")]
    Occupied(PathBuf),
    /// The directory does not exist.
    #[error("there is no directory {0:?}; create it for the daemon's user (systemd: RuntimeDirectory=wattune)")]
    NoDirectory(PathBuf),
    /// Other users could replace the socket.
    #[error("{0}")]
    Unsafe(Distrust),
    /// The path is longer than Unix sockets allow.
    #[error("{0:?} is too long for a Unix socket; choose a path of at most 90 bytes")]
    TooLong(PathBuf),
    /// The group is unknown.
    #[error("socket_group: there is no group {0:?} in /etc/group; create it, or give a number")]
    NoGroup(String),
    /// The owner is unknown.
    #[error("socket_owner: there is no user {0:?} in /etc/passwd; create it, or give a number")]
    NoOwner(String),
    /// Only root may give a file to another user.
    #[error("socket_owner: this process may not give the socket to user {0:?}; run it as root")]
    OwnerNotPermitted(String),
    /// Only root may give a file to a group that the process is not a member of.
    #[error("socket_group: this process may not give the socket to group {0:?}; run it as root or as a member of it")]
    GroupNotPermitted(String),
    /// The system refused for another reason.
    #[error("{path:?}: cannot {what}: {why}")]
    Io {
        /// The path of the socket or of the file that was read.
        path: PathBuf,
        /// The failed action, in words that complete "cannot …".
        what: &'static str,
        /// The system's error.
        why: io::Error,
    },
}

/// A listening Unix socket. Dropping the value removes the socket's file.
pub(super) struct Socket {
    pub(super) listener: UnixListener,
    pub(super) file: SocketFile,
}

/// The socket's file, with the device number and the inode number that identify the file.
pub(super) struct SocketFile {
    pub(super) path: PathBuf,
    inode: (u64, u64),
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Another daemon may have replaced the file by a file of its own.
        if fs::symlink_metadata(&self.path).is_ok_and(|m| (m.dev(), m.ino()) == self.inode) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// A directory of mode 0700, such as beside the socket, removed when dropped.
struct PrivateDirectory(PathBuf);

impl PrivateDirectory {
    fn within(parent: &Path) -> io::Result<Self> {
        let id = uuid::Uuid::new_v4().simple().to_string();
        let path = parent.join(format!(".{}", &id[..8]));
        DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Self(path))
    }
}

impl Drop for PrivateDirectory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Mode, owner and group of the socket.
#[derive(Clone, Debug, Default)]
pub(super) struct SocketRights {
    mode: SocketMode,
    owner: Option<String>,
    group: Option<String>,
}

impl SocketRights {
    /// Returns the rights that the settings choose.
    pub(super) fn of(settings: &Settings) -> Self {
        let (owner, group) = (settings.socket_owner.clone(), settings.socket_group.clone());
        Self { mode: settings.socket_mode, owner, group }
    }

    /// Checks that the owner and the group exist, and that this process may give a file to them, where no socket is
    /// configured yet.
    ///
    /// # Errors
    /// If one of them is unknown, or the process lacks the right.
    pub(super) fn check(&self) -> Result<(), SocketError> {
        if self.owner.is_none() && self.group.is_none() {
            return Ok(());
        }
        let temporary = std::env::temp_dir();
        self.try_out(&temporary, &temporary.join("s"))
    }

    /// Creates a file with these rights in a private directory within `parent`, and removes both. `path` is the place
    /// of the socket.
    fn try_out(&self, parent: &Path, path: &Path) -> Result<(), SocketError> {
        let io = |what| move |why| SocketError::Io { path: path.to_owned(), what, why };
        let private = PrivateDirectory::within(parent).map_err(io("create a directory beside it"))?;
        let draft = private.0.join("s");
        fs::File::create_new(&draft).map_err(io("create a file beside it"))?;
        self.apply(&draft, path)
    }

    /// Checks that the owner and the group exist.
    fn check_names(&self) -> Result<(), SocketError> {
        for (names, name) in [(GROUPS, &self.group), (USERS, &self.owner)] {
            if let Some(name) = name {
                number(names, name)?;
            }
        }
        Ok(())
    }

    /// Gives the file at `draft` to its owner and group. `path` is the place where it is used.
    fn apply(&self, draft: &Path, path: &Path) -> Result<(), SocketError> {
        let give = |user, group, denied: SocketError, what| {
            chown(draft, user, group).map_err(|why| match why.kind() {
                io::ErrorKind::PermissionDenied => denied,
                _ => SocketError::Io { path: path.to_owned(), what, why },
            })
        };
        match &self.group {
            Some(name) => {
                let denied = SocketError::GroupNotPermitted(name.clone());
                give(None, Some(number(GROUPS, name)?), denied, "give it to its group")?;
            }
            None => {
                let usual = number(GROUPS, USUAL_GROUP).ok();
                if let Some(error) = usual.and_then(|group| chown(draft, None, Some(group)).err()) {
                    tracing::debug!("the socket keeps the daemon's group, not {USUAL_GROUP}: {error}");
                }
            }
        }
        if let Some(name) = &self.owner {
            let denied = SocketError::OwnerNotPermitted(name.clone());
            give(Some(number(USERS, name)?), None, denied, "give it to its owner")?;
        }
        Ok(())
    }
}

/// Returns what would keep [`bind`] from opening a socket with these rights at `path`. Leaves nothing there.
pub(super) async fn find_obstacles(path: &Path, rights: &SocketRights) -> Vec<SocketError> {
    let (place, rights) = match check(path).await {
        Ok(parent) => (None, rights.try_out(parent, path)),
        // This process may have other rights there than the daemon that runs.
        Err(why) => (Some(why), rights.check_names()),
    };
    place.into_iter().chain(rights.err()).collect()
}

/// Checks that the place at `path` is safe and free, and returns its directory. Changes nothing.
async fn check(path: &Path) -> Result<&Path, SocketError> {
    let parent = path.parent().filter(|p| p.is_dir());
    let Some(parent) = parent else {
        return Err(SocketError::NoDirectory(path.parent().unwrap_or(path).to_owned()));
    };
    if path.as_os_str().len() > 90 {
        return Err(SocketError::TooLong(path.to_owned()));
    }
    // The directories on the path decide who can replace the socket.
    files::check_path(path).map_err(SocketError::Unsafe)?;
    refuse_others(path).await?;
    Ok(parent)
}

/// Listens at `path`. The file appears there with its final mode, owner and group, because it is created in a private
/// directory and then moved. The socket of a daemon that no longer runs is replaced.
pub(super) async fn bind(path: &Path, rights: &SocketRights) -> Result<Socket, SocketError> {
    let io = |what| move |why| SocketError::Io { path: path.to_owned(), what, why };
    let parent = check(path).await?;
    let private = PrivateDirectory::within(parent).map_err(io("create a directory beside it"))?;
    let draft = private.0.join("s");
    let listener = UnixListener::bind(&draft).map_err(io("create it"))?;
    let mode = Permissions::from_mode(rights.mode.bits());
    fs::set_permissions(&draft, mode).map_err(io("set its permissions"))?;
    rights.apply(&draft, path)?;
    let made = fs::symlink_metadata(&draft).map_err(io("inspect it"))?;
    fs::rename(&draft, path).map_err(io("move it into place"))?;
    Ok(Socket { listener, file: SocketFile { path: path.to_owned(), inode: (made.dev(), made.ino()) } })
}

/// Checks that the path is free or holds the socket of a daemon that no longer runs.
async fn refuse_others(path: &Path) -> Result<(), SocketError> {
    let found = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(why) => return Err(SocketError::Io { path: path.to_owned(), what: "inspect it", why }),
        Ok(found) => found,
    };
    if !found.file_type().is_socket() {
        return Err(SocketError::Occupied(path.to_owned()));
    }
    // A daemon that does not accept a connection within a second is alive but busy.
    match tokio::time::timeout(Duration::from_secs(1), UnixStream::connect(path)).await {
        Ok(Ok(_)) | Err(_) => Err(SocketError::Live(path.to_owned())),
        Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => {
            tracing::info!("replacing the socket {path:?} of a daemon that no longer runs");
            Ok(())
        }
        Ok(Err(error)) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        // The queue of connections is full, so the listener is alive but slow.
        Ok(Err(error)) if error.kind() == io::ErrorKind::WouldBlock => Err(SocketError::Live(path.to_owned())),
        Ok(Err(why)) => {
            let what = "check if a daemon listens there";
            Err(SocketError::Io { path: path.to_owned(), what, why })
        }
    }
}

/// A file of names and numbers, with the error for a name that it does not have.
#[derive(Clone, Copy)]
struct Names {
    file: &'static str,
    unknown: fn(String) -> SocketError,
}

const GROUPS: Names = Names { file: "/etc/group", unknown: SocketError::NoGroup };
const USERS: Names = Names { file: "/etc/passwd", unknown: SocketError::NoOwner };

/// Returns the number of a user or a group that is given by name or number.
fn number(names: Names, name: &str) -> Result<u32, SocketError> {
    if let Ok(number) = name.parse() {
        return Ok(number);
    }
    let file = Path::new(names.file);
    let io = |why| SocketError::Io { path: file.to_owned(), what: "read it", why };
    let text = fs::read(file).map_err(io)?;
    find(&String::from_utf8_lossy(&text), name).ok_or_else(|| (names.unknown)(name.to_owned()))
}

/// Finds a number in the text of `group(5)` or `passwd(5)`: lines of name, password, number and more, separated by colons.
fn find(text: &str, name: &str) -> Option<u32> {
    text.lines().find_map(|line| {
        let mut parts = line.split(':');
        (parts.next()? == name).then(|| parts.nth(1)?.parse().ok()).flatten()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_found_by_name_and_number() {
        let text = "root:x:0:\ngpu-users:x:4711:ada,bob\nbroken\nworse:x:many:\n";
        assert_eq!(find(text, "gpu-users"), Some(4711));
        assert_eq!(find(text, "gpu"), None);
        assert_eq!(find(text, "worse"), None);
        assert_eq!(number(GROUPS, "4711").ok(), Some(4711));
        let error = number(GROUPS, "no such group").expect_err("unknown").to_string();
        assert!(error.contains("no group") && error.contains("create it, or give a number"), "{error}");
        assert_eq!(number(USERS, "root").ok(), Some(0));
        let error = number(USERS, "no such user").expect_err("unknown").to_string();
        assert!(error.contains("no user") && error.contains("create it, or give a number"), "{error}");
    }

    #[tokio::test]
    async fn the_socket_is_private_and_is_removed() {
        let directory = tempfile::tempdir().expect("directory");
        let path = directory.path().join("wattune.sock");
        let own = fs::metadata(directory.path()).expect("metadata").gid();
        let socket = bind(&path, &SocketRights { group: Some(own.to_string()), ..SocketRights::default() })
            .await
            .map_err(|e| e.to_string())
            .map(Some);
        let socket = socket.expect("bound").expect("socket");
        let made = fs::symlink_metadata(&path).expect("socket");
        assert_eq!((made.permissions().mode() & 0o7777, made.gid()), (0o660, own));
        assert_eq!(fs::read_dir(directory.path()).expect("directory").count(), 1, "nothing but the socket");
        assert!(UnixStream::connect(&path).await.is_ok());

        let refused = bind(&path, &SocketRights::default()).await.map(|_| ()).expect_err("a live daemon").to_string();
        assert!(refused.contains("another daemon answers"), "{refused}");
        drop(socket);
        assert!(!path.exists(), "the file goes with the socket");
    }

    async fn found(path: &Path, rights: &SocketRights) -> String {
        find_obstacles(path, rights).await.iter().map(|obstacle| format!("{obstacle}\n")).collect()
    }

    #[tokio::test]
    async fn obstacles_are_found_without_a_socket() {
        let directory = tempfile::tempdir().expect("directory");
        let path = directory.path().join("wattune.sock");
        let (plain, unknown) =
            (SocketRights::default(), SocketRights { group: Some("?".into()), ..Default::default() });
        assert_eq!(found(&path, &plain).await, "");
        assert!(found(&path, &unknown).await.contains("there is no group"));
        assert_eq!(fs::read_dir(directory.path()).expect("directory").count(), 0, "nothing is left");
        // No user can create a directory there.
        let refused = found(Path::new("/proc/wattune.sock"), &plain).await;
        assert!(refused.contains("cannot create a directory beside it"), "{refused}");
        // A daemon that runs already does not hide a group that does not exist.
        let _live = std::os::unix::net::UnixListener::bind(&path).expect("bound");
        let both = found(&path, &unknown).await;
        assert!(both.contains("another daemon answers") && both.contains("there is no group"), "{both}");
    }

    #[tokio::test]
    async fn a_dead_daemons_socket_is_replaced_and_a_file_is_not() {
        let directory = tempfile::tempdir().expect("directory");
        let path = directory.path().join("wattune.sock");
        drop(std::os::unix::net::UnixListener::bind(&path).expect("bound"));
        assert!(path.exists());
        let socket =
            bind(&path, &SocketRights::default()).await.map_err(|e| e.to_string()).map(Some).expect("replaced");
        // The socket must not remove a file that has replaced its own.
        fs::remove_file(&path).expect("removed");
        fs::write(&path, "notes").expect("written");
        drop(socket);
        assert_eq!(fs::read_to_string(&path).expect("still there"), "notes");

        let refused = bind(&path, &SocketRights::default()).await.map(|_| ()).expect_err("a file").to_string();
        assert!(refused.contains("is not a socket"), "{refused}");
        let nowhere = directory.path().join("missing/wattune.sock");
        let refused = bind(&nowhere, &SocketRights::default()).await.map(|_| ()).expect_err("no directory").to_string();
        assert!(refused.contains("there is no directory"), "{refused}");
        let long = directory.path().join("x".repeat(90));
        let refused = bind(&long, &SocketRights::default()).await.map(|_| ()).expect_err("too long").to_string();
        assert!(refused.contains("at most 90 bytes"), "{refused}");
        assert_eq!(fs::read_dir(directory.path()).expect("directory").count(), 1, "no private directory is left");
    }
}
