//! Recording of intervals and checkpoints, and the close of a block of intervals with a balance for each device: the
//! recorded energy against the increase of its energy counter.

use std::collections::BTreeSet;

use chrono::{DateTime, Utc};
use rusqlite::{Connection, Row as TableRow, params};

use super::chain::{INTERVAL, append_entry, digest};
use super::checkpoints::{Checkpoint, counter, store_checkpoint};
use super::open::drop_open;
use super::open_block::OpenBlock;
use super::settlements;
use crate::store::connection::writing;
use crate::store::{Store, StoreError, rows};
use wattune_core::ledger::Interval;
use wattune_core::ledger::block::{DeviceBalance, balances, cells, day_of_close};
use wattune_core::ledger::due::DueReason;
use wattune_core::ledger::entry::{Balance, Close, Entry, Row};
use wattune_core::units::Millijoules;

impl Store {
    /// Appends closed intervals, and moves each device's checkpoint to the counter reading up to which these intervals
    /// contain the energy, in one transaction.
    pub async fn append(&self, intervals: &[Interval], checkpoints: &[Checkpoint]) -> Result<(), StoreError> {
        let (intervals, checkpoints) = (intervals.to_vec(), checkpoints.to_vec());
        self.write.run(move |db| append(db, &intervals, &checkpoints)).await
    }

    /// Closes the open block (intervals since the last close): stores the block's sums, the balance of each device, and
    /// the last digest in the chain of the block's intervals. Returns `None` and writes nothing if the block has no
    /// intervals.
    pub async fn close_block(&self, at: DateTime<Utc>) -> Result<Option<Close>, StoreError> {
        self.write.run(move |db| close_block(db, at)).await
    }
}

fn append(db: &mut Connection, intervals: &[Interval], checkpoints: &[Checkpoint]) -> Result<(), StoreError> {
    let tx = writing(db)?;
    let mut open = OpenBlock::read(&tx)?;
    let sql = "INSERT INTO intervals (id, device, share, job_id, start_us, end_us, energy_mj, source, block, hash) \
               VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)";
    for row in intervals {
        open.rows += 1;
        open.tail = open.tail.then(&Row::line(row));
        let (share, job) = rows::share_columns(&row.share);
        let [start, end] = rows::ends(&row.slot);
        let (device, energy, source) = (row.device.as_str(), rows::to_i64(row.energy)?, row.source.as_str());
        let (id, block, hash) = (open.rows, open.block, open.tail.as_bytes());
        let columns = params![id, device, share, job, start, end, energy, source, block, hash];
        rows::execute(&tx, sql, columns)?;
    }
    for checkpoint in checkpoints {
        store_checkpoint(&tx, checkpoint, &mut open)?;
    }
    open.write(&tx)?;
    drop_open(&tx, intervals, checkpoints)?;
    Ok(tx.commit()?)
}

fn close_block(db: &mut Connection, at: DateTime<Utc>) -> Result<Option<Close>, StoreError> {
    let tx = writing(db)?;
    let mut open = OpenBlock::read(&tx)?;
    let (block, details) = (open.block, open.tail);
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
            device = %off.device, block, difference_mj = off.difference_mj,
            "energy recorded between two closes of the ledger differs from the increase of the device's energy counter"
        );
    }
    store_balances(&tx, block, at, &balances)?;
    for hour in cells.iter().map(|cell| cell.hour).collect::<BTreeSet<_>>() {
        settlements::make_due(&tx, hour, DueReason::Energy)?;
    }
    let close = Close { block: rows::unsigned(block)?, at, rows: intervals.len() as u64, details, cells, balances };
    let seq = append_entry(&tx, &Entry::Close(close.clone()))?;
    open.block += 1;
    open.tail = rows::one(&tx, "SELECT hash FROM ledger WHERE seq = ?1", [seq], digest)?;
    open.write(&tx)?;
    tx.commit()?;
    Ok(Some(close))
}

/// Stores the balances of a block (intervals of about an hour), and adds them to the sums of the block's day, which
/// reports read.
fn store_balances(tx: &Connection, block: i64, at: DateTime<Utc>, balances: &[Balance]) -> Result<(), StoreError> {
    let (day, at) = (day_of_close(at).timestamp_micros(), at.timestamp_micros());
    for balance in balances {
        let device = balance.device.as_str();
        let mut sum = DeviceBalance::from(balance);
        let [counter, jobs, idle, unattributed, integrated, _, difference] = figures(&sum)?;
        let sql = "INSERT INTO balances VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)";
        let columns = params![block, at, device, counter, jobs, idle, unattributed, integrated, difference];
        rows::execute(tx, sql, columns)?;
        let sql = "SELECT * FROM balance_days WHERE day_us = ?1 AND device = ?2";
        if let Some(before) = rows::optional(tx, sql, params![day, device], device_balance)? {
            sum.add(&before);
        }
        let [counter, jobs, idle, unattributed, integrated, unequal, difference] = figures(&sum)?;
        let sql = "INSERT OR REPLACE INTO balance_days VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)";
        let columns = params![day, device, counter, jobs, idle, unattributed, integrated, unequal, difference];
        rows::execute(tx, sql, columns)?;
    }
    Ok(())
}

/// Returns the columns of a balance, energies in millijoules: the counter's increase; the energy of jobs, idle,
/// unattributed, and integrated from power; the number of blocks whose recorded energy differs from the counter; the
/// difference.
fn figures(sum: &DeviceBalance) -> Result<[Option<i64>; 7], StoreError> {
    let mj = |energy: Millijoules| rows::to_i64(energy).map(Some);
    let unequal = rows::signed(sum.unequal_blocks)?;
    let (jobs, idle, unattributed) = (mj(sum.jobs)?, mj(sum.idle)?, mj(sum.unattributed)?);
    let integrated = mj(sum.integrated)?;
    Ok([sum.counter_mj, jobs, idle, unattributed, integrated, Some(unequal), Some(sum.difference_mj)])
}

/// Returns a device's balance over one block (intervals of about an hour) or several.
pub(super) fn device_balance(row: &TableRow<'_>) -> Result<DeviceBalance, StoreError> {
    let mj = |name: &str| rows::from_i64(row.get(name)?);
    Ok(DeviceBalance {
        device: rows::device(row)?,
        counter_mj: row.get("counter_mj")?,
        jobs: mj("jobs_mj")?,
        idle: mj("idle_mj")?,
        unattributed: mj("unattributed_mj")?,
        integrated: mj("integrated_mj")?,
        unequal_blocks: rows::number(row, "unequal")?,
        difference_mj: row.get("difference_mj")?,
    })
}
