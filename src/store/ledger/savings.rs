//! Data for savings, beside the intervals.

use chrono::TimeDelta;

use rusqlite::{Connection, params};

use super::lines;
use crate::store::{Store, StoreError, rows};
use wattune_core::domain::{GpuId, JobId, Slot};
use wattune_core::ledger::entry::Entry;

impl Store {
    /// Returns a job's entries of kind `counterfactual` or `outcome`, oldest first.
    ///
    /// # Errors
    /// If they cannot be read.
    pub async fn entries_of(&self, kind: &str, job: &JobId) -> Result<Vec<Entry>, StoreError> {
        let sql = "SELECT seq, line FROM ledger WHERE kind IN ('counterfactual', 'outcome') \
                   AND json_extract(line, '$.job') = ?1 AND kind = ?2 ORDER BY seq";
        let (kind, job) = (kind.to_owned(), job.clone());
        self.read.run(move |db| rows::all(db, sql, [job.as_str(), &kind], lines::entry)).await
    }

    /// Returns true if some of a job's minutes were rolled up to hours.
    ///
    /// # Errors
    /// If that cannot be read.
    pub async fn is_rolled_up(&self, job: &JobId) -> Result<bool, StoreError> {
        let sql = "SELECT EXISTS (SELECT 1 FROM rolled_up WHERE job_id = ?1)";
        let job = job.clone();
        self.read.run(move |db| rows::one(db, sql, [job.as_str()], rows::first)).await
    }

    /// Returns true if some of a GPU's energy in a span did not belong to this job.
    ///
    /// # Errors
    /// If that cannot be read.
    pub async fn was_shared(&self, gpu: &GpuId, job: &JobId, span: &Slot) -> Result<bool, StoreError> {
        // No interval is longer than an hour.
        let earliest = span.start() - TimeDelta::hours(1);
        let sql = "SELECT EXISTS (SELECT 1 FROM intervals WHERE device = ?1 AND job_id IS NOT ?2 AND start_us < ?3 \
                   AND end_us > ?4 AND start_us >= ?5)";
        let (gpu, job) = (gpu.clone(), job.clone());
        let [end, start, earliest] = [span.end(), span.start(), earliest].map(|t| t.timestamp_micros());
        let shared = move |db: &mut Connection| {
            rows::one(db, sql, params![gpu.as_str(), job.as_str(), end, start, earliest], rows::first)
        };
        self.read.run(shared).await
    }
}
