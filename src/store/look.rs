//! Looking at a database without a daemon, or beside one: nothing is made, changed or migrated.

use std::path::Path;
use std::time::Duration;

use sqlx::SqlitePool;
use sqlx::sqlite::{SqliteConnectOptions, SqlitePoolOptions};

use super::{FILE_NAME, Store, StoreError, unopened};

const LEFT_OPEN: &str = "a daemon left its write-ahead log (-wal) beside it, which only who may write in that directory \
                         can read: ask as that user, or start and stop the daemon once";

impl Store {
    /// Opens the database in `state_dir` to be read.
    ///
    /// # Errors
    /// If there is none, it may not be read, or its tables are of another version.
    pub async fn look(state_dir: &Path) -> Result<Self, StoreError> {
        let file = state_dir.join(FILE_NAME);
        let path = file.display().to_string();
        if let Err(source) = crate::files::regular::open(&file) {
            return Err(match source.kind() {
                std::io::ErrorKind::NotFound => StoreError::Missing { path },
                _ => StoreError::Unreadable { path, source },
            });
        }
        let options = SqliteConnectOptions::new()
            .filename(&file)
            .read_only(true)
            .row_buffer_size(1000)
            .busy_timeout(Duration::from_secs(5));
        let pool = match connect(options.clone()).await {
            Ok(pool) => pool,
            // Who may not write beside a closed database cannot share it, and need not: nobody has it open.
            Err(_) if !beside(&file, "-wal").exists() => {
                connect(options.immutable(true)).await.map_err(|error| unopened(&file, error))?
            }
            Err(error) => {
                return Err(match unopened(&file, error) {
                    StoreError::Open { path, why } => StoreError::Open { path, why: format!("{why}; {LEFT_OPEN}") },
                    other => other,
                });
            }
        };
        check_version(&pool, path).await?;
        Ok(Self { pool: pool.clone(), recurring: super::recurring::Desk::absent(), reading: pool })
    }
}

fn beside(file: &Path, suffix: &str) -> std::path::PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

async fn connect(options: SqliteConnectOptions) -> Result<SqlitePool, sqlx::Error> {
    let pool = SqlitePoolOptions::new().max_connections(2).connect_with(options).await?;
    sqlx::query("SELECT COUNT(*) FROM sqlite_schema").fetch_one(&pool).await?;
    Ok(pool)
}

async fn check_version(pool: &SqlitePool, path: String) -> Result<(), StoreError> {
    let ours = sqlx::migrate!("src/store/migrations").iter().map(|m| m.version).max().unwrap_or_default();
    let sql = "SELECT MAX(version) FROM _sqlx_migrations WHERE success";
    let theirs: Result<Option<i64>, StoreError> = sqlx::query_scalar(sql).fetch_one(pool).await.map_err(Into::into);
    let theirs = theirs.map_err(|error| match error {
        StoreError::Statement(why) => {
            StoreError::Open { path: path.clone(), why: format!("it is none of wattune's: {why}") }
        }
        other => other,
    })?;
    let theirs = theirs.unwrap_or_default();
    let (whose, right) = match theirs.cmp(&ours) {
        std::cmp::Ordering::Equal => return Ok(()),
        std::cmp::Ordering::Greater => ("a newer", "use that version"),
        std::cmp::Ordering::Less => ("an older", "start this version's daemon once to bring it up to date"),
    };
    Err(StoreError::Version { path, whose, theirs, ours, right })
}
