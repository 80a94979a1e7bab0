//! Energy and emissions of settled hours (hours whose emissions are computed): by day, and by single hours at the edges
//! of a span.

use chrono::{DateTime, Utc};
use rusqlite::{Connection, Row, params};

use super::settlements::settled_within;
use crate::store::{Store, StoreError, rows};
use wattune_core::domain::{DeviceId, SignalKind, Slot};
use wattune_core::ledger::apportion::day_of;
use wattune_core::ledger::entry::Part;
use wattune_core::ledger::report::span::{edges, whole_days};
use wattune_core::ledger::report::{DaySums, DayTotal, Grouping, Sum};
use wattune_core::ledger::{Share, Total};
use wattune_core::units::Millijoules;

/// Columns of the figures of a [`Total`], in the order of [`Total::of_figures`].
const FIGURES: [&str; 7] =
    ["energy_mj", "estimated_mj", "forecast_mj", "provisional_mj", "final_mj", "unknown_mj", "carbon_ug"];

/// Energy and emissions of a share (who the energy belongs to) within a UTC day or a part of it.
#[derive(Clone, Debug, PartialEq)]
pub struct SettledTotal {
    /// Start of the UTC day.
    pub day: DateTime<Utc>,
    /// Kind of carbon intensity by which the emissions are computed.
    pub kind: SignalKind,
    /// Device that used the energy.
    pub device: DeviceId,
    /// Owner of the energy: a job, idle or unattributed.
    pub share: Share,
    /// Energy and emissions.
    pub total: Total,
}

impl Store {
    /// Returns the stored totals of energy and emissions of the hours in `span`, by day, kind, device and share. Whole
    /// days come from the daily totals, other hours from their settlements (stored emissions of an hour).
    pub async fn settled_totals(&self, span: &Slot) -> Result<Vec<SettledTotal>, StoreError> {
        let span = *span;
        self.short_reads.run(move |db| settled_totals(&*db.transaction()?, &span)).await
    }

    /// Returns the total energy and emissions of settled hours (hours with stored emissions), by one kind of carbon
    /// intensity, from the UTC day that begins at `day` on.
    pub async fn settled_since(&self, day: DateTime<Utc>, kind: SignalKind) -> Result<Total, StoreError> {
        let sums = FIGURES.map(|column| format!("COALESCE(SUM({column}), 0) AS {column}")).join(", ");
        let sql = format!("SELECT {sums} FROM day_totals WHERE day_us >= ?1 AND book = ?2");
        let kind = kind.as_str();
        self.short_reads.run(move |db| rows::one(db, &sql, params![day.timestamp_micros(), kind], total)).await
    }
}

fn settled_totals(tx: &Connection, span: &Slot) -> Result<Vec<SettledTotal>, StoreError> {
    let mut found = Vec::new();
    if let Some(days) = whole_days(span) {
        let sql = "SELECT * FROM day_totals WHERE day_us >= ?1 AND day_us < ?2 ORDER BY day_us, book, device";
        found = rows::all(tx, sql, rows::ends(&days), of_day)?;
    }
    for edge in edges(span) {
        for settled in settled_within(tx, &edge)? {
            let of_part = |(part, total): (&Part, Total)| SettledTotal {
                day: day_of(settled.hour),
                kind: settled.kind,
                device: part.device.clone(),
                share: part.share.clone(),
                total,
            };
            found.extend(settled.totals().map(of_part));
        }
    }
    found.retain(|settled| settled.total.energy > Millijoules::ZERO);
    Ok(found)
}

fn of_day(row: &Row<'_>) -> Result<SettledTotal, StoreError> {
    let job: String = row.get("job_id")?;
    Ok(SettledTotal {
        day: rows::time(row.get("day_us")?)?,
        kind: rows::from_name("day's total", rows::text(row, "book")?)?,
        device: DeviceId::new(row.get::<_, String>("device")?).map_err(|e| rows::damaged("day's total", e))?,
        share: rows::share(rows::text(row, "share")?, Some(job).filter(|j| !j.is_empty()))?,
        total: total(row)?,
    })
}

fn total(row: &Row<'_>) -> Result<Total, StoreError> {
    let mut figures = [0; 7];
    for (figure, column) in figures.iter_mut().zip(FIGURES) {
        *figure = rows::number(row, column)?;
    }
    Ok(Total::of_figures(figures))
}

/// Returns the sums over the whole UTC days of a span. The database returns all rows as one text, with a line per row
/// and fields separated by spaces, which no identifier contains. The lines are in the order of the table and are summed
/// for the grouping `by` here, because the database would have to sort them first.
pub(super) fn days(tx: &Connection, span: &Slot, by: &Grouping) -> Result<Vec<Sum>, StoreError> {
    let Some(days) = whole_days(span) else { return Ok(Vec::new()) };
    let (job, sums, group) = if by.is_of_jobs() {
        ("job_id", FIGURES.join(", "), "")
    } else {
        ("''", FIGURES.map(|c| format!("SUM({c})")).join(", "), "GROUP BY day_us, book, device, share")
    };
    let sql = format!(
        "SELECT group_concat(line, char(10)) FROM (SELECT printf('%d %s %s %s %s %d %d %d %d %d %d %d', day_us, book, device, \
         share, {job}, {sums}) AS line FROM day_totals WHERE day_us >= ?1 AND day_us < ?2 {group})"
    );
    let text: Option<String> = rows::one(tx, &sql, rows::ends(&days), rows::first)?;
    let mut sums = DaySums::new(by);
    for line in text.as_deref().unwrap_or_default().lines() {
        let added = day_total(line).and_then(|day| sums.add(&day));
        added.ok_or_else(|| rows::damaged("day's total", line))?;
    }
    Ok(sums.finish())
}

fn day_total(line: &str) -> Option<DayTotal<'_>> {
    let mut fields = line.split(' ');
    let day = DateTime::from_timestamp_micros(fields.next()?.parse().ok()?)?;
    let is_average = fields.next()? == SignalKind::Average.as_str();
    let (device, share, job) = (fields.next()?, fields.next()?, fields.next()?);
    let mut figures = [0; 7];
    for figure in &mut figures {
        *figure = fields.next()?.parse().ok()?;
    }
    Some(DayTotal { day, is_average, device, share, job, total: Total::of_figures(figures) })
}
