//! The queue of the audit log and its table.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use chrono::{DateTime, Utc};
use rusqlite::types::Value;
use rusqlite::{Connection, params, params_from_iter};

use super::record::{AuditAction, AuditRecord, DAEMON};
use crate::store::connection::{ConnectionPool, writing};
use crate::store::{StoreError, rows};

/// Maximum number of records that wait to be stored; further ones are lost.
const MOST_WAITING: usize = 8192;
/// Maximum number of records that one transaction stores. It takes about a millisecond, for which the control loop may
/// have to wait. If so many records wait, they are stored at once and not at the next tick.
const BATCH: usize = 128;
/// Number of records that are stored before other threads get their turn.
const TURN: usize = 16;
/// Minimum number of days for which records are kept.
pub(in crate::store) const KEPT_DAYS: i64 = 400;

/// The audit log. Clones share it.
#[derive(Clone, Debug)]
pub struct AuditLog {
    queue: Arc<Mutex<Queue>>,
    write: ConnectionPool,
    reads: ConnectionPool,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<AuditRecord>,
    /// Number of records that are taken from the queue and not stored yet.
    in_progress: usize,
    /// Number of waiting records that are to be stored without another request.
    planned: usize,
    /// True while work that stores a batch is queued and has not begun.
    is_scheduled: bool,
    /// Number of records lost since the start.
    lost: u64,
    /// Lost records that the log does not mention yet.
    unreported: Option<Unreported>,
    /// Error of the last attempt to store records; `None` if it succeeded.
    fault: Option<String>,
}

#[derive(Debug)]
struct Unreported {
    /// Number of lost records.
    count: u64,
    /// Time of the last of them.
    at: DateTime<Utc>,
    /// Reason why the first of them was lost.
    why: String,
}

/// Selection of records.
#[derive(Clone, Debug, PartialEq)]
pub struct AuditQuery {
    /// Number of the last record before the page; `None` for the first page.
    pub after: Option<u64>,
    /// Maximum number of records on the page.
    pub limit: u32,
    /// UUID of the GPU that the records concern; `None` for all records.
    pub gpu: Option<String>,
    /// Id of the job that the records concern; `None` for all records.
    pub job: Option<String>,
    /// Earliest time of the records; `None` for all records.
    pub since: Option<DateTime<Utc>>,
}

/// Page of the audit log.
#[derive(Clone, Debug, PartialEq)]
pub struct AuditPage {
    /// Records with their numbers, oldest first.
    pub records: Vec<(u64, AuditRecord)>,
    /// Number of the last record on this page, if more records follow.
    pub next_after: Option<u64>,
}

impl AuditLog {
    pub(in crate::store) fn new(write: ConnectionPool, reads: ConnectionPool) -> Self {
        Self { queue: Arc::default(), write, reads }
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        lock(&self.queue)
    }

    /// Adds a record to the queue; it is stored within a tick. A record that only repeats the previous one increases
    /// that record's count instead. If the queue is full, the record is lost, and the number of lost records increases.
    pub fn record(&self, record: AuditRecord) {
        let mut queue = self.queue();
        if let Some(last) = queue.waiting.back_mut().filter(|last| last.is_repeated_by(&record)) {
            last.repeats = last.repeats.saturating_add(1);
            return;
        }
        if queue.waiting.len() + queue.in_progress >= MOST_WAITING {
            queue.lost += 1;
            match &mut queue.unreported {
                Some(unreported) => (unreported.count, unreported.at) = (unreported.count + 1, record.at),
                None => {
                    let why = queue.fault.clone().unwrap_or_else(|| "they come faster than they can be stored".into());
                    tracing::error!(
                        "audit log: {MOST_WAITING} records wait to be stored, and further ones are lost: {why}"
                    );
                    queue.unreported = Some(Unreported { count: 1, at: record.at, why });
                }
            }
            return;
        }
        queue.waiting.push_back(record);
        // While storing fails, only ticks try again.
        let is_many = queue.waiting.len() >= BATCH && queue.fault.is_none();
        drop(queue);
        if is_many {
            self.begin_write();
        }
    }

    /// Returns the number of records lost since the daemon's start.
    pub fn lost(&self) -> u64 {
        self.queue().lost
    }

    /// Returns why the last attempt to store records failed; `None` if it succeeded.
    pub fn fault(&self) -> Option<String> {
        self.queue().fault.clone()
    }

    /// Starts storing the waiting records on the writing connection, without waiting for the result. Between two batches
    /// the connection does other work that is queued. Records that come meanwhile wait for the next call, so that equal
    /// ones are counted in one record.
    pub fn begin_write(&self) {
        let mut queue = self.queue();
        queue.planned = queue.waiting.len();
        drop(queue);
        self.begin_batch();
    }

    fn begin_batch(&self) {
        let mut queue = self.queue();
        if queue.planned == 0 || queue.is_scheduled {
            return;
        }
        queue.is_scheduled = true;
        drop(queue);
        let log = self.clone();
        self.write.submit(move |db| {
            log.queue().is_scheduled = false;
            // The queue keeps the error, and the next tick tries again.
            let _ = store_batch(db, &log.queue);
            log.begin_batch();
        });
    }

    /// Stores the waiting records, in batches between which the writing connection does other work.
    ///
    /// # Errors
    /// If the database cannot be written; then the records wait for the next attempt.
    pub async fn flush(&self) -> Result<(), StoreError> {
        let mut left = {
            let queue = self.queue();
            // A batch in progress may fail and wait again.
            queue.waiting.len() + queue.in_progress
        };
        // The record of lost records follows the first batch, so there may be one more batch.
        left += if left > 0 { BATCH } else { 0 };
        while left > 0 {
            let queue = Arc::clone(&self.queue);
            match self.write.run(move |db| store_batch(Ok(db), &queue)).await? {
                0 => break,
                stored => left = left.saturating_sub(stored),
            }
        }
        Ok(())
    }

    /// Stores the waiting records before the store is closed, and logs how many cannot be stored.
    pub(in crate::store) async fn close(&self) {
        if let Err(error) = self.flush().await {
            let left = self.queue().waiting.len();
            tracing::error!("audit log: {left} records are lost, since the database cannot be written: {error}");
        }
    }

    /// Returns a page of the log, after all records so far are stored.
    ///
    /// # Errors
    /// If the database cannot be written or read.
    pub async fn page(&self, query: AuditQuery) -> Result<AuditPage, StoreError> {
        self.flush().await?;
        self.reads.run(move |db| page(db, &query)).await
    }
}

fn lock(queue: &Mutex<Queue>) -> MutexGuard<'_, Queue> {
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Stores the oldest waiting records in one transaction, and returns their number. Those that cannot be stored wait
/// again.
fn store_batch(db: Result<&mut Connection, StoreError>, queue: &Mutex<Queue>) -> Result<usize, StoreError> {
    let batch: Vec<AuditRecord> = {
        let mut queue = lock(queue);
        let count = queue.waiting.len().min(BATCH);
        queue.in_progress = count;
        queue.planned = queue.planned.saturating_sub(count).min(queue.waiting.len() - count);
        queue.waiting.drain(..count).collect()
    };
    let count = batch.len();
    if count == 0 {
        return Ok(0);
    }
    let stored = db.and_then(|db| append(db, &batch));
    let mut queue = lock(queue);
    queue.in_progress = 0;
    if let Err(error) = stored {
        if queue.fault.is_none() {
            tracing::error!("audit log: {count} records cannot be stored now: {error}");
        }
        queue.fault = Some(error.to_string());
        queue.planned = 0;
        batch.into_iter().rev().for_each(|record| queue.waiting.push_front(record));
        return Err(error);
    }
    queue.fault = None;
    if let Some(Unreported { count, at, why }) = queue.unreported.take() {
        let lost = AuditRecord {
            reason: Some(match count {
                1 => format!("1 record was lost: {why}"),
                _ => format!("{count} records were lost: {why}"),
            }),
            ..AuditRecord::new(at, DAEMON, AuditAction::LoseRecords)
        };
        queue.waiting.push_back(lost);
    }
    Ok(count)
}

fn append(db: &mut Connection, batch: &[AuditRecord]) -> Result<(), StoreError> {
    let tx = writing(db)?;
    for (index, record) in batch.iter().enumerate() {
        let sql = "INSERT INTO audit (at_us, gpu, job_id, line) VALUES (?1, ?2, ?3, ?4)";
        let line = rows::json(record)?;
        rows::execute(&tx, sql, params![record.at.timestamp_micros(), record.gpu, record.job_id, line])?;
        // A batch computes for half a millisecond, during which a write to a GPU may wait for this processor.
        if index % TURN == TURN - 1 {
            std::thread::yield_now();
        }
    }
    Ok(tx.commit()?)
}

/// Deletes the records with numbers below `first_kept`. The table's trigger refuses to delete one that is not
/// [`KEPT_DAYS`] days old.
pub(in crate::store) fn expire(db: &Connection, first_kept: i64) -> Result<(), StoreError> {
    rows::execute(db, "DELETE FROM audit WHERE id < ?1", [first_kept]).map(drop)
}

fn page(db: &Connection, query: &AuditQuery) -> Result<AuditPage, StoreError> {
    let after = query.after.map_or(0, |after| i64::try_from(after).unwrap_or(i64::MAX));
    let (mut conditions, mut values) = ("id > ?".to_owned(), vec![Value::from(after)]);
    let mut narrow = |condition: &str, value: Option<Value>| {
        if let Some(value) = value {
            conditions += condition;
            values.push(value);
        }
    };
    narrow(" AND gpu = ?", query.gpu.clone().map(Value::from));
    narrow(" AND job_id = ?", query.job.clone().map(Value::from));
    let since = query.since.map(|since| Value::from(since.timestamp_micros()));
    // Skips the older records by the index of times; the clock may have been set back since.
    narrow(" AND id >= (SELECT MIN(id) FROM audit WHERE at_us >= ?)", since.clone());
    narrow(" AND at_us >= ?", since);
    values.push(Value::from(i64::from(query.limit) + 1));
    let sql = format!("SELECT id, line FROM audit WHERE {conditions} ORDER BY id LIMIT ?");
    let mut records = rows::all(db, &sql, params_from_iter(values), |row| {
        Ok((rows::number(row, "id")?, rows::from_json("record of the audit log", rows::text(row, "line")?)?))
    })?;
    let has_more = records.len() > query.limit as usize;
    records.truncate(query.limit as usize);
    let next_after = records.last().filter(|_| has_more).map(|(id, _)| *id);
    Ok(AuditPage { records, next_after })
}
