//! What a report is made of, read at one moment: a year of it within a fraction of a second.
//!
//! The database's rows are summed by the database, and come as one text each: thousands of rows by themselves would
//! take several times as long.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, DurationRound, TimeDelta, Utc};
use rusqlite::{Connection, Row, params};
use serde::Deserialize;

use super::correct::corrections_within;
use super::days::days;
use super::first_seen::first_seen;
use super::restated::version;
use super::settle::{believed, keys_of, settlement};
use super::{CLOSED_WITHIN_US, INTERVAL, closed_blocks, lines};
use crate::store::signals;
use crate::store::{SourceKey, Store, StoreError, StoredProgress, rows};
use wattune_core::domain::{DeviceId, GpuId, JobId, JobName, Origin, SignalKind, Slot};
use wattune_core::ledger::apportion::hour_of;
use wattune_core::ledger::entry::{Boundary, Entry, Part, Settlement, Terms};
use wattune_core::ledger::report::{
    Books, DeviceBalance, Gap, JobFacts, Piece, Report, SYNTHETIC, Saved, Sum, Wanted, Whose, build,
};
use wattune_core::ledger::settlement::parts;
use wattune_core::ledger::sure::Sure;
use wattune_core::ledger::{Interval, Share, Total};
use wattune_core::units::Millijoules;

const HOUR: TimeDelta = TimeDelta::hours(1);

impl Store {
    /// A report of what the books hold of a span of whole UTC hours.
    ///
    /// # Errors
    /// If they cannot be read.
    pub async fn report(&self, wanted: Wanted) -> Result<Report, StoreError> {
        let read = move |db: &mut Connection| {
            let books = books(&*db.transaction()?, &wanted)?;
            Ok::<_, StoreError>((wanted, books))
        };
        let (wanted, books) = self.reports.run(read).await?;
        Ok(build(wanted, books))
    }

    /// The jobs that a span touches.
    ///
    /// # Errors
    /// If they cannot be read.
    pub async fn jobs_within(&self, span: &Slot) -> Result<Vec<JobFacts>, StoreError> {
        let span = *span;
        self.reports.run(move |db| jobs(&*db.transaction()?, &span, &BTreeSet::new())).await
    }

    /// Whose intensities the newest settlement of a book used; before the first one, whose the newest value is.
    ///
    /// # Errors
    /// If they cannot be read.
    pub async fn latest_sources(&self, book: SignalKind) -> Result<Vec<SourceKey>, StoreError> {
        self.reports.run(move |db| latest_sources(&*db.transaction()?, book)).await
    }
}

fn books(tx: &Connection, wanted: &Wanted) -> Result<Books, StoreError> {
    let span = &wanted.span;
    let terms = terms(tx, span)?;
    let mut pieces = Vec::new();
    for (part, boundary) in by_boundary(&terms, span) {
        let mut sums = days(tx, &part, &wanted.by)?;
        for edge in edges(&part) {
            for settled in holding_within(tx, &edge)? {
                sums.extend(of_settlement(&settled));
            }
        }
        pieces.push(Piece { span: part, boundary, sums });
    }
    let kept = kept(tx, span)?;
    let open = open_rows(tx, span)?;
    let of_sum = |sum: &Sum| if let Whose::Job(id) = &sum.whose { Some(id.clone()) } else { None };
    let of_row = |row: &Interval| if let Share::Job(id) = &row.share { Some(id.clone()) } else { None };
    let holders = pieces.iter().flat_map(|p| &p.sums).filter_map(of_sum).chain(open.iter().filter_map(of_row));
    let mut holders: BTreeSet<JobId> = holders.collect();
    if !wanted.by.is_of_jobs() {
        holders.extend(holders_of_days(tx, span)?);
    }
    let sources = sources(tx, span)?;
    let mut books = Books {
        pieces,
        jobs: jobs(tx, span, &holders)?,
        holders,
        devices: balances(tx, span)?,
        gaps: gaps(tx, span)?,
        first_seen: first_seen(tx, &open)?,
        terms,
        synthetic: sources.iter().any(|(said, _)| said.contains(SYNTHETIC)),
        sources,
        kept: kept.0.and_then(|kept| Slot::new(kept.start(), kept.end().min(wanted.now))),
        hours_booked: kept.1,
        unsettled: open.iter().map(|row| row.energy).sum(),
        version: version(tx, wanted)?,
        corrections: corrections_within(tx, span)?,
    };
    add_open(tx, &mut books, &open, wanted)?;
    Ok(books)
}

/// Settles in memory what no settlement has yet.
fn add_open(tx: &Connection, books: &mut Books, open: &[Interval], wanted: &Wanted) -> Result<(), StoreError> {
    let mut hours: BTreeMap<DateTime<Utc>, Vec<Interval>> = BTreeMap::new();
    for row in open {
        hours.entry(hour_of(row.slot.start())).or_default().push(row.clone());
    }
    let begun: Vec<i64> = hours.keys().map(DateTime::timestamp_micros).collect();
    let sql = "SELECT COUNT(*) FROM settled WHERE book = 'average' AND hour_us IN (SELECT value FROM json_each(?1))";
    let settled: i64 = rows::one(tx, sql, [rows::json(&begun)?], rows::first)?;
    books.hours_booked += (hours.len() as u64).saturating_sub(u64::try_from(settled).unwrap_or_default());
    let ends = hours.keys().next().zip(hours.keys().next_back());
    let Some(span) = ends.and_then(|(first, last)| Slot::new(*first, *last + HOUR)) else { return Ok(()) };
    for book in [SignalKind::Average, SignalKind::Marginal] {
        let sources = latest_sources(tx, book)?;
        if sources.is_empty() && book == SignalKind::Marginal {
            continue;
        }
        let sources = believed(tx, book, &sources, &[], &span)?;
        let factors = signals::factors(tx, &sources, &span)?;
        books.synthetic |= factors.iter().any(|factor| factor.origin == Origin::Synthetic);
        for (hour, rows) in &hours {
            let Some(piece) = books.pieces.iter_mut().find(|p| p.span.contains(*hour)) else { continue };
            for part in parts(rows, &factors) {
                let total = Total::of(&part, &factors);
                piece.sums.push(sum(*hour, part.device, &part.share, book, total));
            }
        }
    }
    let present = Slot::new(span.start(), span.end().min(wanted.now));
    books.kept = match (books.kept, present) {
        (Some(a), Some(b)) => Slot::new(a.start().min(b.start()), a.end().max(b.end())),
        (a, b) => a.or(b),
    };
    Ok(())
}

fn latest_sources(tx: &Connection, book: SignalKind) -> Result<Vec<SourceKey>, StoreError> {
    let kinds: &[SignalKind] = match book {
        SignalKind::Marginal => &[SignalKind::Marginal],
        _ => &[SignalKind::Average, SignalKind::Unspecified],
    };
    let sql = "SELECT seq, line FROM settled JOIN ledger USING (seq) WHERE book = ?1 AND sources <> 'none' \
               ORDER BY hour_us DESC LIMIT 1";
    if let Some(newest) = rows::optional(tx, sql, [rows::name(&book)?], settlement)? {
        return Ok(keys_of(book, &newest.factors));
    }
    for kind in kinds {
        // Of the last two days: where nobody tells that kind, all that was ever told would be looked through.
        let sql = "SELECT source, zone, scope FROM intensities WHERE kind = ?1 AND end_us > \
                   (SELECT MAX(end_us) FROM intensities) - 172800000000 ORDER BY +id DESC LIMIT 1";
        let key = |row: &Row<'_>| {
            Ok::<_, StoreError>(SourceKey {
                source: row.get("source")?,
                zone: rows::from_name("intensity", row.get("zone")?)?,
                kind: *kind,
                scope: rows::from_name("intensity", row.get("scope")?)?,
            })
        };
        if let Some(key) = rows::optional(tx, sql, [rows::name(kind)?], key)? {
            return Ok(vec![key]);
        }
    }
    Ok(Vec::new())
}

fn day_of(t: DateTime<Utc>) -> DateTime<Utc> {
    t.duration_trunc(TimeDelta::days(1)).unwrap_or(t)
}

/// The whole UTC days in a span.
pub(super) fn whole_days(span: &Slot) -> Option<Slot> {
    let day = TimeDelta::days(1);
    Slot::new(day_of(span.start() - TimeDelta::microseconds(1)) + day, day_of(span.end()))
}

/// What is left of a span beside its whole days.
pub(super) fn edges(span: &Slot) -> Vec<Slot> {
    match whole_days(span) {
        Some(days) => {
            Slot::new(span.start(), days.start()).into_iter().chain(Slot::new(days.end(), span.end())).collect()
        }
        None => vec![*span],
    }
}

/// The terms that were in force in a span, oldest first.
fn terms(tx: &Connection, span: &Slot) -> Result<Vec<Terms>, StoreError> {
    let sql = "SELECT seq, line FROM ledger WHERE kind = 'terms' ORDER BY seq";
    let mut found: Vec<Terms> = Vec::new();
    for entry in rows::all(tx, sql, [], lines::entry)? {
        let Entry::Terms(terms) = entry else { continue };
        if terms.at >= span.end() && !found.is_empty() {
            break;
        }
        if terms.at <= span.start() {
            found.clear();
        }
        found.push(terms);
    }
    Ok(found)
}

/// A span cut at the full hours after which a changed boundary holds: what an hour's energy before the change was counted
/// under stays. What was booked before the first terms counts under those.
pub(super) fn by_boundary(terms: &[Terms], span: &Slot) -> Vec<(Slot, Boundary)> {
    let mut found: Vec<(Slot, Boundary)> = Vec::new();
    let mut from = span.start();
    let mut present = terms.first().map(|t| t.boundary.clone()).unwrap_or_default();
    for next in terms.iter().skip(1).filter(|t| t.at > span.start()) {
        if next.boundary == present {
            continue;
        }
        let cut = hour_of(next.at + HOUR - TimeDelta::microseconds(1));
        if let Some(part) = Slot::new(from, cut) {
            found.push((part, present));
            from = cut;
        }
        present = next.boundary.clone();
    }
    found.extend(Slot::new(from, span.end()).map(|part| (part, present)));
    found
}

/// The settlements that hold of a few hours.
pub(super) fn holding_within(tx: &Connection, span: &Slot) -> Result<Vec<Settlement>, StoreError> {
    let sql = "SELECT seq, line FROM settled JOIN ledger USING (seq) WHERE hour_us >= ?1 AND hour_us < ?2";
    rows::all(tx, sql, ends(span), settlement)
}

fn of_settlement(settled: &Settlement) -> Vec<Sum> {
    let of = |(part, total): (&Part, Total)| sum(settled.hour, part.device.clone(), &part.share, settled.book, total);
    settled.totals().map(of).collect()
}

fn sum(at: DateTime<Utc>, device: DeviceId, share: &Share, book: SignalKind, total: Total) -> Sum {
    let whose = match share {
        Share::Job(id) => Whose::Job(id.clone()),
        Share::Idle => Whose::Idle,
        Share::Unattributed => Whose::Unattributed,
    };
    let (average, marginal) =
        if book == SignalKind::Marginal { (Total::default(), total) } else { (total, Total::default()) };
    Sum { day: day_of(at), device, whose, average, marginal }
}

/// Booked energy of a span that is in no settlement: of the open block, and of hours that are due.
pub(super) fn open_rows(tx: &Connection, span: &Slot) -> Result<Vec<Interval>, StoreError> {
    let [start, end] = ends(span);
    let bounds = [closed_blocks(tx)?, start, end];
    // An hour's rows by their block, not all of the span's by their time: the plus keeps that index out of it.
    let sql = format!(
        "SELECT {INTERVAL} FROM intervals WHERE block > ?1 AND +start_us >= ?2 AND +start_us < ?3 ORDER BY block, id"
    );
    let mut found = rows::all(tx, &sql, bounds, rows::interval)?;
    let sql = format!(
        "SELECT {INTERVAL} FROM due JOIN intervals ON start_us >= due.hour_us AND start_us < due.hour_us + 3600000000 \
         LEFT JOIN settled ON settled.hour_us = due.hour_us AND book = 'average' \
         WHERE why <> 'intensity' AND block > COALESCE(through_block, 0) AND block <= ?1 \
         AND due.hour_us >= ?2 AND due.hour_us < ?3"
    );
    found.extend(rows::all(tx, &sql, bounds, rows::interval)?);
    Ok(found)
}

/// From the first settled hour of a span to the end of the last one, and how many there are.
fn kept(tx: &Connection, span: &Slot) -> Result<(Option<Slot>, u64), StoreError> {
    let sql = "SELECT MIN(hour_us), MAX(hour_us), COUNT(*) FROM settled \
               WHERE book = 'average' AND hour_us >= ?1 AND hour_us < ?2";
    let hours =
        |row: &Row<'_>| Ok::<(Option<i64>, Option<i64>, i64), StoreError>((row.get(0)?, row.get(1)?, row.get(2)?));
    let (first, last, hours) = rows::one(tx, sql, ends(span), hours)?;
    let hours = u64::try_from(hours).map_err(|e| rows::damaged("ledger", e))?;
    let Some((first, last)) = first.zip(last) else { return Ok((None, hours)) };
    Ok((Slot::new(rows::moment(first)?, rows::moment(last)? + HOUR), hours))
}

/// A span's start and end as a query's first two parameters.
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
        Some(Sure { low: self.low?, mean: self.mean?, high: self.high? }.into())
    }
}

#[derive(Deserialize)]
struct SpecPart {
    name: JobName,
    gpus: Vec<GpuId>,
    tags: BTreeMap<String, String>,
}

/// All of some jobs as one text, with what their newest outcome says.
const FACTS: &str = "SELECT group_concat('{\"id\":\"' || id || '\",\"from\":' || registered_us || ',\"until\":' \
    || COALESCE(ended_us, 'null') || ',\"spec\":' || spec || ',\"progress\":' || progress || ',\"saved\":' \
    || COALESCE((SELECT json_extract(line, '$.against_found.saving.carbon_reduction_g') FROM ledger \
    WHERE kind IN ('counterfactual', 'outcome') AND json_extract(line, '$.job') = jobs.id \
    AND kind = 'outcome' ORDER BY seq DESC LIMIT 1), 'null') || '}') FROM jobs WHERE ";

/// The jobs that a span touches. And these, which have energy there though they ran at another time: it is booked a moment
/// after their end, or was given to them.
fn jobs(tx: &Connection, span: &Slot, holders: &BTreeSet<JobId>) -> Result<Vec<JobFacts>, StoreError> {
    let sql = format!("{FACTS} registered_us < ?2 AND (ended_us IS NULL OR ended_us > ?1)");
    let mut jobs = rows::one(tx, &sql, ends(span), facts)?;
    let known: BTreeSet<&JobId> = jobs.iter().map(|job| &job.id).collect();
    let others: Vec<&JobId> = holders.iter().filter(|id| !known.contains(id)).collect();
    if !others.is_empty() {
        let sql = format!("{FACTS} id IN (SELECT value FROM json_each(?1))");
        jobs.extend(rows::one(tx, &sql, [rows::json(&others)?], facts)?);
    }
    forget_savings_before_corrections(tx, &mut jobs)?;
    Ok(jobs)
}

/// The jobs that have energy in whole days of a span, whose sums may tell all jobs' together.
fn holders_of_days(tx: &Connection, span: &Slot) -> Result<Vec<JobId>, StoreError> {
    let Some(days) = whole_days(span) else { return Ok(Vec::new()) };
    let sql = "SELECT DISTINCT job_id FROM day_totals WHERE day_us >= ?1 AND day_us < ?2 AND share = 'job'";
    let id = |row: &Row<'_>| JobId::new(row.get::<_, String>(0)?).map_err(|e| rows::damaged("day total", e));
    rows::all(tx, sql, ends(&days), id)
}

/// What was reckoned before energy was given to a job, or taken from it, is not what it saved.
fn forget_savings_before_corrections(tx: &Connection, jobs: &mut [JobFacts]) -> Result<(), StoreError> {
    let sql = "SELECT job, MAX(corrected.seq) FROM (SELECT seq, json_extract(line, '$.from.job') AS job FROM ledger \
               WHERE kind = 'correction' UNION ALL SELECT seq, json_extract(line, '$.to.job') FROM ledger \
               WHERE kind = 'correction') AS corrected WHERE job IS NOT NULL GROUP BY job \
               HAVING MAX(corrected.seq) > (SELECT MAX(seq) FROM ledger WHERE kind IN ('counterfactual', 'outcome') \
               AND json_extract(line, '$.job') = corrected.job AND kind = 'outcome')";
    let corrected: BTreeSet<String> = rows::all(tx, sql, [], rows::first)?.into_iter().collect();
    for job in jobs.iter_mut().filter(|job| corrected.contains(job.id.as_str())) {
        job.saved = None;
    }
    Ok(())
}

fn facts(row: &Row<'_>) -> Result<Vec<JobFacts>, StoreError> {
    let text: Option<String> = row.get(0)?;
    let lines: Vec<JobLine> = rows::from_json("job", &format!("[{}]", text.unwrap_or_default()))?;
    let facts = |line: JobLine| {
        let registered_at = rows::moment(line.from)?;
        Ok(JobFacts {
            id: line.id,
            name: line.spec.name,
            tags: line.spec.tags,
            gpus: line.spec.gpus,
            samples: line.progress.samples_since(registered_at),
            registered_at,
            ended_at: line.until.map(rows::moment).transpose()?,
            saved: line.saved.and_then(SavedPart::grams),
        })
    };
    lines.into_iter().map(facts).collect()
}

/// Each device's balances over the blocks that were closed in a span; what is closed in the first minutes of an hour is of
/// the hour before.
fn balances(tx: &Connection, span: &Slot) -> Result<Vec<DeviceBalance>, StoreError> {
    let sql = "SELECT device, SUM(counter_mj) AS counter_mj, SUM(jobs_mj) AS jobs_mj, SUM(idle_mj) AS idle_mj, \
               SUM(unattributed_mj) AS unattributed_mj, SUM(integrated_mj) AS integrated_mj, \
               SUM(unequal) AS unequal, SUM(difference_mj) AS difference_mj FROM \
               (SELECT * FROM balance_days WHERE day_us >= ?1 AND day_us < ?2 \
               UNION ALL SELECT at_us, device, counter_mj, jobs_mj, idle_mj, unattributed_mj, integrated_mj, \
               difference_mj <> 0, difference_mj FROM balances, json_each(?3) AS edge \
               WHERE at_us > edge.value ->> 0 AND at_us <= edge.value ->> 1) GROUP BY device ORDER BY device";
    let (first, last) =
        whole_days(span).map_or((0, 0), |days| (days.start().timestamp_micros(), days.end().timestamp_micros()));
    let closed = |t: DateTime<Utc>| t.timestamp_micros() + CLOSED_WITHIN_US;
    let edges: Vec<(i64, i64)> = edges(span).iter().map(|edge| (closed(edge.start()), closed(edge.end()))).collect();
    let balance = |row: &Row<'_>| {
        let mj = |name: &str| rows::from_i64(row.get(name)?);
        Ok(DeviceBalance {
            device: device(row)?,
            counter_mj: row.get("counter_mj")?,
            jobs: mj("jobs_mj")?,
            idle: mj("idle_mj")?,
            unattributed: mj("unattributed_mj")?,
            integrated: mj("integrated_mj")?,
            unequal_blocks: u64::try_from(row.get::<_, i64>("unequal")?).unwrap_or_default(),
            difference_mj: row.get("difference_mj")?,
        })
    };
    rows::all(tx, sql, params![first, last, rows::json(&edges)?], balance)
}

fn device(row: &Row<'_>) -> Result<DeviceId, StoreError> {
    DeviceId::new(row.get::<_, String>("device")?).map_err(|e| rows::damaged("device", e))
}

impl Store {
    /// The gaps of a span, oldest first, and times of which nothing tells how much energy was used.
    ///
    /// # Errors
    /// If they cannot be read.
    pub async fn gaps(&self, span: &Slot) -> Result<Vec<Gap>, StoreError> {
        let span = *span;
        self.read.run(move |db| gaps(&*db.transaction()?, &span)).await
    }
}

/// The gaps of a span, oldest first; pieces of one that were cut at full hours are put together again. Beside them times
/// of which nothing tells how much energy was used.
fn gaps(tx: &Connection, span: &Slot) -> Result<Vec<Gap>, StoreError> {
    let sql = "SELECT device, start_us, end_us, SUM(energy_mj) AS energy_mj, MAX(rolled_up) AS rolled_up FROM \
               (SELECT device, start_us, end_us, energy_mj, FALSE AS rolled_up FROM intervals \
               WHERE source = 'counter_gap' AND start_us >= ?1 AND start_us < ?2 UNION ALL \
               SELECT device, hour_us, hour_us + 3600000000, energy_mj, TRUE FROM rolled_up \
               WHERE source = 'counter_gap' AND hour_us >= ?1 AND hour_us < ?2) \
               GROUP BY device, start_us, end_us ORDER BY device, start_us";
    let mut found: Vec<Gap> = Vec::new();
    let mut statement = tx.prepare_cached(sql)?;
    let mut pieces = statement.query(ends(span))?;
    while let Some(row) = pieces.next()? {
        let (device, slot): (DeviceId, Slot) = (device(row)?, rows::slot(row)?);
        let energy: Millijoules = rows::from_i64(row.get("energy_mj")?)?;
        let is_rolled_up: bool = row.get("rolled_up")?;
        match found.last_mut() {
            Some(Gap { device: of, slot: before, energy: Ok(sum), is_rolled_up: part })
                if *of == device && before.end() == slot.start() =>
            {
                *sum += energy;
                *part |= is_rolled_up;
                *before = Slot::new(before.start(), slot.end()).unwrap_or(*before);
            }
            _ => found.push(Gap { device, slot, is_rolled_up, energy: Ok(energy) }),
        }
    }
    found.extend(lost(tx, span)?);
    found.sort_by_key(|gap| gap.slot);
    Ok(found)
}

fn lost(tx: &Connection, span: &Slot) -> Result<Vec<Gap>, StoreError> {
    let sql = "SELECT line FROM ledger WHERE kind = 'lost' AND about_us < ?1 ORDER BY seq";
    let lines: Vec<String> = rows::all(tx, sql, [span.end().timestamp_micros()], rows::first)?;
    // A daemon that was killed before it booked what it had found finds it again.
    let mut found = BTreeMap::new();
    for line in &lines {
        let Entry::Lost(lost) = rows::from_json("ledger", line)? else { continue };
        if let Some(slot) = Slot::new(lost.from, lost.until).filter(|slot| slot.end() > span.start()) {
            let (device, energy) = (lost.device.clone(), Err(lost.why));
            found.insert((lost.device, lost.from), Gap { device, slot, is_rolled_up: false, energy });
        }
    }
    Ok(found.into_values().collect())
}

/// Whose intensities the settlements that hold use, and for how many hours.
fn sources(tx: &Connection, span: &Slot) -> Result<Vec<(String, u64)>, StoreError> {
    let sql = "SELECT book || ': ' || sources AS said, COUNT(*) AS hours FROM settled \
               WHERE hour_us >= ?1 AND hour_us < ?2 GROUP BY said ORDER BY said";
    let source = |row: &Row<'_>| {
        let hours = u64::try_from(row.get::<_, i64>("hours")?).unwrap_or_default();
        Ok((row.get("said")?, hours))
    };
    rows::all(tx, sql, ends(span), source)
}
