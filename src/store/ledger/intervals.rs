//! Queries for recorded intervals. Old intervals, which were rolled up (summed) to hours, are returned as intervals of
//! an hour.

use chrono::{DateTime, TimeDelta, Utc};
use rusqlite::{Connection, ToSql, params, params_from_iter};

use super::chain::INTERVAL;
use crate::store::{Store, StoreError, rows};
use wattune_core::domain::{DeviceId, GpuId, JobId, Slot};
use wattune_core::ledger::Interval;

impl Store {
    /// Returns the end of a device's last interval; `None` if the device has none in the last week of the ledger. The
    /// query scans the intervals of all devices.
    pub async fn recorded_until(&self, device: &DeviceId) -> Result<Option<DateTime<Utc>>, StoreError> {
        let sql = "SELECT end_us FROM intervals WHERE device = $1 AND start_us > \
                   (SELECT MAX(start_us) FROM intervals) - 604800000000 ORDER BY start_us DESC LIMIT 1";
        let device = device.clone();
        self.short_reads.run(move |db| rows::optional(db, sql, [device.as_str()], |row| rows::time(row.get(0)?))).await
    }

    /// Returns the intervals of a job, oldest first; rolled-up hours are returned as intervals of an hour.
    pub async fn intervals_of(&self, job: &JobId) -> Result<Vec<Interval>, StoreError> {
        let (hours, single) = ("job_id = ?1 ORDER BY hour_us", "job_id = ?1 ORDER BY start_us, id");
        self.intervals_where(hours, single, vec![job.to_string()]).await
    }

    /// Returns the intervals that belong to any job and overlap a span: first rolled-up hours, then single intervals,
    /// each oldest first.
    pub async fn intervals_of_jobs(&self, span: &Slot) -> Result<Vec<Interval>, StoreError> {
        let hours = "job_id <> '' AND hour_us < ?2 AND hour_us > ?1 - 3600000000 ORDER BY hour_us";
        let single = "job_id IS NOT NULL AND start_us < ?2 AND end_us > ?1 ORDER BY start_us, id";
        self.intervals_where(hours, single, rows::ends(span).to_vec()).await
    }

    /// Returns the intervals that belong to any job and begin within the hour that starts at `hour`.
    pub async fn job_rows_of(&self, hour: DateTime<Utc>) -> Result<Vec<Interval>, StoreError> {
        let hours = "job_id <> '' AND hour_us = ?1";
        let single = "start_us >= ?1 AND start_us < ?1 + 3600000000 AND job_id IS NOT NULL ORDER BY id";
        self.intervals_where(hours, single, vec![hour.timestamp_micros()]).await
    }

    /// Returns the rolled-up hours and then the single intervals that these two conditions select. Each condition must
    /// use all parameters.
    async fn intervals_where(
        &self,
        hours: &str,
        single: &str,
        parameters: Vec<impl ToSql + Send + 'static>,
    ) -> Result<Vec<Interval>, StoreError> {
        let hours = format!("SELECT * FROM rolled_up WHERE {hours}");
        let single = format!("SELECT {INTERVAL} FROM intervals WHERE {single}");
        let read = move |db: &mut Connection| {
            let tx = db.transaction()?;
            let mut found = rows::all(&tx, &hours, params_from_iter(&parameters), rows::rolled_up)?;
            found.extend(rows::all(&tx, &single, params_from_iter(&parameters), rows::interval)?);
            Ok(found)
        };
        self.short_reads.run(read).await
    }

    /// Returns true if some of a job's intervals were rolled up to hours.
    pub async fn is_rolled_up(&self, job: &JobId) -> Result<bool, StoreError> {
        let sql = "SELECT EXISTS (SELECT 1 FROM rolled_up WHERE job_id = ?1)";
        let job = job.clone();
        self.short_reads.run(move |db| rows::one(db, sql, [job.as_str()], rows::first)).await
    }

    /// Returns true if some of the energy that a GPU used in a span does not belong to this job.
    pub async fn was_shared(&self, gpu: &GpuId, job: &JobId, span: &Slot) -> Result<bool, StoreError> {
        // No interval is longer than an hour, so that earlier ones need not be searched.
        let earliest = span.start() - TimeDelta::hours(1);
        let sql = "SELECT EXISTS (SELECT 1 FROM intervals WHERE device = ?1 AND job_id IS NOT ?2 AND start_us < ?3 \
                   AND end_us > ?4 AND start_us >= ?5)";
        let (gpu, job) = (gpu.clone(), job.clone());
        let [end, start, earliest] = [span.end(), span.start(), earliest].map(|t| t.timestamp_micros());
        let shared = move |db: &mut Connection| {
            rows::one(db, sql, params![gpu.as_str(), job.as_str(), end, start, earliest], rows::first)
        };
        self.short_reads.run(shared).await
    }
}
