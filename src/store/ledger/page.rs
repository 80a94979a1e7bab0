//! The ledger in pages, for browsing.

use rusqlite::{Connection, Row, params};

use super::chain::{INTERVAL, digest};
use super::lines;
use crate::store::{Store, StoreError, rows};
use wattune_core::domain::Slot;
use wattune_core::ledger::chain::Digest;
use wattune_core::ledger::{Interval, Share};

/// A page of the ledger.
#[derive(Clone, Debug, PartialEq)]
pub struct LedgerPage {
    /// Intervals, in the order in which they were recorded.
    pub rows: Vec<LedgerRow>,
    /// Number of the last interval on this page, if more intervals follow; the next page begins after it.
    pub next_after: Option<u64>,
    /// Hours to which old intervals were rolled up (summed), each as an interval of one hour; on the first page only.
    pub rolled_up: Vec<Interval>,
    /// Entries about settlements (computed emissions of an hour), corrections and unknown energy within the span:
    /// number, digest and content of each; on the first page only.
    pub entries: Vec<(u64, Digest, serde_json::Value)>,
}

/// An interval with its position in the chain.
#[derive(Clone, Debug, PartialEq)]
pub struct LedgerRow {
    /// Number of the interval in the ledger.
    pub row: u64,
    /// Number of the block (intervals of about an hour) that contains the interval.
    pub block: u64,
    /// Digest of the chain up to and including the interval.
    pub hash: Digest,
    /// Interval with its current share (owner of the energy).
    pub interval: Interval,
    /// Share that was recorded first, if a correction has changed it.
    pub recorded: Option<Share>,
}

impl Store {
    /// Returns up to `limit` intervals that begin in a span, after the one with the number `after`. Without `after`,
    /// also returns the rolled-up hours and the entries within the span.
    pub async fn ledger_page(&self, span: &Slot, after: Option<u64>, limit: u32) -> Result<LedgerPage, StoreError> {
        let span = *span;
        self.reports.run(move |db| page(&*db.transaction()?, &span, after, limit)).await
    }
}

fn page(tx: &Connection, span: &Slot, after: Option<u64>, limit: u32) -> Result<LedgerPage, StoreError> {
    let [start, end] = rows::ends(span);
    let sql = format!(
        "SELECT id, block, hash, booked_share, booked_job, {INTERVAL} FROM intervals \
         WHERE start_us >= ?1 AND start_us < ?2 AND id > ?3 ORDER BY id LIMIT ?4"
    );
    let after_id = i64::try_from(after.unwrap_or_default()).unwrap_or(i64::MAX);
    let mut page = rows::all(tx, &sql, params![start, end, after_id, i64::from(limit) + 1], ledger_row)?;
    let more = page.len() > limit as usize;
    page.truncate(limit as usize);
    let next_after = page.last().filter(|_| more).map(|row| row.row);
    let mut answer = LedgerPage { rows: page, next_after, rolled_up: Vec::new(), entries: Vec::new() };
    if after.is_some() {
        return Ok(answer);
    }
    let sql = "SELECT * FROM rolled_up WHERE hour_us >= ?1 AND hour_us < ?2 ORDER BY hour_us, device";
    answer.rolled_up = rows::all(tx, sql, [start, end], rows::rolled_up)?;
    let sql = "SELECT seq, hash, line FROM ledger WHERE kind IN ('settlement', 'correction', 'lost') AND about_us >= ?1 \
               AND about_us < ?2 ORDER BY seq";
    let entry = |row: &Row<'_>| {
        Ok::<_, StoreError>((rows::number(row, "seq")?, digest(row)?, rows::from_json("ledger", &lines::line(row)?)?))
    };
    answer.entries = rows::all(tx, sql, [start, end], entry)?;
    Ok(answer)
}

fn ledger_row(row: &Row<'_>) -> Result<LedgerRow, StoreError> {
    let recorded: Option<String> = row.get("booked_share")?;
    Ok(LedgerRow {
        row: rows::number(row, "id")?,
        block: rows::number(row, "block")?,
        hash: digest(row)?,
        interval: rows::interval(row)?,
        recorded: recorded.map(|share| rows::share(&share, row.get("booked_job")?)).transpose()?,
    })
}
