//! The ledger as lines that can be checked without the daemon.

use futures_util::TryStreamExt as _;
use sqlx::Row as _;

use super::{INTERVAL, digest};
use crate::ledger::chain::Digest;
use crate::ledger::entry::Row;
use crate::ledger::verify::{entry_line, last_line, row_line};
use crate::store::{Store, StoreError, rows};

impl Store {
    /// Writes the whole ledger as lines, each without its line break, to `take`: what it holds at one moment.
    ///
    /// # Errors
    /// If it cannot be read, or `take` fails.
    pub async fn export<E: From<StoreError>>(&self, mut take: impl FnMut(&str) -> Result<(), E>) -> Result<(), E> {
        let mut tx = self.pool.begin().await.map_err(StoreError::from)?;
        let (mut entries, mut head, mut block) = (0, Digest::GENESIS, 1);
        // Entries in batches: what is between two of them is read on the same connection.
        loop {
            let sql = "SELECT seq, kind, line, hash FROM ledger WHERE seq > $1 ORDER BY seq LIMIT 1000";
            let batch = sqlx::query(sql).bind(entries).fetch_all(&mut *tx).await.map_err(StoreError::from)?;
            if batch.is_empty() {
                break;
            }
            for row in &batch {
                let read = || Ok::<_, StoreError>((row.try_get::<i64, _>("seq")?, digest(row)?));
                let (seq, hash) = read()?;
                if row.try_get::<&str, _>("kind").map_err(StoreError::from)? == "close" {
                    rows_of(&mut tx, block, &mut take).await?;
                    block += 1;
                }
                let line: &str = row.try_get("line").map_err(StoreError::from)?;
                take(&entry_line(number(seq)?, hash, line))?;
                (entries, head) = (seq, hash);
            }
        }
        rows_of(&mut tx, block, &mut take).await?;
        take(&last_line(number(entries)?, head))
    }
}

fn number(n: i64) -> Result<u64, StoreError> {
    u64::try_from(n).map_err(|e| rows::damaged("ledger", e))
}

/// The rows of a block, as they were booked.
async fn rows_of<E: From<StoreError>>(
    tx: &mut sqlx::sqlite::SqliteConnection,
    block: i64,
    take: &mut impl FnMut(&str) -> Result<(), E>,
) -> Result<(), E> {
    let sql = format!(
        "SELECT id, hash, {} FROM intervals WHERE block = $1 ORDER BY id",
        INTERVAL.replace(
            "share, job_id",
            "COALESCE(booked_share, share) AS share, CASE WHEN booked_share IS NULL THEN job_id ELSE booked_job END AS job_id"
        )
    );
    let mut found = sqlx::query(sqlx::AssertSqlSafe(sql)).bind(block).fetch(&mut *tx);
    while let Some(row) = found.try_next().await.map_err(StoreError::from)? {
        let id: i64 = row.try_get("id").map_err(StoreError::from)?;
        let line = Row::line(&rows::interval(&row)?);
        take(&row_line(number(block)?, number(id)?, digest(&row)?, &line))?;
    }
    Ok(())
}
