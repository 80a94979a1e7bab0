//! Checkpoints: the counter reading of each device up to which its energy is recorded.

use chrono::{DateTime, Utc};
use rusqlite::{Connection, Row, params};
use serde::{Deserialize, Serialize};

use super::open_block::OpenBlock;
use crate::store::{Store, StoreError, rows};
use wattune_core::domain::{DeviceId, JobId};
use wattune_core::ledger::block::Counter;
use wattune_core::ledger::chain::Digest;
use wattune_core::units::Millijoules;

/// Checkpoint: the counter reading up to which a device's energy is recorded.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Checkpoint {
    /// Device with the counter.
    pub device: DeviceId,
    /// Counter reading of the hardware.
    pub counter: Millijoules,
    /// Time of the reading.
    pub at: DateTime<Utc>,
    /// Name of the counter, for a device that can be read from several; `None` if there is only one or it is unknown.
    pub read_from: Option<String>,
    /// Jobs that used the device at that time.
    pub holders: Vec<JobId>,
    /// Sum of all changes of the reading, in millijoules, that were not recorded as energy, such as those by resets of
    /// the counter.
    pub rebased_mj: i64,
    /// Part of the counter's next increase that is recorded already: the energy integrated from power while the counter
    /// was absent.
    pub estimated: Millijoules,
}

impl Store {
    /// Returns the checkpoint (counter reading up to which energy is recorded) of each device.
    pub async fn checkpoints(&self) -> Result<Vec<Checkpoint>, StoreError> {
        let sql = "SELECT device, counter_mj, at_us, holders, rebased_mj, read_from, estimated_mj FROM checkpoints";
        self.short_reads.run(move |db| rows::all(db, sql, [], checkpoint)).await
    }
}

/// Stores a device's checkpoint: the counter reading up to which the rows of the open block contain the device's
/// energy. Stores the checkpoint's digest in the record of the open block.
pub(super) fn store_checkpoint(tx: &Connection, point: &Checkpoint, open: &mut OpenBlock) -> Result<(), StoreError> {
    let (counter, holders) = (rows::to_i64(point.counter)?, rows::json(&point.holders)?);
    let at = point.at.timestamp_micros();
    let (device, read_from) = (point.device.as_str(), point.read_from.as_deref());
    let (rebased, estimated) = (point.rebased_mj, rows::to_i64(point.estimated)?);
    let recorded = match open.checkpoints.contains_key(device) {
        true => 0,
        // If the device is new, its rows in the open block are of the time before this reading: its base (the reading
        // at the start of the block) is lower by their energy.
        false => {
            let sql = "SELECT COALESCE(SUM(energy_mj), 0) FROM intervals \
                       WHERE block = ?1 AND device = ?2 AND source <> 'integrated_power'";
            rows::one(tx, sql, params![open.block, device], rows::first)?
        }
    };
    // For a known device, the statement below leaves the base in the database unchanged.
    let base = Counter::with_recorded(counter, rebased, recorded).base;
    let hash = checkpoint_digest(&(device, counter, at, &holders, rebased, read_from, estimated))?;
    let sql = "INSERT INTO checkpoints \
               (device, counter_mj, at_us, holders, rebased_mj, base_mj, read_from, estimated_mj, hash) \
               VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9) ON CONFLICT (device) DO UPDATE \
               SET counter_mj = ?2, at_us = ?3, holders = ?4, rebased_mj = ?5, read_from = ?7, estimated_mj = ?8, \
                   hash = ?9";
    let columns = params![device, counter, at, holders, rebased, base, read_from, estimated, hash.as_bytes()];
    rows::execute(tx, sql, columns)?;
    open.checkpoints.insert(device.to_owned(), hash);
    Ok(())
}

fn checkpoint(row: &Row<'_>) -> Result<Checkpoint, StoreError> {
    Ok(Checkpoint {
        device: rows::device(row)?,
        counter: rows::from_i64(row.get("counter_mj")?)?,
        at: rows::time(row.get("at_us")?)?,
        read_from: row.get("read_from")?,
        holders: rows::from_json("checkpoint", rows::text(row, "holders")?)?,
        rebased_mj: row.get("rebased_mj")?,
        estimated: rows::from_i64(row.get("estimated_mj")?)?,
    })
}

pub(super) fn counter(row: &Row<'_>) -> Result<Counter, StoreError> {
    Ok(Counter { reading: row.get("counter_mj")?, rebased: row.get("rebased_mj")?, base: row.get("base_mj")? })
}

/// Columns that the digest of a checkpoint covers: device, counter reading, time, holders, change that is not recorded
/// as energy, name of the counter, and part of the counter's next increase that is recorded already.
type Columns<'a> = (&'a str, i64, i64, &'a str, i64, Option<&'a str>, i64);

fn checkpoint_digest(columns: &Columns<'_>) -> Result<Digest, StoreError> {
    Ok(Digest::of(rows::json(columns)?))
}

pub(super) fn digest_of_row(row: &Row<'_>) -> Result<Digest, StoreError> {
    let read_from: Option<String> = row.get("read_from")?;
    checkpoint_digest(&(
        rows::text(row, "device")?,
        row.get("counter_mj")?,
        row.get("at_us")?,
        rows::text(row, "holders")?,
        row.get("rebased_mj")?,
        read_from.as_deref(),
        row.get("estimated_mj")?,
    ))
}

/// Adds digests to checkpoints (counter readings up to which energy is recorded) that an earlier version of wattune
/// stored without them.
pub(super) fn digest_old_checkpoints(db: &Connection) -> Result<(), StoreError> {
    let of_device = |row: &Row<'_>| Ok::<(String, Digest), StoreError>((row.get("device")?, digest_of_row(row)?));
    for (device, hash) in rows::all(db, "SELECT * FROM checkpoints WHERE hash IS NULL", [], of_device)? {
        let sql = "UPDATE checkpoints SET hash = ?1 WHERE device = ?2 AND hash IS NULL";
        rows::execute(db, sql, params![hash.as_bytes(), device])?;
    }
    Ok(())
}
