//! Read-only access to a database, with or without a running daemon: nothing is created, changed or migrated.

use std::path::Path;
use std::time::Duration;

use rusqlite::Connection;

use super::connection::{ConnectionPool, open_immutable, open_to_read};
use super::{FILE_NAME, Store, StoreError, migrate, unopened};

/// Maximum time to wait for a writer's lock.
const BUSY: Duration = Duration::from_secs(5);

const LEFT_OPEN: &str = "a daemon left its write-ahead log (-wal) beside it, which only users with write permission in that directory \
                         can read: run this as such a user, or start and stop the daemon once";

impl Store {
    /// Opens the database in `state_dir` for reading.
    ///
    /// # Errors
    /// If there is none, it may not be read, or its tables are of another version.
    pub async fn open_read_only(state_dir: &Path) -> Result<Self, StoreError> {
        let file = state_dir.join(FILE_NAME);
        let path = file.display().to_string();
        if let Err(source) = crate::files::regular::open(&file) {
            return Err(match source.kind() {
                std::io::ErrorKind::NotFound => StoreError::Missing { path },
                _ => StoreError::Unreadable { path, source },
            });
        }
        let connections = match connect(&file, open_to_read).await {
            Ok(connections) => connections,
            // A user without write permission cannot share a closed database, and need not: no process has it open.
            Err(_) if !beside(&file, "-wal").exists() => connect(&file, open_immutable).await?,
            Err(StoreError::Open { path, why }) => {
                return Err(StoreError::Open { path, why: format!("{why}; {LEFT_OPEN}") });
            }
            Err(other) => return Err(other),
        };
        connections.run(move |db| check_version(db, path)).await?;
        let [write, read, reports] = std::array::from_fn(|_| connections.clone());
        Ok(Self { write, read, reports, recurring: super::recurring::RecurringConnection::absent() })
    }
}

fn beside(file: &Path, suffix: &str) -> std::path::PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Returns a pool with one connection that has read the database's first page.
async fn connect(
    file: &Path,
    open: fn(&Path, Duration) -> rusqlite::Result<Connection>,
) -> Result<ConnectionPool, StoreError> {
    let path = file.to_owned();
    let open = move || {
        let read = |db: Connection| {
            db.query_row("SELECT COUNT(*) FROM sqlite_schema", [], |_| Ok(()))?;
            Ok(db)
        };
        open(&path, BUSY).and_then(read).map_err(|error| unopened(&path, error))
    };
    let pool = ConnectionPool::start("store-look", 1, open).map_err(|error| StoreError::no_thread(file, &error))?;
    pool.run(|_| Ok::<_, StoreError>(())).await?;
    Ok(pool)
}

fn check_version(db: &Connection, path: String) -> Result<(), StoreError> {
    let ours = migrate::latest();
    let theirs = migrate::version(db).map_err(|error| match error.into() {
        StoreError::Statement(why) => {
            StoreError::Open { path: path.clone(), why: format!("it is not a wattune database: {why}") }
        }
        other => other,
    })?;
    let (whose, right) = match theirs.cmp(&ours) {
        std::cmp::Ordering::Equal => return Ok(()),
        std::cmp::Ordering::Greater => ("a newer", "use that version"),
        std::cmp::Ordering::Less => ("an older", "start this version's daemon once to bring it up to date"),
    };
    Err(StoreError::Version { path, whose, theirs, ours, right })
}
