//! Recurring jobs and their trials. What a request changes is written in one transaction, the generator with the trial
//! that it chose.

use chrono::{DateTime, Utc};
use sqlx::sqlite::{SqliteConnection, SqliteRow};
use sqlx::{Row, Sqlite, Transaction};

use super::{Store, StoreError, rows};
use crate::bandit::{Job, Run};
use crate::domain::JobName;

/// A recurring job as it is stored.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredRecurring {
    /// Its name.
    pub name: JobName,
    /// When it was made.
    pub created_at: DateTime<Utc>,
    /// All of it.
    pub job: Job,
}

/// One entry of the list of recurring jobs.
#[derive(Clone, Debug, PartialEq)]
pub struct ListedRecurring {
    /// Its name.
    pub name: JobName,
    /// When it was made.
    pub created_at: DateTime<Utc>,
    /// Trials so far.
    pub trials: u32,
    /// Trials that run.
    pub running: u32,
}

/// One value for all of them: a value for each column of each trial takes several times as long.
const RUNS: &str = "SELECT '[' || group_concat(run, ',' ORDER BY number) || ']' FROM recurring_trials WHERE job = $1";
const LEASES: &str = "SELECT number, lease_us FROM recurring_trials WHERE job = $1 AND state = 'running'";

impl Store {
    /// Writes a recurring job with all its trials, unless there is one of that name. Says whether it was written.
    ///
    /// # Errors
    /// If the transaction fails; then none of it is written.
    pub async fn create_recurring(&self, new: &StoredRecurring) -> Result<bool, StoreError> {
        let mut tx = self.begin_recurring().await?;
        let sql = "INSERT INTO recurring_jobs (name, terms, generator, created_us) VALUES ($1, $2, $3, $4) \
                   ON CONFLICT (name) DO NOTHING RETURNING id";
        let id: Option<i64> = sqlx::query_scalar(sql)
            .bind(new.name.as_str())
            .bind(rows::json(&new.job.terms)?)
            .bind(rows::json(&new.job.generator)?)
            .bind(new.created_at.timestamp_micros())
            .fetch_optional(&mut *tx)
            .await?;
        let Some(id) = id else { return Ok(false) };
        for run in &new.job.runs {
            save_run(&mut tx, id, run).await?;
        }
        tx.commit().await?;
        Ok(true)
    }

    /// A recurring job with all its trials.
    ///
    /// # Errors
    /// If it cannot be read.
    pub async fn recurring(&self, name: &JobName) -> Result<Option<StoredRecurring>, StoreError> {
        let mut tx = self.pool.begin().await?;
        Ok(load(&mut tx, name).await?.map(|(_, stored)| stored))
    }

    /// Does something to a recurring job and writes what that changed, or gives `None` if there is none of that name.
    ///
    /// # Errors
    /// If the transaction fails; then none of it is written.
    pub async fn change_recurring<T: Send>(
        &self,
        name: &JobName,
        change: impl FnOnce(&mut Job) -> T + Send,
    ) -> Result<Option<(T, StoredRecurring)>, StoreError> {
        let mut tx = self.begin_recurring().await?;
        let Some((id, mut stored)) = load(&mut tx, name).await? else { return Ok(None) };
        let before = stored.job.clone();
        let answer = change(&mut stored.job);
        let after = &stored.job;
        if after.generator != before.generator {
            let sql = "UPDATE recurring_jobs SET generator = $2 WHERE id = $1";
            sqlx::query(sql).bind(id).bind(rows::json(&after.generator)?).execute(&mut *tx).await?;
        }
        for (i, run) in after.runs.iter().enumerate() {
            if before.runs.get(i) != Some(run) {
                save_run(&mut tx, id, run).await?;
            }
        }
        tx.commit().await?;
        Ok(Some((answer, stored)))
    }

    /// Forgets a recurring job and its trials. Says whether there was one.
    ///
    /// # Errors
    /// If the statement fails.
    pub async fn delete_recurring(&self, name: &JobName) -> Result<bool, StoreError> {
        let mut tx = self.begin_recurring().await?;
        let gone =
            sqlx::query("DELETE FROM recurring_jobs WHERE name = $1").bind(name.as_str()).execute(&mut *tx).await?;
        tx.commit().await?;
        Ok(gone.rows_affected() > 0)
    }

    /// Recurring jobs by name, beginning after `after`, at most `limit`.
    ///
    /// # Errors
    /// If they cannot be read.
    pub async fn list_recurring(&self, after: &str, limit: u32) -> Result<Vec<ListedRecurring>, StoreError> {
        let sql = "SELECT name, created_us, \
                   (SELECT COUNT(*) FROM recurring_trials t WHERE t.job = j.id) AS trials, \
                   (SELECT COUNT(*) FROM recurring_trials t WHERE t.job = j.id AND t.state = 'running') AS running \
                   FROM recurring_jobs j WHERE name > $1 ORDER BY name LIMIT $2";
        let found = sqlx::query(sql).bind(after).bind(limit).fetch_all(&self.pool).await?;
        let listed = |row: &SqliteRow| {
            Ok(ListedRecurring {
                name: JobName::new(row.try_get::<String, _>(0)?).map_err(|e| rows::damaged("recurring job", e))?,
                created_at: rows::moment(row.try_get(1)?)?,
                trials: row.try_get(2)?,
                running: row.try_get(3)?,
            })
        };
        found.iter().map(listed).collect()
    }

    /// The recurring jobs that have trials whose lease ended before `now`.
    ///
    /// # Errors
    /// If they cannot be read.
    pub async fn overdue_recurring(&self, now: DateTime<Utc>) -> Result<Vec<JobName>, StoreError> {
        let sql = "SELECT DISTINCT j.name FROM recurring_trials t JOIN recurring_jobs j ON j.id = t.job \
                   WHERE t.state = 'running' AND t.lease_us < $1";
        let found = sqlx::query_scalar(sql).bind(now.timestamp_micros()).fetch_all(&self.pool).await?;
        found.into_iter().map(|n: String| JobName::new(n).map_err(|e| rows::damaged("recurring job", e))).collect()
    }

    /// Gives every running trial a lease from `now` on: while the daemon was away nobody could report.
    ///
    /// # Errors
    /// If the statement fails.
    pub async fn renew_recurring_leases(&self, now: DateTime<Utc>) -> Result<(), StoreError> {
        let mut tx = self.begin_recurring().await?;
        let sql = "UPDATE recurring_trials SET lease_us = MAX(lease_us, $1 + CAST(1000000 * \
                   (SELECT json_extract(terms, '$.lease') FROM recurring_jobs WHERE id = job) AS INTEGER)) \
                   WHERE state = 'running'";
        sqlx::query(sql).bind(now.timestamp_micros()).execute(&mut *tx).await?;
        Ok(tx.commit().await?)
    }

    /// A transaction that will write: whoever is second waits before it reads.
    async fn begin_recurring(&self) -> Result<Transaction<'static, Sqlite>, StoreError> {
        Ok(self.recurring.begin_with("BEGIN IMMEDIATE").await?)
    }
}

async fn load(c: &mut SqliteConnection, name: &JobName) -> Result<Option<(i64, StoredRecurring)>, StoreError> {
    let sql = "SELECT id, terms, generator, created_us FROM recurring_jobs WHERE name = $1";
    let Some(row) = sqlx::query(sql).bind(name.as_str()).fetch_optional(&mut *c).await? else { return Ok(None) };
    let id: i64 = row.try_get(0)?;
    let found: Option<String> = sqlx::query_scalar(RUNS).bind(id).fetch_one(&mut *c).await?;
    let mut runs: Vec<Run> = found.map_or(Ok(Vec::new()), |found| rows::from_json("trials", &found))?;
    let leases: Vec<(u32, i64)> = sqlx::query_as(LEASES).bind(id).fetch_all(&mut *c).await?;
    for (number, lease) in leases {
        let place = runs.binary_search_by_key(&number, |run| run.trial.number);
        let place = place.map_err(|_| rows::damaged("trial", format!("{number} is another one inside")))?;
        runs[place].lease_until = rows::moment(lease)?;
    }
    let job = Job {
        terms: rows::from_json("recurring job", row.try_get(1)?)?,
        generator: rows::from_json("recurring job", row.try_get(2)?)?,
        runs,
    };
    Ok(Some((id, StoredRecurring { name: name.clone(), created_at: rows::moment(row.try_get(3)?)?, job })))
}

async fn save_run(c: &mut SqliteConnection, job: i64, run: &Run) -> Result<(), StoreError> {
    sqlx::query(
        "INSERT OR REPLACE INTO recurring_trials (job, number, state, lease_us, request_key, run) \
         VALUES ($1, $2, $3, $4, $5, $6)",
    )
    .bind(job)
    .bind(run.trial.number)
    .bind(if run.trial.is_running() { "running" } else { "ended" })
    .bind(run.lease_until.timestamp_micros())
    .bind(run.key.as_deref())
    .bind(rows::json(run)?)
    .execute(c)
    .await?;
    Ok(())
}
