//! Opening the database: for the daemon, for a single operation, and read-only, with or without a running daemon.

use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, ErrorCode};

use super::audit::AuditLog;
use super::connection::{ConnectionPool, Wait, open_immutable, open_to_read, open_to_write};
use super::error::unopened;
use super::recurring::RecurringConnection;
use super::{FILE_NAME, Store, StoreError, jobs, migrate};
use crate::files;

/// Maximum time that the daemon's reads wait for a lock. Readers are locked out only while SQLite recovers its
/// write-ahead log after a crash.
const READ_BUSY: Duration = Duration::from_secs(2);

/// Number of connections for short reads: with two, one slow read does not delay the control loop.
const READERS: usize = 2;

/// Maximum time that a read-only store waits for a writer's lock.
const READ_ONLY_BUSY: Duration = Duration::from_secs(5);

/// Advice for a database that a killed daemon left open.
const LEFT_OPEN: &str = "a daemon left its write-ahead log (-wal) beside it, which only users with write permission in that directory \
                         can read: run this as such a user, or start and stop the daemon once";

impl Store {
    /// Opens the database in `state_dir`, creates it if necessary, and migrates it.
    pub async fn open(state_dir: &Path) -> Result<Self, StoreError> {
        // The control loop waits for the database to open. If the file is locked, the loop tries again at its next
        // tick.
        Self::open_with(state_dir, Wait::Once).await
    }

    /// Opens the database for a single operation that the caller does not retry: each write waits up to five seconds
    /// for other writers.
    pub async fn open_with_wait(state_dir: &Path) -> Result<Self, StoreError> {
        Self::open_with(state_dir, Wait::UpTo(Duration::from_secs(5))).await
    }

    async fn open_with(state_dir: &Path, wait: Wait) -> Result<Self, StoreError> {
        let path = state_dir.join(FILE_NAME);
        make_private(&path)
            .map_err(|error| StoreError::Open { path: path.display().to_string(), why: error.to_string() })?;
        let no_thread = |error: std::io::Error| StoreError::no_thread(&path, &error);
        let file = path.clone();
        let to_write = move || open_to_write(&file, wait).map_err(|error| unopened(&file, error));
        let write = ConnectionPool::start("store-write", 1, to_write).map_err(no_thread)?;
        write.run(migrate::migrate).await?;
        // Adds the ledger entries of jobs that an earlier version of wattune stored without such entries.
        write.run(jobs::append_old_jobs).await?;
        let file = path.clone();
        let to_read = move || open_to_read(&file, READ_BUSY).map_err(|error| unopened(&file, error));
        let short_reads = ConnectionPool::start("store-read", READERS, to_read.clone()).map_err(no_thread)?;
        let reports = ConnectionPool::start("store-report", 1, to_read).map_err(no_thread)?;
        let recurring = RecurringConnection::open(&path)?;
        let audit = AuditLog::new(write.clone(), short_reads.clone());
        Ok(Self { write, short_reads, reports, recurring, audit })
    }

    /// Opens the database in `state_dir` for reading.
    ///
    /// # Errors
    /// If the database does not exist or may not be read, or if its tables are of another version.
    pub async fn open_read_only(state_dir: &Path) -> Result<Self, StoreError> {
        let file = state_dir.join(FILE_NAME);
        check_readable(&file)?;
        let connections = match connect(&file, open_to_read).await {
            Ok(connections) => connections,
            // Without write permission, a closed database can be opened only as immutable.
            Err(_) if is_closed(&file) => connect(&file, open_immutable).await?,
            Err(other) => return Err(other),
        };
        let path = file.display().to_string();
        connections.run(move |db| check_version(db, path)).await?;
        let [write, short_reads, reports] = std::array::from_fn(|_| connections.clone());
        let audit = AuditLog::new(write.clone(), short_reads.clone());
        Ok(Self { write, short_reads, reports, recurring: RecurringConnection::absent(), audit })
    }

    /// Checks, without a change, that [`Self::open`] can read the database in `state_dir` and knows its version. A
    /// missing or older database passes, because a daemon creates or migrates it.
    ///
    /// # Errors
    /// If the database cannot be read, is damaged, or has tables of a newer version.
    pub async fn check(state_dir: &Path) -> Result<(), StoreError> {
        let file = state_dir.join(FILE_NAME);
        match check_readable(&file) {
            Err(StoreError::Missing { .. }) => return Ok(()),
            readable => readable?,
        }
        // Otherwise SQLite would create files beside a closed database.
        let connections = match is_closed(&file) {
            true => connect(&file, open_immutable).await?,
            false => connect(&file, open_to_read).await?,
        };
        connections.run(|db| migrate::check(db)).await
    }
}

/// Creates the database file, if it is missing, with access for its owner only; SQLite gives the same mode to the
/// `-wal` and `-shm` files beside it. An existing file is not opened, because closing it again would release all locks
/// that this process holds on it.
fn make_private(path: &Path) -> std::io::Result<()> {
    match files::check_file(path).map_err(std::io::Error::other)? {
        Some(found) => files::close(path, &found).map_err(std::io::Error::other),
        None => files::open(path).map(drop),
    }
}

/// Checks that there is a database file that this process may read.
fn check_readable(file: &Path) -> Result<(), StoreError> {
    let path = file.display().to_string();
    match files::regular::open(file) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Err(StoreError::Missing { path }),
        Err(source) => Err(StoreError::Unreadable { path, source }),
    }
}

/// Returns true if no process has the database open, so that it can be read without locks: there is no `-wal` file.
fn is_closed(file: &Path) -> bool {
    !beside(file, "-wal").exists()
}

/// Converts the failure to open a database for reading.
fn unreadable(path: &Path, error: rusqlite::Error) -> StoreError {
    let is_denied = matches!(
        error.sqlite_error_code(),
        Some(ErrorCode::CannotOpen | ErrorCode::ReadOnly | ErrorCode::PermissionDenied)
    );
    match unopened(path, error) {
        StoreError::Open { path: shown, why } if is_denied && !is_closed(path) => {
            StoreError::Open { path: shown, why: format!("{why}; {LEFT_OPEN}") }
        }
        other => other,
    }
}

fn beside(file: &Path, suffix: &str) -> std::path::PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Returns a pool of one connection that has read from the database once, so that an unusable database is an error
/// here.
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
        open(&path, READ_ONLY_BUSY).and_then(read).map_err(|error| unreadable(&path, error))
    };
    let pool = ConnectionPool::start("store-read", 1, open).map_err(|error| StoreError::no_thread(file, &error))?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_check_finds_what_a_daemon_could_not_open() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join(FILE_NAME);
        let check = async || Store::check(dir.path()).await.map_err(|error| error.to_string());
        assert_eq!(check().await, Ok(()), "a daemon makes it");
        std::fs::write(&file, "").expect("written");
        assert_eq!(check().await, Ok(()), "a daemon died before it made the tables");
        Store::open(dir.path()).await.expect("opens").close().await;
        assert_eq!(check().await, Ok(()));
        assert!(is_closed(&file), "the check has left nothing beside it");
        let db = Connection::open(&file).expect("opens");
        db.pragma_update(None, "user_version", 99).expect("written");
        db.close().expect("closed");
        let newer = check().await.expect_err("newer");
        assert!(newer.contains("has migration 99, which this version of wattune does not have"), "{newer}");
    }

    #[tokio::test]
    async fn a_damaged_database_is_not_taken_for_one_that_was_left_open() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join(FILE_NAME);
        std::fs::write(&file, "no database. ".repeat(1000)).expect("written");
        for has_log in [false, true] {
            if has_log {
                std::fs::write(beside(&file, "-wal"), "").expect("written");
            }
            let read = Store::open_read_only(dir.path()).await.map(drop).expect_err("damaged").to_string();
            let checked = Store::check(dir.path()).await.expect_err("damaged").to_string();
            for why in [read, checked] {
                assert!(why.contains("file is not a database") && !why.contains(LEFT_OPEN), "{has_log}: {why}");
            }
        }
    }
}
