//! Jobs: a row for each job, and digests in the ledger of the data that reports read.

use rusqlite::{Connection, Row, params};

use super::append_entry;
use crate::store::connection::writing;
use crate::store::{Store, StoreError, StoredJob, rows};
use wattune_core::domain::JobId;
use wattune_core::ledger::chain::Digest;
use wattune_core::ledger::entry::{Entry, JobFacts};

impl Store {
    /// Stores a new job, or its current state. Its registration and its end become entries of the ledger.
    ///
    /// # Errors
    ///
    /// If it cannot be written; then nothing of it is.
    pub async fn save_job(&self, job: &StoredJob) -> Result<(), StoreError> {
        self.save_jobs(std::slice::from_ref(job)).await
    }

    /// Stores several jobs in one transaction.
    ///
    /// # Errors
    ///
    /// If it fails; then none of them is written.
    pub async fn save_jobs(&self, jobs: &[StoredJob]) -> Result<(), StoreError> {
        if jobs.is_empty() {
            return Ok(());
        }
        let jobs = jobs.to_vec();
        let write_all = move |db: &mut Connection| {
            let tx = writing(db)?;
            for job in &jobs {
                write(&tx, job)?;
            }
            Ok(tx.commit()?)
        };
        self.write.run(write_all).await
    }
}

fn write(tx: &Connection, job: &StoredJob) -> Result<(), StoreError> {
    let id = job.id.as_str();
    if job.ended.is_none() {
        let sql = "UPDATE jobs SET progress = ?2 WHERE id = ?1 AND ended_us IS NULL";
        if rows::execute(tx, sql, params![id, rows::json(&job.progress)?])? > 0 {
            return Ok(());
        }
    }
    let is_known: bool = rows::one(tx, "SELECT EXISTS (SELECT 1 FROM jobs WHERE id = ?1)", [id], rows::first)?;
    let (ended, reason) = job.ended.as_ref().map(|(at, why)| (at.timestamp_micros(), why.as_str())).unzip();
    let sql = "INSERT INTO jobs (id, spec, progress, registered_us, ended_us, end_reason) \
               VALUES (?1, ?2, ?3, ?4, ?5, ?6) \
               ON CONFLICT (id) DO UPDATE SET progress = ?3, ended_us = ?5, end_reason = ?6";
    let (spec, progress) = (rows::json(&job.spec)?, rows::json(&job.progress)?);
    rows::execute(tx, sql, params![id, spec, progress, job.registered_at.timestamp_micros(), ended, reason])?;
    append_entries(tx, &job.id, !is_known)
}

/// Appends the end of a job to the ledger, and its registration if it is new.
fn append_entries(tx: &Connection, id: &JobId, is_new: bool) -> Result<(), StoreError> {
    let facts = |row: &Row<'_>| {
        let registered: i64 = row.get("registered_us")?;
        Ok::<_, StoreError>((registered, of_registration(row)?, of_end(row)?))
    };
    let (registered, facts, end) = rows::one(tx, "SELECT * FROM jobs WHERE id = ?1", [id.as_str()], facts)?;
    let job = || id.clone();
    if is_new {
        append_entry(tx, &Entry::Registered(JobFacts { at: rows::moment(registered)?, job: job(), facts }))?;
    }
    if let Some((at, facts)) = end {
        append_entry(tx, &Entry::Ended(JobFacts { at: rows::moment(at)?, job: job(), facts }))?;
    }
    Ok(())
}

/// Returns the digest of a job's registration: its name, GPUs, labels and all other registered data.
pub(super) fn of_registration(row: &Row<'_>) -> Result<Digest, StoreError> {
    let texts: (&str, &str, i64) = (rows::text(row, "id")?, rows::text(row, "spec")?, row.get("registered_us")?);
    Ok(Digest::of(rows::json(&texts)?))
}

/// Returns the time of a job's end and the digest of its final progress and reason; `None` if it has not ended.
pub(super) fn of_end(row: &Row<'_>) -> Result<Option<(i64, Digest)>, StoreError> {
    let Some(ended) = row.get::<_, Option<i64>>("ended_us")? else { return Ok(None) };
    let reason: Option<String> = row.get("end_reason")?;
    let texts = (rows::text(row, "id")?, rows::text(row, "progress")?, ended, reason.as_deref());
    Ok(Some((ended, Digest::of(rows::json(&texts)?))))
}

/// Appends entries for jobs that an earlier version stored without entries.
pub(super) fn append_old_jobs(db: &mut Connection) -> Result<(), StoreError> {
    let sql = "SELECT EXISTS (SELECT 1 FROM jobs) AND NOT EXISTS (SELECT 1 FROM ledger WHERE kind = 'registered')";
    if !rows::one(db, sql, [], rows::first)? {
        return Ok(());
    }
    let tx = writing(db)?;
    let ids: Vec<String> = rows::all(&tx, "SELECT id FROM jobs ORDER BY registered_us, id", [], rows::first)?;
    for id in ids {
        append_entries(&tx, &JobId::new(id).map_err(|e| rows::damaged("job", e))?, true)?;
    }
    Ok(tx.commit()?)
}
