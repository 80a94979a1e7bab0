//! The ledger page by page, for whoever looks through it.

use sqlx::Row as _;

use super::{INTERVAL, digest, lines};
use crate::domain::Slot;
use crate::ledger::chain::Digest;
use crate::ledger::{Interval, Share};
use crate::store::{Store, StoreError, rows};

/// A part of the ledger.
#[derive(Clone, Debug, PartialEq)]
pub struct LedgerPage {
    /// Intervals, in the order in which they were booked.
    pub rows: Vec<LedgerRow>,
    /// The last interval's number, where more follow.
    pub next_after: Option<u64>,
    /// Hours whose intervals were rolled up, as intervals of an hour; with the first page.
    pub rolled_up: Vec<Interval>,
    /// Settlements, corrections and losses about the span, with number and digest; with the first page.
    pub entries: Vec<(u64, Digest, serde_json::Value)>,
}

/// One interval with its place in the chain.
#[derive(Clone, Debug, PartialEq)]
pub struct LedgerRow {
    /// Its number.
    pub row: u64,
    /// Its block.
    pub block: u64,
    /// The chain's digest up to it.
    pub hash: Digest,
    /// It, with whose it is now.
    pub interval: Interval,
    /// Whose it was booked as, where that was corrected.
    pub booked: Option<Share>,
}

impl Store {
    /// At most `limit` intervals that begin in a span, after the one with number `after`; without `after` also what else
    /// the ledger says about the span.
    ///
    /// # Errors
    /// If it cannot be read.
    pub async fn ledger_page(&self, span: &Slot, after: Option<u64>, limit: u32) -> Result<LedgerPage, StoreError> {
        let mut tx = self.reading.begin().await?;
        let (start, end) = (span.start().timestamp_micros(), span.end().timestamp_micros());
        let sql = format!(
            "SELECT id, block, hash, booked_share, booked_job, {INTERVAL} FROM intervals \
             WHERE start_us >= $1 AND start_us < $2 AND id > $3 ORDER BY id LIMIT $4"
        );
        let found = sqlx::query(sqlx::AssertSqlSafe(sql))
            .bind(start)
            .bind(end)
            .bind(i64::try_from(after.unwrap_or_default()).unwrap_or(i64::MAX))
            .bind(i64::from(limit) + 1)
            .fetch_all(&mut *tx)
            .await?;
        let number = |n: i64| u64::try_from(n).map_err(|e| rows::damaged("ledger", e));
        let mut page = Vec::with_capacity(found.len());
        for row in &found {
            let booked: Option<String> = row.try_get("booked_share")?;
            page.push(LedgerRow {
                row: number(row.try_get("id")?)?,
                block: number(row.try_get("block")?)?,
                hash: digest(row)?,
                interval: rows::interval(row)?,
                booked: booked.map(|share| rows::share(&share, row.try_get("booked_job")?)).transpose()?,
            });
        }
        let more = page.len() > limit as usize;
        page.truncate(limit as usize);
        let next_after = page.last().filter(|_| more).map(|row| row.row);
        let mut answer = LedgerPage { rows: page, next_after, rolled_up: Vec::new(), entries: Vec::new() };
        if after.is_some() {
            return Ok(answer);
        }
        let sql = "SELECT * FROM rolled_up WHERE hour_us >= $1 AND hour_us < $2 ORDER BY hour_us, device";
        let hours = sqlx::query(sql).bind(start).bind(end).fetch_all(&mut *tx).await?;
        answer.rolled_up = hours.iter().map(rows::rolled_up).collect::<Result<_, _>>()?;
        let sql = "SELECT seq, hash, line FROM ledger WHERE kind IN ('settlement', 'correction', 'lost') AND about_us >= $1 \
                   AND about_us < $2 ORDER BY seq";
        for row in &sqlx::query(sql).bind(start).bind(end).fetch_all(&mut *tx).await? {
            let entry = rows::from_json("ledger", &lines::line(row)?)?;
            answer.entries.push((number(row.try_get("seq")?)?, digest(row)?, entry));
        }
        Ok(answer)
    }
}
