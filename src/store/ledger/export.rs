//! The ledger as lines that can be checked without the daemon.

use futures_util::TryStreamExt as _;
use sqlx::Row as _;

use super::{INTERVAL, digest, lines};
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
        let (mut rows, mut tail) = (0, Digest::GENESIS);
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
                let line = lines::line(row)?;
                if row.try_get::<&str, _>("kind").map_err(StoreError::from)? == "close" {
                    let last = rows_of(&mut tx, block, &mut take).await?;
                    block += 1;
                    // Those of a block that was rolled up count as well.
                    rows = match last {
                        Some((last, _)) => last,
                        None => rows + rows::from_json::<Rows>("ledger", &line)?.rows,
                    };
                    tail = hash;
                }
                take(&entry_line(number(seq)?, hash, &line))?;
                (entries, head) = (seq, hash);
            }
        }
        if let Some(last) = rows_of(&mut tx, block, &mut take).await? {
            (rows, tail) = last;
        }
        take(&last_line(number(entries)?, head, rows, tail))
    }
}

/// What is needed of a close.
#[derive(serde::Deserialize)]
struct Rows {
    rows: u64,
}

fn number(n: i64) -> Result<u64, StoreError> {
    u64::try_from(n).map_err(|e| rows::damaged("ledger", e))
}

/// The rows of a block, as they were booked. Answers with the last one's number and digest.
async fn rows_of<E: From<StoreError>>(
    tx: &mut sqlx::sqlite::SqliteConnection,
    block: i64,
    take: &mut impl FnMut(&str) -> Result<(), E>,
) -> Result<Option<(u64, Digest)>, E> {
    let sql = format!(
        "SELECT id, hash, {} FROM intervals WHERE block = $1 ORDER BY id",
        INTERVAL.replace(
            "share, job_id",
            "COALESCE(booked_share, share) AS share, CASE WHEN booked_share IS NULL THEN job_id ELSE booked_job END AS job_id"
        )
    );
    let mut found = sqlx::query(sqlx::AssertSqlSafe(sql)).bind(block).fetch(&mut *tx);
    let mut last = None;
    while let Some(row) = found.try_next().await.map_err(StoreError::from)? {
        let id: i64 = row.try_get("id").map_err(StoreError::from)?;
        let (id, hash, line) = (number(id)?, digest(&row)?, Row::line(&rows::interval(&row)?));
        take(&row_line(number(block)?, id, hash, &line))?;
        last = Some((id, hash));
    }
    Ok(last)
}
