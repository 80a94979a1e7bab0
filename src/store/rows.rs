//! Conversion between rows and domain types.

use chrono::{DateTime, TimeDelta, Utc};
use rusqlite::types::FromSql;
use rusqlite::{Connection, Params, Row, RowIndex};
use serde::Serialize;
use serde::de::{DeserializeOwned, value};

use super::StoreError;
use wattune_core::domain::{DeviceId, EnergySource, JobId, Slot};
use wattune_core::ledger::{Interval, Share};
use wattune_core::units::Millijoules;

/// Returns all rows that a query finds, converted by `of`.
pub(super) fn all<T>(
    db: &Connection,
    sql: &str,
    params: impl Params,
    of: impl FnMut(&Row<'_>) -> Result<T, StoreError>,
) -> Result<Vec<T>, StoreError> {
    db.prepare_cached(sql)?.query_and_then(params, of)?.collect()
}

/// Returns the rows that `of` can convert. For each other row, logs and returns a problem description that begins with
/// `what`, the kind of row, and ends with `advice`. The query must return a column `id`.
pub(super) fn readable<T>(
    db: &Connection,
    sql: &str,
    params: impl Params,
    what: &str,
    advice: &str,
    of: impl Fn(&Row<'_>) -> Result<T, StoreError>,
) -> Result<(Vec<T>, Vec<String>), StoreError> {
    let (mut read, mut problems) = (Vec::new(), Vec::new());
    let mut statement = db.prepare_cached(sql)?;
    let mut found = statement.query(params)?;
    while let Some(row) = found.next()? {
        match of(row) {
            Ok(value) => read.push(value),
            Err(error) => {
                let id =
                    String::from_utf8_lossy(row.get_ref("id")?.as_bytes_or_null().ok().flatten().unwrap_or_default());
                let problem = format!("{what} {id} is ignored, since its row is unreadable ({error}); {advice}");
                tracing::error!("{problem}");
                problems.push(problem);
            }
        }
    }
    Ok((read, problems))
}

/// Returns the first row that a query finds, converted by `of`; `None` if it finds no row.
pub(super) fn optional<T>(
    db: &Connection,
    sql: &str,
    params: impl Params,
    of: impl FnMut(&Row<'_>) -> Result<T, StoreError>,
) -> Result<Option<T>, StoreError> {
    db.prepare_cached(sql)?.query(params)?.next()?.map(of).transpose()
}

/// Returns the only row of a query that always finds one, such as a sum.
pub(super) fn one<T>(
    db: &Connection,
    sql: &str,
    params: impl Params,
    of: impl FnMut(&Row<'_>) -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    optional(db, sql, params, of)?.ok_or_else(|| rusqlite::Error::QueryReturnedNoRows.into())
}

pub(super) fn first<T: FromSql>(row: &Row<'_>) -> Result<T, StoreError> {
    Ok(row.get(0)?)
}

/// Executes a statement. Returns the number of rows that it changed.
pub(super) fn execute(db: &Connection, sql: &str, params: impl Params) -> Result<usize, StoreError> {
    Ok(db.prepare_cached(sql)?.execute(params)?)
}

/// Returns a column's text without copying it.
pub(super) fn text<'a>(row: &'a Row<'_>, column: impl RowIndex) -> Result<&'a str, StoreError> {
    row.get_ref(column)?.as_str().map_err(|error| damaged("text", error))
}

pub(super) fn damaged(what: &'static str, why: impl ToString) -> StoreError {
    StoreError::Damaged { what, why: why.to_string() }
}

pub(super) fn json<T: Serialize>(value: &T) -> Result<String, StoreError> {
    serde_json::to_string(value).map_err(|e| damaged("value", e))
}

pub(super) fn from_json<T: DeserializeOwned>(what: &'static str, text: &str) -> Result<T, StoreError> {
    serde_json::from_str(text).map_err(|e| damaged(what, e))
}

/// Returns the name of an enum variant without data, as serde writes it.
pub(super) fn name<T: Serialize>(value: &T) -> Result<String, StoreError> {
    Ok(json(value)?.trim_matches('"').to_owned())
}

/// Returns the value that serde writes as the text `name`, such as an enum variant without data.
pub(super) fn from_name<T: DeserializeOwned>(what: &'static str, name: &str) -> Result<T, StoreError> {
    T::deserialize(value::StrDeserializer::<value::Error>::new(name)).map_err(|e| damaged(what, e))
}

pub(super) fn to_i64(energy: Millijoules) -> Result<i64, StoreError> {
    signed(energy.get())
}

pub(super) fn from_i64(energy: i64) -> Result<Millijoules, StoreError> {
    unsigned(energy).map(Millijoules::new)
}

/// Returns the start and the end of a span, in microseconds, as rows and queries have them.
pub(super) fn ends(span: &Slot) -> [i64; 2] {
    [span.start(), span.end()].map(|t| t.timestamp_micros())
}

/// Returns the number in a column; a negative one is an error.
pub(super) fn number(row: &Row<'_>, column: impl RowIndex) -> Result<u64, StoreError> {
    unsigned(row.get(column)?)
}

pub(super) fn unsigned(number: i64) -> Result<u64, StoreError> {
    u64::try_from(number).map_err(|e| damaged("number", e))
}

pub(super) fn signed(number: u64) -> Result<i64, StoreError> {
    i64::try_from(number).map_err(|e| damaged("number", e))
}

pub(super) fn time(us: i64) -> Result<DateTime<Utc>, StoreError> {
    DateTime::from_timestamp_micros(us).ok_or_else(|| damaged("time", us))
}

pub(super) fn slot(row: &Row<'_>) -> Result<Slot, StoreError> {
    let (start, end) = (time(row.get("start_us")?)?, time(row.get("end_us")?)?);
    Slot::new(start, end).ok_or_else(|| damaged("slot", format!("{start} is not before {end}")))
}

pub(super) fn share_columns(share: &Share) -> (&'static str, Option<&str>) {
    match share {
        Share::Job(id) => ("job", Some(id.as_str())),
        Share::Idle => ("idle", None),
        Share::Unattributed => ("unattributed", None),
    }
}

pub(super) fn share(name: &str, job: Option<String>) -> Result<Share, StoreError> {
    match (name, job) {
        ("job", Some(id)) => Ok(Share::Job(JobId::new(id).map_err(|e| damaged("interval", e))?)),
        ("idle", None) => Ok(Share::Idle),
        ("unattributed", None) => Ok(Share::Unattributed),
        (other, _) => Err(damaged("interval", format!("share {other:?}"))),
    }
}

pub(super) fn device(row: &Row<'_>) -> Result<DeviceId, StoreError> {
    DeviceId::new(row.get::<_, String>("device")?).map_err(|e| damaged("interval", e))
}

pub(super) fn interval(row: &Row<'_>) -> Result<Interval, StoreError> {
    Ok(Interval {
        device: device(row)?,
        share: share(text(row, "share")?, row.get("job_id")?)?,
        slot: slot(row)?,
        energy: from_i64(row.get("energy_mj")?)?,
        source: source(row)?,
    })
}

pub(super) fn source(row: &Row<'_>) -> Result<EnergySource, StoreError> {
    from_name("interval", text(row, "source")?)
}

/// Returns the energy sum of an hour, from a row of the table `rolled_up`, as one interval of that hour.
pub(super) fn rolled_up(row: &Row<'_>) -> Result<Interval, StoreError> {
    let hour = time(row.get("hour_us")?)?;
    let job: String = row.get("job_id")?;
    Ok(Interval {
        device: device(row)?,
        share: share(text(row, "share")?, Some(job).filter(|j| !j.is_empty()))?,
        slot: Slot::new(hour, hour + TimeDelta::hours(1)).ok_or_else(|| damaged("slot", hour))?,
        energy: from_i64(row.get("energy_mj")?)?,
        source: source(row)?,
    })
}
