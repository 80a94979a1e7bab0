//! Changes that wattune did not make to checkpoints (counter readings up to which energy is recorded) and to the open
//! block (the rows since the last close). They are detected by comparison with the record of the open block, and set
//! aside when the daemon starts.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, TimeDelta, Utc};
use rusqlite::Connection;

use super::chain::{append_entry, chain_old_rows, closed_blocks, digest};
use super::checkpoints::{digest_of_row, digest_old_checkpoints};
use super::export::as_recorded;
use super::lines;
use super::open_block::{OpenBlock, last_close};
use crate::store::connection::writing;
use crate::store::{Store, StoreError, rows};
use wattune_core::domain::DeviceId;
use wattune_core::ledger::chain::Digest;
use wattune_core::ledger::entry::{Entry, Lost, Row};

/// Reason that the ledger gives for unknown energy if rows of the open block (rows since the last close) are not as
/// wattune wrote them.
const CHANGED_ROWS: &str = "the database was changed by another program: intervals since the last close were edited or \
                            deleted, so that what is recorded of this time is not what was measured";
/// Reason that the ledger gives for unknown energy if the record of the open block is not as wattune wrote it.
const CHANGED_RECORD: &str = "the database was changed by another program: the record of the open block was edited or \
                              deleted, so that intervals and checkpoints since the last close may be missing";

/// Returns the devices whose checkpoints (counter readings up to which energy is recorded) are not as wattune wrote
/// them, each with what is wrong.
pub(super) fn changed_checkpoints(
    open: &OpenBlock,
    tx: &Connection,
) -> Result<BTreeMap<String, &'static str>, StoreError> {
    let mut changed: BTreeMap<String, &str> =
        open.checkpoints.keys().map(|device| (device.clone(), "is missing: it was deleted")).collect();
    let mut statement = tx.prepare_cached("SELECT * FROM checkpoints")?;
    let mut found = statement.query([])?;
    while let Some(row) = found.next()? {
        let device: String = row.get("device")?;
        let stored = row.get_ref("hash")?.as_blob_or_null().ok().flatten().map(Digest::from_bytes);
        // The digest cannot be computed if a column has another type; this program never writes such a column.
        let why = match (stored, digest_of_row(row).ok(), open.checkpoints.get(&device)) {
            (None, ..) => "has no digest: it was changed",
            (Some(stored), of_row, _) if stored.is_none() || stored != of_row => {
                "has a digest that does not match: it was changed"
            }
            (_, of_row, known) if of_row.as_ref() == known => {
                changed.remove(&device);
                continue;
            }
            (_, _, Some(_)) => "differs from the last checkpoint that wattune wrote",
            (_, _, None) => "was never written by wattune",
        };
        changed.insert(device, why);
    }
    Ok(changed)
}

/// Returns what is wrong if the rows of the open block (rows since the last close) are not as wattune wrote them;
/// `None` if they are.
pub(super) fn changed_rows(open: &OpenBlock, tx: &Connection) -> Result<Option<String>, StoreError> {
    let (mut tail, mut last) = (last_close(tx)?, None);
    let mut statement = tx.prepare_cached(&as_recorded())?;
    let mut found = statement.query([open.block])?;
    while let Some(row) = found.next()? {
        let id: i64 = row.get("id")?;
        match rows::interval(row) {
            Ok(interval) => tail = tail.then(&Row::line(&interval)),
            Err(error) => return Ok(Some(format!("row {id}: {error}"))),
        }
        if digest(row).ok() != Some(tail) {
            return Ok(Some(format!("row {id}: its hash is missing or does not match")));
        }
        last = Some(id);
    }
    if open.block != closed_blocks(tx)? + 1 {
        return Ok(Some(format!("block {} should be open, but is not", open.block)));
    }
    if tail == open.tail && last.is_none_or(|last| last == open.rows) {
        return Ok(None);
    }
    let end = last.map_or("has no rows".to_owned(), |last| format!("ends with row {last}"));
    Ok(Some(format!("block {} {end}, but rows up to {} were written: some are missing", open.block, open.rows)))
}

/// Deletes the digests of checkpoints (counter readings up to which energy is recorded), because they do not cover the
/// columns that the present migration adds. [`cover_old_rows`] adds them again.
pub(in crate::store) fn reset_checkpoint_digests(tx: &Connection) -> Result<(), StoreError> {
    rows::execute(tx, "UPDATE checkpoints SET hash = NULL", []).map(drop)
}

/// Adds the digests and the record of the open block, which tables of earlier versions lack.
pub(in crate::store) fn cover_old_rows(tx: &Connection) -> Result<(), StoreError> {
    chain_old_rows(tx)?;
    digest_old_checkpoints(tx)?;
    OpenBlock::of_rows(tx)?.write(tx)
}

/// Differences between the database and the record of the open block.
struct Changes {
    open: OpenBlock,
    record: Option<&'static str>,
    checkpoints: BTreeMap<String, &'static str>,
    rows: Option<String>,
}

impl Changes {
    fn of(tx: &Connection) -> Result<Self, StoreError> {
        let (open, record) = match OpenBlock::stored(tx)? {
            Ok(open) => (open, None),
            Err(why) => (OpenBlock::of_rows(tx)?, Some(why)),
        };
        let (checkpoints, rows) = (changed_checkpoints(&open, tx)?, changed_rows(&open, tx)?);
        Ok(Self { open, record, checkpoints, rows })
    }

    fn is_empty(&self) -> bool {
        self.record.is_none() && self.checkpoints.is_empty() && self.rows.is_none()
    }

    /// Deletes changed checkpoints (counter readings up to which energy is recorded), and records in the ledger the
    /// times whose energy is therefore unknown. Changed rows and the recorded end of their chain stay as they are, so
    /// that verification continues to report the change.
    fn set_aside(mut self, tx: &Connection, now: DateTime<Utc>) -> Result<(), StoreError> {
        for (device, why) in &self.checkpoints {
            tracing::error!(
                "the database was changed by another program: the checkpoint of {device} (the counter reading up to which \
                 energy is recorded) {why}; the energy that {device} used since its last recorded interval is unknown"
            );
            let sql = "SELECT end_us FROM intervals WHERE device = ?1 ORDER BY id DESC LIMIT 1";
            let until = rows::optional(tx, sql, [device], rows::first)?;
            let why = format!(
                "the database was changed by another program: its checkpoint (the counter reading up to which energy is \
                 recorded) {why}; the energy used since the last recorded interval is unknown"
            );
            append_lost(tx, device, until, now, &why)?;
            // The stored open interval is deleted too, because it continues from the changed checkpoint.
            rows::execute(tx, "DELETE FROM open_books WHERE device = ?1", [device])?;
            rows::execute(tx, "DELETE FROM checkpoints WHERE device = ?1", [device])?;
        }
        if let Some(why) = self.record {
            tracing::error!(
                "the database was changed by another program: the record of the open block (intervals since the last close) {why}"
            );
        }
        if let Some(why) = &self.rows {
            tracing::error!("the database was changed by another program: {why}");
        }
        let sql = "SELECT DISTINCT device FROM intervals WHERE block = ?1 UNION SELECT device FROM checkpoints \
                   UNION SELECT device FROM balances";
        let known: Vec<String> = rows::all(tx, sql, [self.open.block], rows::first)?;
        let devices: BTreeSet<&String> = known.iter().chain(self.checkpoints.keys()).collect();
        let closed: Option<i64> = rows::one(tx, "SELECT MAX(at_us) FROM balances", [], rows::first)?;
        let first = "SELECT MIN(start_us) FROM intervals WHERE block = ?1";
        let first: Option<i64> = rows::one(tx, first, [self.open.block], rows::first)?;
        let reasons = self.rows.is_some().then_some(CHANGED_ROWS).into_iter();
        for why in reasons.chain(self.record.is_some().then_some(CHANGED_RECORD)) {
            for device in &devices {
                append_lost(tx, device, closed.or(first), now, why)?;
            }
        }
        self.open.checkpoints.retain(|device, _| !self.checkpoints.contains_key(device));
        self.open.write(tx)
    }
}

/// Appends a time in which a device's energy is unknown to the ledger, unless an earlier start of the daemon appended
/// the same one.
fn append_lost(
    tx: &Connection,
    device: &str,
    from: Option<i64>,
    now: DateTime<Utc>,
    why: &str,
) -> Result<(), StoreError> {
    let Ok(device) = DeviceId::new(device) else { return Ok(()) };
    // If the wall clock was set back past `from`, the loss is recorded with a length of one second.
    let from = from.and_then(|us| rows::time(us).ok()).filter(|from| *from < now);
    let from = from.unwrap_or(now - TimeDelta::seconds(1));
    let sql = "SELECT seq, line FROM ledger WHERE kind = 'lost' AND about_us = ?1";
    let earlier = rows::all(tx, sql, [from.timestamp_micros()], lines::entry)?;
    if !earlier.iter().any(|entry| matches!(entry, Entry::Lost(lost) if lost.device == device && lost.why == why)) {
        append_entry(tx, &Entry::Lost(Lost { at: now, device, from, until: now, why: why.to_owned() }))?;
    }
    Ok(())
}

impl Store {
    /// Compares the rows and checkpoints (counter readings up to which energy is recorded) since the last close with
    /// the record of the open block, and sets aside what was changed while no daemon ran. At a start, the daemon calls
    /// this before it continues from these rows and checkpoints.
    pub async fn set_changes_aside(&self, now: DateTime<Utc>) -> Result<(), StoreError> {
        // If nothing was changed, no lock is taken, because another process may be writing.
        if self.write.run(|db| Ok::<_, StoreError>(Changes::of(&*db.transaction()?)?.is_empty())).await? {
            return Ok(());
        }
        let set_aside = move |db: &mut Connection| {
            let tx = writing(db)?;
            Changes::of(&tx)?.set_aside(&tx, now)?;
            Ok(tx.commit()?)
        };
        self.write.run(set_aside).await
    }
}
