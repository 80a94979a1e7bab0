//! Recurring jobs and their trials. What a request changes is written in one transaction, the generator with the trial
//! that it chose.
//!
//! Policies look at all trials of a job. sqlx hands every row from thread to thread, each value copied: two hundred trials
//! took 1.3 ms of a request's 1.7. So this room has a connection of its own, through rusqlite, and a request is one piece
//! of work on one thread. Of most trials it reads the seven columns that policies look at: all eighteen take three times
//! as long.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use rusqlite::{Connection, OptionalExtension, Row, ToSql, Transaction, TransactionBehavior, named_params, params};
use tokio::sync::Mutex;

use super::{Store, StoreError, rows};
use crate::bandit::{Cost, Job, Kind, Outcome, Run, State, Trial};
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

/// The trials that a request needs with all that is kept of them, beside those that run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct InFull {
    /// That of this number.
    pub number: Option<u32>,
    /// That which was asked for with this key.
    pub key: Option<String>,
    /// That of this training run.
    pub run: Option<JobId>,
}

/// What policies look at.
const TRIAL: &str = "number, batch_size, kind, state, cost_j, epochs, epoch_cost_j";
/// What is kept beside that.
const MORE: &str = "energy_j, time_s, metric, first_epochs, first_cost_j, request_key, job_id, begun_us, lease_us, \
                    ended_us, reason";

/// One connection: requests about recurring jobs queue up for it, and never for those of the control loop. `None` once
/// the store is closed.
#[derive(Clone, Debug)]
pub(super) struct Desk(Arc<Mutex<Option<Connection>>>);

impl Desk {
    /// To a database that is there and migrated.
    pub(super) fn open(path: &Path) -> rusqlite::Result<Self> {
        let db = Connection::open(path)?;
        db.busy_timeout(Duration::from_secs(2))?;
        db.execute_batch("PRAGMA synchronous = NORMAL; PRAGMA foreign_keys = ON;")?;
        // Whoever commits when the log has so many pages waits for two syncs and all their writes, tens of milliseconds.
        // A request writes three pages: with 1000, SQLite's own, one in three hundred would wait, with these 16 MiB one in
        // a thousand.
        db.pragma_update(None, "wal_autocheckpoint", 4096)?;
        Ok(Self(Arc::new(Mutex::new(Some(db)))))
    }

    /// Without a connection: for whoever only reads, and nothing of recurring jobs.
    pub(super) fn absent() -> Self {
        Self(Arc::new(Mutex::new(None)))
    }

    pub(super) async fn close(&self) {
        drop(self.0.lock().await.take());
    }

    /// Does this on a thread where waiting for the disk holds nobody up. Once begun it comes to its end, whether or not
    /// anybody still waits for the answer.
    async fn work<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let mut db = Arc::clone(&self.0).lock_owned().await;
        let done = tokio::task::spawn_blocking(move || work(db.as_mut().ok_or(StoreError::Closed)?)).await;
        done.unwrap_or_else(|error| match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => Err(StoreError::Closed),
        })
    }
}

impl Store {
    /// Writes a recurring job with all its trials, unless there is one of that name. Says whether it was written.
    ///
    /// # Errors
    /// If the transaction fails; then none of it is written.
    pub async fn create_recurring(&self, new: &StoredRecurring) -> Result<bool, StoreError> {
        let new = new.clone();
        self.recurring.work(move |db| create(db, &new)).await
    }

    /// A recurring job with all its trials.
    ///
    /// # Errors
    /// If it cannot be read.
    pub async fn recurring(&self, name: &JobName) -> Result<Option<StoredRecurring>, StoreError> {
        let name = name.clone();
        let read = move |db: &mut Connection| {
            let tx = db.transaction()?;
            Ok(load(&tx, name, all_runs)?.map(|(_, stored)| stored))
        };
        self.recurring.work(read).await
    }

    /// A recurring job, with all that is kept only of the trials that run and of those asked for.
    ///
    /// # Errors
    /// If it cannot be read.
    pub async fn recurring_outline(
        &self,
        name: &JobName,
        in_full: InFull,
    ) -> Result<Option<StoredRecurring>, StoreError> {
        let name = name.clone();
        let read = move |db: &mut Connection| {
            let tx = db.transaction()?;
            Ok(load(&tx, name, |db, id| outline(db, id, &in_full))?.map(|(_, stored)| stored))
        };
        self.recurring.work(read).await
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

    /// Does something to a recurring job and writes what that changed, or gives `None` if there is none of that name. Of
    /// trials that have ended, only those asked for are there with all that is kept of them.
    ///
    /// # Errors
    /// If the transaction fails; then none of it is written.
    pub async fn change_recurring<T: Send + 'static>(
        &self,
        name: &JobName,
        in_full: InFull,
        change: impl FnOnce(&mut Job) -> T + Send + 'static,
    ) -> Result<Option<(T, StoredRecurring)>, StoreError> {
        let name = name.clone();
        let changed = move |db: &mut Connection| {
            let tx = writing(db)?;
            let Some((id, mut stored)) = load(&tx, name, |db, id| outline(db, id, &in_full))? else { return Ok(None) };
            let (generator, runs) = (stored.job.generator.clone(), stored.job.runs.clone());
            let answer = change(&mut stored.job);
            let after = &stored.job;
            if after.generator != generator {
                tx.prepare_cached("UPDATE recurring_jobs SET generator = ?2 WHERE id = ?1")?
                    .execute(params![id, rows::json(&after.generator)?])?;
            }
            for (i, run) in after.runs.iter().enumerate() {
                if runs.get(i) != Some(run) {
                    save_run(&tx, id, run)?;
                }
            }
            tx.commit()?;
            Ok(Some((answer, stored)))
        };
        self.recurring.work(changed).await
    }

    /// Forgets a recurring job and its trials. Says whether there was one.
    ///
    /// # Errors
    /// If the statement fails.
    pub async fn delete_recurring(&self, name: &JobName) -> Result<bool, StoreError> {
        let name = name.clone();
        let delete = "DELETE FROM recurring_jobs WHERE name = ?1";
        self.recurring.work(move |db| Ok(db.execute(delete, [name.as_str()])? > 0)).await
    }

    /// Recurring jobs by name, beginning after `after`, at most `limit`.
    ///
    /// # Errors
    /// If they cannot be read.
    pub async fn list_recurring(&self, after: &str, limit: u32) -> Result<Vec<ListedRecurring>, StoreError> {
        let after = after.to_owned();
        let sql = "SELECT name, created_us, \
                   (SELECT COUNT(*) FROM recurring_trials t WHERE t.job = j.id) AS trials, \
                   (SELECT COUNT(*) FROM recurring_trials t WHERE t.job = j.id AND t.state = 'running') AS running \
                   FROM recurring_jobs j WHERE name > ?1 ORDER BY name LIMIT ?2";
        let listed = |row: &Row<'_>| {
            Ok(ListedRecurring {
                name: name(row.get(0)?)?,
                created_at: rows::moment(row.get(1)?)?,
                trials: row.get(2)?,
                running: row.get(3)?,
            })
        };
        let list = move |db: &mut Connection| {
            db.prepare_cached(sql)?.query_and_then(params![after, limit], listed)?.collect::<Result<_, _>>()
        };
        self.recurring.work(list).await
    }

    /// The recurring jobs whose newest trial (or, without one, whose making) is newest, at most `limit` and the newest
    /// first; and how many there are in all. Of trials that have ended, only what policies look at is there.
    ///
    /// # Errors
    /// If they cannot be read.
    pub async fn latest_recurring(&self, limit: u32) -> Result<(Vec<StoredRecurring>, u64), StoreError> {
        let sql = "SELECT name FROM recurring_jobs j ORDER BY COALESCE((SELECT begun_us FROM recurring_trials t \
                   WHERE t.job = j.id ORDER BY number DESC LIMIT 1), created_us) DESC, name LIMIT ?1";
        let read = move |db: &mut Connection| {
            let tx = db.transaction()?;
            let all: i64 = tx.query_row("SELECT COUNT(*) FROM recurring_jobs", [], |row| row.get(0))?;
            let names: Vec<JobName> =
                tx.prepare_cached(sql)?.query_and_then([limit], |row| name(row.get(0)?))?.collect::<Result<_, _>>()?;
            let mut latest = Vec::with_capacity(names.len());
            for name in names {
                latest.extend(load(&tx, name, |db, id| outline(db, id, &InFull::default()))?.map(|(_, stored)| stored));
            }
            Ok((latest, all.unsigned_abs()))
        };
        self.recurring.work(read).await
    }

    /// The recurring jobs that have trials whose lease ended before `now`.
    ///
    /// # Errors
    /// If they cannot be read.
    pub async fn overdue_recurring(&self, now: DateTime<Utc>) -> Result<Vec<JobName>, StoreError> {
        let sql = "SELECT DISTINCT j.name FROM recurring_trials t JOIN recurring_jobs j ON j.id = t.job \
                   WHERE t.state = 'running' AND t.lease_us < ?1";
        let list = move |db: &mut Connection| {
            let mut overdue = db.prepare_cached(sql)?;
            overdue.query_and_then([now.timestamp_micros()], |row| name(row.get(0)?))?.collect::<Result<_, _>>()
        };
        self.recurring.work(list).await
    }

    /// Gives every running trial a lease from `now` on: while the daemon was away nobody could report.
    ///
    /// # Errors
    /// If the statement fails.
    pub async fn renew_recurring_leases(&self, now: DateTime<Utc>) -> Result<(), StoreError> {
        let sql = "UPDATE recurring_trials SET lease_us = MAX(lease_us, ?1 + CAST(1000000 * \
                   (SELECT json_extract(terms, '$.lease') FROM recurring_jobs WHERE id = job) AS INTEGER)) \
                   WHERE state = 'running'";
        let renewed = self.recurring.work(move |db| Ok(db.execute(sql, [now.timestamp_micros()])?));
        renewed.await.map(|_| ())
    }
}

/// A transaction that will write: whoever is second waits before it reads.
fn writing(db: &mut Connection) -> rusqlite::Result<Transaction<'_>> {
    db.transaction_with_behavior(TransactionBehavior::Immediate)
}

fn create(db: &mut Connection, new: &StoredRecurring) -> Result<bool, StoreError> {
    let tx = writing(db)?;
    let sql = "INSERT INTO recurring_jobs (name, terms, generator, created_us) VALUES (?1, ?2, ?3, ?4) \
               ON CONFLICT (name) DO NOTHING RETURNING id";
    let (terms, generator) = (rows::json(&new.job.terms)?, rows::json(&new.job.generator)?);
    let columns = params![new.name.as_str(), terms, generator, new.created_at.timestamp_micros()];
    let Some(id) = tx.query_row(sql, columns, |row| row.get(0)).optional()? else { return Ok(false) };
    for run in &new.job.runs {
        save_run(&tx, id, run)?;
    }
    tx.commit()?;
    Ok(true)
}

fn load(
    db: &Connection,
    name: JobName,
    trials: impl FnOnce(&Connection, i64) -> Result<(Vec<Trial>, Vec<Run>), StoreError>,
) -> Result<Option<(i64, StoredRecurring)>, StoreError> {
    let mut jobs = db.prepare_cached("SELECT id, terms, generator, created_us FROM recurring_jobs WHERE name = ?1")?;
    let mut found = jobs.query([name.as_str()])?;
    let Some(row) = found.next()? else { return Ok(None) };
    let id: i64 = row.get(0)?;
    let terms = rows::from_json("recurring job", text(row, 1)?)?;
    let generator = rows::from_json("recurring job", text(row, 2)?)?;
    let created_at = rows::moment(row.get(3)?)?;
    let (past, runs) = trials(db, id)?;
    let job = Job { terms, generator, past, runs };
    Ok(Some((id, StoredRecurring { name, created_at, job })))
}

fn all_runs(db: &Connection, job: i64) -> Result<(Vec<Trial>, Vec<Run>), StoreError> {
    let sql = format!("SELECT {TRIAL}, {MORE} FROM recurring_trials WHERE job = ?1 ORDER BY number");
    let runs = db.prepare_cached(&sql)?.query_and_then([job], run)?.collect::<Result<_, _>>()?;
    Ok((Vec::new(), runs))
}

/// All trials as policies see them, and in their place those that run or are asked for with all that is kept of them.
fn outline(db: &Connection, job: i64, in_full: &InFull) -> Result<(Vec<Trial>, Vec<Run>), StoreError> {
    let mut runs: Vec<Run> = Vec::new();
    let mut read = |place: &str, of: &dyn ToSql| -> Result<(), StoreError> {
        let sql = format!("SELECT {TRIAL}, {MORE} FROM recurring_trials {place}");
        let mut found = db.prepare_cached(&sql)?;
        for found in found.query_and_then(params![job, of], run)? {
            runs.push(found?);
        }
        Ok(())
    };
    read("INDEXED BY recurring_running WHERE job = ?1 AND state = ?2", &RUNNING)?;
    if let Some(number) = in_full.number {
        read("WHERE job = ?1 AND number = ?2", &number)?;
    }
    if let Some(key) = &in_full.key {
        read("INDEXED BY recurring_keys WHERE job = ?1 AND request_key = ?2", key)?;
    }
    if let Some(run) = &in_full.run {
        read("INDEXED BY recurring_trials_by_job WHERE job = ?1 AND job_id = ?2", &run.as_str())?;
    }
    runs.sort_unstable_by_key(|r| r.trial.number);
    runs.dedup_by_key(|r| r.trial.number);
    let sql = format!("SELECT {TRIAL} FROM recurring_trials WHERE job = ?1 ORDER BY number");
    let mut statement = db.prepare_cached(&sql)?;
    let mut past = Vec::new();
    for found in statement.query_and_then([job], trial)? {
        let found = found?;
        if runs.binary_search_by_key(&found.number, |r| r.trial.number).is_err() {
            past.push(found);
        }
    }
    Ok((past, runs))
}

fn save_run(db: &Connection, job: i64, run: &Run) -> Result<(), StoreError> {
    let Run { trial, .. } = run;
    let sql = "INSERT OR REPLACE INTO recurring_trials (job, number, batch_size, kind, state, cost_j, epochs, \
               epoch_cost_j, energy_j, time_s, metric, first_epochs, first_cost_j, request_key, job_id, begun_us, lease_us, \
               ended_us, reason) \
               VALUES (:job, :number, :batch_size, :kind, :state, :cost, :epochs, :epoch_cost, :energy, :time, :metric, \
               :first_epochs, :first_cost, :key, :job_id, :begun, :lease, :ended, :reason)";
    db.prepare_cached(sql)?.execute(named_params! {
        ":job": job,
        ":number": trial.number,
        ":batch_size": i64::try_from(trial.batch_size).map_err(|e| rows::damaged("batch size", e))?,
        ":kind": kind_name(trial.kind),
        ":state": state_name(trial.state),
        ":cost": trial.cost.get(),
        ":epochs": trial.epochs,
        ":epoch_cost": trial.epoch_cost.map(Cost::get),
        ":energy": run.energy.get(),
        ":time": run.time.get(),
        ":metric": run.metric,
        ":first_epochs": run.first.map(|(epochs, _)| epochs),
        ":first_cost": run.first.map(|(_, cost)| cost.get()),
        ":key": run.key.as_deref(),
        ":job_id": run.job.as_ref().map(JobId::as_str),
        ":begun": run.begun_at.timestamp_micros(),
        ":lease": run.lease_until.timestamp_micros(),
        ":ended": run.ended_at.map(|at| at.timestamp_micros()),
        ":reason": run.reason.as_str(),
    })?;
    Ok(())
}

fn trial(row: &Row<'_>) -> Result<Trial, StoreError> {
    let batch_size: i64 = row.get(1)?;
    Ok(Trial {
        number: row.get(0)?,
        batch_size: u64::try_from(batch_size).map_err(|e| rows::damaged("batch size", e))?,
        kind: kind(text(row, 2)?)?,
        state: state(text(row, 3)?)?,
        cost: Cost::new(row.get(4)?),
        epochs: row.get(5)?,
        epoch_cost: row.get::<_, Option<f64>>(6)?.map(Cost::new),
    })
}

fn run(row: &Row<'_>) -> Result<Run, StoreError> {
    let first: Option<u32> = row.get(10)?;
    let first_cost: Option<f64> = row.get(11)?;
    let job: Option<String> = row.get(13)?;
    let ended: Option<i64> = row.get(16)?;
    Ok(Run {
        trial: trial(row)?,
        energy: Joules::try_new(row.get(7)?).ok_or_else(|| rows::damaged("trial", "energy is no number"))?,
        time: Seconds::try_new(row.get(8)?).ok_or_else(|| rows::damaged("trial", "time is no number"))?,
        metric: row.get(9)?,
        first: first.zip(first_cost.map(Cost::new)),
        key: row.get(12)?,
        job: job.map(JobId::new).transpose().map_err(|e| rows::damaged("trial", e))?,
        begun_at: rows::moment(row.get(14)?)?,
        lease_until: rows::moment(row.get(15)?)?,
        ended_at: ended.map(rows::moment).transpose()?,
        reason: row.get(17)?,
    })
}

fn text<'a>(row: &'a Row<'_>, column: usize) -> Result<&'a str, StoreError> {
    row.get_ref(column)?.as_str().map_err(|e| rows::damaged("text", e))
}

fn name(name: String) -> Result<JobName, StoreError> {
    JobName::new(name).map_err(|e| rows::damaged("recurring job", e))
}

const fn kind_name(kind: Kind) -> &'static str {
    match kind {
        Kind::Exploration => "exploration",
        Kind::Concurrent => "concurrent",
        Kind::Regular => "regular",
    }
}

fn kind(name: &str) -> Result<Kind, StoreError> {
    let all = [Kind::Exploration, Kind::Concurrent, Kind::Regular];
    let known = all.into_iter().find(|k| kind_name(*k) == name);
    known.ok_or_else(|| rows::damaged("trial", format!("kind {name:?}")))
}

/// The state of trials that go on, as the schema has it.
const RUNNING: &str = "running";

const fn state_name(state: State) -> &'static str {
    match state {
        State::Running => RUNNING,
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
