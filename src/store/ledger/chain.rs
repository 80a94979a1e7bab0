//! The chains of entries and of intervals, in which each digest covers all before it: numbers, digests, and the block
//! that is open at the end.

use rusqlite::{Connection, Row as TableRow, ToSql, params};

use super::lines::{self, StoredLine};
use crate::store::connection::writing;
use crate::store::{Store, StoreError, rows};
use wattune_core::domain::JobId;
use wattune_core::ledger::chain::Digest;
use wattune_core::ledger::entry::{Entry, Row};
use wattune_core::ledger::{Interval, Share};

pub(super) const INTERVAL: &str = "device, share, job_id, start_us, end_us, energy_mj, source";

impl Store {
    /// Appends an entry to the ledger. Returns the entry's number.
    pub async fn append_entry(&self, entry: &Entry) -> Result<u64, StoreError> {
        let entry = entry.clone();
        let write = move |db: &mut Connection| {
            let tx = writing(db)?;
            let seq = append_entry(&tx, &entry)?;
            tx.commit()?;
            rows::unsigned(seq)
        };
        self.write.run(write).await
    }

    /// Returns the newest entry of a kind; `None` if there is none.
    pub async fn newest_entry(&self, kind: &str) -> Result<Option<Entry>, StoreError> {
        let sql = "SELECT seq, line FROM ledger WHERE seq = (SELECT MAX(seq) FROM ledger WHERE kind = ?1)";
        let kind = kind.to_owned();
        self.short_reads.run(move |db| rows::optional(db, sql, [kind], lines::entry)).await
    }

    /// Returns a job's entries of kind `counterfactual` or `outcome`, oldest first.
    pub async fn entries_of(&self, kind: &str, job: &JobId) -> Result<Vec<Entry>, StoreError> {
        let sql = "SELECT seq, line FROM ledger WHERE kind IN ('counterfactual', 'outcome') \
                   AND json_extract(line, '$.job') = ?1 AND kind = ?2 ORDER BY seq";
        let (kind, job) = (kind.to_owned(), job.clone());
        self.short_reads.run(move |db| rows::all(db, sql, [job.as_str(), &kind], lines::entry)).await
    }

    /// Returns a job's request for a start and the changes of its presence, oldest first.
    pub async fn presence_of(&self, job: &JobId) -> Result<Vec<Entry>, StoreError> {
        let sql = "SELECT seq, line FROM ledger WHERE kind IN ('start_request', 'presence') \
                   AND json_extract(line, '$.job') = ?1 ORDER BY seq";
        let job = job.clone();
        self.short_reads.run(move |db| rows::all(db, sql, [job.as_str()], lines::entry)).await
    }
}

/// Returns the number of closed blocks (intervals of about an hour each): the highest block number in `balances`, which
/// has rows for each closed block.
pub(super) fn closed_blocks(tx: &Connection) -> Result<i64, StoreError> {
    let last: Option<i64> = rows::one(tx, "SELECT MAX(block) FROM balances", [], rows::first)?;
    Ok(last.unwrap_or_default())
}

/// Appends an entry to the ledger's chain. Returns the entry's number.
pub(in crate::store) fn append_entry(tx: &Connection, entry: &Entry) -> Result<i64, StoreError> {
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

pub(super) fn digest(row: &TableRow<'_>) -> Result<Digest, StoreError> {
    let column = row.get_ref("hash")?;
    let bytes = column.as_blob().map_err(|e| rows::damaged("ledger", e))?;
    Digest::from_bytes(bytes).ok_or_else(|| rows::damaged("ledger", "a digest is not 32 bytes"))
}

/// Returns the two columns of a share (who the energy belongs to: a job, idle or unattributed) in those tables that
/// store an empty text if there is no job: first the share's name, second the job's id.
pub(super) fn share_key(share: &Share) -> (&'static str, &str) {
    let (name, job) = rows::share_columns(share);
    (name, job.unwrap_or_default())
}

/// Adds digests to the rows of intervals that an earlier version of wattune stored without them.
pub(super) fn chain_old_rows(tx: &Connection) -> Result<(), StoreError> {
    let sql = format!("SELECT id, {INTERVAL} FROM intervals WHERE hash IS NULL ORDER BY id");
    let of_row = |row: &TableRow<'_>| Ok::<_, StoreError>((row.get("id")?, rows::interval(row)?));
    let old: Vec<(i64, Interval)> = rows::all(tx, &sql, [], of_row)?;
    let mut hash = Digest::GENESIS;
    for (id, interval) in &old {
        hash = hash.then(&Row::line(interval));
        rows::execute(tx, "UPDATE intervals SET hash = ?1 WHERE id = ?2", params![hash.as_bytes(), id])?;
    }
    Ok(())
}
