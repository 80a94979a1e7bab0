//! The ledger's tables: rows and entries are appended with their digests in one transaction with what follows from them.

mod correct;
mod covered;
mod days;
mod export;
mod first_seen;
mod follows;
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

pub use correct::{CorrectionError, Done, ToCorrect};
pub use open::{LastSeen, OpenBooks, TakenUp};
pub use page::{LedgerPage, LedgerRow};
pub use settle::{Settling, Why};
pub use totals::Booked;

pub(super) use covered::digest_old_checkpoints;
pub(super) use jobs::note_old_jobs;

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, DurationRound, TimeDelta, Utc};
use sqlx::sqlite::{SqliteConnection, SqliteRow};
use sqlx::{QueryBuilder, Row as _, Sqlite, Transaction};

use self::lines::Kept;
use super::{Checkpoint, Store, StoreError, rows};
use crate::domain::{DeviceId, EnergySource, JobId, Slot};
use crate::ledger::block::{balances, cells};
use crate::ledger::chain::Digest;
use crate::ledger::entry::{Balance, Close, Entry, Row};
use crate::ledger::{Interval, Share};

/// So many rows are written by one statement at most: it has ten values for each, and SQLite takes 32766.
const ROWS_AT_ONCE: usize = 2000;

/// Blocks are closed within so many microseconds after the hour that they are of.
const CLOSED_WITHIN_US: i64 = 600_000_000;

const INTERVAL: &str = "device, share, job_id, start_us, end_us, energy_mj, source";

impl Store {
    /// Appends closed intervals and moves the checkpoints they reach up to, together.
    ///
    /// # Errors
    /// If the transaction fails; then none of it is written.
    pub async fn append(&self, intervals: &[Interval], checkpoints: &[Checkpoint]) -> Result<(), StoreError> {
        let mut tx = self.begin().await?;
        let (block, mut hash) = open_block(&mut tx).await?;
        // Numbers go on where all minutes were rolled up.
        let sql = "SELECT COALESCE((SELECT MAX(id) FROM intervals), \
                   (SELECT SUM(json_extract(line, '$.rows')) FROM ledger WHERE kind = 'roll_up'), 0)";
        let last: i64 = sqlx::query_scalar(sql).fetch_one(&mut *tx).await?;
        let mut chained = Vec::with_capacity(intervals.len());
        for (id, row) in (last + 1..).zip(intervals) {
            hash = hash.then(&Row::line(row));
            chained.push((id, row, hash, rows::to_i64(row.energy)?));
        }
        for some in chained.chunks(ROWS_AT_ONCE) {
            let sql =
                "INSERT INTO intervals (id, device, share, job_id, start_us, end_us, energy_mj, source, block, hash) ";
            let mut insert = QueryBuilder::<Sqlite>::new(sql);
            insert.push_values(some, |mut to, (id, row, hash, energy)| {
                let (share, job) = rows::share_columns(&row.share);
                to.push_bind(id).push_bind(row.device.as_str()).push_bind(share).push_bind(job);
                to.push_bind(row.slot.start().timestamp_micros()).push_bind(row.slot.end().timestamp_micros());
                to.push_bind(energy).push_bind(row.source.as_str()).push_bind(block).push_bind(hash.as_bytes());
            });
            insert.build().execute(&mut *tx).await?;
        }
        for point in checkpoints {
            // What these rows took from the counter lies behind it: the base of a device that is new lies before them.
            let of_counter = |r: &&Interval| r.device == point.device && r.source != EnergySource::IntegratedPower;
            let booked = rows::to_i64(intervals.iter().filter(of_counter).map(|r| r.energy).sum())?;
            let (counter, at, holders) =
                (rows::to_i64(point.counter)?, point.at.timestamp_micros(), rows::json(&point.holders)?);
            let (device, read_from) = (point.device.as_str(), point.read_from.as_deref());
            let estimated = rows::to_i64(point.estimated)?;
            let hash =
                covered::checkpoint_digest(&(device, counter, at, &holders, point.rebased_mj, read_from, estimated))?;
            sqlx::query(
                "INSERT INTO checkpoints \
                 (device, counter_mj, at_us, holders, rebased_mj, base_mj, read_from, estimated_mj, hash) \
                 VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9) ON CONFLICT (device) DO UPDATE \
                 SET counter_mj = $2, at_us = $3, holders = $4, rebased_mj = $5, read_from = $7, estimated_mj = $8, \
                     hash = $9",
            )
            .bind(device)
            .bind(counter)
            .bind(at)
            .bind(&holders)
            .bind(point.rebased_mj)
            .bind(counter - point.rebased_mj - booked)
            .bind(read_from)
            .bind(estimated)
            .bind(hash.as_bytes())
            .execute(&mut *tx)
            .await?;
        }
        open::drop_open(&mut tx, intervals, checkpoints).await?;
        Ok(tx.commit().await?)
    }

    /// Where each device's books stand.
    ///
    /// # Errors
    /// If they cannot be read.
    pub async fn checkpoints(&self) -> Result<Vec<Checkpoint>, StoreError> {
        let sql = "SELECT device, counter_mj, at_us, holders, rebased_mj, read_from, estimated_mj FROM checkpoints";
        sqlx::query(sql).fetch_all(&self.pool).await?.iter().map(rows::checkpoint).collect()
    }

    /// Until when a device was booked; `None` if it was not in the last week of the books. All devices' minutes are looked
    /// through for it.
    ///
    /// # Errors
    /// If that cannot be read.
    pub async fn booked_until(&self, device: &DeviceId) -> Result<Option<DateTime<Utc>>, StoreError> {
        let sql = "SELECT end_us FROM intervals WHERE device = $1 AND start_us > \
                   (SELECT MAX(start_us) FROM intervals) - 604800000000 ORDER BY start_us DESC LIMIT 1";
        let found: Option<i64> = sqlx::query_scalar(sql).bind(device.as_str()).fetch_optional(&self.pool).await?;
        found.map(rows::moment).transpose()
    }

    /// A job's intervals, oldest first; hours of it that were rolled up come as intervals of an hour.
    ///
    /// # Errors
    /// If they cannot be read.
    pub async fn intervals_of(&self, job: &JobId) -> Result<Vec<Interval>, StoreError> {
        let sql = format!("SELECT {INTERVAL} FROM intervals WHERE job_id = $1 ORDER BY start_us, id");
        let found = sqlx::query(sqlx::AssertSqlSafe(sql)).bind(job.as_str()).fetch_all(&self.pool).await?;
        let minutes = found.iter().map(rows::interval);
        let sql = "SELECT * FROM rolled_up WHERE job_id = $1 ORDER BY hour_us";
        let hours = sqlx::query(sql).bind(job.as_str()).fetch_all(&self.pool).await?;
        hours.iter().map(rows::rolled_up).chain(minutes).collect()
    }

    /// The intervals of all jobs that overlap a span, oldest first.
    ///
    /// # Errors
    /// If they cannot be read.
    pub async fn intervals_of_jobs(&self, span: &Slot) -> Result<Vec<Interval>, StoreError> {
        let (start, end) = (span.start().timestamp_micros(), span.end().timestamp_micros());
        let sql = format!(
            "SELECT {INTERVAL} FROM intervals WHERE job_id IS NOT NULL AND start_us < $1 AND end_us > $2 \
             ORDER BY start_us, id"
        );
        let found = sqlx::query(sqlx::AssertSqlSafe(sql)).bind(end).bind(start).fetch_all(&self.pool).await?;
        let minutes = found.iter().map(rows::interval);
        let sql = "SELECT * FROM rolled_up WHERE job_id <> '' AND hour_us < $1 AND hour_us > $2 - 3600000000 \
                   ORDER BY hour_us";
        let hours = sqlx::query(sql).bind(end).bind(start).fetch_all(&self.pool).await?;
        hours.iter().map(rows::rolled_up).chain(minutes).collect()
    }

    /// The intervals of all jobs that begin in the hour that begins at `hour`.
    ///
    /// # Errors
    /// If they cannot be read.
    pub async fn job_rows_of(&self, hour: DateTime<Utc>) -> Result<Vec<Interval>, StoreError> {
        let (start, end) = (hour.timestamp_micros(), (hour + TimeDelta::hours(1)).timestamp_micros());
        let sql = format!(
            "SELECT {INTERVAL} FROM intervals WHERE start_us >= $1 AND start_us < $2 AND job_id IS NOT NULL ORDER BY id"
        );
        let found = sqlx::query(sqlx::AssertSqlSafe(sql)).bind(start).bind(end).fetch_all(&self.pool).await?;
        let minutes = found.iter().map(rows::interval);
        let sql = "SELECT * FROM rolled_up WHERE job_id <> '' AND hour_us = $1";
        let hours = sqlx::query(sql).bind(start).fetch_all(&self.pool).await?;
        hours.iter().map(rows::rolled_up).chain(minutes).collect()
    }

    /// Appends an entry. Answers with its number.
    ///
    /// # Errors
    /// If the transaction fails; then it is not written.
    pub async fn note(&self, entry: &Entry) -> Result<u64, StoreError> {
        let mut tx = self.begin().await?;
        let seq = append_entry(&mut tx, entry).await?;
        tx.commit().await?;
        u64::try_from(seq).map_err(|e| rows::damaged("ledger", e))
    }

    /// The newest entry of a kind.
    ///
    /// # Errors
    /// If it cannot be read.
    pub async fn newest_entry(&self, kind: &str) -> Result<Option<Entry>, StoreError> {
        let sql = "SELECT seq, line FROM ledger WHERE seq = (SELECT MAX(seq) FROM ledger WHERE kind = $1)";
        let found = sqlx::query(sql).bind(kind).fetch_optional(&self.pool).await?;
        found.as_ref().map(lines::entry).transpose()
    }

    /// Ends the open block: its sums, each device's balance, the chain of its intervals. `None`, and nothing is written,
    /// if it has no intervals.
    ///
    /// # Errors
    /// If the transaction fails; then none of it is written.
    pub async fn close_block(&self, at: DateTime<Utc>) -> Result<Option<Close>, StoreError> {
        let mut tx = self.begin().await?;
        let (block, details) = open_block(&mut tx).await?;
        let sql = format!("SELECT {INTERVAL} FROM intervals WHERE block = $1 ORDER BY id");
        let found = sqlx::query(sqlx::AssertSqlSafe(sql)).bind(block).fetch_all(&mut *tx).await?;
        let intervals: Vec<Interval> = found.iter().map(rows::interval).collect::<Result<_, _>>()?;
        if intervals.is_empty() {
            return Ok(None);
        }
        let points = sqlx::query("SELECT * FROM checkpoints").fetch_all(&mut *tx).await?;
        let gained = points.iter().map(gained).collect::<Result<BTreeMap<_, _>, _>>()?;
        sqlx::query("UPDATE checkpoints SET base_mj = counter_mj - rebased_mj").execute(&mut *tx).await?;
        let cells = cells(&intervals);
        let balances = balances(&cells, &gained);
        for off in balances.iter().filter(|b| b.difference_mj != 0) {
            tracing::error!(
                "the books of {} differ from its counter by {} mJ in block {block}",
                off.device,
                off.difference_mj
            );
        }
        let block = u64::try_from(block).map_err(|e| rows::damaged("ledger", e))?;
        keep_balances(&mut tx, block, at, &balances).await?;
        for hour in cells.iter().map(|cell| cell.hour).collect::<BTreeSet<_>>() {
            settle::make_due(&mut tx, hour, Why::Energy).await?;
        }
        let close = Close { block, at, rows: intervals.len() as u64, details, cells, balances };
        append_entry(&mut tx, &Entry::Close(close.clone())).await?;
        tx.commit().await?;
        Ok(Some(close))
    }

    async fn begin(&self) -> Result<Transaction<'static, Sqlite>, StoreError> {
        Ok(self.pool.begin_with("BEGIN IMMEDIATE").await?)
    }
}

/// The day whose block was closed then.
fn day_of_close(at: DateTime<Utc>) -> DateTime<Utc> {
    let within = DateTime::from_timestamp_micros(at.timestamp_micros() - CLOSED_WITHIN_US - 1).unwrap_or(at);
    within.duration_trunc(TimeDelta::days(1)).unwrap_or(within)
}

/// Keeps a block's balances, and adds them to its day's, where reports find them.
async fn keep_balances(
    tx: &mut SqliteConnection,
    block: u64,
    at: DateTime<Utc>,
    balances: &[Balance],
) -> Result<(), StoreError> {
    let block = i64::try_from(block).map_err(|e| rows::damaged("ledger", e))?;
    for balance in balances {
        sqlx::query("INSERT INTO balances VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)")
            .bind(block)
            .bind(at.timestamp_micros())
            .bind(balance.device.as_str())
            .bind(balance.counter_mj)
            .bind(rows::to_i64(balance.jobs_mj)?)
            .bind(rows::to_i64(balance.idle_mj)?)
            .bind(rows::to_i64(balance.unattributed_mj)?)
            .bind(rows::to_i64(balance.integrated_mj)?)
            .bind(balance.difference_mj)
            .execute(&mut *tx)
            .await?;
    }
    sqlx::query(
        "INSERT INTO balance_days SELECT $1, device, counter_mj, jobs_mj, idle_mj, unattributed_mj, integrated_mj, \
         difference_mj <> 0, difference_mj FROM balances WHERE block = $2 \
         ON CONFLICT (day_us, device) DO UPDATE SET \
         counter_mj = COALESCE(counter_mj + excluded.counter_mj, counter_mj, excluded.counter_mj), \
         jobs_mj = jobs_mj + excluded.jobs_mj, idle_mj = idle_mj + excluded.idle_mj, \
         unattributed_mj = unattributed_mj + excluded.unattributed_mj, \
         integrated_mj = integrated_mj + excluded.integrated_mj, unequal = unequal + excluded.unequal, \
         difference_mj = difference_mj + excluded.difference_mj",
    )
    .bind(day_of_close(at).timestamp_micros())
    .bind(block)
    .execute(&mut *tx)
    .await?;
    Ok(())
}

/// What a device's counter gained since the last close.
fn gained(row: &SqliteRow) -> Result<(DeviceId, Option<i64>), StoreError> {
    let device = DeviceId::new(row.try_get::<String, _>("device")?).map_err(|e| rows::damaged("checkpoint", e))?;
    let reading: i64 = row.try_get::<i64, _>("counter_mj")? - row.try_get::<i64, _>("rebased_mj")?;
    Ok((device, Some(reading - row.try_get::<i64, _>("base_mj")?)))
}

/// How many blocks are closed: every one has balances.
async fn closed_blocks(tx: &mut SqliteConnection) -> Result<i64, StoreError> {
    let last: Option<i64> = sqlx::query_scalar("SELECT MAX(block) FROM balances").fetch_one(&mut *tx).await?;
    Ok(last.unwrap_or_default())
}

/// The number of the open block, and the digest that its next row follows.
async fn open_block(tx: &mut SqliteConnection) -> Result<(i64, Digest), StoreError> {
    let closed = closed_blocks(tx).await?;
    // Backwards from the newest entry: the last close is an hour away. By the index all closes would be gone through.
    let sql = "SELECT hash FROM ledger WHERE +kind = 'close' ORDER BY seq DESC LIMIT 1";
    let close = sqlx::query(sql).fetch_optional(&mut *tx).await?;
    let base = close.as_ref().map(digest).transpose()?.unwrap_or(Digest::GENESIS);
    let sql = "SELECT hash FROM intervals WHERE block = $1 ORDER BY id DESC LIMIT 1";
    let last = sqlx::query(sql).bind(closed + 1).fetch_optional(&mut *tx).await?;
    Ok((closed + 1, last.as_ref().map(digest).transpose()?.unwrap_or(base)))
}

/// Appends an entry to the chain. Answers with its number.
async fn append_entry(tx: &mut SqliteConnection, entry: &Entry) -> Result<i64, StoreError> {
    let last = sqlx::query("SELECT seq, hash FROM ledger ORDER BY seq DESC LIMIT 1").fetch_optional(&mut *tx).await?;
    let (seq, hash) = match last {
        Some(row) => (row.try_get::<i64, _>("seq")?, digest(&row)?),
        None => (0, Digest::GENESIS),
    };
    let line = rows::json(entry)?;
    let hash = hash.then(&line);
    let insert = sqlx::query("INSERT INTO ledger (seq, kind, about_us, hash, line) VALUES ($1, $2, $3, $4, $5)")
        .bind(seq + 1)
        .bind(entry.kind())
        .bind(entry.about().timestamp_micros())
        .bind(hash.as_bytes());
    let insert = match Kept::of(entry, line) {
        Kept::Text(line) => insert.bind(line),
        Kept::Packed(bytes) => insert.bind(bytes),
    };
    insert.execute(&mut *tx).await?;
    Ok(seq + 1)
}

/// Chains the rows that an earlier version wrote without digests.
pub(super) async fn chain_old_rows(store: &Store) -> Result<(), StoreError> {
    let sql = "SELECT EXISTS (SELECT 1 FROM intervals WHERE hash IS NULL)";
    if !sqlx::query_scalar::<_, bool>(sql).fetch_one(&store.pool).await? {
        return Ok(());
    }
    let mut tx = store.begin().await?;
    let sql = format!("SELECT id, {INTERVAL} FROM intervals WHERE hash IS NULL ORDER BY id");
    let old = sqlx::query(sqlx::AssertSqlSafe(sql)).fetch_all(&mut *tx).await?;
    let mut hash = Digest::GENESIS;
    for row in &old {
        hash = hash.then(&Row::line(&rows::interval(row)?));
        sqlx::query("UPDATE intervals SET hash = $1 WHERE id = $2")
            .bind(hash.as_bytes())
            .bind(row.try_get::<i64, _>("id")?)
            .execute(&mut *tx)
            .await?;
    }
    Ok(tx.commit().await?)
}

fn digest(row: &SqliteRow) -> Result<Digest, StoreError> {
    let bytes: Vec<u8> = row.try_get("hash")?;
    Digest::from_bytes(&bytes).ok_or_else(|| rows::damaged("ledger", "a digest is not 32 bytes"))
}

/// A share's columns in the tables where a job's absence is an empty text.
fn share_key(share: &Share) -> (&'static str, &str) {
    let (name, job) = rows::share_columns(share);
    (name, job.unwrap_or_default())
}

#[cfg(test)]
mod tests;
