//! Between rows and domain types.

use chrono::{DateTime, TimeDelta, Utc};
use serde::Serialize;
use serde::de::DeserializeOwned;
use sqlx::Row;
use sqlx::sqlite::SqliteRow;

use super::{Checkpoint, StoreError, StoredJob};
use crate::domain::{DeviceId, EnergySource, JobId, Slot};
use crate::ledger::{Interval, Share};
use crate::units::Millijoules;

pub(super) fn damaged(what: &'static str, why: impl ToString) -> StoreError {
    StoreError::Damaged { what, why: why.to_string() }
}

pub(super) fn json<T: Serialize>(value: &T) -> Result<String, StoreError> {
    serde_json::to_string(value).map_err(|e| damaged("value", e))
}

pub(super) fn from_json<T: DeserializeOwned>(what: &'static str, text: &str) -> Result<T, StoreError> {
    serde_json::from_str(text).map_err(|e| damaged(what, e))
}

/// A unit variant's name, as serde spells it.
pub(super) fn name<T: Serialize>(value: &T) -> Result<String, StoreError> {
    Ok(json(value)?.trim_matches('"').to_owned())
}

pub(super) fn from_name<T: DeserializeOwned>(what: &'static str, text: String) -> Result<T, StoreError> {
    serde_json::from_value(serde_json::Value::String(text)).map_err(|e| damaged(what, e))
}

pub(super) fn to_i64(energy: Millijoules) -> Result<i64, StoreError> {
    i64::try_from(energy.get()).map_err(|e| damaged("energy", e))
}

pub(super) fn from_i64(energy: i64) -> Result<Millijoules, StoreError> {
    u64::try_from(energy).map(Millijoules::new).map_err(|e| damaged("energy", e))
}

pub(super) fn moment(us: i64) -> Result<DateTime<Utc>, StoreError> {
    DateTime::from_timestamp_micros(us).ok_or_else(|| damaged("time", us))
}

pub(super) fn slot(row: &SqliteRow) -> Result<Slot, StoreError> {
    let (start, end) = (moment(row.try_get("start_us")?)?, moment(row.try_get("end_us")?)?);
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

fn device(row: &SqliteRow) -> Result<DeviceId, StoreError> {
    DeviceId::new(row.try_get::<String, _>("device")?).map_err(|e| damaged("interval", e))
}

pub(super) fn interval(row: &SqliteRow) -> Result<Interval, StoreError> {
    Ok(Interval {
        device: device(row)?,
        share: share(&row.try_get::<String, _>("share")?, row.try_get("job_id")?)?,
        slot: slot(row)?,
        energy: from_i64(row.try_get("energy_mj")?)?,
        source: source(row)?,
    })
}

fn source(row: &SqliteRow) -> Result<EnergySource, StoreError> {
    let name: &str = row.try_get("source")?;
    let all = [EnergySource::Counter, EnergySource::IntegratedPower, EnergySource::CounterGap];
    all.into_iter()
        .find(|source| source.as_str() == name)
        .ok_or_else(|| damaged("interval", format!("source {name:?}")))
}

/// An hour's sum as an interval of that hour.
pub(super) fn rolled_up(row: &SqliteRow) -> Result<Interval, StoreError> {
    let hour = moment(row.try_get("hour_us")?)?;
    let job: String = row.try_get("job_id")?;
    Ok(Interval {
        device: device(row)?,
        share: share(&row.try_get::<String, _>("share")?, Some(job).filter(|j| !j.is_empty()))?,
        slot: Slot::new(hour, hour + TimeDelta::hours(1)).ok_or_else(|| damaged("slot", hour))?,
        energy: from_i64(row.try_get("energy_mj")?)?,
        source: source(row)?,
    })
}

pub(super) fn checkpoint(row: &SqliteRow) -> Result<Checkpoint, StoreError> {
    Ok(Checkpoint {
        device: device(row)?,
        counter: from_i64(row.try_get("counter_mj")?)?,
        at: moment(row.try_get("at_us")?)?,
        read_from: row.try_get("read_from")?,
        holders: from_json("checkpoint", &row.try_get::<String, _>("holders")?)?,
        rebased_mj: row.try_get("rebased_mj")?,
        estimated: from_i64(row.try_get("estimated_mj")?)?,
    })
}

pub(super) fn job(row: &SqliteRow) -> Result<StoredJob, StoreError> {
    let ended: Option<i64> = row.try_get("ended_us")?;
    let reason: Option<String> = row.try_get("end_reason")?;
    Ok(StoredJob {
        id: JobId::new(row.try_get::<String, _>("id")?).map_err(|e| damaged("job", e))?,
        spec: from_json("job", &row.try_get::<String, _>("spec")?)?,
        progress: from_json("job", &row.try_get::<String, _>("progress")?)?,
        registered_at: moment(row.try_get("registered_us")?)?,
        ended: ended.map(|us| Ok::<_, StoreError>((moment(us)?, reason.unwrap_or_default()))).transpose()?,
    })
}
