//! Roll-up: sums the intervals of old blocks by hour, and deletes the intervals. Totals, digests and settlements do not
//! change.

use chrono::{DateTime, Utc};
use rusqlite::{Connection, params};

use super::chain::{INTERVAL, append_entry, closed_blocks, share_key};
use crate::store::connection::writing;
use crate::store::{Store, StoreError, rows};
use wattune_core::domain::JobId;
use wattune_core::ledger::block::cells;
use wattune_core::ledger::entry::{Entry, RollUp};

impl Store {
    /// Rolls up the oldest closed blocks (intervals of about an hour each) with numbers below `before`, at most `most`
    /// blocks. Returns the number of deleted rows. `at` is the current time.
    pub async fn roll_up(&self, before: u64, most: u32, at: DateTime<Utc>) -> Result<u64, StoreError> {
        self.write.run(move |db| roll_up(db, before, most, at)).await
    }

    /// Returns the jobs that have energy in the blocks (intervals of about an hour each) that [`Self::roll_up`]
    /// processes next.
    pub async fn jobs_to_roll_up(&self, before: u64, most: u32) -> Result<Vec<JobId>, StoreError> {
        let jobs = move |db: &mut Connection| {
            let tx = db.transaction()?;
            let Some((first, last)) = to_roll_up(&tx, before, most)? else { return Ok(Vec::new()) };
            let sql = "SELECT DISTINCT job_id FROM intervals WHERE job_id IS NOT NULL AND block BETWEEN ?1 AND ?2";
            rows::all(&tx, sql, [first, last], |row| {
                JobId::new(row.get::<_, String>(0)?).map_err(|e| rows::damaged("interval", e))
            })
        };
        self.short_reads.run(jobs).await
    }

    /// Returns the size of the database in bytes.
    pub async fn bytes(&self) -> Result<u64, StoreError> {
        let sql = "SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()";
        self.short_reads.run(move |db| rows::one(db, sql, [], |row| rows::number(row, 0))).await
    }
}

fn roll_up(db: &mut Connection, before: u64, most: u32, at: DateTime<Utc>) -> Result<u64, StoreError> {
    let tx = writing(db)?;
    let Some((first, last)) = to_roll_up(&tx, before, most)? else { return Ok(0) };
    let sql = format!("SELECT {INTERVAL} FROM intervals WHERE block BETWEEN ?1 AND ?2");
    for cell in cells(&rows::all(&tx, &sql, [first, last], rows::interval)?) {
        let sql = "INSERT INTO rolled_up VALUES (?1, ?2, ?3, ?4, ?5, ?6) \
                   ON CONFLICT DO UPDATE SET energy_mj = energy_mj + excluded.energy_mj";
        let ((share, job), energy) = (share_key(&cell.share), rows::to_i64(cell.energy_mj)?);
        let (hour, device, source) = (cell.hour.timestamp_micros(), cell.device.as_str(), cell.source.as_str());
        rows::execute(&tx, sql, params![hour, device, share, job, source, energy])?;
    }
    let deleted = rows::execute(&tx, "DELETE FROM intervals WHERE block BETWEEN ?1 AND ?2", [first, last])? as u64;
    let rolled = RollUp { at, first_block: rows::unsigned(first)?, last_block: rows::unsigned(last)?, rows: deleted };
    append_entry(&tx, &Entry::RollUp(rolled))?;
    tx.commit()?;
    Ok(deleted)
}

/// Returns the numbers of the first and last block to roll up: of the closed blocks that still have intervals and have
/// numbers below `before`, the oldest ones, at most `most`. `None` if there is no such block.
fn to_roll_up(tx: &Connection, before: u64, most: u32) -> Result<Option<(i64, i64)>, StoreError> {
    let first: Option<i64> = rows::one(tx, "SELECT MIN(block) FROM intervals", [], rows::first)?;
    let last = closed_blocks(tx)?.min(rows::signed(before)? - 1);
    let last_of = |first: i64| last.min(first + i64::from(most) - 1);
    Ok(first.map(|first| (first, last_of(first))).filter(|(first, last)| first <= last))
}
