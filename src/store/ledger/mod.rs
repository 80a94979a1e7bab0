//! Tables of the ledger: rows and entries are appended with their digests, and derived tables are updated in the same
//! transaction.

mod base_tables;
mod correct;
mod days;
mod derived_tables;
mod export;
mod first_seen;
mod jobs;
mod lines;
mod open;
mod page;
mod report;
mod restated;
mod roll_up;
mod savings;
mod settle;
mod totals;

pub use correct::{CorrectionError, CorrectionRequest, CorrectionResult};
pub use open::{LastSeen, OpenIntervalRecord, RecoveredState};
pub use page::{LedgerPage, LedgerRow};
pub use totals::SettledTotal;

use std::collections::BTreeSet;

use chrono::{DateTime, TimeDelta, Utc};
use rusqlite::{Connection, Row as TableRow, ToSql, params};

use self::lines::StoredLine;
use super::connection::writing;
use super::{Checkpoint, Store, StoreError, rows};
use wattune_core::domain::{DeviceId, JobId, Slot};
use wattune_core::ledger::block::{Counter, DeviceBalance, balances, cells, day_of_close};
use wattune_core::ledger::chain::Digest;
use wattune_core::ledger::due::DueReason;
use wattune_core::ledger::entry::{Balance, Close, Entry, Row};
use wattune_core::ledger::{Interval, Share};

const INTERVAL: &str = "device, share, job_id, start_us, end_us, energy_mj, source";

impl Store {
    /// Appends closed intervals and moves the checkpoints that they reach, in one transaction.
    ///
    /// # Errors
    /// If the transaction fails; then none of it is written.
    pub async fn append(&self, intervals: &[Interval], checkpoints: &[Checkpoint]) -> Result<(), StoreError> {
        let (intervals, checkpoints) = (intervals.to_vec(), checkpoints.to_vec());
        self.write.run(move |db| append(db, &intervals, &checkpoints)).await
    }

    /// Returns the checkpoint of each device.
    ///
    /// # Errors
    /// If they cannot be read.
    pub async fn checkpoints(&self) -> Result<Vec<Checkpoint>, StoreError> {
        let sql = "SELECT device, counter_mj, at_us, holders, rebased_mj, read_from, estimated_mj FROM checkpoints";
        self.read.run(move |db| rows::all(db, sql, [], rows::checkpoint)).await
    }

    /// Returns the end of a device's last interval; `None` if it has none in the last week of the ledger. This scans
    /// the minutes of all devices.
    ///
    /// # Errors
    /// If that cannot be read.
    pub async fn recorded_until(&self, device: &DeviceId) -> Result<Option<DateTime<Utc>>, StoreError> {
        let sql = "SELECT end_us FROM intervals WHERE device = $1 AND start_us > \
                   (SELECT MAX(start_us) FROM intervals) - 604800000000 ORDER BY start_us DESC LIMIT 1";
        let device = device.clone();
        self.read.run(move |db| rows::optional(db, sql, [device.as_str()], |row| rows::moment(row.get(0)?))).await
    }

    /// Returns a job's intervals, oldest first; rolled-up hours are intervals of an hour.
    ///
    /// # Errors
    /// If they cannot be read.
    pub async fn intervals_of(&self, job: &JobId) -> Result<Vec<Interval>, StoreError> {
        let job = job.clone();
        let read = move |db: &mut Connection| {
            let tx = db.transaction()?;
            let sql = "SELECT * FROM rolled_up WHERE job_id = ?1 ORDER BY hour_us";
            let mut found = rows::all(&tx, sql, [job.as_str()], rows::rolled_up)?;
            let sql = format!("SELECT {INTERVAL} FROM intervals WHERE job_id = ?1 ORDER BY start_us, id");
            found.extend(rows::all(&tx, &sql, [job.as_str()], rows::interval)?);
            Ok(found)
        };
        self.read.run(read).await
    }

    /// Returns the intervals of all jobs that overlap a span, oldest first.
    ///
    /// # Errors
    /// If they cannot be read.
    pub async fn intervals_of_jobs(&self, span: &Slot) -> Result<Vec<Interval>, StoreError> {
        let (start, end) = (span.start().timestamp_micros(), span.end().timestamp_micros());
        let read = move |db: &mut Connection| {
            let tx = db.transaction()?;
            let sql = "SELECT * FROM rolled_up WHERE job_id <> '' AND hour_us < ?1 AND hour_us > ?2 - 3600000000 \
                       ORDER BY hour_us";
            let mut found = rows::all(&tx, sql, [end, start], rows::rolled_up)?;
            let sql = format!(
                "SELECT {INTERVAL} FROM intervals WHERE job_id IS NOT NULL AND start_us < ?1 AND end_us > ?2 \
                 ORDER BY start_us, id"
            );
            found.extend(rows::all(&tx, &sql, [end, start], rows::interval)?);
            Ok(found)
        };
        self.read.run(read).await
    }

    /// Returns the intervals of all jobs that begin within the hour at `hour`.
    ///
    /// # Errors
    /// If they cannot be read.
    pub async fn job_rows_of(&self, hour: DateTime<Utc>) -> Result<Vec<Interval>, StoreError> {
        let (start, end) = (hour.timestamp_micros(), (hour + TimeDelta::hours(1)).timestamp_micros());
        let read = move |db: &mut Connection| {
            let tx = db.transaction()?;
            let sql = "SELECT * FROM rolled_up WHERE job_id <> '' AND hour_us = ?1";
            let mut found = rows::all(&tx, sql, [start], rows::rolled_up)?;
            let sql = format!(
                "SELECT {INTERVAL} FROM intervals WHERE start_us >= ?1 AND start_us < ?2 AND job_id IS NOT NULL \
                 ORDER BY id"
            );
            found.extend(rows::all(&tx, &sql, [start, end], rows::interval)?);
            Ok(found)
        };
        self.read.run(read).await
    }

    /// Appends an entry. Returns its number.
    ///
    /// # Errors
    /// If the transaction fails; then it is not written.
    pub async fn append_entry(&self, entry: &Entry) -> Result<u64, StoreError> {
        let entry = entry.clone();
        let write = move |db: &mut Connection| {
            let tx = writing(db)?;
            let seq = append_entry(&tx, &entry)?;
            tx.commit()?;
            u64::try_from(seq).map_err(|e| rows::damaged("ledger", e))
        };
        self.write.run(write).await
    }

    /// Returns the newest entry of a kind.
    ///
    /// # Errors
    /// If it cannot be read.
    pub async fn newest_entry(&self, kind: &str) -> Result<Option<Entry>, StoreError> {
        let sql = "SELECT seq, line FROM ledger WHERE seq = (SELECT MAX(seq) FROM ledger WHERE kind = ?1)";
        let kind = kind.to_owned();
        self.read.run(move |db| rows::optional(db, sql, [kind], lines::entry)).await
    }

    /// Closes the open block: stores its sums, each device's balance, and the end of its intervals' chain. Returns
    /// `None` and writes nothing if it has no intervals.
    ///
    /// # Errors
    /// If the transaction fails; then none of it is written.
    pub async fn close_block(&self, at: DateTime<Utc>) -> Result<Option<Close>, StoreError> {
        self.write.run(move |db| close_block(db, at)).await
    }
}

fn append(db: &mut Connection, intervals: &[Interval], checkpoints: &[Checkpoint]) -> Result<(), StoreError> {
    let tx = writing(db)?;
    let (block, mut hash) = open_block(&tx)?;
    // Numbers continue even if all minutes were rolled up.
    let sql = "SELECT COALESCE((SELECT MAX(id) FROM intervals), \
               (SELECT SUM(json_extract(line, '$.rows')) FROM ledger WHERE kind = 'roll_up'), 0)";
    let last: i64 = rows::one(&tx, sql, [], rows::first)?;
    let sql = "INSERT INTO intervals (id, device, share, job_id, start_us, end_us, energy_mj, source, block, hash) \
               VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)";
    for (id, row) in (last + 1..).zip(intervals) {
        hash = hash.then(&Row::line(row));
        let (share, job) = rows::share_columns(&row.share);
        let (start, end) = (row.slot.start().timestamp_micros(), row.slot.end().timestamp_micros());
        let (device, energy, source) = (row.device.as_str(), rows::to_i64(row.energy)?, row.source.as_str());
        let columns = params![id, device, share, job, start, end, energy, source, block, hash.as_bytes()];
        rows::execute(&tx, sql, columns)?;
    }
    for point in checkpoints {
        // The energy of these rows lies before the new reading: the base of a new device lies before them.
        let of_counter = |r: &&Interval| r.device == point.device && r.source.is_of_counter();
        let recorded = rows::to_i64(intervals.iter().filter(of_counter).map(|r| r.energy).sum())?;
        let (counter, at, holders) =
            (rows::to_i64(point.counter)?, point.at.timestamp_micros(), rows::json(&point.holders)?);
        let (device, read_from) = (point.device.as_str(), point.read_from.as_deref());
        let (rebased, estimated) = (point.rebased_mj, rows::to_i64(point.estimated)?);
        let base = Counter::with_recorded(counter, rebased, recorded).base;
        let hash = base_tables::checkpoint_digest(&(device, counter, at, &holders, rebased, read_from, estimated))?;
        let sql = "INSERT INTO checkpoints \
                   (device, counter_mj, at_us, holders, rebased_mj, base_mj, read_from, estimated_mj, hash) \
                   VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9) ON CONFLICT (device) DO UPDATE \
                   SET counter_mj = ?2, at_us = ?3, holders = ?4, rebased_mj = ?5, read_from = ?7, estimated_mj = ?8, \
                       hash = ?9";
        let columns = params![device, counter, at, holders, rebased, base, read_from, estimated, hash.as_bytes()];
        rows::execute(&tx, sql, columns)?;
    }
    open::drop_open(&tx, intervals, checkpoints)?;
    Ok(tx.commit()?)
}

fn close_block(db: &mut Connection, at: DateTime<Utc>) -> Result<Option<Close>, StoreError> {
    let tx = writing(db)?;
    let (block, details) = open_block(&tx)?;
    let sql = format!("SELECT {INTERVAL} FROM intervals WHERE block = ?1 ORDER BY id");
    let intervals: Vec<Interval> = rows::all(&tx, &sql, [block], rows::interval)?;
    if intervals.is_empty() {
        return Ok(None);
    }
    let counters = rows::all(&tx, "SELECT * FROM checkpoints", [], |row| Ok((rows::device(row)?, counter(row)?)))?;
    for (device, counter) in &counters {
        let sql = "UPDATE checkpoints SET base_mj = ?1 WHERE device = ?2";
        rows::execute(&tx, sql, params![counter.closed().base, device.as_str()])?;
    }
    let gained = counters.into_iter().map(|(device, counter)| (device, Some(counter.gained()))).collect();
    let cells = cells(&intervals);
    let balances = balances(&cells, &gained);
    for off in balances.iter().filter(|b| b.difference_mj != 0) {
        tracing::error!(
            device = %off.device, block, difference_mj = off.difference_mj, "the ledger differs from the counter"
        );
    }
    let block = u64::try_from(block).map_err(|e| rows::damaged("ledger", e))?;
    store_balances(&tx, block, at, &balances)?;
    for hour in cells.iter().map(|cell| cell.hour).collect::<BTreeSet<_>>() {
        settle::make_due(&tx, hour, DueReason::Energy)?;
    }
    let close = Close { block, at, rows: intervals.len() as u64, details, cells, balances };
    append_entry(&tx, &Entry::Close(close.clone()))?;
    tx.commit()?;
    Ok(Some(close))
}

/// Stores a block's balances, and adds them to their day's, which reports read.
fn store_balances(tx: &Connection, block: u64, at: DateTime<Utc>, balances: &[Balance]) -> Result<(), StoreError> {
    let block = i64::try_from(block).map_err(|e| rows::damaged("ledger", e))?;
    let sql = "INSERT INTO balances VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)";
    for balance in balances {
        let columns = params![
            block,
            at.timestamp_micros(),
            balance.device.as_str(),
            balance.counter_mj,
            rows::to_i64(balance.jobs_mj)?,
            rows::to_i64(balance.idle_mj)?,
            rows::to_i64(balance.unattributed_mj)?,
            rows::to_i64(balance.integrated_mj)?,
            balance.difference_mj,
        ];
        rows::execute(tx, sql, columns)?;
    }
    let day = day_of_close(at).timestamp_micros();
    for balance in balances {
        let sql = "SELECT * FROM balance_days WHERE day_us = ?1 AND device = ?2";
        let mut sum = DeviceBalance::from(balance);
        if let Some(before) = rows::optional(tx, sql, params![day, balance.device.as_str()], day_balance)? {
            sum.add(&before);
        }
        let sql = "INSERT OR REPLACE INTO balance_days VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)";
        let columns = params![
            day,
            sum.device.as_str(),
            sum.counter_mj,
            rows::to_i64(sum.jobs)?,
            rows::to_i64(sum.idle)?,
            rows::to_i64(sum.unattributed)?,
            rows::to_i64(sum.integrated)?,
            i64::try_from(sum.unequal_blocks).map_err(|e| rows::damaged("balance", e))?,
            sum.difference_mj,
        ];
        rows::execute(tx, sql, columns)?;
    }
    Ok(())
}

/// Returns a device's balance over a day or several.
fn day_balance(row: &TableRow<'_>) -> Result<DeviceBalance, StoreError> {
    let mj = |name: &str| rows::from_i64(row.get(name)?);
    Ok(DeviceBalance {
        device: rows::device(row)?,
        counter_mj: row.get("counter_mj")?,
        jobs: mj("jobs_mj")?,
        idle: mj("idle_mj")?,
        unattributed: mj("unattributed_mj")?,
        integrated: mj("integrated_mj")?,
        unequal_blocks: u64::try_from(row.get::<_, i64>("unequal")?).unwrap_or_default(),
        difference_mj: row.get("difference_mj")?,
    })
}

/// Returns the counter in a row of the checkpoints.
fn counter(row: &TableRow<'_>) -> Result<Counter, StoreError> {
    Ok(Counter { reading: row.get("counter_mj")?, rebased: row.get("rebased_mj")?, base: row.get("base_mj")? })
}

/// Returns the number of closed blocks; each has balances.
fn closed_blocks(tx: &Connection) -> Result<i64, StoreError> {
    let last: Option<i64> = rows::one(tx, "SELECT MAX(block) FROM balances", [], rows::first)?;
    Ok(last.unwrap_or_default())
}

/// Returns the number of the open block, and the digest that its next row follows.
fn open_block(tx: &Connection) -> Result<(i64, Digest), StoreError> {
    let closed = closed_blocks(tx)?;
    // Search backwards from the newest entry: the last close is an hour old. The index would scan all closes.
    let sql = "SELECT hash FROM ledger WHERE +kind = 'close' ORDER BY seq DESC LIMIT 1";
    let base = rows::optional(tx, sql, [], digest)?.unwrap_or(Digest::GENESIS);
    let sql = "SELECT hash FROM intervals WHERE block = ?1 ORDER BY id DESC LIMIT 1";
    Ok((closed + 1, rows::optional(tx, sql, [closed + 1], digest)?.unwrap_or(base)))
}

/// Appends an entry to the chain. Returns its number.
fn append_entry(tx: &Connection, entry: &Entry) -> Result<i64, StoreError> {
    let numbered = |row: &TableRow<'_>| Ok::<_, StoreError>((row.get("seq")?, digest(row)?));
    let last = rows::optional(tx, "SELECT seq, hash FROM ledger ORDER BY seq DESC LIMIT 1", [], numbered)?;
    let (seq, hash): (i64, Digest) = last.unwrap_or((0, Digest::GENESIS));
    let line = rows::json(entry)?;
    let hash = hash.then(&line);
    let kept = StoredLine::of(entry, line);
    let line: &dyn ToSql = match &kept {
        StoredLine::Text(line) => line,
        StoredLine::Packed(bytes) => bytes,
    };
    let sql = "INSERT INTO ledger (seq, kind, about_us, hash, line) VALUES (?1, ?2, ?3, ?4, ?5)";
    let about = entry.about().timestamp_micros();
    rows::execute(tx, sql, params![seq + 1, entry.kind(), about, hash.as_bytes(), line])?;
    Ok(seq + 1)
}

/// Adds data that earlier versions did not write: digests of rows and checkpoints, and entries of jobs.
pub(super) fn complete_old_rows(db: &mut Connection) -> Result<(), StoreError> {
    chain_old_rows(db)?;
    base_tables::digest_old_checkpoints(db)?;
    jobs::append_old_jobs(db)
}

/// Adds digests to the rows of earlier versions.
fn chain_old_rows(db: &mut Connection) -> Result<(), StoreError> {
    if !rows::one(db, "SELECT EXISTS (SELECT 1 FROM intervals WHERE hash IS NULL)", [], rows::first)? {
        return Ok(());
    }
    let tx = writing(db)?;
    let sql = format!("SELECT id, {INTERVAL} FROM intervals WHERE hash IS NULL ORDER BY id");
    let of_row = |row: &TableRow<'_>| Ok::<_, StoreError>((row.get("id")?, rows::interval(row)?));
    let old: Vec<(i64, Interval)> = rows::all(&tx, &sql, [], of_row)?;
    let mut hash = Digest::GENESIS;
    for (id, interval) in &old {
        hash = hash.then(&Row::line(interval));
        rows::execute(&tx, "UPDATE intervals SET hash = ?1 WHERE id = ?2", params![hash.as_bytes(), id])?;
    }
    Ok(tx.commit()?)
}

fn digest(row: &TableRow<'_>) -> Result<Digest, StoreError> {
    let column = row.get_ref("hash")?;
    let bytes = column.as_blob().map_err(|e| rows::damaged("ledger", e))?;
    Digest::from_bytes(bytes).ok_or_else(|| rows::damaged("ledger", "a digest is not 32 bytes"))
}

/// Returns a share's columns in the tables that store an empty text without a job.
fn share_key(share: &Share) -> (&'static str, &str) {
    let (name, job) = rows::share_columns(share);
    (name, job.unwrap_or_default())
}

#[cfg(test)]
mod tests;
