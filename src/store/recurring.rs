//! Recurring jobs and their trials. What a request changes is written in one transaction, the generator with the trial
//! that it chose.

use chrono::{DateTime, Utc};
use sqlx::sqlite::{SqliteConnection, SqliteRow};
use sqlx::{Row, Sqlite, Transaction};

use super::{Store, StoreError, rows};
use crate::bandit::{Cost, Job, Outcome, Run, State, Trial};
use crate::domain::{JobId, JobName};
use crate::units::{Joules, Seconds};

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

const RUNS: &str = "SELECT number, batch_size, kind, state, cost_j, epochs, epoch_cost_j, energy_j, time_s, metric, \
                    first_epochs, first_cost_j, request_key, job_id, begun_us, lease_us, ended_us, reason \
                    FROM recurring_trials WHERE job = $1 ORDER BY number";

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

    /// The recurring job of which a training run is a trial, with all its trials.
    ///
    /// # Errors
    /// If it cannot be read.
    pub async fn recurring_of(&self, run: &JobId) -> Result<Option<StoredRecurring>, StoreError> {
        let sql = "SELECT j.name FROM recurring_trials t JOIN recurring_jobs j ON j.id = t.job WHERE t.job_id = $1";
        let name: Option<String> = sqlx::query_scalar(sql).bind(run.as_str()).fetch_optional(&self.pool).await?;
        let Some(name) = name else { return Ok(None) };
        self.recurring(&JobName::new(name).map_err(|e| rows::damaged("recurring job", e))?).await
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

    /// The recurring jobs whose newest trial (or, without one, whose making) is newest, at most `limit` and the newest
    /// first; and how many there are in all.
    ///
    /// # Errors
    /// If they cannot be read.
    pub async fn latest_recurring(&self, limit: u32) -> Result<(Vec<StoredRecurring>, u64), StoreError> {
        let mut tx = self.pool.begin().await?;
        let all: i64 = sqlx::query_scalar("SELECT COUNT(*) FROM recurring_jobs").fetch_one(&mut *tx).await?;
        let sql = "SELECT name FROM recurring_jobs j ORDER BY COALESCE((SELECT begun_us FROM recurring_trials t \
                   WHERE t.job = j.id ORDER BY number DESC LIMIT 1), created_us) DESC, name LIMIT $1";
        let names: Vec<String> = sqlx::query_scalar(sql).bind(limit).fetch_all(&mut *tx).await?;
        let mut latest = Vec::with_capacity(names.len());
        for name in names {
            let name = JobName::new(name).map_err(|e| rows::damaged("recurring job", e))?;
            latest.extend(load(&mut tx, &name).await?.map(|(_, stored)| stored));
        }
        Ok((latest, all.unsigned_abs()))
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
    let found = sqlx::query(RUNS).bind(id).fetch_all(&mut *c).await?;
    let job = Job {
        terms: rows::from_json("recurring job", row.try_get(1)?)?,
        generator: rows::from_json("recurring job", row.try_get(2)?)?,
        runs: found.iter().map(run).collect::<Result<_, _>>()?,
    };
    Ok(Some((id, StoredRecurring { name: name.clone(), created_at: rows::moment(row.try_get(3)?)?, job })))
}

async fn save_run(c: &mut SqliteConnection, job: i64, run: &Run) -> Result<(), StoreError> {
    let Run { trial, .. } = run;
    sqlx::query(
        "INSERT OR REPLACE INTO recurring_trials (job, number, batch_size, kind, state, cost_j, epochs, epoch_cost_j, \
         energy_j, time_s, metric, first_epochs, first_cost_j, request_key, job_id, begun_us, lease_us, ended_us, reason) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19)",
    )
    .bind(job)
    .bind(trial.number)
    .bind(i64::try_from(trial.batch_size).map_err(|e| rows::damaged("batch size", e))?)
    .bind(rows::name(&trial.kind)?)
    .bind(state_name(trial.state))
    .bind(trial.cost.get())
    .bind(trial.epochs)
    .bind(trial.epoch_cost.map(Cost::get))
    .bind(run.energy.get())
    .bind(run.time.get())
    .bind(run.metric)
    .bind(run.first.map(|(epochs, _)| epochs))
    .bind(run.first.map(|(_, cost)| cost.get()))
    .bind(run.key.as_deref())
    .bind(run.job.as_ref().map(JobId::as_str))
    .bind(run.begun_at.timestamp_micros())
    .bind(run.lease_until.timestamp_micros())
    .bind(run.ended_at.map(|at| at.timestamp_micros()))
    .bind(run.reason.as_str())
    .execute(c)
    .await?;
    Ok(())
}

fn run(row: &SqliteRow) -> Result<Run, StoreError> {
    let first: Option<u32> = row.try_get(10)?;
    let first_cost: Option<f64> = row.try_get(11)?;
    let job: Option<String> = row.try_get(13)?;
    let ended: Option<i64> = row.try_get(16)?;
    let batch_size: i64 = row.try_get(1)?;
    Ok(Run {
        trial: Trial {
            number: row.try_get(0)?,
            batch_size: u64::try_from(batch_size).map_err(|e| rows::damaged("batch size", e))?,
            kind: rows::from_name("trial", row.try_get(2)?)?,
            state: state(row.try_get(3)?)?,
            cost: Cost::new(row.try_get(4)?),
            epochs: row.try_get(5)?,
            epoch_cost: row.try_get::<Option<f64>, _>(6)?.map(Cost::new),
        },
        energy: Joules::try_new(row.try_get(7)?).ok_or_else(|| rows::damaged("trial", "energy is no number"))?,
        time: Seconds::try_new(row.try_get(8)?).ok_or_else(|| rows::damaged("trial", "time is no number"))?,
        metric: row.try_get(9)?,
        first: first.zip(first_cost.map(Cost::new)),
        key: row.try_get(12)?,
        job: job.map(JobId::new).transpose().map_err(|e| rows::damaged("trial", e))?,
        begun_at: rows::moment(row.try_get(14)?)?,
        lease_until: rows::moment(row.try_get(15)?)?,
        ended_at: ended.map(rows::moment).transpose()?,
        reason: row.try_get(17)?,
    })
}

const fn state_name(state: State) -> &'static str {
    match state {
        State::Running => "running",
        State::Ended(Outcome::Reached) => "reached",
        State::Ended(Outcome::NotReached) => "not_reached",
        State::Ended(Outcome::Stopped) => "stopped",
        State::Ended(Outcome::Lost) => "lost",
    }
}

fn state(name: &str) -> Result<State, StoreError> {
    let all = [Outcome::Reached, Outcome::NotReached, Outcome::Stopped, Outcome::Lost].map(State::Ended);
    let known = all.into_iter().chain([State::Running]).find(|s| state_name(*s) == name);
    known.ok_or_else(|| rows::damaged("trial", format!("state {name:?}")))
}
