//! Rolling up: the minutes of old blocks become hours. Sums, chain and settlements stay as they are.

use chrono::{DateTime, Utc};
use rusqlite::Connection;

use super::{append_entry, closed_blocks};
use crate::store::connection::writing;
use crate::store::{Store, StoreError, rows};
use wattune_core::domain::JobId;
use wattune_core::ledger::entry::{Entry, RollUp};

impl Store {
    /// Rolls up the blocks that were closed before `before`, at most `most` of them, the oldest first. Answers with how
    /// many rows that were.
    ///
    /// # Errors
    /// If the transaction fails; then none of it is done.
    pub async fn roll_up(&self, before: DateTime<Utc>, most: u32, at: DateTime<Utc>) -> Result<u64, StoreError> {
        self.write.run(move |db| roll_up(db, before, most, at)).await
    }

    /// The jobs in the blocks that [`Self::roll_up`] takes next.
    ///
    /// # Errors
    /// If they cannot be read.
    pub async fn jobs_to_roll_up(&self, before: DateTime<Utc>, most: u32) -> Result<Vec<JobId>, StoreError> {
        let jobs = move |db: &mut Connection| {
            let tx = db.transaction()?;
            let Some((first, last)) = to_roll_up(&tx, before, most)? else { return Ok(Vec::new()) };
            let sql = "SELECT DISTINCT job_id FROM intervals WHERE job_id IS NOT NULL AND block BETWEEN ?1 AND ?2";
            rows::all(&tx, sql, [first, last], |row| {
                JobId::new(row.get::<_, String>(0)?).map_err(|e| rows::damaged("interval", e))
            })
        };
        self.read.run(jobs).await
    }

    /// How many bytes the database takes.
    ///
    /// # Errors
    /// If it cannot be asked.
    pub async fn bytes(&self) -> Result<u64, StoreError> {
        let sql = "SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()";
        let bytes: i64 = self.read.run(move |db| rows::one(db, sql, [], rows::first)).await?;
        u64::try_from(bytes).map_err(|e| rows::damaged("size", e))
    }
}

fn roll_up(db: &mut Connection, before: DateTime<Utc>, most: u32, at: DateTime<Utc>) -> Result<u64, StoreError> {
    let tx = writing(db)?;
    let Some((first, last)) = to_roll_up(&tx, before, most)? else { return Ok(0) };
    let sql = "INSERT INTO rolled_up SELECT start_us / 3600000000 * 3600000000, device, share, COALESCE(job_id, ''), \
               source, SUM(energy_mj) FROM intervals WHERE block BETWEEN ?1 AND ?2 GROUP BY 1, 2, 3, 4, 5 \
               ON CONFLICT DO UPDATE SET energy_mj = energy_mj + excluded.energy_mj";
    rows::execute(&tx, sql, [first, last])?;
    let gone = rows::execute(&tx, "DELETE FROM intervals WHERE block BETWEEN ?1 AND ?2", [first, last])? as u64;
    let number = |block: i64| u64::try_from(block).map_err(|e| rows::damaged("ledger", e));
    let rolled = RollUp { at, first_block: number(first)?, last_block: number(last)?, rows: gone };
    append_entry(&tx, &Entry::RollUp(rolled))?;
    tx.commit()?;
    Ok(gone)
}

/// The first and the last of the oldest blocks with intervals, at most `most`, that were closed before `before`.
fn to_roll_up(tx: &Connection, before: DateTime<Utc>, most: u32) -> Result<Option<(i64, i64)>, StoreError> {
    let first: Option<i64> = rows::one(tx, "SELECT MIN(block) FROM intervals", [], rows::first)?;
    let Some(first) = first else { return Ok(None) };
    let last = closed_blocks(tx)?.min(first + i64::from(most) - 1);
    let sql = "SELECT MIN(block) FROM balances WHERE block BETWEEN ?1 AND ?2 AND at_us >= ?3";
    let too_new: Option<i64> = rows::one(tx, sql, [first, last, before.timestamp_micros()], rows::first)?;
    let last = too_new.map_or(last, |block| block - 1);
    Ok((first <= last).then_some((first, last)))
}
