//! Rolling up: the minutes of old blocks become hours. Sums, chain and settlements stay as they are.

use chrono::{DateTime, Utc};
use sqlx::Row as _;

use super::append_entry;
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
        let first: Option<i64> = sqlx::query_scalar("SELECT MIN(block) FROM intervals").fetch_one(&mut *tx).await?;
        let sql = "SELECT COUNT(*) FROM ledger WHERE kind = 'close' AND about_us < $1";
        let closed: i64 = sqlx::query_scalar(sql).bind(before.timestamp_micros()).fetch_one(&mut *tx).await?;
        let Some(first) = first.filter(|first| *first <= closed) else { return Ok(0) };
        let last = closed.min(first + i64::from(most) - 1);
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
