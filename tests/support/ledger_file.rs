//! The daemon's database, as somebody else reads it.

use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, OpenFlags, OptionalExtension as _};

use super::FakeDriver;

/// The ledger in a state directory.
pub(crate) struct LedgerFile {
    db: Connection,
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

impl LedgerFile {
    pub(crate) fn open(state: &Path) -> Self {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        Self { db: Connection::open_with_flags(state.join("wattune.db"), flags).expect("opens") }
    }

    /// A GPU's intervals by time, and the counter up to which they reach, both of one moment.
    pub(crate) fn of(&self, gpu: usize) -> (Vec<Row>, Option<i64>) {
        let uuid = FakeDriver::uuid(gpu);
        let tx = self.db.unchecked_transaction().expect("begun");
        let sql = "SELECT share, job_id, start_us, end_us, energy_mj, source FROM intervals WHERE device = ?1 \
                   ORDER BY start_us, id";
        let row = |r: &rusqlite::Row<'_>| {
            Ok(Row {
                share: r.get(0)?,
                job: r.get(1)?,
                start_us: r.get(2)?,
                end_us: r.get(3)?,
                energy_mj: r.get(4)?,
                source: r.get(5)?,
            })
        };
        let mut statement = tx.prepare(sql).expect("prepared");
        let rows = statement.query_map([&uuid], row).expect("readable").collect::<Result<_, _>>().expect("readable");
        let sql = "SELECT counter_mj FROM checkpoints WHERE device = ?1";
        let counter = tx.query_row(sql, [&uuid], |row| row.get(0)).optional().expect("readable");
        (rows, counter)
    }

    /// Keeps others from writing until the answer is dropped.
    pub(crate) fn lock(state: &Path) -> Connection {
        Self::try_lock(state, Duration::from_secs(30)).expect("locked")
    }

    /// As [`Self::lock`]; `None` where somebody else has it for longer than `patience`.
    pub(crate) fn try_lock(state: &Path, patience: Duration) -> Option<Connection> {
        let db = Connection::open(state.join("wattune.db")).ok()?;
        db.busy_timeout(patience).ok()?;
        db.execute_batch("BEGIN IMMEDIATE").ok()?;
        Some(db)
    }

    /// All energy recorded on a job.
    pub(crate) fn of_job_j(&self, job: &str) -> f64 {
        let sql = "SELECT COALESCE(SUM(energy_mj), 0) FROM intervals WHERE job_id = ?1";
        let energy_mj: i64 = self.db.query_row(sql, [job], |row| row.get(0)).expect("readable");
        energy_mj as f64 / 1e3
    }

    /// All energy recorded on a GPU.
    pub(crate) fn total_j(&self, gpu: usize) -> f64 {
        self.of(gpu).0.iter().map(|r| r.energy_mj).sum::<i64>() as f64 / 1e3
    }
}
