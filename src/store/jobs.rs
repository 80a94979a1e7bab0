//! Training jobs: one row per job, and ledger entries with digests of the job data that reports use.

use chrono::{DateTime, Utc};
use rusqlite::{Connection, Row, params};

use super::connection::writing;
use super::ledger::append_entry;
use super::presence::Presence;
use super::{Store, StoreError, rows};
use wattune_core::domain::{Activity, JobId, JobKey, JobSpec, Owners, ProgressSource, Work};
use wattune_core::ledger::chain::Digest;
use wattune_core::ledger::entry::{Entry, JobFacts};
use wattune_core::profile::ProgressAccount;
use wattune_core::units::{Joules, Samples, Seconds};

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
    /// Owners of the job, who may report for it and end it. Not part of the ledger.
    pub owners: Owners,
}

/// Persistent part of a job's progress.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct StoredProgress {
    /// Work and time since the job's first progress report.
    pub account: ProgressAccount,
    /// Last progress report; `None` before the first one.
    pub last: Option<LastReport>,
    /// Cumulative samples at the first report.
    pub first_samples: f64,
    /// Time at which the first report was received; `None` before it.
    pub started_at: Option<DateTime<Utc>>,
    /// State of the job, running or paused, and since when.
    #[serde(default)]
    pub activity: Option<Activity>,
    /// True if the job runs without control of its GPUs and has shared one with another job, so that its profile
    /// measures both jobs together.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub has_shared: bool,
    /// True if a cap on the node's power had lowered the ceilings (maximum usable limits) when this was stored.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub has_lowered_ceilings: bool,
    /// Reference throughput in samples/s at the lowered ceilings; `None` if they are not lowered or it was not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lowered_reference: Option<f64>,
    /// Source of the last progress report; `None` before the first one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<ProgressSource>,
    /// Total work in samples that a progress report stated, which replaces that of the registration; `None` if no
    /// report stated any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total_samples: Option<f64>,
    /// Summary of the job's reports, stored when the job ends; `None` before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reports: Option<ReportSummary>,
    /// Presence of the job on its GPUs.
    #[serde(default, skip_serializing_if = "Presence::is_usual")]
    pub presence: Presence,
    /// Progress at the job's first plan after its last profiling; `None` before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_plan: Option<StoredFirstPlan>,
}

/// Progress of a job at its first plan after its last profiling.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct StoredFirstPlan {
    /// Time of the plan.
    pub at: DateTime<Utc>,
    /// Time since the first report, without the job's own pauses.
    pub elapsed: Seconds,
    /// Time that the samples done by then take at the reference throughput.
    pub reference_time: Seconds,
    /// Energy of the job by then, without that of its own pauses.
    pub energy: Joules,
}

/// Summary of the progress reports that one run of the daemon received from a job. It serves to detect likely mistakes
/// in the job's reporting.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct ReportSummary {
    /// Number of reports.
    pub count: u32,
    /// Time in seconds from the first to the last report, on the daemon's clock.
    pub took_s: f64,
    /// Cumulative samples: first in the first report, second in the last report.
    pub samples: (f64, f64),
    /// Time on the client's clock, in seconds: first of the first report, second of the last one; `None` if a report
    /// has no time.
    pub at_s: (Option<f64>, Option<f64>),
    /// Times on the client's clock around a restart of that clock: first the last one before it, second the first one
    /// after it. `None` if the clock did not restart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub new_clock_s: Option<(f64, f64)>,
}

impl StoredJob {
    /// Returns the job's work: as its last progress report with a total stated it, otherwise as registered.
    pub fn work(&self) -> Work {
        self.progress.total_samples.map_or(self.spec.work, |total| Work::TotalSamples(Samples::new(total)))
    }
}

impl StoredProgress {
    /// Factor by which the samples in the first report may exceed those expected since registration at the later
    /// throughput.
    const EXPLAINED: f64 = 1.25;

    /// Returns the samples completed since registration. The samples in the first report count if the throughput after
    /// it explains them. Otherwise the run resumed from a training checkpoint, and the first report contains samples of
    /// earlier runs, too.
    pub fn samples_since(&self, registered_at: DateTime<Utc>) -> Samples {
        let ProgressAccount { samples, active, stalled, .. } = self.account;
        let first = Samples::new(self.first_samples);
        let until_first = self.started_at.map_or(Seconds::ZERO, |at| Seconds::from_delta(at - registered_at));
        // After a single report the throughput is unknown: `explained` is NaN, and the comparison is false.
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
    /// Returns the jobs that have not ended, and a problem description for each such job whose row is unreadable.
    pub async fn open_jobs(&self) -> Result<(Vec<StoredJob>, Vec<String>), StoreError> {
        let sql = "SELECT * FROM jobs WHERE ended_us IS NULL ORDER BY registered_us";
        self.short_reads.run(move |db| rows::readable(db, sql, [], "job", "register it again", job)).await
    }

    /// Returns the last `limit` jobs that ended, newest first; jobs with unreadable rows are left out.
    pub async fn ended_jobs(&self, limit: u32) -> Result<Vec<StoredJob>, StoreError> {
        let sql = "SELECT * FROM jobs WHERE ended_us IS NOT NULL ORDER BY ended_us DESC LIMIT ?1";
        let advice = "restore the database from a backup if its account is needed";
        let (jobs, _) = self.short_reads.run(move |db| rows::readable(db, sql, [limit], "job", advice, job)).await?;
        Ok(jobs)
    }

    /// Returns the job with this id, running or ended; `None` if there is none.
    pub async fn job(&self, id: &JobId) -> Result<Option<StoredJob>, StoreError> {
        let id = id.clone();
        let sql = "SELECT * FROM jobs WHERE id = ?1";
        self.short_reads.run(move |db| rows::optional(db, sql, [id.as_str()], job)).await
    }

    /// Returns the last registered job with this key whose owners share keys with these, running or ended; `None` if there
    /// is none.
    pub async fn job_by_key(&self, key: &JobKey, owners: &Owners) -> Result<Option<StoredJob>, StoreError> {
        let (key, owners) = (key.clone(), owners.clone());
        let sql = "SELECT * FROM jobs WHERE json_extract(spec, '$.offers.key') = ?1 ORDER BY registered_us DESC";
        let find = move |db: &mut Connection| {
            let mut statement = db.prepare_cached(sql)?;
            let mut found = statement.query([key.as_str()])?;
            while let Some(row) = found.next()? {
                let of_row: Owners = rows::from_json("job", rows::text(row, "owners")?)?;
                if of_row.share_keys_with(&owners) {
                    return job(row).map(Some);
                }
            }
            Ok(None)
        };
        self.short_reads.run(find).await
    }

    /// Stores a new job, or the current state of a stored job. The registration and the end of a job also become ledger
    /// entries.
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
    let sql = "INSERT INTO jobs (id, spec, progress, registered_us, ended_us, end_reason, owners) \
               VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7) \
               ON CONFLICT (id) DO UPDATE SET progress = ?3, ended_us = ?5, end_reason = ?6";
    let (spec, progress, owners) = (rows::json(&job.spec)?, rows::json(&job.progress)?, rows::json(&job.owners)?);
    rows::execute(tx, sql, params![id, spec, progress, job.registered_at.timestamp_micros(), ended, reason, owners])?;
    append_entries(tx, &job.id, !is_known)
}

/// Appends an entry for the end of a stored job to the ledger, if the job has ended, and before it one for its
/// registration if `is_new`.
fn append_entries(tx: &Connection, id: &JobId, is_new: bool) -> Result<(), StoreError> {
    let facts = |row: &Row<'_>| {
        let registered: i64 = row.get("registered_us")?;
        Ok::<_, StoreError>((registered, of_registration(row)?, of_end(row)?))
    };
    let (registered, facts, end) = rows::one(tx, "SELECT * FROM jobs WHERE id = ?1", [id.as_str()], facts)?;
    let job = || id.clone();
    if is_new {
        append_entry(tx, &Entry::Registered(JobFacts { at: rows::time(registered)?, job: job(), facts }))?;
    }
    if let Some((at, facts)) = end {
        append_entry(tx, &Entry::Ended(JobFacts { at: rows::time(at)?, job: job(), facts }))?;
    }
    Ok(())
}

/// Returns the digest of a job's registration: its name, GPUs, tags and all other registered data.
pub(super) fn of_registration(row: &Row<'_>) -> Result<Digest, StoreError> {
    let texts: (&str, &str, i64) = (rows::text(row, "id")?, rows::text(row, "spec")?, row.get("registered_us")?);
    Ok(Digest::of(rows::json(&texts)?))
}

/// Returns the time of a job's end in microseconds, and the digest of that time, the final progress and the reason;
/// `None` if the job has not ended.
pub(super) fn of_end(row: &Row<'_>) -> Result<Option<(i64, Digest)>, StoreError> {
    let Some(ended) = row.get::<_, Option<i64>>("ended_us")? else { return Ok(None) };
    let reason: Option<String> = row.get("end_reason")?;
    let texts = (rows::text(row, "id")?, rows::text(row, "progress")?, ended, reason.as_deref());
    Ok(Some((ended, Digest::of(rows::json(&texts)?))))
}

/// Appends ledger entries for the jobs that an earlier version of wattune stored without such entries.
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
    // A lease (longest silence before a job counts as dead) above the valid range is too long for the clock's
    // arithmetic.
    if !JobSpec::LEASE_RANGE_S.contains(&spec.lease.get()) {
        return Err(rows::damaged("job", format!("its lease is {} s", spec.lease.get())));
    }
    Ok(StoredJob {
        id: JobId::new(row.get::<_, String>("id")?).map_err(|e| rows::damaged("job", e))?,
        spec,
        progress: rows::from_json("job", rows::text(row, "progress")?)?,
        registered_at: rows::time(row.get("registered_us")?)?,
        ended: ended.map(|us| Ok::<_, StoreError>((rows::time(us)?, reason.unwrap_or_default()))).transpose()?,
        owners: rows::from_json("job", rows::text(row, "owners")?)?,
    })
}
