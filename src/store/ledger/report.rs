//! Data of a report, read as of one moment: for a year within a fraction of a second.
//!
//! The database sums its rows and returns them as one text each: thousands of single rows would take several times as
//! long.

use std::collections::{BTreeMap, BTreeSet, btree_map};

use chrono::TimeDelta;
use rusqlite::{Connection, Row};
use serde::Deserialize;

use super::correct::corrections_within;
use super::days::days;
use super::first_seen::first_seen;
use super::restated::version;
use super::settle::{settlement, sources_with_earlier};
use super::{INTERVAL, closed_blocks, day_balance, lines};
use crate::store::signals;
use crate::store::{SourceKey, Store, StoreError, StoredProgress, rows};
use wattune_core::domain::{DeviceId, GpuId, JobId, JobName, SignalKind, Slot};
use wattune_core::ledger::block;
use wattune_core::ledger::confidence::ConfidenceInterval;
use wattune_core::ledger::due::DueReason;
use wattune_core::ledger::entry::{Balance, Entry, Settlement, Terms};
use wattune_core::ledger::hour::has_begun;
use wattune_core::ledger::report::span::{by_boundary, edges, in_force, whole_days};
use wattune_core::ledger::report::{
    self, BoundaryPeriod, DeviceBalance, Gap, JobFacts, LedgerData, NewestOutcome, Owner, Report, ReportRequest, Saved,
    Sum, Unsettled, build, unsettled_after,
};
use wattune_core::ledger::sources::{NO_SOURCE, is_synthetic, keys_of, kinds_of};
use wattune_core::ledger::{Interval, Share};

impl Store {
    /// Returns a report of a span of whole UTC hours.
    ///
    /// # Errors
    /// If they cannot be read.
    pub async fn report(&self, request: ReportRequest) -> Result<Report, StoreError> {
        let read = move |db: &mut Connection| {
            let data = ledger_data(&*db.transaction()?, &request)?;
            Ok::<_, StoreError>((request, data))
        };
        let (request, data) = self.reports.run(read).await?;
        Ok(build(request, data))
    }

    /// Returns the jobs that overlap a span.
    ///
    /// # Errors
    /// If they cannot be read.
    pub async fn jobs_within(&self, span: &Slot) -> Result<Vec<JobFacts>, StoreError> {
        let span = *span;
        self.reports.run(move |db| jobs(&*db.transaction()?, &span, &BTreeSet::new())).await
    }

    /// Returns the sources of the newest settlement of a kind; before the first one, those of the newest value.
    ///
    /// # Errors
    /// If they cannot be read.
    pub async fn latest_sources(&self, kind: SignalKind) -> Result<Vec<SourceKey>, StoreError> {
        self.reports.run(move |db| latest_sources(&*db.transaction()?, kind)).await
    }
}

fn ledger_data(tx: &Connection, request: &ReportRequest) -> Result<LedgerData, StoreError> {
    let span = &request.span;
    let terms = terms(tx, span)?;
    let mut periods = Vec::new();
    for (part, boundary) in by_boundary(&terms, span) {
        let mut sums = days(tx, &part, &request.by)?;
        for edge in edges(&part) {
            sums.extend(holding_within(tx, &edge)?.iter().flat_map(Settlement::sums));
        }
        periods.push(BoundaryPeriod { span: part, boundary, sums });
    }
    let hours = settled_hours(tx, span)?;
    let open = open_rows(tx, span)?;
    let of_sum = |sum: &Sum| if let Owner::Job(id) = &sum.owner { Some(id.clone()) } else { None };
    let of_row = |row: &Interval| if let Share::Job(id) = &row.share { Some(id.clone()) } else { None };
    let holders = periods.iter().flat_map(|p| &p.sums).filter_map(of_sum).chain(open.iter().filter_map(of_row));
    let mut holders: BTreeSet<JobId> = holders.collect();
    if !request.by.is_of_jobs() {
        holders.extend(holders_of_days(tx, span)?);
    }
    let sources = sources(tx, span)?;
    let mut data = LedgerData {
        periods,
        jobs: jobs(tx, span, &holders)?,
        holders,
        devices: balances(tx, span)?,
        gaps: gaps(tx, span)?,
        first_seen: first_seen(tx, &open)?,
        terms,
        synthetic: sources.iter().any(|(name, _)| is_synthetic(name)),
        sources,
        recorded_span: hours.0.and_then(|span| Slot::new(span.start(), span.end().min(request.now))),
        hours_with_energy: hours.1,
        unsettled: open.iter().map(|row| row.energy).sum(),
        version: version(tx, request)?,
        corrections: corrections_within(tx, span)?,
    };
    add_unsettled(tx, &mut data, &open, request)?;
    Ok(data)
}

/// Computes the emissions of unsettled energy in memory.
fn add_unsettled(
    tx: &Connection,
    data: &mut LedgerData,
    open: &[Interval],
    request: &ReportRequest,
) -> Result<(), StoreError> {
    let unsettled = Unsettled::of(open);
    let Some(span) = unsettled.span() else { return Ok(()) };
    let hours: Vec<i64> = unsettled.hours().map(|hour| hour.timestamp_micros()).collect();
    let sql = "SELECT COUNT(*) FROM settled WHERE book = 'average' AND hour_us IN (SELECT value FROM json_each(?1))";
    let settled: i64 = rows::one(tx, sql, [rows::json(&hours)?], rows::first)?;
    data.add_hours(&unsettled, u64::try_from(settled).unwrap_or_default(), request.now);
    for kind in [SignalKind::Average, SignalKind::Marginal] {
        let sources = latest_sources(tx, kind)?;
        if has_begun(kind, &sources, None) {
            let sources = sources_with_earlier(tx, kind, &sources, &[], &span)?;
            data.add_emissions(&unsettled, kind, &signals::factors(tx, &sources, &span)?);
        }
    }
    Ok(())
}

fn latest_sources(tx: &Connection, kind: SignalKind) -> Result<Vec<SourceKey>, StoreError> {
    let sql = "SELECT seq, line FROM settled JOIN ledger USING (seq) WHERE book = ?1 AND sources <> ?2 \
               ORDER BY hour_us DESC LIMIT 1";
    if let Some(newest) = rows::optional(tx, sql, [kind.as_str(), NO_SOURCE], settlement)? {
        return Ok(keys_of(kind, &newest.factors));
    }
    for accepted in kinds_of(kind) {
        // Limit the search to two days: without values of that kind it would scan all values.
        let sql = "SELECT source, zone, scope FROM intensities WHERE kind = ?1 AND end_us > \
                   (SELECT MAX(end_us) FROM intensities) - 172800000000 ORDER BY +id DESC LIMIT 1";
        let key = |row: &Row<'_>| {
            Ok::<_, StoreError>(SourceKey {
                source: row.get("source")?,
                zone: rows::from_name("intensity", row.get("zone")?)?,
                kind: *accepted,
                scope: rows::from_name("intensity", row.get("scope")?)?,
            })
        };
        if let Some(key) = rows::optional(tx, sql, [accepted.as_str()], key)? {
            return Ok(vec![key]);
        }
    }
    Ok(Vec::new())
}

/// Returns the terms in force in a span, oldest first.
fn terms(tx: &Connection, span: &Slot) -> Result<Vec<Terms>, StoreError> {
    let sql = "SELECT seq, line FROM ledger WHERE kind = 'terms' ORDER BY seq";
    let of_entry = |entry| if let Entry::Terms(terms) = entry { Some(terms) } else { None };
    Ok(in_force(rows::all(tx, sql, [], lines::entry)?.into_iter().filter_map(of_entry), span))
}

/// Returns the newest settlements of a few hours.
pub(super) fn holding_within(tx: &Connection, span: &Slot) -> Result<Vec<Settlement>, StoreError> {
    let sql = "SELECT seq, line FROM settled JOIN ledger USING (seq) WHERE hour_us >= ?1 AND hour_us < ?2";
    rows::all(tx, sql, ends(span), settlement)
}

/// Returns the recorded energy of a span that is in no settlement: that of the open block, and of due hours.
pub(super) fn open_rows(tx: &Connection, span: &Slot) -> Result<Vec<Interval>, StoreError> {
    let [start, end] = ends(span);
    let closed = closed_blocks(tx)?;
    // Select an hour's rows by block: the plus prevents use of the index on time, which would find all rows of the
    // span.
    let sql = format!(
        "SELECT {INTERVAL} FROM intervals WHERE block > ?1 AND +start_us >= ?2 AND +start_us < ?3 ORDER BY block, id"
    );
    let mut found = rows::all(tx, &sql, [closed, start, end], rows::interval)?;
    let sql = "SELECT due.hour_us, why, through_block FROM due \
               LEFT JOIN settled ON settled.hour_us = due.hour_us AND book = 'average' \
               WHERE due.hour_us >= ?1 AND due.hour_us < ?2";
    let of_due = |row: &Row<'_>| {
        let why = DueReason::named(rows::text(row, 1)?).unwrap_or(DueReason::Energy);
        let through: Option<i64> = row.get(2)?;
        let through = through.map(u64::try_from).transpose().map_err(|e| rows::damaged("settlement", e))?;
        Ok::<(i64, Option<u64>), StoreError>((row.get(0)?, unsettled_after(why, through)))
    };
    // Select by hour: the pluses prevent use of the index on blocks, which would find all rows of the hour's blocks.
    let sql_of_hour = format!(
        "SELECT {INTERVAL} FROM intervals WHERE start_us >= ?1 AND start_us < ?1 + 3600000000 AND +block > ?2 AND +block <= ?3"
    );
    for (hour, after) in rows::all(tx, sql, [start, end], of_due)? {
        let Some(after) = after else { continue };
        let after = i64::try_from(after).map_err(|e| rows::damaged("settlement", e))?;
        found.extend(rows::all(tx, &sql_of_hour, [hour, after, closed], rows::interval)?);
    }
    Ok(found)
}

/// Returns the time from the first to the last settled hour of a span, and the number of settled hours.
fn settled_hours(tx: &Connection, span: &Slot) -> Result<(Option<Slot>, u64), StoreError> {
    let sql = "SELECT MIN(hour_us), MAX(hour_us), COUNT(*) FROM settled \
               WHERE book = 'average' AND hour_us >= ?1 AND hour_us < ?2";
    let hours =
        |row: &Row<'_>| Ok::<(Option<i64>, Option<i64>, i64), StoreError>((row.get(0)?, row.get(1)?, row.get(2)?));
    let (first, last, hours) = rows::one(tx, sql, ends(span), hours)?;
    let hours = u64::try_from(hours).map_err(|e| rows::damaged("ledger", e))?;
    let Some((first, last)) = first.zip(last) else { return Ok((None, hours)) };
    Ok((Slot::new(rows::moment(first)?, rows::moment(last)? + TimeDelta::hours(1)), hours))
}

/// Returns a span's start and end as the first two parameters of a query.
pub(super) fn ends(span: &Slot) -> [i64; 2] {
    [span.start(), span.end()].map(|t| t.timestamp_micros())
}

#[derive(Deserialize)]
struct JobLine {
    id: JobId,
    from: i64,
    until: Option<i64>,
    spec: SpecPart,
    progress: StoredProgress,
    outcome: Option<OutcomePart>,
}

#[derive(Deserialize)]
struct OutcomePart {
    entry: u64,
    saved: Option<SavedPart>,
}

#[derive(Deserialize)]
struct SavedPart {
    low: Option<f64>,
    mean: Option<f64>,
    high: Option<f64>,
}

impl SavedPart {
    fn grams(self) -> Option<Saved> {
        Some(ConfidenceInterval { low: self.low?, mean: self.mean?, high: self.high? }.into())
    }
}

#[derive(Deserialize)]
struct SpecPart {
    name: JobName,
    gpus: Vec<GpuId>,
    tags: BTreeMap<String, String>,
}

/// Selects jobs as one text, with their newest outcomes.
const FACTS: &str = "SELECT group_concat('{\"id\":\"' || id || '\",\"from\":' || registered_us || ',\"until\":' \
    || COALESCE(ended_us, 'null') || ',\"spec\":' || spec || ',\"progress\":' || progress || ',\"outcome\":' \
    || COALESCE((SELECT '{\"entry\":' || seq || ',\"saved\":' \
    || COALESCE(json_extract(line, '$.against_found.saving.carbon_reduction_g'), 'null') || '}' FROM ledger \
    WHERE kind IN ('counterfactual', 'outcome') AND json_extract(line, '$.job') = jobs.id \
    AND kind = 'outcome' ORDER BY seq DESC LIMIT 1), 'null') || '}') FROM jobs WHERE ";

/// Returns the jobs that overlap a span, and `holders`, which have energy in the span though they ran at another time:
/// recorded shortly after their end, or by a correction.
fn jobs(tx: &Connection, span: &Slot, holders: &BTreeSet<JobId>) -> Result<Vec<JobFacts>, StoreError> {
    let sql = format!("{FACTS} registered_us < ?2 AND (ended_us IS NULL OR ended_us > ?1)");
    let corrected = newest_corrections(tx)?;
    let facts = |row: &Row<'_>| facts(row, &corrected);
    let mut jobs = rows::one(tx, &sql, ends(span), facts)?;
    let known: BTreeSet<&JobId> = jobs.iter().map(|job| &job.id).collect();
    let others: Vec<&JobId> = holders.iter().filter(|id| !known.contains(id)).collect();
    if !others.is_empty() {
        let sql = format!("{FACTS} id IN (SELECT value FROM json_each(?1))");
        jobs.extend(rows::one(tx, &sql, [rows::json(&others)?], facts)?);
    }
    Ok(jobs)
}

/// Returns the jobs that have energy in whole days of a span, whose sums may combine all jobs.
fn holders_of_days(tx: &Connection, span: &Slot) -> Result<Vec<JobId>, StoreError> {
    let Some(days) = whole_days(span) else { return Ok(Vec::new()) };
    let sql = "SELECT DISTINCT job_id FROM day_totals WHERE day_us >= ?1 AND day_us < ?2 AND share = 'job'";
    let id = |row: &Row<'_>| JobId::new(row.get::<_, String>(0)?).map_err(|e| rows::damaged("day total", e));
    rows::all(tx, sql, ends(&days), id)
}

/// Returns, for each corrected job, the newest correction that added or removed energy.
fn newest_corrections(tx: &Connection) -> Result<BTreeMap<String, u64>, StoreError> {
    let sql = "SELECT seq, json_extract(line, '$.from.job'), json_extract(line, '$.to.job') FROM ledger \
               WHERE kind = 'correction' ORDER BY seq";
    let of_entry = |row: &Row<'_>| {
        let seq = u64::try_from(row.get::<_, i64>(0)?).map_err(|e| rows::damaged("ledger", e))?;
        Ok::<_, StoreError>([(row.get(1)?, seq), (row.get(2)?, seq)])
    };
    let found: Vec<[(Option<String>, u64); 2]> = rows::all(tx, sql, [], of_entry)?;
    Ok(found.into_iter().flatten().filter_map(|(job, seq)| Some((job?, seq))).collect())
}

fn facts(row: &Row<'_>, corrected: &BTreeMap<String, u64>) -> Result<Vec<JobFacts>, StoreError> {
    let text: Option<String> = row.get(0)?;
    let lines: Vec<JobLine> = rows::from_json("job", &format!("[{}]", text.unwrap_or_default()))?;
    let facts = |line: JobLine| {
        let registered_at = rows::moment(line.from)?;
        let outcome = line.outcome.map(|OutcomePart { entry, saved }| {
            NewestOutcome { entry, saved: saved.and_then(SavedPart::grams) }
                .saved(corrected.get(line.id.as_str()).copied())
        });
        Ok(JobFacts {
            id: line.id,
            name: line.spec.name,
            tags: line.spec.tags,
            gpus: line.spec.gpus,
            samples: line.progress.samples_since(registered_at),
            registered_at,
            ended_at: line.until.map(rows::moment).transpose()?,
            saved: outcome.flatten(),
        })
    };
    lines.into_iter().map(facts).collect()
}

/// Returns each device's balances over the blocks of a span.
fn balances(tx: &Connection, span: &Slot) -> Result<Vec<DeviceBalance>, StoreError> {
    let mut sums: BTreeMap<DeviceId, DeviceBalance> = BTreeMap::new();
    let mut add = |more: DeviceBalance| match sums.entry(more.device.clone()) {
        btree_map::Entry::Occupied(mut sum) => sum.get_mut().add(&more),
        btree_map::Entry::Vacant(first) => drop(first.insert(more)),
    };
    if let Some(days) = whole_days(span) {
        let sql = "SELECT device, SUM(counter_mj) AS counter_mj, SUM(jobs_mj) AS jobs_mj, SUM(idle_mj) AS idle_mj, \
                   SUM(unattributed_mj) AS unattributed_mj, SUM(integrated_mj) AS integrated_mj, SUM(unequal) AS unequal, \
                   SUM(difference_mj) AS difference_mj FROM balance_days WHERE day_us >= ?1 AND day_us < ?2 GROUP BY device";
        rows::all(tx, sql, ends(&days), day_balance)?.into_iter().for_each(&mut add);
    }
    for edge in edges(span) {
        let (after, through) = block::closes_of(&edge);
        let sql = "SELECT * FROM balances WHERE at_us > ?1 AND at_us <= ?2";
        let closed = rows::all(tx, sql, [after, through].map(|t| t.timestamp_micros()), balance)?;
        closed.iter().map(DeviceBalance::from).for_each(&mut add);
    }
    Ok(sums.into_values().collect())
}

/// Returns a device's balance of one block.
fn balance(row: &Row<'_>) -> Result<Balance, StoreError> {
    let mj = |name: &str| rows::from_i64(row.get(name)?);
    Ok(Balance {
        device: rows::device(row)?,
        counter_mj: row.get("counter_mj")?,
        jobs_mj: mj("jobs_mj")?,
        idle_mj: mj("idle_mj")?,
        unattributed_mj: mj("unattributed_mj")?,
        integrated_mj: mj("integrated_mj")?,
        difference_mj: row.get("difference_mj")?,
    })
}

impl Store {
    /// Returns the gaps of a span, oldest first, and times with unknown energy.
    ///
    /// # Errors
    /// If they cannot be read.
    pub async fn gaps(&self, span: &Slot) -> Result<Vec<Gap>, StoreError> {
        let span = *span;
        self.read.run(move |db| gaps(&*db.transaction()?, &span)).await
    }
}

/// Returns the gaps of a span, oldest first, and times with unknown energy.
fn gaps(tx: &Connection, span: &Slot) -> Result<Vec<Gap>, StoreError> {
    let sql =
        format!("SELECT {INTERVAL} FROM intervals WHERE source = 'counter_gap' AND start_us >= ?1 AND start_us < ?2");
    let minutes = rows::all(tx, &sql, ends(span), rows::interval)?;
    let sql = "SELECT * FROM rolled_up WHERE source = 'counter_gap' AND hour_us >= ?1 AND hour_us < ?2";
    let hours = rows::all(tx, sql, ends(span), rows::rolled_up)?;
    let rows_of_gaps = minutes.into_iter().map(|row| (row, false)).chain(hours.into_iter().map(|row| (row, true)));
    let sql = "SELECT seq, line FROM ledger WHERE kind = 'lost' AND about_us < ?1 ORDER BY seq";
    let lost = rows::all(tx, sql, [span.end().timestamp_micros()], lines::entry)?;
    let lost = lost.into_iter().filter_map(|entry| if let Entry::Lost(lost) = entry { Some(lost) } else { None });
    Ok(report::gaps(rows_of_gaps, lost, span))
}

/// Returns the sources of the newest settlements, with their numbers of hours.
fn sources(tx: &Connection, span: &Slot) -> Result<Vec<(String, u64)>, StoreError> {
    let sql = "SELECT book, sources, COUNT(*) FROM settled WHERE hour_us >= ?1 AND hour_us < ?2 \
               GROUP BY book, sources ORDER BY book, sources";
    let source = |row: &Row<'_>| {
        let hours = u64::try_from(row.get::<_, i64>(2)?).unwrap_or_default();
        Ok((format!("{}: {}", rows::text(row, 0)?, rows::text(row, 1)?), hours))
    };
    rows::all(tx, sql, ends(span), source)
}
