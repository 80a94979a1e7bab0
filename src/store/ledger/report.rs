//! Data of a report, read in one transaction. Even for a span of a year, reading takes a fraction of a second.
//!
//! The database sums rows and returns each list as one text, because reading thousands of single rows would take
//! several times as long.

use std::collections::{BTreeMap, BTreeSet, btree_map};

use chrono::{DateTime, TimeDelta, Utc};
use rusqlite::{Connection, Row, ToSql, params};
use serde::Deserialize;

use super::blocks::device_balance;
use super::chain::{INTERVAL, closed_blocks};
use super::correct::{corrections_within, newest_corrections};
use super::lines;
use super::restated::settlement_state;
use super::settlements::{open_rows, settled_within, settlement, sources_with_earlier};
use super::totals::days;
use crate::store::signals;
use crate::store::{SourceKey, Store, StoreError, StoredProgress, rows};
use wattune_core::domain::{DeviceId, GpuId, JobId, JobKey, JobName, Offers, SignalKind, Slot};
use wattune_core::ledger::block;
use wattune_core::ledger::confidence::ConfidenceInterval;
use wattune_core::ledger::entry::{Entry, Settlement, Terms};
use wattune_core::ledger::hour::has_begun;
use wattune_core::ledger::presence_entries::PresenceChange;
use wattune_core::ledger::report::span::{add_open, first_of, last_hour, searched_from, searched_until};
use wattune_core::ledger::report::span::{by_boundary, edges, in_force, whole_days};
use wattune_core::ledger::report::{
    self, BoundaryPeriod, DeviceBalance, Gap, JobFacts, LedgerData, NewestOutcome, Owner, Report, ReportRequest, Saved,
    SavedEffects, Sum, Unsettled, build,
};
use wattune_core::ledger::sources::{NO_SOURCE, is_synthetic, keys_of, kinds_of};
use wattune_core::ledger::waiting_times::times_without_gpus;
use wattune_core::ledger::{Interval, Share};
use wattune_core::units::GramsCo2e;

impl Store {
    /// Returns a report of a span of whole UTC hours.
    pub async fn report(&self, request: ReportRequest) -> Result<Report, StoreError> {
        let make = move |db: &mut Connection| {
            let data = ledger_data(&*db.transaction()?, &request)?;
            Ok::<_, StoreError>(build(request, data))
        };
        self.reports.run(make).await
    }

    /// Returns the jobs that overlap a span, with all other parts of these jobs.
    pub async fn jobs_within(&self, span: &Slot) -> Result<Vec<JobFacts>, StoreError> {
        let span = *span;
        self.reports.run(move |db| jobs(&*db.transaction()?, &span, &BTreeSet::new())).await
    }

    /// Returns the gaps of a span, oldest first: times in which a device was not monitored or the device's energy is
    /// unknown.
    pub async fn gaps(&self, span: &Slot) -> Result<Vec<Gap>, StoreError> {
        let span = *span;
        self.short_reads.run(move |db| gaps(&*db.transaction()?, &span)).await
    }

    /// Returns the sources that the newest settlement (stored emissions of an hour) for a kind of carbon intensity
    /// used. Before the first settlement, returns the source of the newest stored value.
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
            sums.extend(settled_within(tx, &edge)?.iter().flat_map(Settlement::sums));
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
        last_seen: last_seen(tx)?,
        terms,
        synthetic: sources.iter().any(|(name, _)| is_synthetic(name)),
        sources,
        recorded_span: hours.0.and_then(|span| Slot::new(span.start(), span.end().min(request.now))),
        hours_with_energy: hours.1,
        unsettled: open.iter().map(|row| row.energy).sum(),
        version: settlement_state(tx, request)?,
        corrections: corrections_within(tx, span)?,
    };
    add_unsettled(tx, &mut data, &open, request)?;
    Ok(data)
}

/// Computes the emissions of `open`, the energy that no settlement (stored emissions of an hour) contains yet, and adds
/// them to `data` without storing them.
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
    let settled = rows::one(tx, sql, [rows::json(&hours)?], |row| rows::number(row, 0))?;
    data.add_hours(&unsettled, settled, request.now);
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
        // Limits the search to the last two days: if there is no value of that kind, the query would scan all values.
        let sql = "SELECT source, zone, scope FROM intensities WHERE kind = ?1 AND end_us > \
                   (SELECT MAX(end_us) FROM intensities) - 172800000000 ORDER BY +id DESC LIMIT 1";
        let key = |row: &Row<'_>| {
            Ok::<_, StoreError>(SourceKey {
                source: row.get("source")?,
                zone: rows::from_name("intensity", rows::text(row, "zone")?)?,
                kind: *accepted,
                scope: rows::from_name("intensity", rows::text(row, "scope")?)?,
            })
        };
        if let Some(key) = rows::optional(tx, sql, [accepted.as_str()], key)? {
            return Ok(vec![key]);
        }
    }
    Ok(Vec::new())
}

/// Returns the terms (settings of the ledger) that applied in a span, oldest first.
fn terms(tx: &Connection, span: &Slot) -> Result<Vec<Terms>, StoreError> {
    let sql = "SELECT seq, line FROM ledger WHERE kind = 'terms' ORDER BY seq";
    let of_entry = |entry| if let Entry::Terms(terms) = entry { Some(terms) } else { None };
    Ok(in_force(rows::all(tx, sql, [], lines::entry)?.into_iter().filter_map(of_entry), span))
}

/// Returns the time from the first to the last settled hour (hour with stored emissions) of a span (`None` without such
/// an hour), and the number of settled hours.
fn settled_hours(tx: &Connection, span: &Slot) -> Result<(Option<Slot>, u64), StoreError> {
    let sql = "SELECT MIN(hour_us), MAX(hour_us), COUNT(*) FROM settled \
               WHERE book = 'average' AND hour_us >= ?1 AND hour_us < ?2";
    let hours = |row: &Row<'_>| Ok::<_, StoreError>((row.get(0)?, row.get(1)?, rows::number(row, 2)?));
    let (first, last, hours): (Option<i64>, Option<i64>, _) = rows::one(tx, sql, rows::ends(span), hours)?;
    let Some((first, last)) = first.zip(last) else { return Ok((None, hours)) };
    Ok((Slot::new(rows::time(first)?, rows::time(last)? + TimeDelta::hours(1)), hours))
}

#[derive(Deserialize)]
struct JobLine {
    id: JobId,
    from: i64,
    until: Option<i64>,
    spec: SpecPart,
    progress: StoredProgress,
    presence: Vec<PresenceChange>,
    outcome: Option<OutcomePart>,
}

#[derive(Deserialize)]
struct OutcomePart {
    entry: u64,
    saved: Option<SavedPart>,
}

/// Saving of an outcome, as far as reports use it; all figures are absent if the saving is unknown.
#[derive(Deserialize)]
struct SavedPart {
    carbon_reduction_g: Option<Interval95>,
    carbon_at_reference_g: Option<f64>,
    start_effect_pct: Option<Interval95>,
    suspension_effect_pct: Option<Interval95>,
    energy_effect_pct: Option<Interval95>,
    timing_effect_pct: Option<Interval95>,
}

#[derive(Clone, Copy, Deserialize)]
struct Interval95 {
    low: Option<f64>,
    mean: Option<f64>,
    high: Option<f64>,
}

impl SavedPart {
    fn grams(&self) -> Option<Saved> {
        let Interval95 { low, mean, high } = self.carbon_reduction_g?;
        Some(ConfidenceInterval { low: low?, mean: mean?, high: high? }.into())
    }

    /// Returns the effects in grams; `None` unless the energy effect and the timing effect are known.
    fn effects(&self) -> Option<SavedEffects> {
        let whole = self.carbon_at_reference_g?;
        let grams = |effect: Option<Interval95>| Some(GramsCo2e::new(effect?.mean? / 100.0 * whole));
        Some(SavedEffects {
            start: grams(self.start_effect_pct).unwrap_or_default(),
            suspension: grams(self.suspension_effect_pct).unwrap_or_default(),
            energy: grams(self.energy_effect_pct)?,
            timing: grams(self.timing_effect_pct)?,
        })
    }
}

#[derive(Deserialize)]
struct SpecPart {
    name: JobName,
    gpus: Vec<GpuId>,
    tags: BTreeMap<String, String>,
    #[serde(default)]
    offers: Offers,
}

/// Job with the key by which later jobs continue it, if it has one.
type KeyedFacts = (JobFacts, Option<JobKey>);

/// Beginning of a query that returns jobs, with their newest outcomes (the savings of ended jobs), as one text. The
/// condition for the jobs follows.
const FACTS: &str = "SELECT group_concat('{\"id\":\"' || id || '\",\"from\":' || registered_us || ',\"until\":' \
    || COALESCE(ended_us, 'null') || ',\"spec\":' || spec || ',\"progress\":' || progress || ',\"presence\":[' \
    || COALESCE((SELECT group_concat(line) FROM (SELECT line FROM ledger WHERE kind IN ('start_request', 'presence') \
    AND json_extract(line, '$.job') = jobs.id AND kind = 'presence' ORDER BY seq)), '') || '],\"outcome\":' \
    || COALESCE((SELECT '{\"entry\":' || seq || ',\"saved\":' \
    || COALESCE(json_extract(line, '$.against_original.saving'), 'null') || '}' FROM ledger \
    WHERE kind IN ('counterfactual', 'outcome') AND json_extract(line, '$.job') = jobs.id \
    AND kind = 'outcome' ORDER BY seq DESC LIMIT 1), 'null') || '}') FROM jobs WHERE ";

/// Condition for the jobs with some keys (parameter 1) that are parts of some jobs (parameter 2: their first parts) and
/// are not known yet (parameter 3: the known ones).
const OTHER_PARTS: &str = "json_extract(spec, '$.offers.key') IN (SELECT value FROM json_each(?1)) \
    AND COALESCE(json_extract(spec, '$.offers.continues.first'), json_extract(spec, '$.offers.continues.job'), id) \
    IN (SELECT value FROM json_each(?2)) AND id NOT IN (SELECT value FROM json_each(?3))";

/// Returns the jobs that ran in a span, those of `holders` that did not (their energy in the span was recorded shortly
/// after their end or by a correction), and all other parts of these jobs, which may have run at any time.
fn jobs(tx: &Connection, span: &Slot, holders: &BTreeSet<JobId>) -> Result<Vec<JobFacts>, StoreError> {
    let corrected = newest_corrections(tx)?;
    let facts = |row: &Row<'_>| facts(row, &corrected);
    let facts_of = |condition: &str, params: &[&dyn ToSql]| -> Result<Vec<KeyedFacts>, StoreError> {
        match rows::one(tx, &format!("{FACTS} {condition}"), params, facts) {
            Err(StoreError::Damaged { .. }) => {}
            read => return read,
        }
        // At least one row is unreadable: read each job by itself, and omit the unreadable ones.
        let ids = format!("SELECT id FROM jobs WHERE {condition}");
        let one = format!("{FACTS} id = ?1");
        let of_id = |row: &Row<'_>| rows::one(tx, &one, [rows::text(row, "id")?], facts);
        let advice = "its energy is listed under its id";
        Ok(rows::readable(tx, &ids, params, "job", advice, of_id)?.0.into_iter().flatten().collect())
    };
    let [start, end] = rows::ends(span);
    let mut jobs = facts_of("registered_us < ?2 AND (ended_us IS NULL OR ended_us > ?1)", &[&start, &end])?;
    let with_ids = |ids: &[JobId]| facts_of("id IN (SELECT value FROM json_each(?1))", &[&rows::json(&ids)?]);
    let others = missing(&jobs, holders);
    if !others.is_empty() {
        jobs.extend(with_ids(&others)?);
    }
    let keys: BTreeSet<&JobKey> = jobs.iter().filter_map(|(_, key)| key.as_ref()).collect();
    if !keys.is_empty() {
        let first: BTreeSet<&JobId> = jobs.iter().map(|(job, _)| job.first()).collect();
        let known: Vec<&JobId> = jobs.iter().map(|(job, _)| &job.id).collect();
        let parameters = [rows::json(&keys)?, rows::json(&first)?, rows::json(&known)?];
        let parts = facts_of(OTHER_PARTS, &[&parameters[0], &parameters[1], &parameters[2]])?;
        jobs.extend(parts);
    }
    // A job without a key is continued at once, by the job that replaces it: only earlier parts can be missing.
    loop {
        let earlier = jobs.iter().filter_map(|(job, _)| job.continues.as_ref()).flat_map(|it| [&it.job, it.first()]);
        let earlier = missing(&jobs, earlier);
        let parts = if earlier.is_empty() { Vec::new() } else { with_ids(&earlier)? };
        if parts.is_empty() {
            return Ok(jobs.into_iter().map(|(job, _)| job).collect());
        }
        jobs.extend(parts);
    }
}

/// Returns those of some jobs that are not among `jobs`.
fn missing<'a>(jobs: &[KeyedFacts], of: impl IntoIterator<Item = &'a JobId>) -> Vec<JobId> {
    let known: BTreeSet<&JobId> = jobs.iter().map(|(job, _)| &job.id).collect();
    let missing: BTreeSet<&JobId> = of.into_iter().filter(|id| !known.contains(id)).collect();
    missing.into_iter().cloned().collect()
}

/// Returns the jobs that have energy in the whole days of a span. The report's sums over these days do not show them if
/// its grouping combines jobs.
fn holders_of_days(tx: &Connection, span: &Slot) -> Result<Vec<JobId>, StoreError> {
    let Some(days) = whole_days(span) else { return Ok(Vec::new()) };
    let sql = "SELECT DISTINCT job_id FROM day_totals WHERE day_us >= ?1 AND day_us < ?2 AND share = 'job'";
    let id = |row: &Row<'_>| JobId::new(row.get::<_, String>(0)?).map_err(|e| rows::damaged("day total", e));
    rows::all(tx, sql, rows::ends(&days), id)
}

fn facts(row: &Row<'_>, corrected: &BTreeMap<String, u64>) -> Result<Vec<KeyedFacts>, StoreError> {
    let text: Option<String> = row.get(0)?;
    let lines: Vec<JobLine> = rows::from_json("job", &format!("[{}]", text.unwrap_or_default()))?;
    let facts = |line: JobLine| {
        let registered_at = rows::time(line.from)?;
        let effects = line.outcome.as_ref().and_then(|outcome| outcome.saved.as_ref()?.effects());
        let outcome = line.outcome.map(|OutcomePart { entry, saved }| {
            NewestOutcome { entry, saved: saved.as_ref().and_then(SavedPart::grams) }
                .saved(corrected.get(line.id.as_str()).copied())
        });
        let saved = outcome.flatten();
        let ended_at = line.until.map(rows::time).transpose()?;
        // An open job's absence lasts as long as any span that is looked at.
        let until = ended_at.unwrap_or(DateTime::<Utc>::MAX_UTC);
        let absences = times_without_gpus(&line.spec.offers, &line.presence, registered_at, until);
        let facts = JobFacts {
            id: line.id,
            name: line.spec.name,
            tags: line.spec.tags,
            gpus: line.spec.gpus,
            samples: line.progress.samples_since(registered_at),
            registered_at,
            ended_at,
            absences,
            continues: line.spec.offers.continues,
            effects: effects.filter(|_| saved.is_some()),
            saved,
        };
        Ok((facts, line.spec.offers.key))
    };
    lines.into_iter().map(facts).collect()
}

/// Returns each device's balance (its recorded energy against its energy counter), summed over the blocks (intervals of
/// about an hour each) of a span.
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
        rows::all(tx, sql, rows::ends(&days), device_balance)?.into_iter().for_each(&mut add);
    }
    for edge in edges(span) {
        let (after, through) = block::closes_of(&edge);
        let sql = "SELECT *, difference_mj <> 0 AS unequal FROM balances WHERE at_us > ?1 AND at_us <= ?2";
        let closed = rows::all(tx, sql, [after, through].map(|t| t.timestamp_micros()), device_balance)?;
        closed.into_iter().for_each(&mut add);
    }
    Ok(sums.into_values().collect())
}

/// Returns the gaps of a span, oldest first: times in which a device was not monitored or the device's energy is
/// unknown.
fn gaps(tx: &Connection, span: &Slot) -> Result<Vec<Gap>, StoreError> {
    let sql =
        format!("SELECT {INTERVAL} FROM intervals WHERE source = 'counter_gap' AND start_us >= ?1 AND start_us < ?2");
    let minutes = rows::all(tx, &sql, rows::ends(span), rows::interval)?;
    let sql = "SELECT * FROM rolled_up WHERE source = 'counter_gap' AND hour_us >= ?1 AND hour_us < ?2";
    let hours = rows::all(tx, sql, rows::ends(span), rows::rolled_up)?;
    let rows_of_gaps = minutes.into_iter().map(|row| (row, false)).chain(hours.into_iter().map(|row| (row, true)));
    let sql = "SELECT seq, line FROM ledger WHERE kind = 'lost' AND about_us < ?1 ORDER BY seq";
    let lost = rows::all(tx, sql, [span.end().timestamp_micros()], lines::entry)?;
    let lost = lost.into_iter().filter_map(|entry| if let Entry::Lost(lost) = entry { Some(lost) } else { None });
    Ok(report::gaps(rows_of_gaps, lost, span))
}

/// Returns the sources of carbon intensities that the newest settlements (stored emissions of hours) of a span used,
/// each with the number of hours.
fn sources(tx: &Connection, span: &Slot) -> Result<Vec<(String, u64)>, StoreError> {
    let sql = "SELECT book, sources, COUNT(*) FROM settled WHERE hour_us >= ?1 AND hour_us < ?2 \
               GROUP BY book, sources ORDER BY book, sources";
    let source =
        |row: &Row<'_>| Ok((format!("{}: {}", rows::text(row, 0)?, rows::text(row, 1)?), rows::number(row, 2)?));
    rows::all(tx, sql, rows::ends(span), source)
}

/// Returns the start of each device's first interval. `open` holds the intervals whose energy no settlement (stored
/// emissions of an hour) contains yet.
fn first_seen(tx: &Connection, open: &[Interval]) -> Result<BTreeMap<DeviceId, DateTime<Utc>>, StoreError> {
    let sql = "SELECT MIN(about_us) FROM ledger WHERE kind = 'terms'";
    let begun: Option<i64> = rows::one(tx, sql, [], rows::first)?;
    let begun = begun.map(rows::time).transpose()?;
    // `balance_days` has one row per device and day: from the device's first day on, the first interval is found
    // without a scan.
    let sql = "SELECT device, MIN(day_us) AS day_us FROM balance_days GROUP BY device";
    let of_device = |row: &Row<'_>| Ok::<_, StoreError>((rows::device(row)?, rows::time(row.get("day_us")?)?));
    let mut first = BTreeMap::new();
    for (device, day) in rows::all(tx, sql, [], of_device)? {
        let from = params![searched_from(day).timestamp_micros(), device.as_str()];
        let time = |row: &Row<'_>| rows::time(row.get(0)?);
        let sql = "SELECT start_us FROM intervals WHERE start_us >= ?1 AND device = ?2 ORDER BY start_us LIMIT 1";
        let minute = rows::optional(tx, sql, from, time)?;
        let sql = "SELECT hour_us FROM rolled_up WHERE hour_us >= ?1 AND device = ?2 ORDER BY hour_us LIMIT 1";
        let hour = rows::optional(tx, sql, from, time)?;
        if let Some(at) = first_of(minute, hour, begun) {
            first.insert(device, at);
        }
    }
    add_open(&mut first, open);
    Ok(first)
}

/// Returns the end of the last hour in which each device used energy, in the open block (intervals since the last
/// close) or before.
fn last_seen(tx: &Connection) -> Result<BTreeMap<DeviceId, DateTime<Utc>>, StoreError> {
    let of_device = |row: &Row<'_>| Ok::<_, StoreError>((rows::device(row)?, rows::time(row.get(1)?)?));
    let sql = "SELECT device, MAX(start_us) FROM intervals WHERE block > ?1 GROUP BY device";
    let open: BTreeMap<DeviceId, DateTime<Utc>> =
        rows::all(tx, sql, [closed_blocks(tx)?], of_device)?.into_iter().collect();
    // From the device's last day with energy back, the last interval is found without a scan, as in `first_seen`. A
    // device's rolled-up hours are older than its minutes: a new device has none, and the search for one would read all
    // rolled-up hours.
    let sql =
        "SELECT device, MAX(day_us) FROM balance_days WHERE jobs_mj + idle_mj + unattributed_mj > 0 GROUP BY device";
    let mut starts: BTreeMap<DeviceId, Vec<DateTime<Utc>>> = BTreeMap::new();
    for (device, day) in rows::all(tx, sql, [], of_device)? {
        let until = params![searched_until(day).timestamp_micros(), device.as_str()];
        let time = |row: &Row<'_>| rows::time(row.get(0)?);
        let sql = "SELECT start_us FROM intervals WHERE start_us < ?1 AND device = ?2 ORDER BY start_us DESC LIMIT 1";
        let mut last = rows::optional(tx, sql, until, time)?;
        if last.is_none() {
            let sql = "SELECT hour_us FROM rolled_up WHERE hour_us < ?1 AND device = ?2 ORDER BY hour_us DESC LIMIT 1";
            last = rows::optional(tx, sql, until, time)?;
        }
        starts.entry(device).or_default().extend(last);
    }
    for (device, start) in open {
        starts.entry(device).or_default().push(start);
    }
    Ok(starts.into_iter().filter_map(|(device, starts)| Some((device, last_hour(starts)?))).collect())
}
