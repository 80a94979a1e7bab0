//! What survives a restart: SQLite in the state directory. Rows become domain types here, and nowhere else.
//!
//! Intervals and intensities are append-only. A board's counter checkpoint changes in the same transaction as the
//! intervals that it covers, so that after a crash no joule is counted twice or lost.
//!
//! One connection writes, others read beside it, each on a thread of its own (`connection.rs`); those of recurring jobs work
//! on the thread that asks (`recurring/desk.rs`).

mod connection;
mod events;
mod ledger;
mod look;
mod migrate;
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
    Booked, CorrectionError, Done as Corrected, LastSeen, LedgerPage, LedgerRow, OpenBooks, TakenUp, ToCorrect,
};
pub use recurring::{Created, InFull, ListedRecurring, Page, StoredRecurring};
pub use wattune_core::ledger::due::Why;
pub use wattune_core::ledger::hour::Settling;
pub use wattune_core::ledger::sources::SourceKey;

/// The database's file in the state directory.
pub const FILE_NAME: &str = "wattune.db";

/// Why the store failed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// It cannot be opened or brought up to this version.
    #[error("cannot open the database {path}: {why}")]
    Open {
        /// The file.
        path: String,
        /// The reason.
        why: String,
    },
    /// Somebody else writes, for longer than is waited.
    #[error("another process holds the database for writing; try again in a moment")]
    Busy,
    /// There is none.
    #[error(
        "there is no database at {path}; name the daemon's state directory with --state-dir, or its settings with --config"
    )]
    Missing {
        /// The file.
        path: String,
    },
    /// It may not be read.
    #[error("cannot read the database {path}; do it as the daemon's user or as root")]
    Unreadable {
        /// The file.
        path: String,
        /// The reason.
        #[source]
        source: std::io::Error,
    },
    /// Its tables are of another version.
    #[error("the database {path} was written by {whose} wattune (tables of version {theirs}, not {ours}); {right}")]
    Version {
        /// The file.
        path: String,
        /// "a newer" or "an older".
        whose: &'static str,
        /// The version of its tables.
        theirs: i64,
        /// The version of this program's tables.
        ours: i64,
        /// What would be right.
        right: &'static str,
    },
    /// Its tables cannot be brought up to this version.
    #[error("cannot migrate the database; was it written by a newer wattune? {0}")]
    Migrate(String),
    /// A statement failed.
    #[error("the database refused a statement: {0}")]
    Statement(String),
    /// The daemon is stopping.
    #[error("the database is closed, since the daemon is stopping")]
    Closed,
    /// A row is not what this program writes.
    #[error("the database has an unreadable {what}: {why}")]
    Damaged {
        /// Which kind of row.
        what: &'static str,
        /// What is wrong with it.
        why: String,
    },
}

impl StoreError {
    fn no_thread(path: &Path, error: &std::io::Error) -> Self {
        Self::Open { path: path.display().to_string(), why: format!("no thread can be started for it: {error}") }
    }
}

/// SQLite's own words, with its extended code: some of them are ambiguous.
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

/// Why the database at `path` could not be opened.
fn unopened(path: &Path, error: rusqlite::Error) -> StoreError {
    let path = path.display().to_string();
    match error.into() {
        // The path is said once.
        StoreError::Statement(why) => {
            StoreError::Open { why: why.trim_end_matches(&format!(": {path}")).to_owned(), path }
        }
        other => other,
    }
}

/// Makes the database's file, if there is none, for its owner alone: SQLite gives the files beside it the same mode. One
/// that is there is not opened, since closing it again would drop all locks that this process has on it.
fn make_private(path: &Path) -> std::io::Result<()> {
    match files::check_file(path).map_err(std::io::Error::other)? {
        Some(found) => files::close(path, &found).map_err(std::io::Error::other),
        None => files::open(path).map(drop),
    }
}

/// A job as it is stored.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredJob {
    /// Its id.
    pub id: JobId,
    /// As it was registered.
    pub spec: JobSpec,
    /// How far it is.
    pub progress: StoredProgress,
    /// When it was registered.
    pub registered_at: DateTime<Utc>,
    /// When and why it ended, if it has.
    pub ended: Option<(DateTime<Utc>, String)>,
}

/// What must survive of a job's progress.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct StoredProgress {
    /// Work and time so far.
    pub account: ProgressAccount,
    /// The last report's cumulative samples and client time, and when it came.
    pub last: Option<LastReport>,
    /// The first report's cumulative samples: what was done until then.
    pub first_samples: f64,
    /// When the first report came.
    pub started_at: Option<DateTime<Utc>>,
    /// Whether it runs or was told to pause, and since when.
    #[serde(default)]
    pub activity: Option<Activity>,
}

impl StoredProgress {
    /// More of the pace since than this, and what the first report told was not all done since the registration.
    const EXPLAINED: f64 = 1.25;

    /// Samples done since the registration. What the first report told is among them where the pace since then explains
    /// it: a run that begins from a checkpoint also counts what it had done before.
    pub fn samples_since(&self, registered_at: DateTime<Utc>) -> Samples {
        let ProgressAccount { samples, active, stalled, .. } = self.account;
        let first = Samples::new(self.first_samples);
        let until_first = self.started_at.map_or(Seconds::ZERO, |at| Seconds::from_delta(at - registered_at));
        // Without time between two reports there is no pace.
        let explained = samples * (until_first.max(Seconds::ZERO) / (active + stalled)) * Self::EXPLAINED;
        if first <= explained { samples + first } else { samples }
    }
}

/// A job's last word.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct LastReport {
    /// Cumulative samples.
    pub samples: f64,
    /// The client's monotonic seconds, if it gave any.
    pub at_s: Option<f64>,
    /// When it came.
    pub received: DateTime<Utc>,
}

/// The counter up to which a device's energy stands in the books.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Checkpoint {
    /// The device.
    pub device: DeviceId,
    /// The hardware's counter.
    pub counter: Millijoules,
    /// When it was read.
    pub at: DateTime<Utc>,
    /// Which counter that is, of a device that can be read from several; `None` where there is one, or nobody kept it.
    pub read_from: Option<String>,
    /// The jobs that held the device then.
    pub holders: Vec<JobId>,
    /// What the counter's reading gained without that being booked from it, in millijoules: resets move it.
    pub rebased_mj: i64,
    /// How much of what the counter gains from there on is booked already: integrated from power while it was away.
    pub estimated: Millijoules,
}

/// How long reads wait for a lock: only whoever recovers the log after a crash takes one that keeps them out.
const READ_BUSY: Duration = Duration::from_secs(2);

/// Connections for short reads: one that takes longer does not keep the control loop's waiting.
const READERS: usize = 2;

/// The embedded database.
#[derive(Clone, Debug)]
pub struct Store {
    /// The one connection that writes, but for those of recurring jobs.
    write: ConnectionPool,
    /// For short reads.
    read: ConnectionPool,
    /// For reads that may take long: reports queue up for it.
    reports: ConnectionPool,
    recurring: recurring::Desk,
}

impl Store {
    /// Opens, or makes, the database in `state_dir`, and migrates it.
    ///
    /// # Errors
    /// If the file cannot be opened or belongs to a newer version.
    pub async fn open(state_dir: &Path) -> Result<Self, StoreError> {
        // The control loop waits for this: whoever holds the file for longer is tried again at the next tick.
        Self::open_with(state_dir, Wait::Once).await
    }

    /// The same for whoever does one thing, which is not tried again: waits some seconds for others that write.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub async fn open_patiently(state_dir: &Path) -> Result<Self, StoreError> {
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
        Ok(Self { write, read, reports, recurring: recurring::Desk::open(&path)? })
    }

    /// Waits for all that was handed over to be written, and closes the file.
    pub async fn close(&self) {
        // Whoever is last brings the log into the database: it must be one that writes.
        self.reports.close().await;
        self.read.close().await;
        self.recurring.close().await;
        self.write.close().await;
    }

    /// The jobs that have not ended.
    ///
    /// # Errors
    /// If they cannot be read.
    pub async fn open_jobs(&self) -> Result<Vec<StoredJob>, StoreError> {
        let sql = "SELECT * FROM jobs WHERE ended_us IS NULL ORDER BY registered_us";
        self.read.run(move |db| rows::all(db, sql, [], rows::job)).await
    }

    /// The jobs that ended last, newest first, at most `limit`.
    ///
    /// # Errors
    /// If they cannot be read.
    pub async fn ended_jobs(&self, limit: u32) -> Result<Vec<StoredJob>, StoreError> {
        let sql = "SELECT * FROM jobs WHERE ended_us IS NOT NULL ORDER BY ended_us DESC LIMIT ?1";
        self.read.run(move |db| rows::all(db, sql, [limit], rows::job)).await
    }

    /// A job, running or ended.
    ///
    /// # Errors
    /// If it cannot be read.
    pub async fn job(&self, id: &JobId) -> Result<Option<StoredJob>, StoreError> {
        let id = id.clone();
        let sql = "SELECT * FROM jobs WHERE id = ?1";
        self.read.run(move |db| rows::optional(db, sql, [id.as_str()], rows::job)).await
    }

    /// What earlier runs learned.
    ///
    /// # Errors
    /// If it cannot be read.
    pub async fn profile(&self, key: &ProfileKey) -> Result<Option<Record>, StoreError> {
        let key = rows::json(key)?;
        let sql = "SELECT record FROM profiles WHERE key = ?1";
        let record = |row: &Row<'_>| rows::from_json("profile", rows::text(row, "record")?);
        self.read.run(move |db| rows::optional(db, sql, [key], record)).await
    }

    /// What runs of the same name on the same boards learned with other batch sizes.
    ///
    /// # Errors
    /// If it cannot be read.
    pub async fn neighbouring_profiles(&self, key: &ProfileKey) -> Result<Vec<(u64, Record)>, StoreError> {
        // Keys are texts that begin with the name: `;` is what follows `:`.
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

    /// Keeps what was learned for later runs.
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
