//! Recurring jobs and their trials. What a request changes is written in one transaction, the generator with the trial
//! that it chose.
//!
//! Policies look at all trials of a job. So this room has a connection of its own (`desk.rs`), and a request is one piece
//! of work on one thread. Of most trials it reads the seven columns that policies look at: all eighteen take three times as
//! long.

mod desk;
mod trials;

use chrono::{DateTime, Utc};
use rusqlite::{Connection, OptionalExtension, Row, params};

pub(super) use self::desk::Desk;
use self::trials::{all_runs, load, outline, save_run};
use super::connection::writing;
use super::{Store, StoreError, rows};
use wattune_core::bandit::{Job, Run};
use wattune_core::domain::{JobId, JobName};

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

/// What became of a recurring job that was to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Created {
    /// It was written.
    New,
    /// There is one of that name, which stays as it is.
    Known,
    /// There are as many as there may be.
    TooMany,
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
    /// Trials that run and whose lease has not ended.
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
    /// Those on this page.
    pub page: Option<Page>,
}

/// A part of the list of trials.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Page {
    /// Whether it begins with the newest, not with the oldest.
    pub newest_first: bool,
    /// Only those that come after this one in that order.
    pub after: Option<u32>,
    /// At most so many.
    pub limit: u32,
}

impl Page {
    /// Of runs by number, those on this page, in its order; `runs` may have others, but none of the page is missing.
    pub fn of<'a>(&self, runs: &'a [Run]) -> Vec<&'a Run> {
        let limit = usize::try_from(self.limit).unwrap_or(usize::MAX);
        let later = |r: &&Run| {
            let number = r.trial.number;
            self.after.is_none_or(|after| if self.newest_first { number < after } else { number > after })
        };
        if self.newest_first {
            runs.iter().rev().filter(later).take(limit).collect()
        } else {
            runs.iter().filter(later).take(limit).collect()
        }
    }
}

impl Store {
    /// Writes a recurring job with all its trials, unless there is one of that name, or `most` of other names.
    ///
    /// # Errors
    /// If the transaction fails; then none of it is written.
    pub async fn create_recurring(&self, new: &StoredRecurring, most: u32) -> Result<Created, StoreError> {
        let new = new.clone();
        self.recurring.write(move |db| create(db, &new, most)).await
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
        self.recurring.read(read).await
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
        self.recurring.read(read).await
    }

    /// The recurring job of which a training run is a trial, with all its trials.
    ///
    /// # Errors
    /// If it cannot be read.
    pub async fn recurring_of(&self, run: &JobId) -> Result<Option<StoredRecurring>, StoreError> {
        let run = run.clone();
        let sql = "SELECT j.name FROM recurring_trials t JOIN recurring_jobs j ON j.id = t.job WHERE t.job_id = ?1";
        let of = move |db: &mut Connection| rows::optional(db, sql, [run.as_str()], |row| name(row.get(0)?));
        match self.read.run(of).await? {
            Some(name) => self.recurring(&name).await,
            None => Ok(None),
        }
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
        self.recurring.write(changed).await
    }

    /// Forgets a recurring job and its trials, but for the last one's number. Says whether there was one.
    ///
    /// # Errors
    /// If the transaction fails; then all is as it was.
    pub async fn delete_recurring(&self, name: &JobName) -> Result<bool, StoreError> {
        let name = name.clone();
        let remember = "INSERT INTO recurring_deleted (name, last) \
                        SELECT j.name, MAX(t.number) FROM recurring_jobs j JOIN recurring_trials t ON t.job = j.id \
                        WHERE j.name = ?1 GROUP BY j.name \
                        ON CONFLICT (name) DO UPDATE SET last = MAX(last, excluded.last)";
        let delete = move |db: &mut Connection| {
            let tx = writing(db)?;
            tx.execute(remember, [name.as_str()])?;
            let deleted = tx.execute("DELETE FROM recurring_jobs WHERE name = ?1", [name.as_str()])?;
            tx.commit()?;
            Ok(deleted > 0)
        };
        self.recurring.write(delete).await
    }

    /// Recurring jobs by name, beginning after `after`, at most `limit`. A trial whose lease ended before `now` does not
    /// run any more, whether or not that is written already.
    ///
    /// # Errors
    /// If they cannot be read.
    pub async fn list_recurring(
        &self,
        after: &str,
        limit: u32,
        now: DateTime<Utc>,
    ) -> Result<Vec<ListedRecurring>, StoreError> {
        let (after, now) = (after.to_owned(), now.timestamp_micros());
        let sql = "SELECT name, created_us, \
                   (SELECT COUNT(*) FROM recurring_trials t WHERE t.job = j.id) AS trials, \
                   (SELECT COUNT(*) FROM recurring_trials t INDEXED BY recurring_running \
                    WHERE t.job = j.id AND t.state = 'running' AND t.lease_us >= ?3) AS running \
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
            db.prepare_cached(sql)?.query_and_then(params![after, limit, now], listed)?.collect::<Result<_, _>>()
        };
        self.recurring.read(list).await
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
        self.recurring.read(read).await
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
        self.recurring.read(list).await
    }

    /// Gives every running trial a lease from `now` on: while the daemon was away nobody could report.
    ///
    /// # Errors
    /// If the statement fails.
    pub async fn renew_recurring_leases(&self, now: DateTime<Utc>) -> Result<(), StoreError> {
        let sql = "UPDATE recurring_trials SET lease_us = MAX(lease_us, ?1 + CAST(1000000 * \
                   (SELECT json_extract(terms, '$.lease') FROM recurring_jobs WHERE id = job) AS INTEGER)) \
                   WHERE state = 'running'";
        let renewed = self.recurring.write(move |db| Ok(db.execute(sql, [now.timestamp_micros()])?));
        renewed.await.map(|_| ())
    }
}

fn create(db: &mut Connection, new: &StoredRecurring, most: u32) -> Result<Created, StoreError> {
    let tx = writing(db)?;
    let count: u32 = tx.query_row("SELECT COUNT(*) FROM recurring_jobs", [], |row| row.get(0))?;
    let sql = "INSERT INTO recurring_jobs (name, terms, generator, created_us) VALUES (?1, ?2, ?3, ?4) \
               ON CONFLICT (name) DO NOTHING RETURNING id";
    let (terms, generator) = (rows::json(&new.job.terms)?, rows::json(&new.job.generator)?);
    let columns = params![new.name.as_str(), terms, generator, new.created_at.timestamp_micros()];
    let Some(id) = tx.query_row(sql, columns, |row| row.get(0)).optional()? else { return Ok(Created::Known) };
    if count >= most {
        // Nothing is committed.
        return Ok(Created::TooMany);
    }
    for run in &new.job.runs {
        save_run(&tx, id, run)?;
    }
    tx.commit()?;
    Ok(Created::New)
}

fn name(name: String) -> Result<JobName, StoreError> {
    JobName::new(name).map_err(|e| rows::damaged("recurring job", e))
}
