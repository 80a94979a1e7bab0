//! Corrections: closed intervals are given to somebody else, in a new entry; what was booked stays as it was.

use std::collections::BTreeSet;

use chrono::{DateTime, Utc};
use rusqlite::{Connection, Row, params};

use super::{INTERVAL, Why, append_entry, settle};
use crate::store::connection::writing;
use crate::store::{Store, StoreError, rows};
use wattune_core::domain::{DeviceId, JobId, Slot};
use wattune_core::ledger::Share;
use wattune_core::ledger::apportion::hour_of;
use wattune_core::ledger::entry::{Corrected, Correction, Entry};
use wattune_core::ledger::report;
use wattune_core::units::Millijoules;

/// What is to be corrected, by whom and why.
#[derive(Clone, Debug, PartialEq)]
pub struct ToCorrect {
    /// Of which device; of all if absent.
    pub device: Option<DeviceId>,
    /// Intervals that lie within this.
    pub span: Slot,
    /// Whose they are.
    pub from: Share,
    /// Whose they should be.
    pub to: Share,
    /// Who says so.
    pub who: String,
    /// Why.
    pub why: String,
    /// When.
    pub at: DateTime<Utc>,
}

/// What was corrected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Done {
    /// The correction's number in the ledger.
    pub entry: u64,
    /// How many intervals it is of.
    pub rows: u64,
    /// Their energy.
    pub energy: Millijoules,
    /// Which devices' they are.
    pub devices: BTreeSet<DeviceId>,
    /// The hours that are settled anew.
    pub hours: Vec<DateTime<Utc>>,
}

/// Why nothing was corrected.
#[derive(Debug, thiserror::Error)]
pub enum CorrectionError {
    /// Both shares are the same.
    #[error("nothing would change: the intervals are and would be the same share's")]
    Same,
    /// No interval is meant.
    #[error("no closed interval of that share lies within {0}; the last hour's can be corrected once it is over")]
    Nothing(Slot),
    /// Its intervals are gone.
    #[error(
        "the intervals of {hour} and other hours were rolled up: only their sums are left, and sums are not corrected. Correct \
         intervals before ledger.keep_intervals_days are over, or choose a later --from"
    )]
    RolledUp {
        /// The first such hour.
        hour: String,
    },
    /// Nothing of that device is in a closed block.
    #[error("there is no device {given} in the books that are closed; they have {known}")]
    NoDevice {
        /// What was given.
        given: DeviceId,
        /// Those of which something was booked.
        known: String,
    },
    /// There is no such job.
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
    /// Gives closed intervals to somebody else. Their hours are due to be settled anew afterwards.
    ///
    /// # Errors
    /// If that makes no sense or cannot be done; then nothing was changed.
    pub async fn correct(&self, wish: &ToCorrect) -> Result<Done, CorrectionError> {
        if wish.from == wish.to {
            return Err(CorrectionError::Same);
        }
        if let Share::Job(id) = &wish.to
            && self.job(id).await?.is_none()
        {
            return Err(CorrectionError::NoJob(id.clone()));
        }
        let wish = wish.clone();
        self.write.run(move |db| correct(db, &wish)).await
    }
}

fn correct(db: &mut Connection, wish: &ToCorrect) -> Result<Done, CorrectionError> {
    let tx = writing(db)?;
    let (start, end) = (wish.span.start().timestamp_micros(), wish.span.end().timestamp_micros());
    let (share, job) = rows::share_columns(&wish.from);
    let device = wish.device.as_ref().map(DeviceId::as_str);
    let sql = "SELECT MIN(hour_us) FROM rolled_up WHERE hour_us + 3600000000 > ?1 AND hour_us < ?2 AND share = ?3 \
               AND job_id = ?4 AND (?5 IS NULL OR device = ?5)";
    let columns = params![start, end, share, job.unwrap_or_default(), device];
    let rolled: Option<i64> = rows::one(&tx, sql, columns, rows::first)?;
    if let Some(hour) = rolled {
        let hour = rows::moment(hour)?.format("%FT%H:%MZ").to_string();
        return Err(CorrectionError::RolledUp { hour });
    }
    let sql = format!(
        "SELECT id, {INTERVAL} FROM intervals WHERE start_us >= ?1 AND start_us < ?2 AND end_us <= ?2 AND share = ?3 \
         AND job_id IS ?4 AND (?5 IS NULL OR device = ?5) \
         AND block <= (SELECT MAX(block) FROM balances) ORDER BY id"
    );
    let corrected = rows::all(&tx, &sql, params![start, end, share, job, device], corrected)?;
    if corrected.is_empty() {
        let sql = "SELECT DISTINCT device FROM balances ORDER BY device";
        let known: Vec<String> = rows::all(&tx, sql, [], rows::first)?;
        return Err(match &wish.device {
            Some(given) if !known.is_empty() && known.iter().all(|device| device != given.as_str()) => {
                CorrectionError::NoDevice { given: given.clone(), known: known.join(", ") }
            }
            _ => CorrectionError::Nothing(wish.span),
        });
    }
    let (share, job) = rows::share_columns(&wish.to);
    for row in &corrected {
        let sql = "UPDATE intervals SET booked_job = CASE WHEN booked_share IS NULL THEN job_id ELSE booked_job END, \
                   booked_share = COALESCE(booked_share, share), share = ?1, job_id = ?2 WHERE id = ?3";
        let id = i64::try_from(row.row).map_err(|e| rows::damaged("interval", e))?;
        rows::execute(&tx, sql, params![share, job, id])?;
    }
    let mut hours: Vec<DateTime<Utc>> = corrected.iter().map(|row| row.hour).collect();
    hours.sort_unstable();
    hours.dedup();
    for hour in &hours {
        settle::make_due(&tx, *hour, Why::Correction)?;
    }
    let devices = corrected.iter().map(|row| row.device.clone()).collect();
    let (rows, energy) = (corrected.len() as u64, corrected.iter().map(|row| row.energy_mj).sum());
    let entry = Entry::Correction(Correction {
        at: wish.at,
        who: wish.who.clone(),
        why: wish.why.clone(),
        from: wish.from.clone(),
        to: wish.to.clone(),
        rows: corrected,
    });
    let seq = append_entry(&tx, &entry)?;
    tx.commit()?;
    let entry = u64::try_from(seq).map_err(|e| rows::damaged("ledger", e))?;
    Ok(Done { entry, rows, energy, devices, hours })
}

fn corrected(row: &Row<'_>) -> Result<Corrected, StoreError> {
    let interval = rows::interval(row)?;
    let id: i64 = row.get("id")?;
    Ok(Corrected {
        row: u64::try_from(id).map_err(|e| rows::damaged("interval", e))?,
        device: interval.device,
        hour: hour_of(interval.slot.start()),
        source: interval.source,
        energy_mj: interval.energy,
    })
}

/// The corrections of intervals that begin in a span of full hours, oldest first.
pub(super) fn corrections_within(tx: &Connection, span: &Slot) -> Result<Vec<report::Correction>, StoreError> {
    let sql = "SELECT seq, json_set(line, '$.rows', json('[]')) AS line, COUNT(*) AS intervals, \
               SUM(corrected.value ->> '$.energy_mj') AS energy_mj \
               FROM ledger, json_each(line, '$.rows') AS corrected WHERE kind = 'correction' \
               AND corrected.value ->> '$.hour' >= ?1 AND corrected.value ->> '$.hour' < ?2 GROUP BY seq ORDER BY seq";
    // Full hours are written alike, and sort as texts.
    let hour = |t: DateTime<Utc>| t.format("%FT%TZ").to_string();
    let correction = |row: &Row<'_>| {
        let Entry::Correction(made) = rows::from_json("ledger", rows::text(row, "line")?)? else { return Ok(None) };
        let number = |name: &str| u64::try_from(row.get::<_, i64>(name)?).map_err(|e| rows::damaged("ledger", e));
        Ok::<_, StoreError>(Some(report::Correction {
            entry: number("seq")?,
            at: made.at,
            who: made.who,
            why: made.why,
            from: made.from,
            to: made.to,
            intervals: number("intervals")?,
            energy: rows::from_i64(row.get("energy_mj")?)?,
        }))
    };
    let found = rows::all(tx, sql, [hour(span.start()), hour(span.end())], correction)?;
    Ok(found.into_iter().flatten().collect())
}
