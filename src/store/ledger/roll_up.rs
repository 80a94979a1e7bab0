//! Rolling up: the minutes of old blocks become hours. Sums, chain and settlements stay as they are.

use chrono::{DateTime, Utc};
use sqlx::Row as _;
use sqlx::sqlite::SqliteConnection;

use super::{append_entry, closed_blocks};
use crate::domain::JobId;
use crate::ledger::entry::{Entry, RollUp};
use crate::store::{Store, StoreError, rows};

impl Store {
    /// Rolls up the blocks that were closed before `before`, at most `most` of them, the oldest first. Answers with how
    /// many rows that were.
    ///
    /// # Errors
    /// If the transaction fails; then none of it is done.
    pub async fn roll_up(&self, before: DateTime<Utc>, most: u32, at: DateTime<Utc>) -> Result<u64, StoreError> {
        let mut tx = self.begin().await?;
        let Some((first, last)) = to_roll_up(&mut tx, before, most).await? else { return Ok(0) };
        sqlx::query(
            "INSERT INTO rolled_up SELECT start_us / 3600000000 * 3600000000, device, share, COALESCE(job_id, ''), \
             source, SUM(energy_mj) FROM intervals WHERE block BETWEEN $1 AND $2 GROUP BY 1, 2, 3, 4, 5 \
             ON CONFLICT DO UPDATE SET energy_mj = energy_mj + excluded.energy_mj",
        )
        .bind(first)
        .bind(last)
        .execute(&mut *tx)
        .await?;
        let gone = sqlx::query("DELETE FROM intervals WHERE block BETWEEN $1 AND $2")
            .bind(first)
            .bind(last)
            .execute(&mut *tx)
            .await?
            .rows_affected();
        let number = |block: i64| u64::try_from(block).map_err(|e| rows::damaged("ledger", e));
        let rolled = RollUp { at, first_block: number(first)?, last_block: number(last)?, rows: gone };
        append_entry(&mut tx, &Entry::RollUp(rolled)).await?;
        tx.commit().await?;
        Ok(gone)
    }

    /// The jobs in the blocks that [`Self::roll_up`] takes next.
    ///
    /// # Errors
    /// If they cannot be read.
    pub async fn jobs_to_roll_up(&self, before: DateTime<Utc>, most: u32) -> Result<Vec<JobId>, StoreError> {
        let mut tx = self.pool.begin().await?;
        let Some((first, last)) = to_roll_up(&mut tx, before, most).await? else { return Ok(Vec::new()) };
        let sql = "SELECT DISTINCT job_id FROM intervals WHERE job_id IS NOT NULL AND block BETWEEN $1 AND $2";
        let found: Vec<String> = sqlx::query_scalar(sql).bind(first).bind(last).fetch_all(&mut *tx).await?;
        found.into_iter().map(|id| JobId::new(id).map_err(|e| rows::damaged("interval", e))).collect()
    }

    /// How many bytes the database takes.
    ///
    /// # Errors
    /// If it cannot be asked.
    pub async fn bytes(&self) -> Result<u64, StoreError> {
        let sql = "SELECT page_count * page_size AS bytes FROM pragma_page_count(), pragma_page_size()";
        let bytes: i64 = sqlx::query(sql).fetch_one(&self.pool).await?.try_get("bytes")?;
        u64::try_from(bytes).map_err(|e| rows::damaged("size", e))
    }
}

/// The first and the last of the oldest blocks with intervals, at most `most`, that were closed before `before`.
async fn to_roll_up(
    tx: &mut SqliteConnection,
    before: DateTime<Utc>,
    most: u32,
) -> Result<Option<(i64, i64)>, StoreError> {
    let first: Option<i64> = sqlx::query_scalar("SELECT MIN(block) FROM intervals").fetch_one(&mut *tx).await?;
    let Some(first) = first else { return Ok(None) };
    let last = closed_blocks(tx).await?.min(first + i64::from(most) - 1);
    let sql = "SELECT MIN(block) FROM balances WHERE block BETWEEN $1 AND $2 AND at_us >= $3";
    let too_new = sqlx::query_scalar(sql).bind(first).bind(last).bind(before.timestamp_micros());
    let too_new: Option<i64> = too_new.fetch_one(&mut *tx).await?;
    let last = too_new.map_or(last, |block| block - 1);
    Ok((first <= last).then_some((first, last)))
}
