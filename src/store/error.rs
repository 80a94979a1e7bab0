//! Failures of the store.

use std::path::Path;

/// Failure of the store.
#[expect(missing_docs, reason = "the messages explain the fields")]
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The database cannot be opened or migrated to this version.
    #[error("cannot open the database {path}: {why}")]
    Open { path: String, why: String },
    /// Another process holds the write lock longer than the store waits for it.
    #[error("another process has locked the database for writing; try again in a moment")]
    Busy,
    /// There is no database file.
    #[error(
        "there is no database at {path}; name the daemon's state directory with --state-dir, or its settings with --config"
    )]
    Missing { path: String },
    /// The database file cannot be read, usually for lack of permission.
    #[error("cannot read the database {path}; run this as the daemon's user or as root")]
    Unreadable {
        path: String,
        #[source]
        source: std::io::Error,
    },
    /// The tables belong to another version of wattune.
    #[error("the database {path} was written by {whose} wattune (tables of version {theirs}, not {ours}); {right}")]
    Version {
        path: String,
        /// "a newer" or "an older".
        whose: &'static str,
        theirs: i64,
        ours: i64,
        right: &'static str,
    },
    /// The tables cannot be migrated to this version.
    #[error("cannot migrate the database; was it written by a newer wattune? {0}")]
    Migrate(String),
    /// An SQL statement failed.
    #[error("the database refused a statement: {0}")]
    Statement(String),
    /// While the database was open, its file was deleted or replaced by another.
    #[error(
        "the database {path} was removed or replaced while wattune has it open, so nothing is recorded; put it back, or \
         restart the daemon to begin a new one"
    )]
    Removed { path: String },
    /// The store is closed because the daemon is stopping.
    #[error("the database is closed, since the daemon is stopping")]
    Closed,
    /// A row is not in the format that this program writes.
    #[error("the database has an unreadable {what}: {why}")]
    Damaged { what: &'static str, why: String },
}

impl StoreError {
    pub(super) fn no_thread(path: &Path, error: &std::io::Error) -> Self {
        Self::Open { path: path.display().to_string(), why: format!("no thread can be started for it: {error}") }
    }
}

/// Returns SQLite's message with its extended result code, because some messages are ambiguous.
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
pub(super) fn unopened(path: &Path, error: rusqlite::Error) -> StoreError {
    let path = path.display().to_string();
    match error.into() {
        // SQLite's message ends with the path, which `Open` states already.
        StoreError::Statement(why) => {
            StoreError::Open { why: why.trim_end_matches(&format!(": {path}")).to_owned(), path }
        }
        other => other,
    }
}
