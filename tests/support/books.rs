//! The daemon's database, as somebody else reads it.

use std::path::Path;

use sqlx::sqlite::{SqliteConnectOptions, SqlitePoolOptions};
use sqlx::{Row as _, SqlitePool};

use super::FakeDriver;

/// The books in a state directory.
pub(crate) struct Books {
    pool: SqlitePool,
}

/// One interval.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Row {
    pub(crate) share: String,
    pub(crate) job: Option<String>,
    pub(crate) start_us: i64,
    pub(crate) end_us: i64,
    pub(crate) energy_mj: i64,
    pub(crate) source: String,
}

impl Books {
    pub(crate) async fn open(state: &Path) -> Self {
        let options = SqliteConnectOptions::new().filename(state.join("wattune.db")).read_only(true);
        Self { pool: SqlitePoolOptions::new().max_connections(1).connect_with(options).await.expect("opens") }
    }

    /// A board's intervals by time, and the counter up to which they reach, both of one moment.
    pub(crate) async fn of(&self, board: usize) -> (Vec<Row>, Option<i64>) {
        let uuid = FakeDriver::uuid(board);
        let mut tx = self.pool.begin().await.expect("begun");
        let sql = "SELECT * FROM intervals WHERE device = $1 ORDER BY start_us, id";
        let rows = sqlx::query(sql).bind(&uuid).fetch_all(&mut *tx).await.expect("readable");
        let sql = "SELECT counter_mj FROM checkpoints WHERE device = $1";
        let counter = sqlx::query_scalar(sql).bind(&uuid).fetch_optional(&mut *tx).await.expect("readable");
        let row = |r: &sqlx::sqlite::SqliteRow| Row {
            share: r.get("share"),
            job: r.get("job_id"),
            start_us: r.get("start_us"),
            end_us: r.get("end_us"),
            energy_mj: r.get("energy_mj"),
            source: r.get("source"),
        };
        (rows.iter().map(row).collect(), counter)
    }

    /// Keeps others from writing until the answer is dropped.
    pub(crate) async fn lock(&self, state: &Path) -> SqlitePool {
        let options = SqliteConnectOptions::new().filename(state.join("wattune.db"));
        let options = options.busy_timeout(std::time::Duration::from_secs(30));
        let pool = SqlitePoolOptions::new().max_connections(1).connect_with(options).await.expect("opens");
        sqlx::query("BEGIN IMMEDIATE").execute(&pool).await.expect("locked");
        pool
    }

    /// As [`Self::lock`]; `None` where somebody else has it for long.
    pub(crate) async fn try_lock(&self, state: &Path) -> Option<SqlitePool> {
        let options = SqliteConnectOptions::new().filename(state.join("wattune.db"));
        let options = options.busy_timeout(std::time::Duration::from_secs(5));
        let pool = SqlitePoolOptions::new().max_connections(1).connect_with(options).await.ok()?;
        sqlx::query("BEGIN IMMEDIATE").execute(&pool).await.ok()?;
        Some(pool)
    }

    /// All energy booked on a job.
    pub(crate) async fn of_job_j(&self, job: &str) -> f64 {
        let sql = "SELECT COALESCE(SUM(energy_mj), 0) FROM intervals WHERE job_id = $1";
        let energy_mj: i64 = sqlx::query_scalar(sql).bind(job).fetch_one(&self.pool).await.expect("readable");
        energy_mj as f64 / 1e3
    }

    /// All energy booked on a board.
    pub(crate) async fn total_j(&self, board: usize) -> f64 {
        self.of(board).await.0.iter().map(|r| r.energy_mj).sum::<i64>() as f64 / 1e3
    }
}
