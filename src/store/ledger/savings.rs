//! What savings are told from, beside the intervals.

use chrono::TimeDelta;

use super::lines;
use crate::domain::{GpuId, JobId, Slot};
use crate::ledger::entry::Entry;
use crate::store::{Store, StoreError};

impl Store {
    /// The entries of a job that are of a kind, `counterfactual` or `outcome`, oldest first.
    ///
    /// # Errors
    /// If they cannot be read.
    pub async fn entries_of(&self, kind: &str, job: &JobId) -> Result<Vec<Entry>, StoreError> {
        let sql = "SELECT seq, line FROM ledger WHERE kind IN ('counterfactual', 'outcome') \
                   AND json_extract(line, '$.job') = $1 AND kind = $2 ORDER BY seq";
        let found = sqlx::query(sql).bind(job.as_str()).bind(kind).fetch_all(&self.pool).await?;
        found.iter().map(lines::entry).collect()
    }

    /// Whether some of a job's minutes are rolled up to hours.
    ///
    /// # Errors
    /// If that cannot be read.
    pub async fn is_rolled_up(&self, job: &JobId) -> Result<bool, StoreError> {
        let sql = "SELECT EXISTS (SELECT 1 FROM rolled_up WHERE job_id = $1)";
        Ok(sqlx::query_scalar(sql).bind(job.as_str()).fetch_one(&self.pool).await?)
    }

    /// Whether a board's energy in a span was anybody's but this job's.
    ///
    /// # Errors
    /// If that cannot be read.
    pub async fn was_shared(&self, gpu: &GpuId, job: &JobId, span: &Slot) -> Result<bool, StoreError> {
        // No interval is longer than an hour.
        let earliest = span.start() - TimeDelta::hours(1);
        let sql = "SELECT EXISTS (SELECT 1 FROM intervals WHERE device = $1 AND job_id IS NOT $2 AND start_us < $3 \
                   AND end_us > $4 AND start_us >= $5)";
        let found = sqlx::query_scalar(sql)
            .bind(gpu.as_str())
            .bind(job.as_str())
            .bind(span.end().timestamp_micros())
            .bind(span.start().timestamp_micros())
            .bind(earliest.timestamp_micros());
        Ok(found.fetch_one(&self.pool).await?)
    }
}
