//! Settlement of hours: computes an hour's emissions with the carbon intensities known now, and stores them as a new
//! version if anything changed.

use std::collections::BTreeSet;

use chrono::{DateTime, TimeDelta, Utc};
use rusqlite::{Connection, Row, params};

use super::chain::{INTERVAL, append_entry, closed_blocks, share_key};
use super::lines;
use crate::store::connection::writing;
use crate::store::signals;
use crate::store::{SourceKey, Store, StoreError, rows};
use wattune_core::domain::{SignalKind, Slot};
use wattune_core::ledger::Interval;
use wattune_core::ledger::apportion::day_of;
use wattune_core::ledger::due::{self, DueReason};
use wattune_core::ledger::entry::{Entry, Factor, Settlement};
use wattune_core::ledger::hour::{self, IntensityChoice, SettlementInput, TotalsChange};
use wattune_core::ledger::report::unsettled_after;
use wattune_core::ledger::sources;

impl Store {
    /// Computes the emissions of an hour's recorded energy. Returns true if the result is stored as a new version of
    /// the hour's settlement (stored emissions), false if nothing changed.
    pub async fn settle_hour(&self, hour: DateTime<Utc>, with: &SettlementInput<'_>) -> Result<bool, StoreError> {
        let (sources, silent) = (with.sources.to_vec(), with.silent.to_vec());
        let SettlementInput { kind, at, why, .. } = *with;
        let settle = move |db: &mut Connection| {
            settle_hour(db, hour, &SettlementInput { kind, sources: &sources, silent: &silent, at, why })
        };
        self.write.run(settle).await
    }

    /// Returns the active `sources` and the earlier ones that the newest settlements (stored emissions of hours) of a
    /// span used, in the order of [`sources::with_earlier`]. `silent` names sources that have published nothing since
    /// the daemon's start.
    pub async fn sources_with_earlier(
        &self,
        kind: SignalKind,
        sources: &[SourceKey],
        silent: &[String],
        span: &Slot,
    ) -> Result<Vec<SourceKey>, StoreError> {
        let (sources, silent, span) = (sources.to_vec(), silent.to_vec(), *span);
        self.short_reads.run(move |db| sources_with_earlier(db, kind, &sources, &silent, &span)).await
    }

    /// Returns the hours since `from` whose newest settlement (stored emissions) is not final for at least one kind of
    /// carbon intensity.
    pub async fn unsettled_hours(&self, from: DateTime<Utc>) -> Result<BTreeSet<DateTime<Utc>>, StoreError> {
        let sql = "SELECT DISTINCT hour_us FROM settled WHERE NOT final AND hour_us >= ?1";
        let hour = |row: &Row<'_>| rows::time(row.get(0)?);
        let found = self.short_reads.run(move |db| rows::all(db, sql, [from.timestamp_micros()], hour)).await?;
        Ok(found.into_iter().collect())
    }

    /// Returns the hours whose emissions wait to be computed, oldest first, each with the reason: recorded energy, a
    /// correction or new intensities.
    pub async fn due_hours(&self) -> Result<Vec<(DateTime<Utc>, DueReason)>, StoreError> {
        let sql = "SELECT hour_us, why FROM due ORDER BY hour_us";
        // A reason with an unknown name counts as energy, so that the hour's energy and intensities are read again.
        let why = |name: &str| DueReason::named(name).unwrap_or(DueReason::Energy);
        let hour = move |row: &Row<'_>| Ok((rows::time(row.get(0)?)?, why(rows::text(row, 1)?)));
        self.short_reads.run(move |db| rows::all(db, sql, [], hour)).await
    }

    /// Stores hours whose emissions are to be computed later, with the reasons.
    pub async fn defer(&self, hours: &BTreeSet<(DateTime<Utc>, DueReason)>) -> Result<(), StoreError> {
        let hours = hours.clone();
        let write = move |db: &mut Connection| {
            let tx = writing(db)?;
            for (hour, why) in due::defer(&hours) {
                make_due(&tx, hour, why)?;
            }
            Ok(tx.commit()?)
        };
        self.write.run(write).await
    }

    /// Returns all versions of an hour's settlements (stored emissions) for all kinds of carbon intensity, oldest
    /// first.
    pub async fn settlements_of(&self, hour: DateTime<Utc>) -> Result<Vec<Settlement>, StoreError> {
        self.short_reads.run(move |db| versions_of(db, hour)).await
    }
}

fn settle_hour(db: &mut Connection, hour: DateTime<Utc>, with: &SettlementInput<'_>) -> Result<bool, StoreError> {
    let Some(span) = Slot::new(hour, hour + TimeDelta::hours(1)) else { return Ok(false) };
    // Intensities, which are slow to read, are read before the transaction blocks other writers.
    let factors = {
        let before = newest(db, hour, with.kind)?;
        if !hour::has_begun(with.kind, with.sources, before.as_ref()) {
            return Ok(false);
        }
        intensities(db, &span, before.as_ref(), with)?
    };
    let tx = writing(db)?;
    let closed = closed_blocks(&tx)?;
    let before = newest(&tx, hour, with.kind)?;
    if with.completes_hour() {
        rows::execute(&tx, "DELETE FROM due WHERE hour_us = ?1", [hour.timestamp_micros()])?;
    }
    let energy = recorded_energy(&tx, hour, closed, before.as_ref())?;
    let through_block = rows::unsigned(closed)?;
    let next = hour::next_version(hour, with, through_block, before.as_ref(), &energy, factors);
    let is_new = next.is_some();
    if let Some(settlement) = next {
        append_settlement(&tx, before.as_ref(), settlement)?;
    }
    tx.commit()?;
    Ok(is_new)
}

/// Appends the settlement `after` (emissions of an hour) to the ledger. In the derived tables it takes the place of the
/// previous version, `before`.
fn append_settlement(tx: &Connection, before: Option<&Settlement>, after: Settlement) -> Result<(), StoreError> {
    let entry = Entry::Settlement(after);
    let seq = append_entry(tx, &entry)?;
    let Entry::Settlement(after) = entry else { return Ok(()) };
    let sql = "INSERT INTO settled (hour_us, book, version, seq, final, through_block, sources) \
               VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7) ON CONFLICT (hour_us, book) DO UPDATE SET version = ?3, \
               seq = ?4, final = ?5, through_block = ?6, sources = ?7";
    let (hour, kind, sources) = (after.hour.timestamp_micros(), after.kind.as_str(), after.sources());
    let through_block = rows::signed(after.through_block)?;
    let columns = params![hour, kind, after.version, seq, after.is_final(), through_block, sources];
    rows::execute(tx, sql, columns)?;
    if let Some(before) = before {
        record_change(tx, &TotalsChange::of(&before.total(), &after.total()), &after)?;
    }
    add_to_day(tx, before, &after)
}

/// Returns the intensities for the next version of an hour's settlement (stored emissions).
fn intensities(
    db: &Connection,
    hour: &Slot,
    before: Option<&Settlement>,
    with: &SettlementInput<'_>,
) -> Result<Vec<Factor>, StoreError> {
    match hour::intensities(hour, before, with) {
        IntensityChoice::Kept(factors) => Ok(factors),
        IntensityChoice::AroundHour(span) => {
            factors_within(db, &sources_with_earlier(db, with.kind, with.sources, with.silent, &span)?, hour)
        }
        IntensityChoice::Published => {
            let published = factors_within(db, with.sources, hour)?;
            match before.and_then(|before| hour::sources_to_read(before, &published, with)) {
                Some(sources) => factors_within(db, &sources, hour),
                None => Ok(published),
            }
        }
    }
}

/// Returns carbon intensities with their provenance, whose times are cut to a span.
fn factors_within(db: &Connection, sources: &[SourceKey], span: &Slot) -> Result<Vec<Factor>, StoreError> {
    let mut factors = signals::factors(db, sources, span)?;
    hour::clip(&mut factors, span);
    Ok(factors)
}

pub(super) fn sources_with_earlier(
    db: &Connection,
    kind: SignalKind,
    active: &[SourceKey],
    silent: &[String],
    span: &Slot,
) -> Result<Vec<SourceKey>, StoreError> {
    let sql = "SELECT seq, sources FROM settled WHERE book = ?1 AND hour_us > ?2 - 3600000000 AND hour_us < ?3";
    let [start, end] = rows::ends(span);
    let of_row = |row: &Row<'_>| Ok::<(i64, String), StoreError>((row.get(0)?, row.get(1)?));
    let settled = rows::all(db, sql, params![kind.as_str(), start, end], of_row)?;
    let newest = rows::json(&sources::newest_of_each(settled))?;
    let sql = "SELECT seq, line FROM ledger WHERE seq IN (SELECT value FROM json_each(?1)) ORDER BY seq DESC";
    Ok(sources::with_earlier(kind, active, silent, &rows::all(db, sql, [newest], settlement)?))
}

pub(super) fn versions_of(db: &Connection, hour: DateTime<Utc>) -> Result<Vec<Settlement>, StoreError> {
    let sql = "SELECT seq, line FROM ledger WHERE kind = 'settlement' AND about_us = ?1 ORDER BY seq";
    rows::all(db, sql, [hour.timestamp_micros()], settlement)
}

/// Returns an hour's energy in the blocks (intervals of about an hour each) up to the one with the number
/// `through_block`.
fn recorded_energy(
    tx: &Connection,
    hour: DateTime<Utc>,
    through_block: i64,
    before: Option<&Settlement>,
) -> Result<Vec<Interval>, StoreError> {
    let (start, end) = (hour.timestamp_micros(), (hour + TimeDelta::hours(1)).timestamp_micros());
    let rolled_up = rows::all(tx, "SELECT * FROM rolled_up WHERE hour_us = ?1", [start], rows::rolled_up)?;
    let sql = format!(
        "SELECT {INTERVAL}, block FROM intervals WHERE start_us >= ?1 AND start_us < ?2 AND block <= ?3 ORDER BY block, id"
    );
    let of_row = |row: &Row<'_>| Ok::<_, StoreError>((rows::interval(row)?, rows::number(row, "block")?));
    let found = rows::all(tx, &sql, [start, end, through_block], of_row)?;
    Ok(hour::energy(rolled_up, found, before))
}

fn newest(tx: &Connection, hour: DateTime<Utc>, kind: SignalKind) -> Result<Option<Settlement>, StoreError> {
    let sql = "SELECT seq, line FROM settled JOIN ledger USING (seq) WHERE hour_us = ?1 AND book = ?2";
    rows::optional(tx, sql, params![hour.timestamp_micros(), kind.as_str()], settlement)
}

/// Returns the newest settlements (stored emissions) of the hours that begin in a span, which should be short.
pub(super) fn settled_within(tx: &Connection, span: &Slot) -> Result<Vec<Settlement>, StoreError> {
    let sql = "SELECT seq, line FROM settled JOIN ledger USING (seq) WHERE hour_us >= ?1 AND hour_us < ?2";
    rows::all(tx, sql, rows::ends(span), settlement)
}

/// Returns the intervals of a span whose energy no settlement (stored emissions of an hour) contains yet: those of the
/// open block (intervals since the last close), and those of closed blocks in hours whose emissions wait to be
/// computed.
pub(super) fn open_rows(tx: &Connection, span: &Slot) -> Result<Vec<Interval>, StoreError> {
    let [start, end] = rows::ends(span);
    let closed = closed_blocks(tx)?;
    // The pluses make SQLite select rows by block, which are those of about an hour. With the index on time it would
    // find all rows of the span.
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
        let through = through.map(rows::unsigned).transpose()?;
        Ok::<(i64, Option<u64>), StoreError>((row.get(0)?, unsettled_after(why, through)))
    };
    // Here the pluses make SQLite select rows by hour. With the index on blocks it would find all rows of the hour's
    // blocks.
    let sql_of_hour = format!(
        "SELECT {INTERVAL} FROM intervals WHERE start_us >= ?1 AND start_us < ?1 + 3600000000 AND +block > ?2 AND +block <= ?3"
    );
    for (hour, after) in rows::all(tx, sql, [start, end], of_due)? {
        let Some(after) = after else { continue };
        found.extend(rows::all(tx, &sql_of_hour, [hour, rows::signed(after)?, closed], rows::interval)?);
    }
    Ok(found)
}

pub(super) fn settlement(row: &Row<'_>) -> Result<Settlement, StoreError> {
    match lines::entry(row)? {
        Entry::Settlement(settlement) => Ok(settlement),
        other => Err(rows::damaged("settlement", other.kind())),
    }
}

/// Marks an hour as due: its emissions are to be computed for the reason `why`. If the hour is due already, its reason
/// becomes the stronger one of both ([`DueReason::merge`]).
pub(super) fn make_due(tx: &Connection, hour: DateTime<Utc>, why: DueReason) -> Result<(), StoreError> {
    let hour = hour.timestamp_micros();
    let sql = "SELECT why FROM due WHERE hour_us = ?1";
    let waiting =
        rows::optional(tx, sql, [hour], |row| Ok(DueReason::named(rows::text(row, 0)?).unwrap_or(DueReason::Energy)))?;
    let joined = waiting.map_or(why, |waiting| why.merge(waiting));
    if waiting != Some(joined) {
        let sql = "INSERT INTO due (hour_us, why) VALUES (?1, ?2) ON CONFLICT (hour_us) DO UPDATE SET why = ?2";
        rows::execute(tx, sql, params![hour, joined.name()])?;
    }
    Ok(())
}

/// Stores how the new version `after` changed an hour's totals, in the table `restated`, which reports read.
fn record_change(tx: &Connection, change: &TotalsChange, after: &Settlement) -> Result<(), StoreError> {
    let columns = params![
        after.hour.timestamp_micros(),
        after.kind.as_str(),
        after.version,
        after.at.timestamp_micros(),
        after.reason,
        rows::to_i64(change.energy_before)?,
        rows::to_i64(change.energy)?,
        rows::signed(change.carbon_before.get())?,
        rows::signed(change.carbon.get())?,
    ];
    rows::execute(tx, "INSERT INTO restated VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)", columns)?;
    Ok(())
}

/// Adds the settlement `after` (emissions of an hour) to the totals of the hour's day, in place of the previous
/// version, `before`.
fn add_to_day(tx: &Connection, before: Option<&Settlement>, after: &Settlement) -> Result<(), StoreError> {
    let (day, kind) = (day_of(after.hour).timestamp_micros(), after.kind.as_str());
    let sql = "INSERT INTO day_totals VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12) \
               ON CONFLICT (day_us, book, device, share, job_id) DO UPDATE SET energy_mj = energy_mj + excluded.energy_mj, \
               estimated_mj = estimated_mj + excluded.estimated_mj, forecast_mj = forecast_mj + excluded.forecast_mj, \
               provisional_mj = provisional_mj + excluded.provisional_mj, final_mj = final_mj + excluded.final_mj, \
               unknown_mj = unknown_mj + excluded.unknown_mj, carbon_ug = carbon_ug + excluded.carbon_ug";
    for ((device, share), changes) in hour::day_changes(before, after) {
        let (share, job) = share_key(share);
        let mut changed = [0; 7];
        for (changed, change) in changed.iter_mut().zip(changes) {
            *changed = i64::try_from(change).map_err(|e| rows::damaged("day's total", e))?;
        }
        let [energy, estimated, forecast, provisional, final_, unknown, carbon] = changed;
        let device = device.as_str();
        let columns =
            params![day, kind, device, share, job, energy, estimated, forecast, provisional, final_, unknown, carbon];
        rows::execute(tx, sql, columns)?;
    }
    Ok(())
}
