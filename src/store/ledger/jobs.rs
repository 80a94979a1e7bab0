//! Jobs: a row for each, and in the ledger what reports read of it, as digests.

use sqlx::Row as _;
use sqlx::sqlite::{SqliteConnection, SqliteRow};

use super::append_entry;
use crate::domain::JobId;
use crate::ledger::chain::Digest;
use crate::ledger::entry::{Entry, JobFacts};
use crate::store::{Store, StoreError, StoredJob, rows};

impl Store {
    /// Writes a job for the first time, or its present state over the stored one. Its registration and its end are entries
    /// of the ledger.
    ///
    /// # Errors
    /// If it cannot be written; then nothing of it is.
    pub async fn save_job(&self, job: &StoredJob) -> Result<(), StoreError> {
        self.save_jobs(std::slice::from_ref(job)).await
    }

    /// The same for several jobs, in one transaction.
    ///
    /// # Errors
    /// If it fails; then none of them is written.
    pub async fn save_jobs(&self, jobs: &[StoredJob]) -> Result<(), StoreError> {
        if jobs.is_empty() {
            return Ok(());
        }
        let mut tx = self.begin().await?;
        for job in jobs {
            write(&mut tx, job).await?;
        }
        Ok(tx.commit().await?)
    }
}

async fn write(tx: &mut SqliteConnection, job: &StoredJob) -> Result<(), StoreError> {
    if job.ended.is_none() {
        let sql = "UPDATE jobs SET progress = $2 WHERE id = $1 AND ended_us IS NULL";
        let update = sqlx::query(sql).bind(job.id.as_str()).bind(rows::json(&job.progress)?);
        if update.execute(&mut *tx).await?.rows_affected() > 0 {
            return Ok(());
        }
    }
    let sql = "SELECT EXISTS (SELECT 1 FROM jobs WHERE id = $1)";
    let is_known: bool = sqlx::query_scalar(sql).bind(job.id.as_str()).fetch_one(&mut *tx).await?;
    let (ended, reason) = job.ended.as_ref().map(|(at, why)| (at.timestamp_micros(), why.as_str())).unzip();
    sqlx::query(
        "INSERT INTO jobs (id, spec, progress, registered_us, ended_us, end_reason) \
         VALUES ($1, $2, $3, $4, $5, $6) \
         ON CONFLICT (id) DO UPDATE SET progress = $3, ended_us = $5, end_reason = $6",
    )
    .bind(job.id.as_str())
    .bind(rows::json(&job.spec)?)
    .bind(rows::json(&job.progress)?)
    .bind(job.registered_at.timestamp_micros())
    .bind(ended)
    .bind(reason)
    .execute(&mut *tx)
    .await?;
    note(tx, &job.id, !is_known).await
}

/// Notes in the ledger how a job's row stands: its end, and its registration if that is new.
async fn note(tx: &mut SqliteConnection, id: &JobId, is_new: bool) -> Result<(), StoreError> {
    let row = sqlx::query("SELECT * FROM jobs WHERE id = $1").bind(id.as_str()).fetch_one(&mut *tx).await?;
    let job = || id.clone();
    if is_new {
        let at = rows::moment(row.try_get("registered_us")?)?;
        append_entry(tx, &Entry::Registered(JobFacts { at, job: job(), facts: of_registration(&row)? })).await?;
    }
    if let Some((at, facts)) = of_end(&row)? {
        append_entry(tx, &Entry::Ended(JobFacts { at: rows::moment(at)?, job: job(), facts })).await?;
    }
    Ok(())
}

/// The digest of what a job's row says of its registration: its name, GPUs, labels and all else that was asked for.
pub(super) fn of_registration(row: &SqliteRow) -> Result<Digest, StoreError> {
    let texts: (&str, &str, i64) = (row.try_get("id")?, row.try_get("spec")?, row.try_get("registered_us")?);
    Ok(Digest::of(rows::json(&texts)?))
}

/// When a job ended by its row, and the digest of what that says of its end: how far it was, and why. `None` if it has not.
pub(super) fn of_end(row: &SqliteRow) -> Result<Option<(i64, Digest)>, StoreError> {
    let Some(ended) = row.try_get::<Option<i64>, _>("ended_us")? else { return Ok(None) };
    let reason: Option<&str> = row.try_get("end_reason")?;
    let texts: (&str, &str, i64, Option<&str>) = (row.try_get("id")?, row.try_get("progress")?, ended, reason);
    Ok(Some((ended, Digest::of(rows::json(&texts)?))))
}

/// Notes the jobs that an earlier version wrote without entries, as they are.
pub(in crate::store) async fn note_old_jobs(store: &Store) -> Result<(), StoreError> {
    let sql = "SELECT EXISTS (SELECT 1 FROM jobs) AND NOT EXISTS (SELECT 1 FROM ledger WHERE kind = 'registered')";
    if !sqlx::query_scalar::<_, bool>(sql).fetch_one(&store.pool).await? {
        return Ok(());
    }
    let mut tx = store.begin().await?;
    let ids: Vec<String> =
        sqlx::query_scalar("SELECT id FROM jobs ORDER BY registered_us, id").fetch_all(&mut *tx).await?;
    for id in ids {
        note(&mut tx, &JobId::new(id).map_err(|e| rows::damaged("job", e))?, true).await?;
    }
    Ok(tx.commit().await?)
}
