//! Corrections: a new entry attributes closed intervals to another share (who the energy belongs to: a job, idle or
//! unattributed). The recorded share remains visible.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, Utc};
use rusqlite::{Connection, Row, params};

use super::chain::{INTERVAL, append_entry, closed_blocks};
use super::settlements;
use crate::store::connection::writing;
use crate::store::{Store, StoreError, rows};
use wattune_core::domain::{DeviceId, JobId, Slot};
use wattune_core::ledger::Share;
use wattune_core::ledger::apportion::hour_of;
use wattune_core::ledger::due::DueReason;
use wattune_core::ledger::entry::{Corrected, Correction, Entry};
use wattune_core::ledger::report;
use wattune_core::units::Millijoules;

/// Request for a correction.
#[derive(Clone, Debug, PartialEq)]
pub struct CorrectionRequest {
    /// Device whose intervals are corrected; `None` for all devices.
    pub device: Option<DeviceId>,
    /// Time within which the intervals lie.
    pub span: Slot,
    /// Current share (owner of the energy) of the intervals.
    pub from: Share,
    /// Share that the intervals get.
    pub to: Share,
    /// Person who makes the correction.
    pub who: String,
    /// Reason for the correction, as that person states it.
    pub why: String,
    /// Time of the correction.
    pub at: DateTime<Utc>,
}

/// Result of a correction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CorrectionResult {
    /// Number of the correction's entry in the ledger.
    pub entry: u64,
    /// Number of corrected intervals.
    pub rows: u64,
    /// Energy of the corrected intervals.
    pub energy: Millijoules,
    /// Devices of the corrected intervals.
    pub devices: BTreeSet<DeviceId>,
    /// Hours whose emissions have to be computed again.
    pub hours: Vec<DateTime<Utc>>,
    /// Number of further intervals that match the request and did not change, because their block (intervals of about an
    /// hour) is still open.
    pub open_rows: u64,
    /// Energy of the intervals that `open_rows` counts.
    pub open_energy: Millijoules,
}

/// Reason why nothing was corrected.
#[expect(missing_docs, reason = "the messages explain the fields")]
#[derive(Debug, thiserror::Error)]
pub enum CorrectionError {
    /// The correction names the same share (owner of energy) as old and as new one.
    #[error("nothing would change: both shares are the same")]
    Same,
    /// No interval matches the request.
    #[error(
        "no recorded interval of the energy to be corrected lies within {0}; the current hour can be corrected after it has ended"
    )]
    Nothing(Slot),
    /// Some of the intervals were rolled up (summed) to hours, so that they cannot be corrected.
    #[error(
        "intervals of {hour} and other hours were rolled up, and sums cannot be corrected. Correct \
         intervals within ledger.keep_intervals_days, or choose a later --from"
    )]
    RolledUp { hour: String },
    /// No closed block (intervals of about an hour) has energy of the device.
    #[error("no closed block has energy of device {given}; known devices: {known}")]
    NoDevice { given: DeviceId, known: String },
    /// The job does not exist.
    #[error("there is no job {0}")]
    NoJob(JobId),
    /// The database failed; nothing was changed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl From<rusqlite::Error> for CorrectionError {
    fn from(error: rusqlite::Error) -> Self {
        Self::Store(error.into())
    }
}

impl Store {
    /// Attributes closed intervals to another share, and marks their hours so that the emissions are computed again.
    pub async fn correct(&self, request: &CorrectionRequest) -> Result<CorrectionResult, CorrectionError> {
        if request.from == request.to {
            return Err(CorrectionError::Same);
        }
        if let Share::Job(id) = &request.to
            && self.job(id).await?.is_none()
        {
            return Err(CorrectionError::NoJob(id.clone()));
        }
        let request = request.clone();
        self.write.run(move |db| correct(db, &request)).await
    }

    /// Returns the number of the newest correction's entry in the ledger; `None` if there is no correction.
    pub async fn newest_correction(&self) -> Result<Option<u64>, StoreError> {
        let sql = "SELECT MAX(seq) FROM ledger WHERE kind = 'correction'";
        let newest = move |db: &mut Connection| -> Result<Option<u64>, StoreError> {
            let seq: Option<i64> = rows::one(db, sql, [], rows::first)?;
            seq.map(rows::unsigned).transpose()
        };
        self.short_reads.run(newest).await
    }

    /// Returns the jobs whose recorded savings a later correction made obsolete and whose rows per minute still exist, so
    /// that the savings can be estimated again.
    pub async fn outdated_outcomes(&self) -> Result<BTreeSet<JobId>, StoreError> {
        let outdated = |db: &mut Connection| {
            let tx = db.transaction()?;
            let mut outdated = BTreeSet::new();
            for (job, correction) in newest_corrections(&tx)? {
                if is_outdated(&tx, &job, correction)? {
                    outdated.extend(JobId::new(job).ok());
                }
            }
            Ok(outdated)
        };
        self.short_reads.run(outdated).await
    }

    /// Returns true if [`Self::outdated_outcomes`] has this job.
    pub async fn has_outdated_outcome(&self, job: &JobId) -> Result<bool, StoreError> {
        let sql = "SELECT MAX(seq) FROM ledger WHERE kind = 'correction' \
                   AND ?1 IN (json_extract(line, '$.from.job'), json_extract(line, '$.to.job'))";
        let job = job.to_string();
        let is_outdated = move |db: &mut Connection| {
            let tx = db.transaction()?;
            let newest: Option<i64> = rows::one(&tx, sql, [&job], rows::first)?;
            newest.map_or(Ok(false), |newest| is_outdated(&tx, &job, rows::unsigned(newest)?))
        };
        self.short_reads.run(is_outdated).await
    }
}

fn correct(db: &mut Connection, request: &CorrectionRequest) -> Result<CorrectionResult, CorrectionError> {
    let tx = writing(db)?;
    let [start, end] = rows::ends(&request.span);
    let (share, job) = rows::share_columns(&request.from);
    let device = request.device.as_ref().map(DeviceId::as_str);
    let sql = "SELECT MIN(hour_us) FROM rolled_up WHERE hour_us + 3600000000 > ?1 AND hour_us < ?2 AND share = ?3 \
               AND job_id = ?4 AND (?5 IS NULL OR device = ?5)";
    let columns = params![start, end, share, job.unwrap_or_default(), device];
    let rolled: Option<i64> = rows::one(&tx, sql, columns, rows::first)?;
    if let Some(hour) = rolled {
        let hour = rows::time(hour)?.format("%FT%H:%MZ").to_string();
        return Err(CorrectionError::RolledUp { hour });
    }
    let closed = closed_blocks(&tx)?;
    let meant = "start_us >= ?1 AND start_us < ?2 AND end_us <= ?2 AND share = ?3 AND job_id IS ?4 \
                 AND (?5 IS NULL OR device = ?5)";
    let columns = params![start, end, share, job, device, closed];
    let sql = format!("SELECT id, {INTERVAL} FROM intervals WHERE {meant} AND block <= ?6 ORDER BY id");
    let corrected = rows::all(&tx, &sql, columns, corrected)?;
    let sql = format!("SELECT COUNT(*), COALESCE(SUM(energy_mj), 0) FROM intervals WHERE {meant} AND block > ?6");
    let sum = |row: &Row<'_>| Ok((rows::number(row, 0)?, rows::from_i64(row.get(1)?)?));
    let (open_rows, open_energy) = rows::one(&tx, &sql, columns, sum)?;
    if corrected.is_empty() {
        let sql = "SELECT DISTINCT device FROM balances ORDER BY device";
        let known: Vec<String> = rows::all(&tx, sql, [], rows::first)?;
        return Err(match &request.device {
            Some(given) if !known.is_empty() && known.iter().all(|device| device != given.as_str()) => {
                CorrectionError::NoDevice { given: given.clone(), known: known.join(", ") }
            }
            _ => CorrectionError::Nothing(request.span),
        });
    }
    let (share, job) = rows::share_columns(&request.to);
    for row in &corrected {
        let sql = "UPDATE intervals SET booked_job = CASE WHEN booked_share IS NULL THEN job_id ELSE booked_job END, \
                   booked_share = COALESCE(booked_share, share), share = ?1, job_id = ?2 WHERE id = ?3";
        rows::execute(&tx, sql, params![share, job, rows::signed(row.row)?])?;
    }
    let mut hours: Vec<DateTime<Utc>> = corrected.iter().map(|row| row.hour).collect();
    hours.sort_unstable();
    hours.dedup();
    for hour in &hours {
        settlements::make_due(&tx, *hour, DueReason::Correction)?;
    }
    let devices = corrected.iter().map(|row| row.device.clone()).collect();
    let (count, energy) = (corrected.len() as u64, corrected.iter().map(|row| row.energy_mj).sum());
    let entry = Entry::Correction(Correction {
        at: request.at,
        who: request.who.clone(),
        why: request.why.clone(),
        from: request.from.clone(),
        to: request.to.clone(),
        rows: corrected,
    });
    let seq = append_entry(&tx, &entry)?;
    tx.commit()?;
    Ok(CorrectionResult { entry: rows::unsigned(seq)?, rows: count, energy, devices, hours, open_rows, open_energy })
}

fn corrected(row: &Row<'_>) -> Result<Corrected, StoreError> {
    let interval = rows::interval(row)?;
    Ok(Corrected {
        row: rows::number(row, "id")?,
        device: interval.device,
        hour: hour_of(interval.slot.start()),
        source: interval.source,
        energy_mj: interval.energy,
    })
}

/// Returns the number of the newest correction that gave energy to a job or took energy from it, by the id of the job.
pub(super) fn newest_corrections(tx: &Connection) -> Result<BTreeMap<String, u64>, StoreError> {
    let sql = "SELECT seq, json_extract(line, '$.from.job'), json_extract(line, '$.to.job') FROM ledger \
               WHERE kind = 'correction' ORDER BY seq";
    let of_entry = |row: &Row<'_>| {
        let seq = rows::number(row, 0)?;
        Ok::<_, StoreError>([(row.get(1)?, seq), (row.get(2)?, seq)])
    };
    let found: Vec<[(Option<String>, u64); 2]> = rows::all(tx, sql, [], of_entry)?;
    Ok(found.into_iter().flatten().filter_map(|(job, seq)| Some((job?, seq))).collect())
}

/// Returns true if a job's newest outcome is older than a correction of its energy, and its energy per minute is still
/// there.
fn is_outdated(tx: &Connection, job: &str, correction: u64) -> Result<bool, StoreError> {
    let sql = "SELECT MAX(seq) FROM ledger WHERE kind IN ('counterfactual', 'outcome') \
               AND json_extract(line, '$.job') = ?1 AND kind = 'outcome' \
               AND NOT EXISTS (SELECT 1 FROM rolled_up WHERE job_id = ?1)";
    let outcome: Option<i64> = rows::one(tx, sql, [job], rows::first)?;
    Ok(outcome.map(rows::unsigned).transpose()?.is_some_and(|outcome| outcome < correction))
}

/// Returns the corrections of intervals that begin in a span of full hours, oldest first.
pub(super) fn corrections_within(tx: &Connection, span: &Slot) -> Result<Vec<report::Correction>, StoreError> {
    let sql = "SELECT seq, json_set(line, '$.rows', json('[]')) AS line, COUNT(*) AS intervals, \
               SUM(corrected.value ->> '$.energy_mj') AS energy_mj \
               FROM ledger, json_each(line, '$.rows') AS corrected WHERE kind = 'correction' \
               AND corrected.value ->> '$.hour' >= ?1 AND corrected.value ->> '$.hour' < ?2 GROUP BY seq ORDER BY seq";
    // Times of full hours always have this format in the entries, and sort as text.
    let hour = |t: DateTime<Utc>| t.format("%FT%TZ").to_string();
    let correction = |row: &Row<'_>| {
        let Entry::Correction(made) = rows::from_json("ledger", rows::text(row, "line")?)? else { return Ok(None) };
        Ok::<_, StoreError>(Some(report::Correction {
            entry: rows::number(row, "seq")?,
            at: made.at,
            who: made.who,
            why: made.why,
            from: made.from,
            to: made.to,
            intervals: rows::number(row, "intervals")?,
            energy: rows::from_i64(row.get("energy_mj")?)?,
        }))
    };
    let found = rows::all(tx, sql, [hour(span.start()), hour(span.end())], correction)?;
    Ok(found.into_iter().flatten().collect())
}
