//! Export of the ledger as lines that can be verified without the daemon.

use rusqlite::{Connection, Row as TableRow};
use tokio::sync::mpsc;

use super::chain::{INTERVAL, digest};
use super::lines;
use crate::store::{Store, StoreError, rows};
use wattune_core::ledger::chain::Digest;
use wattune_core::ledger::entry::Row;
use wattune_core::ledger::verify::{entry_line, last_line, row_line};

/// Approximate size in bytes of each text, of many lines, that the connection's thread sends to the caller.
const BATCH: usize = 1 << 16;
/// Number of such texts that are read ahead of the caller.
const BATCHES_AHEAD: usize = 4;

impl Store {
    /// Passes the whole ledger to `take`, one line per call and without the line break. All lines are read in one
    /// transaction, so that they show the ledger at one moment.
    pub async fn export<E: From<StoreError>>(&self, mut take: impl FnMut(&str) -> Result<(), E>) -> Result<(), E> {
        let (sender, mut batches) = mpsc::channel::<String>(BATCHES_AHEAD);
        let reading = self.reports.run(move |db| {
            let mut batch = String::with_capacity(2 * BATCH);
            // Fails only if `take` failed before; `export` then returns the error of `take` instead of this one.
            let send = |batch: &mut String| sender.blocking_send(std::mem::take(batch)).map_err(|_| StoreError::Closed);
            all_lines(&*db.transaction()?, |line| {
                batch.push_str(line);
                batch.push('\n');
                if batch.len() >= BATCH { send(&mut batch) } else { Ok::<_, StoreError>(()) }
            })?;
            send(&mut batch)
        });
        let taking = async move {
            while let Some(batch) = batches.recv().await {
                batch.split_terminator('\n').try_for_each(&mut take)?;
            }
            Ok::<_, E>(())
        };
        let (read, taken) = tokio::join!(reading, taking);
        taken?;
        Ok(read?)
    }
}

/// Passes the whole ledger to `take`, line by line.
pub(super) fn all_lines<E: From<StoreError>>(
    tx: &Connection,
    mut take: impl FnMut(&str) -> Result<(), E>,
) -> Result<(), E> {
    let (mut entries, mut head, mut block) = (0, Digest::GENESIS, 1);
    let (mut rows, mut tail) = (0, Digest::GENESIS);
    let mut statement =
        tx.prepare_cached("SELECT seq, kind, line, hash FROM ledger ORDER BY seq").map_err(StoreError::from)?;
    let mut found = statement.query([]).map_err(StoreError::from)?;
    while let Some(row) = found.next().map_err(StoreError::from)? {
        let seq = rows::number(row, 0)?;
        let (hash, line) = (digest(row)?, lines::line(row)?);
        if rows::text(row, 1)? == "close" {
            let last = rows_of(tx, block, &mut take)?;
            block += 1;
            // The rows of a rolled-up block are deleted, but their numbers are still counted.
            rows = match last {
                Some((last, _)) => last,
                None => rows + rows::from_json::<Rows>("ledger", &line)?.rows,
            };
            tail = hash;
        }
        take(&entry_line(seq, hash, &line))?;
        (entries, head) = (seq, hash);
    }
    if let Some(last) = rows_of(tx, block, &mut take)? {
        (rows, tail) = last;
    }
    take(&last_line(entries, head, rows, tail))
}

/// Part of a `close` entry that the export needs: the number of rows in the block.
#[derive(serde::Deserialize)]
struct Rows {
    rows: u64,
}

/// Returns the query for the rows of a block with the shares that they had before any correction, as their digests
/// cover them.
pub(super) fn as_recorded() -> String {
    format!(
        "SELECT id, hash, {} FROM intervals WHERE block = ?1 ORDER BY id",
        INTERVAL.replace(
            "share, job_id",
            "COALESCE(booked_share, share) AS share, CASE WHEN booked_share IS NULL THEN job_id ELSE booked_job END AS job_id"
        )
    )
}

/// Passes the rows of a block (intervals of about an hour) to `take`, with the shares that they had before any
/// correction. Returns the number and the digest of the last row; `None` without rows.
fn rows_of<E: From<StoreError>>(
    tx: &Connection,
    block: i64,
    take: &mut impl FnMut(&str) -> Result<(), E>,
) -> Result<Option<(u64, Digest)>, E> {
    let of_row = |row: &TableRow<'_>| {
        Ok::<_, StoreError>((rows::number(row, 0)?, digest(row)?, Row::line(&rows::interval(row)?)))
    };
    let mut statement = tx.prepare_cached(&as_recorded()).map_err(StoreError::from)?;
    let mut last = None;
    for row in statement.query_and_then([block], of_row).map_err(StoreError::from)? {
        let (id, hash, line) = row?;
        take(&row_line(rows::unsigned(block)?, id, hash, &line))?;
        last = Some((id, hash));
    }
    Ok(last)
}
