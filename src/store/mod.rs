//! Persistent state: SQLite in the state directory. Only this module converts rows to domain types.
//!
//! Intervals and intensities are append-only. The counter checkpoint of a device changes in the same transaction as the
//! intervals that it covers, so that a crash neither loses nor duplicates energy.
//!
//! One connection writes and others read concurrently, each on its own thread (`connection.rs`). Requests about
//! recurring jobs run on the calling thread (`recurring/connection.rs`).

mod connection;
mod events;
mod ledger;
mod migrate;
mod read_only;
mod recurring;
mod rows;
mod signals;

use std::path::Path;
use std::time::Duration;

use chrono::{DateTime, Utc};
use rusqlite::{Connection, Row, params};

use self::connection::{ConnectionPool, Wait, open_to_read, open_to_write};
use crate::files;
use wattune_core::domain::{Activity, DeviceId, JobId, JobSpec, ProfileKey};
use wattune_core::profile::{ProgressAccount, Record};
use wattune_core::units::{Millijoules, Samples, Seconds};

pub use ledger::{
    CorrectionError, CorrectionRequest, CorrectionResult, LastSeen, LedgerPage, LedgerRow, OpenIntervalRecord,
    RecoveredState, SettledTotal,
};
pub use recurring::{Created, FullRuns, ListedRecurring, Page, StoredRecurring};
pub use wattune_core::ledger::due::DueReason;
pub use wattune_core::ledger::hour::SettlementInput;
pub use wattune_core::ledger::sources::SourceKey;

/// Name of the database file in the state directory.
pub const FILE_NAME: &str = "wattune.db";

/// Failure of the store.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The database cannot be opened or migrated to this version.
    #[error("cannot open the database {path}: {why}")]
    Open {
        /// Path of the file.
        path: String,
        /// Reason.
        why: String,
    },
    /// Another process holds the write lock for longer than the store waits.
    #[error("another process holds the database for writing; try again in a moment")]
    Busy,
    /// There is no database.
    #[error(
        "there is no database at {path}; name the daemon's state directory with --state-dir, or its settings with --config"
    )]
    Missing {
        /// Path of the file.
        path: String,
    },
    /// The file may not be read.
    #[error("cannot read the database {path}; do it as the daemon's user or as root")]
    Unreadable {
        /// Path of the file.
        path: String,
        /// Reason.
        #[source]
        source: std::io::Error,
    },
    /// The tables have another version.
    #[error("the database {path} was written by {whose} wattune (tables of version {theirs}, not {ours}); {right}")]
    Version {
        /// Path of the file.
        path: String,
        /// "a newer" or "an older".
        whose: &'static str,
        /// Version of the tables.
        theirs: i64,
        /// Version of this program's tables.
        ours: i64,
        /// Remedy.
        right: &'static str,
    },
    /// The tables cannot be migrated to this version.
    #[error("cannot migrate the database; was it written by a newer wattune? {0}")]
    Migrate(String),
    /// A statement failed.
    #[error("the database refused a statement: {0}")]
    Statement(String),
    /// The daemon is stopping.
    #[error("the database is closed, since the daemon is stopping")]
    Closed,
    /// A row is not in the format that this program writes.
    #[error("the database has an unreadable {what}: {why}")]
    Damaged {
        /// Kind of row.
        what: &'static str,
        /// Error in the row.
        why: String,
    },
}

impl StoreError {
    fn no_thread(path: &Path, error: &std::io::Error) -> Self {
        Self::Open { path: path.display().to_string(), why: format!("no thread can be started for it: {error}") }
    }
}

/// Returns SQLite's message with its extended code, because some messages are ambiguous.
fn describe(error: &rusqlite::Error) -> String {
    match error {
        rusqlite::Error::SqliteFailure(cause, Some(message))
        | rusqlite::Error::SqlInputError { error: cause, msg: message, .. } => {
            format!("(code: {}) {message}", cause.extended_code)
        }
        other => other.to_string(),
    }
}

impl From<rusqlite::Error> for StoreError {
    fn from(error: rusqlite::Error) -> Self {
        match error.sqlite_error_code() {
            Some(rusqlite::ErrorCode::DatabaseBusy | rusqlite::ErrorCode::DatabaseLocked) => Self::Busy,
            _ => Self::Statement(describe(&error)),
        }
    }
}

/// Converts the failure to open the database at `path`.
fn unopened(path: &Path, error: rusqlite::Error) -> StoreError {
    let path = path.display().to_string();
    match error.into() {
        // Do not repeat the path.
        StoreError::Statement(why) => {
            StoreError::Open { why: why.trim_end_matches(&format!(": {path}")).to_owned(), path }
        }
        other => other,
    }
}

/// Creates the database file, if it is missing, with access for its owner only; SQLite gives the same mode to the files
/// beside it. An existing file is not opened: closing it again would release all locks of this process on it.
fn make_private(path: &Path) -> std::io::Result<()> {
    match files::check_file(path).map_err(std::io::Error::other)? {
        Some(found) => files::close(path, &found).map_err(std::io::Error::other),
        None => files::open(path).map(drop),
    }
}

/// A job as stored.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredJob {
    /// Id.
    pub id: JobId,
    /// Registered data.
    pub spec: JobSpec,
    /// Progress.
    pub progress: StoredProgress,
    /// Time of registration.
    pub registered_at: DateTime<Utc>,
    /// Time and reason of the end, if it has ended.
    pub ended: Option<(DateTime<Utc>, String)>,
}

/// Persistent part of a job's progress.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct StoredProgress {
    /// Work and time so far.
    pub account: ProgressAccount,
    /// Last report: cumulative samples, client time, and time of receipt.
    pub last: Option<LastReport>,
    /// Cumulative samples at the first report.
    pub first_samples: f64,
    /// Time of the first report.
    pub started_at: Option<DateTime<Utc>>,
    /// State of the job, running or paused, and since when.
    #[serde(default)]
    pub activity: Option<Activity>,
}

impl StoredProgress {
    /// Maximum ratio of the samples in the first report to those that the later throughput explains.
    const EXPLAINED: f64 = 1.25;

    /// Returns the samples completed since registration. The samples in the first report are included if the throughput
    /// since then explains them; otherwise the run began from a checkpoint, which counts earlier samples too.
    pub fn samples_since(&self, registered_at: DateTime<Utc>) -> Samples {
        let ProgressAccount { samples, active, stalled, .. } = self.account;
        let first = Samples::new(self.first_samples);
        let until_first = self.started_at.map_or(Seconds::ZERO, |at| Seconds::from_delta(at - registered_at));
        // Without time between two reports the throughput is unknown.
        let explained = samples * (until_first.max(Seconds::ZERO) / (active + stalled)) * Self::EXPLAINED;
        if first <= explained { samples + first } else { samples }
    }
}

/// A job's last progress report.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct LastReport {
    /// Cumulative samples.
    pub samples: f64,
    /// Monotonic time of the client in seconds, if reported.
    pub at_s: Option<f64>,
    /// Time of receipt.
    pub received: DateTime<Utc>,
}

/// Counter reading up to which a device's energy is recorded.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Checkpoint {
    /// Device.
    pub device: DeviceId,
    /// Counter reading of the hardware.
    pub counter: Millijoules,
    /// Time of the reading.
    pub at: DateTime<Utc>,
    /// Name of the counter, for a device that can be read from several; `None` if there is only one or it is unknown.
    pub read_from: Option<String>,
    /// Jobs on the device at that time.
    pub holders: Vec<JobId>,
    /// Change of the reading, in millijoules, that was not recorded as energy, such as by resets.
    pub rebased_mj: i64,
    /// Part of the counter's future increase that is recorded already: integrated from power while the counter was
    /// absent.
    pub estimated: Millijoules,
}

/// Maximum time that reads wait for a lock. Only recovery of the log after a crash takes a lock that excludes them.
const READ_BUSY: Duration = Duration::from_secs(2);

/// Number of connections for short reads: a slow one does not delay the control loop.
const READERS: usize = 2;

/// The embedded database.
#[derive(Clone, Debug)]
pub struct Store {
    /// The only writing connection, except for recurring jobs.
    write: ConnectionPool,
    /// Connections for short reads.
    read: ConnectionPool,
    /// Connection for long reads; reports queue for it.
    reports: ConnectionPool,
    recurring: recurring::RecurringConnection,
}

impl Store {
    /// Opens the database in `state_dir`, creates it if necessary, and migrates it.
    ///
    /// # Errors
    /// If the file cannot be opened or belongs to a newer version.
    pub async fn open(state_dir: &Path) -> Result<Self, StoreError> {
        // The control loop waits for this, and retries at the next tick if the file is locked.
        Self::open_with(state_dir, Wait::Once).await
    }

    /// Opens the database for a single operation that is not retried: waits several seconds for other writers.
    ///
    /// # Errors
    /// As [`Self::open`].
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
        write.run(ledger::complete_old_rows).await?;
        let file = path.clone();
        let to_read = move || open_to_read(&file, READ_BUSY).map_err(|error| unopened(&file, error));
        let read = ConnectionPool::start("store-read", READERS, to_read.clone()).map_err(no_thread)?;
        let reports = ConnectionPool::start("store-report", 1, to_read).map_err(no_thread)?;
        Ok(Self { write, read, reports, recurring: recurring::RecurringConnection::open(&path)? })
    }

    /// Waits for all pending work to be written, and closes the file.
    pub async fn close(&self) {
        // The last connection to close copies the log into the database, so it must be a writing one.
        self.reports.close().await;
        self.read.close().await;
        self.recurring.close().await;
        self.write.close().await;
    }

    /// Returns the jobs that have not ended.
    ///
    /// # Errors
    /// If they cannot be read.
    pub async fn open_jobs(&self) -> Result<Vec<StoredJob>, StoreError> {
        let sql = "SELECT * FROM jobs WHERE ended_us IS NULL ORDER BY registered_us";
        self.read.run(move |db| rows::all(db, sql, [], rows::job)).await
    }

    /// Returns the last `limit` jobs that ended, newest first.
    ///
    /// # Errors
    /// If they cannot be read.
    pub async fn ended_jobs(&self, limit: u32) -> Result<Vec<StoredJob>, StoreError> {
        let sql = "SELECT * FROM jobs WHERE ended_us IS NOT NULL ORDER BY ended_us DESC LIMIT ?1";
        self.read.run(move |db| rows::all(db, sql, [limit], rows::job)).await
    }

    /// Returns a job, running or ended.
    ///
    /// # Errors
    /// If it cannot be read.
    pub async fn job(&self, id: &JobId) -> Result<Option<StoredJob>, StoreError> {
        let id = id.clone();
        let sql = "SELECT * FROM jobs WHERE id = ?1";
        self.read.run(move |db| rows::optional(db, sql, [id.as_str()], rows::job)).await
    }

    /// Returns the profile that earlier runs learned.
    ///
    /// # Errors
    /// If it cannot be read.
    pub async fn profile(&self, key: &ProfileKey) -> Result<Option<Record>, StoreError> {
        let key = rows::json(key)?;
        let sql = "SELECT record FROM profiles WHERE key = ?1";
        let record = |row: &Row<'_>| rows::from_json("profile", rows::text(row, "record")?);
        self.read.run(move |db| rows::optional(db, sql, [key], record)).await
    }

    /// Returns the profiles of runs with the same name on the same GPUs and other batch sizes.
    ///
    /// # Errors
    /// If it cannot be read.
    pub async fn neighbouring_profiles(&self, key: &ProfileKey) -> Result<Vec<(u64, Record)>, StoreError> {
        // Keys begin with the name: `;` follows `:`.
        let begin = format!("{{\"name\":{},\"batch_size\"", rows::json(&key.name)?);
        let sql = "SELECT key, record FROM profiles WHERE key >= ?1 AND key < ?2";
        let key = key.clone();
        let neighbour = move |row: &Row<'_>| {
            let other: ProfileKey = rows::from_json("profile", rows::text(row, "key")?)?;
            match other.batch_size.filter(|b| Some(*b) != key.batch_size && other.boards == key.boards) {
                Some(batch_size) => Ok(Some((batch_size, rows::from_json("profile", rows::text(row, "record")?)?))),
                None => Ok(None),
            }
        };
        let found =
            move |db: &mut Connection| rows::all(db, sql, [format!("{begin}:"), format!("{begin};")], neighbour);
        Ok(self.read.run(found).await?.into_iter().flatten().collect())
    }

    /// Stores a profile for later runs.
    ///
    /// # Errors
    /// If it cannot be written.
    pub async fn save_profile(&self, key: &ProfileKey, record: &Record, now: DateTime<Utc>) -> Result<(), StoreError> {
        let sql = "INSERT INTO profiles (key, record, updated_us) VALUES (?1, ?2, ?3) \
                   ON CONFLICT (key) DO UPDATE SET record = ?2, updated_us = ?3";
        let (key, record) = (rows::json(key)?, rows::json(record)?);
        self.write.run(move |db| rows::execute(db, sql, params![key, record, now.timestamp_micros()])).await?;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
