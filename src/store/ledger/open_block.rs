//! Record of the open block (the ledger's rows since the last close): the number and digest of the last row, and the
//! digest of each device's checkpoint. The record has a digest of its own.
//!
//! The digests of rows do not show that the last rows were deleted, and a deleted checkpoint leaves no trace. The
//! record shows both. It changes in the transaction that appends rows, and at every start the daemon compares the rows
//! with it before it appends further ones.

use std::collections::BTreeMap;

use rusqlite::{Connection, Row as TableRow, params};
use serde::{Deserialize, Serialize};

use super::chain::{closed_blocks, digest};
use crate::store::{StoreError, rows};
use wattune_core::ledger::chain::Digest;

/// Record of the open block (the ledger's rows since the last close).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct OpenBlock {
    /// Number of the open block.
    pub block: i64,
    /// Number of the ledger's last row, in this block or an earlier one.
    pub rows: i64,
    /// Digest at the end of the chain, from which the digest of the next row is computed.
    pub tail: Digest,
    /// Digest of each device's checkpoint (counter reading up to which energy is recorded).
    pub checkpoints: BTreeMap<String, Digest>,
}

impl OpenBlock {
    /// Returns the stored record.
    ///
    /// # Errors
    /// If the record was changed or deleted, or if the database fails.
    pub(super) fn read(tx: &Connection) -> Result<Self, StoreError> {
        Self::stored(tx)?.map_err(|why| rows::damaged("record of the open block", why))
    }

    /// Returns the stored record, or the reason why it is not as wattune wrote it.
    pub(super) fn stored(tx: &Connection) -> Result<Result<Self, &'static str>, StoreError> {
        let of_row = |row: &TableRow<'_>| {
            let (line, hash) = (row.get_ref("line")?.as_str(), row.get_ref("hash")?.as_blob());
            let Some((line, hash)) = line.ok().zip(hash.ok()) else { return Ok(None) };
            let is_unchanged = Digest::from_bytes(hash) == Some(Digest::of(line));
            Ok::<_, StoreError>(serde_json::from_str(line).ok().filter(|_| is_unchanged))
        };
        Ok(match rows::optional(tx, "SELECT line, hash FROM open_block", [], of_row)? {
            None => Err("is missing"),
            Some(None) => Err("has a digest that does not match: it was changed"),
            Some(Some(open)) => Ok(open),
        })
    }

    /// Stores the record.
    pub(super) fn write(&self, tx: &Connection) -> Result<(), StoreError> {
        let line = rows::json(self)?;
        let sql = "INSERT INTO open_block (one, line, hash) VALUES (1, ?1, ?2) \
                   ON CONFLICT (one) DO UPDATE SET line = ?1, hash = ?2";
        rows::execute(tx, sql, params![line, Digest::of(&line).as_bytes()])?;
        Ok(())
    }

    /// Returns a record made from the rows and checkpoints (counter readings) that the database has now.
    pub(super) fn of_rows(tx: &Connection) -> Result<Self, StoreError> {
        let block = closed_blocks(tx)? + 1;
        // If all intervals were rolled up, the entries about roll-ups show how many row numbers are used.
        let sql = "SELECT COALESCE((SELECT MAX(id) FROM intervals), \
                   (SELECT SUM(json_extract(line, '$.rows')) FROM ledger WHERE kind = 'roll_up'), 0)";
        let last = rows::one(tx, sql, [], rows::first)?;
        let sql =
            "SELECT hash FROM intervals WHERE block = ?1 AND length(CAST(hash AS BLOB)) = 32 ORDER BY id DESC LIMIT 1";
        let tail = match rows::optional(tx, sql, [block], digest)? {
            Some(tail) => tail,
            None => last_close(tx)?,
        };
        let digests = |row: &TableRow<'_>| Ok::<(String, _), StoreError>((row.get("device")?, digest(row).ok()));
        let checkpoints = rows::all(tx, "SELECT device, hash FROM checkpoints", [], digests)?;
        let checkpoints = checkpoints.into_iter().filter_map(|(device, hash)| Some((device, hash?))).collect();
        Ok(Self { block, rows: last, tail, checkpoints })
    }
}

/// Returns the digest of the ledger's newest `close` entry; [`Digest::GENESIS`] if there is none.
pub(super) fn last_close(tx: &Connection) -> Result<Digest, StoreError> {
    // The plus makes SQLite search backwards from the newest entry: the last close is about an hour old. With the index
    // on kinds it would scan all closes.
    let sql = "SELECT hash FROM ledger WHERE +kind = 'close' ORDER BY seq DESC LIMIT 1";
    Ok(rows::optional(tx, sql, [], digest)?.unwrap_or(Digest::GENESIS))
}
