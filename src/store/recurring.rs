//! Recurring jobs (jobs that run again and again, each time with a batch size that a policy chooses) and their trials
//! (the runs). The changes of one request are written in one transaction, including the state of the random generator
//! that the policy used for its choice.
//!
//! Policies need all trials of a job, so that requests read many rows. Therefore this module has a connection of its
//! own (`connection.rs`), and processes each request on one thread. For most trials it reads only the eight columns
//! that policies need: reading all eighteen takes three times as long. What it has read stays in memory until another
//! connection changes the database (`outlines.rs`).

mod connection;
mod outlines;
mod trials;

use chrono::{DateTime, Utc};
use rusqlite::{Connection, OptionalExtension, Row, params};

pub(super) use self::connection::RecurringConnection;
use self::outlines::Outlines;
pub use self::trials::{FullRuns, Page, StoredRecurring};
use self::trials::{HAD_RUN, all_runs, complete, load, name, outline, save_run};
use super::connection::writing;
use super::{Store, StoreError, rows};
use wattune_core::bandit::Job;
use wattune_core::domain::{JobId, JobName, Owner, Owners};

/// Result of the creation of a recurring job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Created {
    /// The job was created.
    New,
    /// A job with that name exists and is unchanged.
    Exists,
    /// The maximum number of recurring jobs exists already, so that no job was created.
    TooMany,
    /// The owner has the maximum number that one owner may have, so that no job was created.
    TooManyOf(Owner),
}

/// An entry in the list of recurring jobs.
#[derive(Clone, Debug, PartialEq)]
pub struct ListedRecurring {
    /// Name of the recurring job.
    pub name: JobName,
    /// Time of creation.
    pub created_at: DateTime<Utc>,
    /// Number of trials so far.
    pub trials: u32,
    /// Number of running trials whose lease (longest silence before a trial counts as lost) has not expired.
    pub running: u32,
}

/// Users of a recurring job.
#[derive(Clone, Copy, Debug)]
pub struct UsersOfRecurring<'a> {
    /// Owners of the recurring job.
    pub owners: &'a Owners,
    /// Members of the recurring job.
    pub members: &'a Owners,
}

impl Store {
    /// Stores a new recurring job with all its trials, unless its name exists already, there are `most` jobs, or one of its
    /// owners other than root has `most_of_one`.
    pub async fn create_recurring(
        &self,
        new: &StoredRecurring,
        most: u32,
        most_of_one: u32,
    ) -> Result<Created, StoreError> {
        let new = new.clone();
        self.recurring.write(move |db| create(db, &new, most, most_of_one)).await
    }

    /// Returns the recurring job of this name with all its trials; `None` if there is none.
    pub async fn recurring(&self, name: &JobName) -> Result<Option<StoredRecurring>, StoreError> {
        let name = name.clone();
        let read = move |db: &mut Connection| {
            let tx = db.transaction()?;
            Ok(load(&tx, name, all_runs)?.map(|(_, stored)| stored))
        };
        self.recurring.read(read).await
    }

    /// Returns the recurring job of this name; `None` if there is none. Only its running trials and those that
    /// `full_runs` selects are complete; the others contain only the data that policies need.
    pub async fn recurring_outline(
        &self,
        name: &JobName,
        full_runs: FullRuns,
    ) -> Result<Option<StoredRecurring>, StoreError> {
        let name = name.clone();
        let read = move |db: &mut Connection, outlines: &mut Outlines| {
            let tx = db.transaction()?;
            let Some((id, mut stored)) = outlines.take(&tx, &name)? else { return Ok(None) };
            complete(&tx, id, &mut stored.job, &full_runs)?;
            outlines.put(id, stored.clone());
            Ok(Some(stored))
        };
        self.recurring.read_outline(read).await
    }

    /// Returns the recurring job of which the training run `run` is a trial, with all its trials; `None` if there is
    /// none.
    pub async fn recurring_by_run(&self, run: &JobId) -> Result<Option<StoredRecurring>, StoreError> {
        let run = run.clone();
        let names = "SELECT j.name FROM recurring_trials t JOIN recurring_jobs j ON j.id = t.job WHERE";
        let sql = format!("{names} t.job_id = :run UNION ALL {names} {HAD_RUN} LIMIT 1");
        let of = move |db: &mut Connection| rows::optional(db, &sql, [run.as_str()], |row| name(row.get(0)?));
        match self.short_reads.run(of).await? {
            Some(name) => self.recurring(&name).await,
            None => Ok(None),
        }
    }

    /// Applies `change` to the recurring job of this name and stores what changed. Returns the result of `change` and
    /// the changed job; `None` if there is no such job. Ended trials are complete only if `full_runs` selects them.
    pub async fn change_recurring<T: Send + 'static>(
        &self,
        name: &JobName,
        full_runs: FullRuns,
        change: impl FnOnce(&mut Job) -> T + Send + 'static,
    ) -> Result<Option<(T, StoredRecurring)>, StoreError> {
        let name = name.clone();
        let changed = move |db: &mut Connection, outlines: &mut Outlines| {
            let changed = change_outline(db, outlines, &name, &full_runs, |job, _| change(job))?;
            let Some((answer, id, stored)) = changed else { return Ok(None) };
            outlines.put(id, stored.clone());
            Ok(Some((answer, stored)))
        };
        self.recurring.write_outline(changed).await
    }

    /// Works as [`Self::change_recurring`], except that `change` sees the users of the recurring job, too, and that only
    /// the result of `change` is returned: a copy of the job takes longer the more trials it has.
    pub async fn change_recurring_of<T: Send + 'static>(
        &self,
        name: &JobName,
        full_runs: FullRuns,
        change: impl FnOnce(&mut Job, UsersOfRecurring<'_>) -> T + Send + 'static,
    ) -> Result<Option<T>, StoreError> {
        let name = name.clone();
        let changed = move |db: &mut Connection, outlines: &mut Outlines| {
            let changed = change_outline(db, outlines, &name, &full_runs, change)?;
            let Some((answer, id, stored)) = changed else { return Ok(None) };
            outlines.put(id, stored);
            Ok(Some(answer))
        };
        self.recurring.write_outline(changed).await
    }

    /// Deletes a recurring job and its trials, but keeps the number of the last trial: a new job with the same name
    /// continues to count from there. Returns true if the job existed.
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

    /// Returns the owners of the recurring job of this name, with its members; `None` if there is no such job.
    pub async fn users_of_recurring(&self, name: &JobName) -> Result<Option<(Owners, Owners)>, StoreError> {
        let name = name.clone();
        self.recurring.read(move |db| users_of(db, &name)).await
    }

    /// Returns the owners of a recurring job, its members, and the owners of one of its trials; `None` if there is no such
    /// trial.
    pub async fn users_of_trial(
        &self,
        name: &JobName,
        number: u32,
    ) -> Result<Option<(Owners, Owners, Owners)>, StoreError> {
        let name = name.clone();
        let sql = "SELECT j.owners, j.members, t.owners FROM recurring_jobs j \
                   JOIN recurring_trials t ON t.job = j.id WHERE j.name = ?1 AND t.number = ?2";
        let of_row = |row: &Row<'_>| Ok((users(row, 0)?, users(row, 1)?, users(row, 2)?));
        self.recurring.read(move |db| rows::optional(db, sql, params![name.as_str(), number], of_row)).await
    }

    /// Adds members to the recurring job of this name. Returns false if there is no such job, or if one of them is an owner
    /// or all are members already.
    pub async fn join_recurring(&self, name: &JobName, new: &Owners) -> Result<bool, StoreError> {
        let (name, new) = (name.clone(), new.clone());
        let join = move |db: &mut Connection| {
            let tx = writing(db)?;
            let Some((owners, mut members)) = users_of(&tx, &name)? else { return Ok(false) };
            if owners.overlap(&new) || !members.join(&new) {
                return Ok(false);
            }
            let sql = "UPDATE recurring_jobs SET members = ?2 WHERE name = ?1";
            tx.execute(sql, [name.as_str(), &rows::json(&members)?])?;
            tx.commit()?;
            Ok(true)
        };
        self.recurring.write(join).await
    }

    /// Returns up to `limit` recurring jobs, ordered by name, from the first name that follows `after`. A trial whose
    /// lease expired before `now` does not count as running, even if the database does not show that yet.
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
                created_at: rows::time(row.get(1)?)?,
                trials: row.get(2)?,
                running: row.get(3)?,
            })
        };
        self.recurring.read(move |db| rows::all(db, sql, params![after, limit, now], listed)).await
    }

    /// Returns the `limit` recurring jobs whose last trial began most recently, newest first, and the total number of
    /// recurring jobs. A job without trials is placed by its creation time. Ended trials contain only the data that
    /// policies need.
    pub async fn latest_recurring(&self, limit: u32) -> Result<(Vec<StoredRecurring>, u64), StoreError> {
        let sql = "SELECT name FROM recurring_jobs j ORDER BY COALESCE((SELECT begun_us FROM recurring_trials t \
                   WHERE t.job = j.id ORDER BY number DESC LIMIT 1), created_us) DESC, name LIMIT ?1";
        let read = move |db: &mut Connection| {
            let tx = db.transaction()?;
            let all: i64 = tx.query_row("SELECT COUNT(*) FROM recurring_jobs", [], |row| row.get(0))?;
            let names: Vec<JobName> = rows::all(&tx, sql, [limit], |row| name(row.get(0)?))?;
            let mut latest = Vec::with_capacity(names.len());
            for name in names {
                latest.extend(load(&tx, name, outline)?.map(|(_, stored)| stored));
            }
            Ok((latest, all.unsigned_abs()))
        };
        self.recurring.read(read).await
    }

    /// Returns the recurring jobs that have trials whose lease expired before `now`.
    pub async fn overdue_recurring(&self, now: DateTime<Utc>) -> Result<Vec<JobName>, StoreError> {
        let sql = "SELECT DISTINCT j.name FROM recurring_trials t JOIN recurring_jobs j ON j.id = t.job \
                   WHERE t.state = 'running' AND t.lease_us < ?1";
        self.recurring.read(move |db| rows::all(db, sql, [now.timestamp_micros()], |row| name(row.get(0)?))).await
    }

    /// Starts the leases of all running trials anew at `now`, because clients could not report while the daemon was
    /// down.
    pub async fn renew_recurring_leases(&self, now: DateTime<Utc>) -> Result<(), StoreError> {
        let sql = "UPDATE recurring_trials SET lease_us = MAX(lease_us, ?1 + CAST(1000000 * \
                   (SELECT json_extract(terms, '$.lease') FROM recurring_jobs WHERE id = job) AS INTEGER)) \
                   WHERE state = 'running'";
        let renewed = self.recurring.write(move |db| Ok(db.execute(sql, [now.timestamp_micros()])?));
        renewed.await.map(|_| ())
    }
}

fn users_of(db: &Connection, name: &JobName) -> Result<Option<(Owners, Owners)>, StoreError> {
    let sql = "SELECT owners, members FROM recurring_jobs WHERE name = ?1";
    rows::optional(db, sql, [name.as_str()], |row| Ok((users(row, 0)?, users(row, 1)?)))
}

fn users(row: &Row<'_>, column: usize) -> Result<Owners, StoreError> {
    rows::from_json("recurring job", rows::text(row, column)?)
}

/// Applies `change` to a recurring job and stores what changed. Returns the result of `change`, the job's row identifier
/// and the changed job; `None` if there is no such job.
fn change_outline<T>(
    db: &mut Connection,
    outlines: &mut Outlines,
    name: &JobName,
    full_runs: &FullRuns,
    change: impl FnOnce(&mut Job, UsersOfRecurring<'_>) -> T,
) -> Result<Option<(T, i64, StoredRecurring)>, StoreError> {
    let tx = writing(db)?;
    let Some((id, mut stored)) = outlines.take(&tx, name)? else { return Ok(None) };
    let StoredRecurring { job, owners, members, .. } = &mut stored;
    complete(&tx, id, job, full_runs)?;
    let (generator, runs) = (job.generator.clone(), job.runs.clone());
    let answer = change(job, UsersOfRecurring { owners, members });
    if job.generator != generator {
        tx.prepare_cached("UPDATE recurring_jobs SET generator = ?2 WHERE id = ?1")?
            .execute(params![id, rows::json(&job.generator)?])?;
    }
    for (i, run) in job.runs.iter().enumerate() {
        if runs.get(i) != Some(run) {
            save_run(&tx, id, run)?;
        }
    }
    tx.commit()?;
    Ok(Some((answer, id, stored)))
}

fn create(db: &mut Connection, new: &StoredRecurring, most: u32, most_of_one: u32) -> Result<Created, StoreError> {
    let tx = writing(db)?;
    let count: u32 = tx.query_row("SELECT COUNT(*) FROM recurring_jobs", [], |row| row.get(0))?;
    let sql = "INSERT INTO recurring_jobs (name, terms, generator, created_us, owners) VALUES (?1, ?2, ?3, ?4, ?5) \
               ON CONFLICT (name) DO NOTHING RETURNING id";
    let (terms, generator) = (rows::json(&new.job.terms)?, rows::json(&new.job.generator)?);
    let owners = rows::json(&new.owners)?;
    let columns = params![new.name.as_str(), terms, generator, new.created_at.timestamp_micros(), owners];
    let Some(id) = tx.query_row(sql, columns, |row| row.get(0)).optional()? else { return Ok(Created::Exists) };
    if count >= most {
        // Returning without a commit rolls back the insertion.
        return Ok(Created::TooMany);
    }
    if count >= most_of_one {
        // The new job is among them.
        let of_one = "SELECT COUNT(*) FROM recurring_jobs j \
                      WHERE EXISTS (SELECT 1 FROM json_each(j.owners) WHERE value = ?1)";
        for owner in new.owners.principals().filter(|owner| **owner != Owner::ROOT) {
            let own: u32 = tx.query_row(of_one, [rows::json(owner)?], |row| row.get(0))?;
            if own > most_of_one {
                return Ok(Created::TooManyOf(owner.clone()));
            }
        }
    }
    for run in &new.job.runs {
        save_run(&tx, id, run)?;
    }
    tx.commit()?;
    Ok(Created::New)
}

#[cfg(test)]
mod tests;
