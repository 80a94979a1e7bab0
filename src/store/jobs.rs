//! Jobs: a row for each job, and digests in the ledger of the data that reports read.

use chrono::{DateTime, Utc};
use rusqlite::{Connection, Row, params};

use super::connection::writing;
use super::ledger::append_entry;
use super::{Store, StoreError, rows};
use wattune_core::domain::{Activity, JobId, JobSpec};
use wattune_core::ledger::chain::Digest;
use wattune_core::ledger::entry::{Entry, JobFacts};
use wattune_core::profile::ProgressAccount;
use wattune_core::units::{Samples, Seconds};

/// A job as stored.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredJob {
    /// Id of the job.
    pub id: JobId,
    /// Data from the job's registration.
    pub spec: JobSpec,
    /// Progress of the job when it was stored.
    pub progress: StoredProgress,
    /// Time of registration.
    pub registered_at: DateTime<Utc>,
    /// Time and reason of the job's end, if it has ended.
    pub ended: Option<(DateTime<Utc>, String)>,
}

/// Persistent part of a job's progress.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct StoredProgress {
    /// Work and time so far.
    pub account: ProgressAccount,
    /// Last report: cumulative samples, client time, and time of receipt.
    pub last: Option<LastReport>,
    /// Cumulative samples at the first report.
    pub first_samples: f64,
    /// Time of receipt of the first report.
    pub started_at: Option<DateTime<Utc>>,
    /// State of the job, running or paused, and since when.
    #[serde(default)]
    pub activity: Option<Activity>,
    /// True if the job is not controlled and shared a GPU with another job, so that its profile measured both.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub has_shared: bool,
    /// Summary of the job's reports, stored at the job's end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reports: Option<ReportSummary>,
}

/// Summary of a job's reports to one daemon, from which likely mistakes are detected.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct ReportSummary {
    /// Number of reports.
    pub count: u32,
    /// Time from the first to the last report on the daemon's clock.
    pub took_s: f64,
    /// Cumulative samples of the first and last report.
    pub samples: (f64, f64),
    /// Client's times of the first and last report.
    pub at_s: (Option<f64>, Option<f64>),
    /// Client's last time before and first time after a restart of the client's clock, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub new_clock_s: Option<(f64, f64)>,
}

impl StoredProgress {
    /// Maximum ratio of the samples in the first report to those expected by then at the later throughput.
    const EXPLAINED: f64 = 1.25;

    /// Returns the samples completed since registration. The samples in the first report are included if the throughput
    /// since then explains them; otherwise the run began from a checkpoint, which counts earlier samples too.
    pub fn samples_since(&self, registered_at: DateTime<Utc>) -> Samples {
        let ProgressAccount { samples, active, stalled, .. } = self.account;
        let first = Samples::new(self.first_samples);
        let until_first = self.started_at.map_or(Seconds::ZERO, |at| Seconds::from_delta(at - registered_at));
        // Without time between two reports the throughput is unknown.
        let explained = samples * (until_first.max(Seconds::ZERO) / (active + stalled)) * Self::EXPLAINED;
        if first <= explained { samples + first } else { samples }
    }
}

/// A job's last progress report.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct LastReport {
    /// Cumulative samples.
    pub samples: f64,
    /// Monotonic time of the client in seconds, if reported.
    pub at_s: Option<f64>,
    /// Time of receipt.
    pub received: DateTime<Utc>,
}

impl Store {
    /// Returns the jobs that have not ended, and a problem for each one that is unreadable.
    pub async fn open_jobs(&self) -> Result<(Vec<StoredJob>, Vec<String>), StoreError> {
        let sql = "SELECT * FROM jobs WHERE ended_us IS NULL ORDER BY registered_us";
        self.read.run(move |db| rows::readable(db, sql, [], "job", "register it again", job)).await
    }

    /// Returns the last `limit` jobs that ended, newest first, without unreadable ones.
    pub async fn ended_jobs(&self, limit: u32) -> Result<Vec<StoredJob>, StoreError> {
        let sql = "SELECT * FROM jobs WHERE ended_us IS NOT NULL ORDER BY ended_us DESC LIMIT ?1";
        let advice = "restore the database from a backup if its account is needed";
        let (jobs, _) = self.read.run(move |db| rows::readable(db, sql, [limit], "job", advice, job)).await?;
        Ok(jobs)
    }

    /// Returns a job, running or ended.
    pub async fn job(&self, id: &JobId) -> Result<Option<StoredJob>, StoreError> {
        let id = id.clone();
        let sql = "SELECT * FROM jobs WHERE id = ?1";
        self.read.run(move |db| rows::optional(db, sql, [id.as_str()], job)).await
    }

    /// Stores a new job, or its current state. Its registration and its end become entries of the ledger.
    pub async fn save_job(&self, job: &StoredJob) -> Result<(), StoreError> {
        self.save_jobs(std::slice::from_ref(job)).await
    }

    /// Stores several jobs in one transaction.
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

fn job(row: &Row<'_>) -> Result<StoredJob, StoreError> {
    let ended: Option<i64> = row.get("ended_us")?;
    let reason: Option<String> = row.get("end_reason")?;
    let spec: JobSpec = rows::from_json("job", rows::text(row, "spec")?)?;
    // A lease outside of the range is too long for the clock's arithmetic.
    if !JobSpec::LEASE_RANGE_S.contains(&spec.lease.get()) {
        return Err(rows::damaged("job", format!("its lease is {} s", spec.lease.get())));
    }
    Ok(StoredJob {
        id: JobId::new(row.get::<_, String>("id")?).map_err(|e| rows::damaged("job", e))?,
        spec,
        progress: rows::from_json("job", rows::text(row, "progress")?)?,
        registered_at: rows::moment(row.get("registered_us")?)?,
        ended: ended.map(|us| Ok::<_, StoreError>((rows::moment(us)?, reason.unwrap_or_default()))).transpose()?,
    })
}
