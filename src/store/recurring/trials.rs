//! Recurring jobs and their trials as rows.

use chrono::{DateTime, Utc};
use rusqlite::{Connection, Row, ToSql, named_params, params};

use crate::store::{StoreError, rows};
use wattune_core::bandit::{Cost, Job, Run, State, Trial};
use wattune_core::domain::{JobId, JobName, Owners};
use wattune_core::units::{Joules, Seconds};

/// A recurring job as stored.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredRecurring {
    /// Name of the recurring job.
    pub name: JobName,
    /// Time of creation.
    pub created_at: DateTime<Utc>,
    /// Settings, random generator and trials.
    pub job: Job,
    /// Owners, who may also delete the job.
    pub owners: Owners,
    /// Members, who may begin trials as the owners may, and report and end their own.
    pub members: Owners,
}

/// Selection of the trials that a request reads completely, in addition to the running ones.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FullRuns {
    /// The trial with this number.
    pub number: Option<u32>,
    /// The trial that was requested with this key.
    pub key: Option<String>,
    /// The trial of this training run.
    pub run: Option<JobId>,
    /// The trials on this page.
    pub page: Option<Page>,
}

/// A page of the list of trials.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Page {
    /// True if the order is newest first.
    pub newest_first: bool,
    /// Number of the trial after which the page begins, in that order; `None` for the first page.
    pub after: Option<u32>,
    /// Maximum number of trials.
    pub limit: u32,
}

impl Page {
    /// Returns the trials on this page, in the page's order. `runs` must be sorted by number and contain at least the
    /// trials on the page.
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

/// Columns of a trial that the policies for batch sizes need.
const TRIAL: &str = "number, batch_size, kind, state, cost_j, epochs, epoch_cost_j, ended_us";
const MORE: &str = "energy_j, time_s, metric, first_epochs, first_cost_j, request_key, job_id, begun_us, lease_us, \
                    reason, owners, earlier_jobs";

/// Returns the row identifier of a recurring job, and the job with the trials that `trials` reads: first those of which
/// only the data that policies need are read, second the others.
pub(super) fn load(
    db: &Connection,
    name: JobName,
    trials: impl FnOnce(&Connection, i64) -> Result<(Vec<Trial>, Vec<Run>), StoreError>,
) -> Result<Option<(i64, StoredRecurring)>, StoreError> {
    let sql = "SELECT id, terms, generator, created_us, \
               COALESCE((SELECT last FROM recurring_deleted d WHERE d.name = j.name), 0), owners, members \
               FROM recurring_jobs j WHERE name = ?1";
    let mut jobs = db.prepare_cached(sql)?;
    let mut found = jobs.query([name.as_str()])?;
    let Some(row) = found.next()? else { return Ok(None) };
    let id: i64 = row.get(0)?;
    let terms = rows::from_json("recurring job", rows::text(row, 1)?)?;
    let generator = rows::from_json("recurring job", rows::text(row, 2)?)?;
    let created_at = rows::time(row.get(3)?)?;
    let earlier = row.get(4)?;
    let owners = rows::from_json("recurring job", rows::text(row, 5)?)?;
    let members = rows::from_json("recurring job", rows::text(row, 6)?)?;
    let (past_trials, runs) = trials(db, id)?;
    let job = Job { terms, generator, earlier, past_trials, runs };
    Ok(Some((id, StoredRecurring { name, created_at, job, owners, members })))
}

pub(super) fn all_runs(db: &Connection, job: i64) -> Result<(Vec<Trial>, Vec<Run>), StoreError> {
    let sql = format!("SELECT {TRIAL}, {MORE} FROM recurring_trials WHERE job = ?1 ORDER BY number");
    Ok((Vec::new(), rows::all(db, &sql, [job], run)?))
}

/// Returns the trials of a recurring job in two lists: first the ended ones, of which only the data that policies need
/// are read; second the running ones, with all their data.
pub(super) fn outline(db: &Connection, job: i64) -> Result<(Vec<Trial>, Vec<Run>), StoreError> {
    // The state is a literal because SQLite uses a partial index only if the statement itself shows that the index
    // contains all rows sought.
    let running = format!("INDEXED BY recurring_running WHERE job = ?1 AND state = '{RUNNING}' ORDER BY number");
    let sql = format!("SELECT {TRIAL}, {MORE} FROM recurring_trials {running}");
    let runs = rows::all(db, &sql, [job], run)?;
    let sql = format!("SELECT {TRIAL} FROM recurring_trials WHERE job = ?1 AND state <> '{RUNNING}' ORDER BY number");
    Ok((rows::all(db, &sql, [job], trial)?, runs))
}

/// Condition for the trials of which the training run `:run` was an earlier one.
pub(super) const HAD_RUN: &str = "earlier_jobs <> '[]' AND EXISTS (SELECT 1 FROM json_each(earlier_jobs) \
                                  WHERE json_extract(value, '$.job_id') = :run)";

/// Reads all data of the trials that `full_runs` selects.
pub(super) fn complete(db: &Connection, id: i64, job: &mut Job, full_runs: &FullRuns) -> Result<(), StoreError> {
    // Most requests are about a running trial, of which all data are there already.
    let number = full_runs.number.filter(|number| job.run(*number).is_none());
    let mut read = |place: &str, of: &[&dyn ToSql]| -> Result<(), StoreError> {
        let sql = format!("SELECT {TRIAL}, {MORE} FROM recurring_trials {place}");
        rows::all(db, &sql, of, run)?.into_iter().for_each(|run| job.complete(run));
        Ok(())
    };
    if let Some(number) = number {
        read("WHERE job = ?1 AND number = ?2", params![id, number])?;
    }
    if let Some(key) = &full_runs.key {
        read("INDEXED BY recurring_keys WHERE job = ?1 AND request_key = ?2", params![id, key])?;
    }
    if let Some(run) = &full_runs.run {
        read("INDEXED BY recurring_trials_by_job WHERE job = ?1 AND job_id = ?2", params![id, run.as_str()])?;
        read(&format!("WHERE job = ?1 AND {HAD_RUN}"), params![id, run.as_str()])?;
    }
    if let Some(Page { newest_first, after, limit }) = full_runs.page {
        let after = after.map(i64::from);
        if newest_first {
            let place = "WHERE job = ?1 AND number < ?2 ORDER BY number DESC LIMIT ?3";
            read(place, params![id, after.unwrap_or(i64::MAX), limit])?;
        } else {
            read("WHERE job = ?1 AND number > ?2 ORDER BY number LIMIT ?3", params![id, after.unwrap_or(0), limit])?;
        }
    }
    Ok(())
}

pub(super) fn save_run(db: &Connection, job: i64, run: &Run) -> Result<(), StoreError> {
    let Run { trial, .. } = run;
    let sql = "INSERT OR REPLACE INTO recurring_trials (job, number, batch_size, kind, state, cost_j, epochs, \
               epoch_cost_j, energy_j, time_s, metric, first_epochs, first_cost_j, request_key, job_id, begun_us, lease_us, \
               ended_us, reason, owners, earlier_jobs) \
               VALUES (:job, :number, :batch_size, :kind, :state, :cost, :epochs, :epoch_cost, :energy, :time, :metric, \
               :first_epochs, :first_cost, :key, :job_id, :begun, :lease, :ended, :reason, :owners, :earlier_jobs)";
    db.prepare_cached(sql)?.execute(named_params! {
        ":job": job,
        ":number": trial.number,
        ":batch_size": rows::signed(trial.batch_size)?,
        ":kind": rows::name(&trial.kind)?,
        ":state": state_name(trial.state)?,
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
        ":ended": trial.ended_at.map(|at| at.timestamp_micros()),
        ":reason": run.reason.as_str(),
        ":owners": rows::json(&run.owners)?,
        ":earlier_jobs": rows::json(&run.earlier_jobs)?,
    })?;
    Ok(())
}

fn trial(row: &Row<'_>) -> Result<Trial, StoreError> {
    Ok(Trial {
        number: row.get(0)?,
        batch_size: rows::number(row, 1)?,
        kind: rows::from_name("trial", rows::text(row, 2)?)?,
        state: state(rows::text(row, 3)?)?,
        cost: Cost::new(row.get(4)?),
        epochs: row.get(5)?,
        epoch_cost: row.get::<_, Option<f64>>(6)?.map(Cost::new),
        ended_at: row.get::<_, Option<i64>>(7)?.map(rows::time).transpose()?,
    })
}

fn run(row: &Row<'_>) -> Result<Run, StoreError> {
    let first: Option<u32> = row.get(11)?;
    let first_cost: Option<f64> = row.get(12)?;
    let job: Option<String> = row.get(14)?;
    Ok(Run {
        trial: trial(row)?,
        energy: Joules::try_new(row.get(8)?).ok_or_else(|| rows::damaged("trial", "energy is not a number"))?,
        time: Seconds::try_new(row.get(9)?).ok_or_else(|| rows::damaged("trial", "time is not a number"))?,
        metric: row.get(10)?,
        first: first.zip(first_cost.map(Cost::new)),
        key: row.get(13)?,
        job: job.map(JobId::new).transpose().map_err(|e| rows::damaged("trial", e))?,
        begun_at: rows::time(row.get(15)?)?,
        lease_until: rows::time(row.get(16)?)?,
        reason: row.get(17)?,
        owners: rows::from_json("trial", rows::text(row, 18)?)?,
        earlier_jobs: rows::from_json("trial", rows::text(row, 19)?)?,
    })
}

/// Name of the state of running trials in the database.
const RUNNING: &str = "running";

/// Returns the name of a state in the database; the name of an ended trial's state is that of its outcome.
fn state_name(state: State) -> Result<String, StoreError> {
    match state {
        State::Running => Ok(RUNNING.to_owned()),
        State::Ended(outcome) => rows::name(&outcome),
    }
}

fn state(name: &str) -> Result<State, StoreError> {
    match name {
        RUNNING => Ok(State::Running),
        outcome => rows::from_name("trial", outcome).map(State::Ended),
    }
}

pub(super) fn name(name: String) -> Result<JobName, StoreError> {
    JobName::new(name).map_err(|e| rows::damaged("recurring job", e))
}
