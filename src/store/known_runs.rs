//! Facts about a job's earlier runs: how long the job takes, and how much power it draws.

use rusqlite::{Connection, Row};

use super::profiles::keys_of;
use super::{Store, StoreError, rows};
use wattune_core::domain::{JobName, JobSpec, OperatingPoint, Work};
use wattune_core::profile::Record;
use wattune_core::units::{Samples, Seconds, Watts};

/// Duration, power and work of a job as known from its earlier runs. Duration and power are those at its fastest
/// measured setting.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct KnownRun {
    /// Duration; `None` if no run stated its total work, or none was measured.
    pub duration: Option<Seconds>,
    /// Mean power of all GPUs together; `None` if no run was measured.
    pub power: Option<Watts>,
    /// Measured operating points; empty if no run was measured.
    pub points: Vec<OperatingPoint>,
    /// Total work; `None` if no run stated it.
    pub work: Option<Samples>,
}

impl Store {
    /// Returns the data of the newest runs of the jobs with this name.
    pub async fn known_run(&self, name: &JobName) -> Result<KnownRun, StoreError> {
        let keys = keys_of(name)?;
        let name = name.as_str().to_owned();
        let find = move |db: &mut Connection| -> Result<_, StoreError> {
            let sql = "SELECT record FROM profiles WHERE key >= ?1 AND key < ?2 ORDER BY updated_us DESC LIMIT 1";
            let record = |row: &Row<'_>| rows::from_json::<Record>("profile", rows::text(row, "record")?);
            let record = rows::optional(db, sql, keys, record)?;
            let sql = "SELECT spec, progress FROM jobs WHERE json_extract(spec, '$.name') = ?1 \
                       ORDER BY registered_us DESC LIMIT 20";
            let work = |row: &Row<'_>| {
                let spec: JobSpec = rows::from_json("job", rows::text(row, "spec")?)?;
                let progress: super::StoredProgress = rows::from_json("job", rows::text(row, "progress")?)?;
                let registered = match spec.work {
                    Work::TotalSamples(total) => Some(total.get()),
                    Work::Unknown => None,
                };
                Ok::<_, StoreError>(progress.total_samples.or(registered))
            };
            let totals: Vec<Option<f64>> = rows::all(db, sql, [name], work)?;
            Ok((record, totals.into_iter().flatten().next()))
        };
        let (record, total) = self.short_reads.run(find).await?;
        let points = record.map(|record| record.measured()).unwrap_or_default();
        let usable = points.iter().filter(|point| point.is_usable());
        let fastest = usable.max_by(|a, b| speed(a).total_cmp(&speed(b)));
        let duration = fastest.zip(total).map(|(point, total)| Seconds::new(total / speed(point)));
        let power = fastest.map(|point| point.power.mean);
        Ok(KnownRun { duration, power, points, work: total.map(Samples::new) })
    }
}

fn speed(point: &OperatingPoint) -> f64 {
    point.throughput.mean.get()
}
