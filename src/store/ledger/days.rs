//! Totals of days, as reports tell them apart: tens of thousands of rows of a year.

use std::collections::{HashMap, hash_map};

use chrono::DateTime;
use rusqlite::Connection;

use super::report::{ends, whole_days};
use crate::store::{StoreError, rows};
use wattune_core::domain::{DeviceId, JobId, Slot};
use wattune_core::ledger::Total;
use wattune_core::ledger::report::{By, Sum, Whose};
use wattune_core::units::{Micrograms, Millijoules};

/// Sums over the whole days of a span. They come as one text, a line for each row, its fields set apart by spaces, which
/// no identifier has; in the table's own order, and added up here: to be grouped otherwise the database would sort them
/// all.
pub(super) fn days(tx: &Connection, span: &Slot, by: &By) -> Result<Vec<Sum>, StoreError> {
    let Some(days) = whole_days(span) else { return Ok(Vec::new()) };
    let columns = ["energy_mj", "estimated_mj", "forecast_mj", "provisional_mj", "final_mj", "unknown_mj", "carbon_ug"];
    let (job, sums, group) = if by.is_of_jobs() {
        ("job_id", columns.join(", "), "")
    } else {
        ("''", columns.map(|c| format!("SUM({c})")).join(", "), "GROUP BY day_us, book, device, share")
    };
    let sql = format!(
        "SELECT group_concat(line, char(10)) FROM (SELECT printf('%d %s %s %s %s %d %d %d %d %d %d %d', day_us, book, device, \
         share, {job}, {sums}) AS line FROM day_totals WHERE day_us >= ?1 AND day_us < ?2 {group})"
    );
    let text: Option<String> = rows::one(tx, &sql, ends(&days), rows::first)?;
    let (mut sums, mut places): (Vec<Sum>, HashMap<_, usize>) = (Vec::new(), HashMap::new());
    for line in text.as_deref().unwrap_or_default().lines() {
        let damaged = || rows::damaged("day's total", line);
        let day = DayLine::of(line).ok_or_else(damaged)?;
        let place = match places.entry(day.key(by)) {
            hash_map::Entry::Occupied(known) => *known.get(),
            hash_map::Entry::Vacant(new) => {
                sums.push(day.without_energy(by).ok_or_else(damaged)?);
                *new.insert(sums.len() - 1)
            }
        };
        let sum = &mut sums[place];
        *if day.book == "average" { &mut sum.average } else { &mut sum.marginal } += day.total;
    }
    sums.retain(|sum| sum.average.energy > Millijoules::ZERO || sum.marginal.energy > Millijoules::ZERO);
    Ok(sums)
}

/// A row of the days' totals.
struct DayLine<'a> {
    day_us: i64,
    book: &'a str,
    device: &'a str,
    share: &'a str,
    job: &'a str,
    total: Total,
}

impl<'a> DayLine<'a> {
    fn of(line: &'a str) -> Option<Self> {
        let mut fields = line.split(' ');
        let day_us = fields.next()?.parse().ok()?;
        let (book, device, share, job) = (fields.next()?, fields.next()?, fields.next()?, fields.next()?);
        let mut number = || fields.next()?.parse::<u64>().ok();
        let mut mj = || number().map(Millijoules::new);
        let (energy, estimated, forecast) = (mj()?, mj()?, mj()?);
        let (provisional, final_, unknown) = (mj()?, mj()?, mj()?);
        let total =
            Total { energy, estimated, forecast, provisional, final_, unknown, carbon: Micrograms::new(number()?) };
        Some(Self { day_us, book, device, share, job, total })
    }

    /// What a report tells apart: days and devices only where its rows are such, otherwise kinds of devices.
    fn key(&self, by: &By) -> (i64, &'a str, &'a str, &'a str) {
        let day = if matches!(by, By::Day | By::Month) { self.day_us } else { 0 };
        let kind = self.device.split_once(':').map_or("", |(kind, _)| kind);
        (day, if *by == By::Device { self.device } else { kind }, self.share, self.job)
    }

    fn without_energy(&self, by: &By) -> Option<Sum> {
        let whose = match self.share {
            "job" if by.is_of_jobs() => Whose::Job(JobId::new(self.job).ok()?),
            "job" => Whose::Jobs,
            "idle" => Whose::Idle,
            "unattributed" => Whose::Unattributed,
            _ => return None,
        };
        let (average, marginal) = (Total::default(), Total::default());
        let day = DateTime::from_timestamp_micros(self.day_us)?;
        Some(Sum { day, device: DeviceId::new(self.device).ok()?, whose, average, marginal })
    }
}
