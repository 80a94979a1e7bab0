//! Settling hours: their energy with the intensities known now, as a new version where that says something new.

use std::collections::BTreeSet;

use chrono::{DateTime, TimeDelta, Utc};
use rusqlite::{Connection, Row, params};

use super::{INTERVAL, append_entry, closed_blocks, lines, share_key};
use crate::store::connection::writing;
use crate::store::signals;
use crate::store::{SourceKey, Store, StoreError, rows};
use wattune_core::domain::{SignalKind, Slot};
use wattune_core::ledger::Interval;
use wattune_core::ledger::apportion::day_of;
use wattune_core::ledger::due::{self, Why};
use wattune_core::ledger::entry::{Entry, Factor, Settlement};
use wattune_core::ledger::hour::{self, Intensities, Restated, Settling};
use wattune_core::ledger::sources;
use wattune_core::units::Micrograms;

impl Store {
    /// Settles an hour's booked energy anew. Says whether that made a new version: it does unless the one that holds says
    /// the same.
    ///
    /// # Errors
    /// If the transaction fails; then none of it is written.
    pub async fn settle_hour(&self, hour: DateTime<Utc>, with: &Settling<'_>) -> Result<bool, StoreError> {
        let (sources, silent) = (with.sources.to_vec(), with.silent.to_vec());
        let Settling { book, at, why, .. } = *with;
        let settle = move |db: &mut Connection| {
            settle_hour(db, hour, &Settling { book, sources: &sources, silent: &silent, at, why })
        };
        self.write.run(settle).await
    }

    /// These sources, and those whose intensities the settlements of a span have that hold, as [`Settling`] joins them.
    ///
    /// # Errors
    /// If they cannot be read.
    pub async fn believed(
        &self,
        book: SignalKind,
        sources: &[SourceKey],
        silent: &[String],
        span: &Slot,
    ) -> Result<Vec<SourceKey>, StoreError> {
        let (sources, silent, span) = (sources.to_vec(), silent.to_vec(), *span);
        self.read.run(move |db| believed(db, book, &sources, &silent, &span)).await
    }

    /// The hours since `from` whose settlement may still change, in any book.
    ///
    /// # Errors
    /// If they cannot be read.
    pub async fn unsettled_hours(&self, from: DateTime<Utc>) -> Result<BTreeSet<DateTime<Utc>>, StoreError> {
        let sql = "SELECT DISTINCT hour_us FROM settled WHERE NOT final AND hour_us >= ?1";
        let hour = |row: &Row<'_>| rows::moment(row.get(0)?);
        let found = self.read.run(move |db| rows::all(db, sql, [from.timestamp_micros()], hour)).await?;
        Ok(found.into_iter().collect())
    }

    /// The hours that are to be settled because of what was booked or corrected, or that were put off, and why.
    ///
    /// # Errors
    /// If they cannot be read.
    pub async fn due_hours(&self) -> Result<Vec<(DateTime<Utc>, Why)>, StoreError> {
        let sql = "SELECT hour_us, why FROM due ORDER BY hour_us";
        // A name that nobody writes is as good as energy: everything of the hour is read again.
        let why = |name: &str| Why::named(name).unwrap_or(Why::Energy);
        let hour = move |row: &Row<'_>| Ok((rows::moment(row.get(0)?)?, why(rows::text(row, 1)?)));
        self.read.run(move |db| rows::all(db, sql, [], hour)).await
    }

    /// Keeps for later which hours are to be settled, and why.
    ///
    /// # Errors
    /// If the transaction fails; then none of it is written.
    pub async fn put_off(&self, hours: &BTreeSet<(DateTime<Utc>, Why)>) -> Result<(), StoreError> {
        let hours = hours.clone();
        let write = move |db: &mut Connection| {
            let tx = writing(db)?;
            for (hour, why) in due::put_off(&hours) {
                make_due(&tx, hour, why)?;
            }
            Ok(tx.commit()?)
        };
        self.write.run(write).await
    }

    /// All versions of an hour's settlements in all books, oldest first.
    ///
    /// # Errors
    /// If it cannot be read.
    pub async fn settlements_of(&self, hour: DateTime<Utc>) -> Result<Vec<Settlement>, StoreError> {
        self.read.run(move |db| versions_of(db, hour)).await
    }
}

fn settle_hour(db: &mut Connection, hour: DateTime<Utc>, with: &Settling<'_>) -> Result<bool, StoreError> {
    let Some(span) = Slot::new(hour, hour + TimeDelta::hours(1)) else { return Ok(false) };
    // What takes long is read before others that write have to wait.
    let factors = {
        let before = holding(db, hour, with.book)?;
        if !hour::is_begun(with.book, with.sources, before.as_ref()) {
            return Ok(false);
        }
        intensities(db, &span, before.as_ref(), with)?
    };
    let tx = writing(db)?;
    let closed = closed_blocks(&tx)?;
    let before = holding(&tx, hour, with.book)?;
    if with.completes_hour() {
        rows::execute(&tx, "DELETE FROM due WHERE hour_us = ?1", [hour.timestamp_micros()])?;
    }
    let energy = booked(&tx, hour, closed, before.as_ref())?;
    let through_block = u64::try_from(closed).map_err(|e| rows::damaged("ledger", e))?;
    let next = hour::next_version(hour, with, through_block, before.as_ref(), &energy, factors);
    let is_new = next.is_some();
    if let Some(settlement) = next {
        append_settlement(&tx, before.as_ref(), settlement)?;
    }
    tx.commit()?;
    Ok(is_new)
}

/// Appends a settlement, in place of the version that held before, with what follows from it.
fn append_settlement(tx: &Connection, before: Option<&Settlement>, after: Settlement) -> Result<(), StoreError> {
    let entry = Entry::Settlement(after);
    let seq = append_entry(tx, &entry)?;
    let Entry::Settlement(after) = entry else { return Ok(()) };
    let sql = "INSERT INTO settled (hour_us, book, version, seq, final, through_block, sources) \
               VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7) ON CONFLICT (hour_us, book) DO UPDATE SET version = ?3, \
               seq = ?4, final = ?5, through_block = ?6, sources = ?7";
    let (hour, book, sources) = (after.hour.timestamp_micros(), after.book.as_str(), after.sources());
    let through_block = i64::try_from(after.through_block).map_err(|e| rows::damaged("ledger", e))?;
    let columns = params![hour, book, after.version, seq, after.is_final(), through_block, sources];
    rows::execute(tx, sql, columns)?;
    if let Some(before) = before {
        note_restated(tx, &Restated::of(&before.total(), &after.total()), &after)?;
    }
    add_to_day(tx, before, &after)
}

/// The intensities of an hour's next version.
fn intensities(
    db: &Connection,
    hour: &Slot,
    before: Option<&Settlement>,
    with: &Settling<'_>,
) -> Result<Vec<Factor>, StoreError> {
    match hour::intensities(hour, before, with) {
        Intensities::Kept(factors) => Ok(factors),
        Intensities::AsAround(span) => {
            factors_within(db, &believed(db, with.book, with.sources, with.silent, &span)?, hour)
        }
        Intensities::Published => {
            let published = factors_within(db, with.sources, hour)?;
            match before.and_then(|before| hour::beyond(before, &published, with)) {
                Some(sources) => factors_within(db, &sources, hour),
                None => Ok(published),
            }
        }
    }
}

/// Intensities with their provenance, cut at the ends of a span.
fn factors_within(db: &Connection, sources: &[SourceKey], span: &Slot) -> Result<Vec<Factor>, StoreError> {
    let mut factors = signals::factors(db, sources, span)?;
    hour::cut(&mut factors, span);
    Ok(factors)
}

/// As [`Store::believed`].
pub(super) fn believed(
    db: &Connection,
    book: SignalKind,
    active: &[SourceKey],
    silent: &[String],
    span: &Slot,
) -> Result<Vec<SourceKey>, StoreError> {
    let sql = "SELECT seq, sources FROM settled WHERE book = ?1 AND hour_us > ?2 - 3600000000 AND hour_us < ?3";
    let (start, end) = (span.start().timestamp_micros(), span.end().timestamp_micros());
    let of_row = |row: &Row<'_>| Ok::<(i64, String), StoreError>((row.get(0)?, row.get(1)?));
    let settled = rows::all(db, sql, params![book.as_str(), start, end], of_row)?;
    let newest = rows::json(&sources::newest_of_each(settled))?;
    let sql = "SELECT seq, line FROM ledger WHERE seq IN (SELECT value FROM json_each(?1)) ORDER BY seq DESC";
    Ok(sources::with_earlier(book, active, silent, &rows::all(db, sql, [newest], settlement)?))
}

/// As [`Store::settlements_of`].
pub(super) fn versions_of(db: &Connection, hour: DateTime<Utc>) -> Result<Vec<Settlement>, StoreError> {
    let sql = "SELECT seq, line FROM ledger WHERE kind = 'settlement' AND about_us = ?1 ORDER BY seq";
    rows::all(db, sql, [hour.timestamp_micros()], settlement)
}

/// An hour's energy in the blocks up to one.
fn booked(
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
    let of_row = |row: &Row<'_>| {
        let block = u64::try_from(row.get::<_, i64>("block")?).map_err(|e| rows::damaged("interval", e))?;
        Ok::<_, StoreError>((rows::interval(row)?, block))
    };
    let found = rows::all(tx, &sql, [start, end, through_block], of_row)?;
    Ok(hour::energy(rolled_up, found, before))
}

fn holding(tx: &Connection, hour: DateTime<Utc>, book: SignalKind) -> Result<Option<Settlement>, StoreError> {
    let sql = "SELECT seq, line FROM settled JOIN ledger USING (seq) WHERE hour_us = ?1 AND book = ?2";
    rows::optional(tx, sql, params![hour.timestamp_micros(), book.as_str()], settlement)
}

/// The settlement in a row's column `line`.
pub(super) fn settlement(row: &Row<'_>) -> Result<Settlement, StoreError> {
    match lines::entry(row)? {
        Entry::Settlement(settlement) => Ok(settlement),
        other => Err(rows::damaged("settlement", other.kind())),
    }
}

/// Has an hour settled for a reason, beside the one for which it waits already.
pub(super) fn make_due(tx: &Connection, hour: DateTime<Utc>, why: Why) -> Result<(), StoreError> {
    let hour = hour.timestamp_micros();
    let sql = "SELECT why FROM due WHERE hour_us = ?1";
    let waiting = rows::optional(tx, sql, [hour], |row| Ok(Why::named(rows::text(row, 0)?).unwrap_or(Why::Energy)))?;
    let joined = waiting.map_or(why, |waiting| why.joins(waiting));
    if waiting != Some(joined) {
        let sql = "INSERT INTO due (hour_us, why) VALUES (?1, ?2) ON CONFLICT (hour_us) DO UPDATE SET why = ?2";
        rows::execute(tx, sql, params![hour, joined.name()])?;
    }
    Ok(())
}

/// Keeps what a version changed where reports find it.
fn note_restated(tx: &Connection, change: &Restated, after: &Settlement) -> Result<(), StoreError> {
    let grams = |carbon: Micrograms| i64::try_from(carbon.get()).map_err(|e| rows::damaged("emissions", e));
    let columns = params![
        after.hour.timestamp_micros(),
        after.book.as_str(),
        after.version,
        after.at.timestamp_micros(),
        after.reason,
        rows::to_i64(change.energy_before)?,
        rows::to_i64(change.energy)?,
        grams(change.carbon_before)?,
        grams(change.carbon)?,
    ];
    rows::execute(tx, "INSERT INTO restated VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)", columns)?;
    Ok(())
}

/// Adds a settlement to its day's totals, in place of the one that held before.
fn add_to_day(tx: &Connection, before: Option<&Settlement>, after: &Settlement) -> Result<(), StoreError> {
    let (day, book) = (day_of(after.hour).timestamp_micros(), after.book.as_str());
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
            params![day, book, device, share, job, energy, estimated, forecast, provisional, final_, unknown, carbon];
        rows::execute(tx, sql, columns)?;
    }
    Ok(())
}
