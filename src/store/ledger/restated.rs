//! Which version of a span's settlements a report shows, and which hours' emissions changed.

use chrono::{DateTime, Utc};
use rusqlite::{Connection, Row, params};

use super::report::ends;
use super::settle::versions_of;
use crate::store::{StoreError, rows};
use wattune_core::domain::{SignalKind, Slot};
use wattune_core::ledger::entry::Settlement;
use wattune_core::ledger::report::{Restatement, Version, Wanted};
use wattune_core::units::Micrograms;

/// Restatements listed in a report; the others are counted.
const RESTATEMENTS: usize = 500;

pub(super) fn version(tx: &Connection, wanted: &Wanted) -> Result<Version, StoreError> {
    let span = &wanted.span;
    let sql = "SELECT COALESCE(MAX(version), 0) AS highest, COALESCE(SUM(version), 0) AS settlements, \
               COUNT(DISTINCT hour_us) FILTER (WHERE version > 1) AS resettled FROM settled \
               WHERE hour_us >= ?1 AND hour_us < ?2";
    let numbers = |row: &Row<'_>| {
        let number = |i: usize| Ok::<_, StoreError>(u64::try_from(row.get::<_, i64>(i)?).unwrap_or_default());
        Ok::<_, StoreError>((number(0)?, number(1)?, number(2)?))
    };
    let (highest, settlements, resettled_hours) = rows::one(tx, sql, ends(span), numbers)?;
    let sql = "SELECT MAX(at_us) FROM restated WHERE hour_us >= ?1 AND hour_us < ?2";
    let last: Option<i64> = rows::one(tx, sql, ends(span), rows::first)?;
    let (restatements, left_out) = restatements(tx, span, wanted.restated_by_pct)?;
    Ok(Version {
        highest: u32::try_from(highest).unwrap_or(u32::MAX),
        settlements,
        resettled_hours,
        last_restated_at: last.map(rows::moment).transpose()?,
        restatements,
        restatements_left_out: left_out,
    })
}

/// The versions by which the same energy emits another amount, the newest hour first, and how many more there are. Energy
/// that came with a version is no restatement: nothing that was said before was wrong. What it came with may be one.
fn restatements(tx: &Connection, span: &Slot, by_pct: f64) -> Result<(Vec<Restatement>, u64), StoreError> {
    // Where the energy is the same, so few need to be read that the database may choose.
    let sql = "SELECT *, energy_mj <> energy_before_mj AS moved FROM restated WHERE hour_us >= ?1 AND hour_us < ?2 \
               AND (energy_mj <> energy_before_mj OR ABS(carbon_ug - carbon_before_ug) * 100.0 > ?3 * carbon_before_ug \
               OR (carbon_ug = 0 AND carbon_before_ug > 0)) ORDER BY hour_us DESC, book, version DESC";
    let [start, end] = ends(span);
    let of_row = |row: &Row<'_>| Ok::<(Restatement, bool), StoreError>((restatement(row)?, row.get("moved")?));
    let found = rows::all(tx, sql, params![start, end, by_pct], of_row)?;
    let (mut listed, mut left_out) = (Vec::new(), 0);
    let mut versions: (Option<DateTime<Utc>>, Vec<Settlement>) = (None, Vec::new());
    for (mut found, moved) in found {
        if moved {
            if versions.0 != Some(found.hour) {
                versions = (Some(found.hour), versions_of(tx, found.hour)?);
            }
            let of = |version: u32| versions.1.iter().find(|s| (s.book, s.version) == (found.book, version));
            if let Some((before, after)) = of(found.version.saturating_sub(1)).zip(of(found.version)) {
                found.after = after.carbon_of(before);
            }
            if !is_restated(found.before, found.after, by_pct) {
                continue;
            }
        }
        if listed.len() < RESTATEMENTS {
            listed.push(found);
        } else {
            left_out += 1;
        }
    }
    Ok((listed, left_out))
}

fn is_restated(before: Micrograms, after: Micrograms, by_pct: f64) -> bool {
    let (before, after) = (before.get(), after.get());
    let is_gone = after == 0 && before > 0;
    is_gone || after.abs_diff(before) as f64 * 100.0 > by_pct * before as f64
}

fn restatement(row: &Row<'_>) -> Result<Restatement, StoreError> {
    let carbon = |name: &str| {
        let ug = u64::try_from(row.get::<_, i64>(name)?).map_err(|e| rows::damaged("emissions", e))?;
        Ok::<_, StoreError>(Micrograms::new(ug))
    };
    Ok(Restatement {
        hour: rows::moment(row.get("hour_us")?)?,
        book: rows::from_name::<SignalKind>("settlement", row.get("book")?)?,
        version: u32::try_from(row.get::<_, i64>("version")?).unwrap_or(u32::MAX),
        at: rows::moment(row.get("at_us")?)?,
        reason: row.get("reason")?,
        before: carbon("carbon_before_ug")?,
        after: carbon("carbon_ug")?,
    })
}
