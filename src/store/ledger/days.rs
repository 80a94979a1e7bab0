//! Daily totals for reports: tens of thousands of rows for a year.

use chrono::DateTime;
use rusqlite::Connection;

use super::report::ends;
use super::totals::FIGURES;
use crate::store::{StoreError, rows};
use wattune_core::domain::{SignalKind, Slot};
use wattune_core::ledger::Total;
use wattune_core::ledger::report::span::whole_days;
use wattune_core::ledger::report::{DaySums, DayTotal, Grouping, Sum};

/// Returns the sums over the whole days of a span. The database returns one text with a line per row and fields
/// separated by spaces, which no identifier contains. Lines are in the table's order and are added up here, because the
/// database would have to sort them for another grouping.
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
    let text: Option<String> = rows::one(tx, &sql, ends(&days), rows::first)?;
    let mut sums = DaySums::new(by);
    for line in text.as_deref().unwrap_or_default().lines() {
        let added = day_total(line).and_then(|day| sums.add(&day));
        added.ok_or_else(|| rows::damaged("day's total", line))?;
    }
    Ok(sums.finish())
}

/// Parses a row of the daily totals.
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
