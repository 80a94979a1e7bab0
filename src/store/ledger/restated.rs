//! State of the settlements (stored emissions of hours, in versions) on which a report of a span is based, and the
//! hours whose emissions a later version changed.

use chrono::{DateTime, Utc};
use rusqlite::{Connection, Row};

use super::settlements::versions_of;
use crate::store::{StoreError, rows};
use wattune_core::domain::{SignalKind, Slot};
use wattune_core::ledger::entry::Settlement;
use wattune_core::ledger::hour::TotalsChange;
use wattune_core::ledger::report::{ReportRequest, Restatement, Restatements, Version, carbon_after, is_restated};
use wattune_core::units::Micrograms;

pub(super) fn settlement_state(tx: &Connection, request: &ReportRequest) -> Result<Version, StoreError> {
    let span = &request.span;
    let sql = "SELECT COALESCE(MAX(version), 0) AS highest, COALESCE(SUM(version), 0) AS settlements, \
               COUNT(DISTINCT hour_us) FILTER (WHERE version > 1) AS resettled FROM settled \
               WHERE hour_us >= ?1 AND hour_us < ?2";
    let numbers = |row: &Row<'_>| Ok::<_, StoreError>((row.get(0)?, rows::number(row, 1)?, rows::number(row, 2)?));
    let (highest, settlements, resettled_hours) = rows::one(tx, sql, rows::ends(span), numbers)?;
    let sql = "SELECT MAX(at_us) FROM restated WHERE hour_us >= ?1 AND hour_us < ?2";
    let last: Option<i64> = rows::one(tx, sql, rows::ends(span), rows::first)?;
    let Restatements { listed, left_out } = restatements(tx, span, request.restated_by_pct)?;
    Ok(Version {
        highest,
        settlements,
        resettled_hours,
        last_restated_at: last.map(rows::time).transpose()?,
        restatements: listed,
        restatements_left_out: left_out,
    })
}

/// Returns the versions of settlements (stored emissions of hours) that changed the emissions of energy recorded before
/// by more than `by_pct` percent, newest hour first. Emissions of energy that a version adds do not count.
fn restatements(tx: &Connection, span: &Slot, by_pct: f64) -> Result<Restatements, StoreError> {
    // Omits versions that change only the finality, as most do.
    let sql = "SELECT * FROM restated WHERE hour_us >= ?1 AND hour_us < ?2 \
               AND (energy_mj <> energy_before_mj OR carbon_ug <> carbon_before_ug) \
               ORDER BY hour_us DESC, book, version DESC";
    let mut statement = tx.prepare_cached(sql)?;
    let mut found = statement.query(rows::ends(span))?;
    let mut restatements = Restatements::default();
    let mut versions: (Option<DateTime<Utc>>, Vec<Settlement>) = (None, Vec::new());
    while let Some(row) = found.next()? {
        let change = change(row)?;
        let mut after = change.carbon;
        if change.moved_energy() {
            let hour = rows::time(row.get("hour_us")?)?;
            if versions.0 != Some(hour) {
                versions = (Some(hour), versions_of(tx, hour)?);
            }
            after = carbon_after(&change, kind(row)?, row.get("version")?, &versions.1);
        }
        if is_restated(change.carbon_before, after, by_pct) {
            restatements.push(|| restatement(row, change.carbon_before, after))?;
        }
    }
    Ok(restatements)
}

fn change(row: &Row<'_>) -> Result<TotalsChange, StoreError> {
    let mj = |name: &str| rows::from_i64(row.get(name)?);
    let carbon = |name: &str| rows::number(row, name).map(Micrograms::new);
    Ok(TotalsChange {
        energy_before: mj("energy_before_mj")?,
        energy: mj("energy_mj")?,
        carbon_before: carbon("carbon_before_ug")?,
        carbon: carbon("carbon_ug")?,
    })
}

fn kind(row: &Row<'_>) -> Result<SignalKind, StoreError> {
    rows::from_name("settlement", rows::text(row, "book")?)
}

fn restatement(row: &Row<'_>, before: Micrograms, after: Micrograms) -> Result<Restatement, StoreError> {
    Ok(Restatement {
        hour: rows::time(row.get("hour_us")?)?,
        kind: kind(row)?,
        version: row.get("version")?,
        at: rows::time(row.get("at_us")?)?,
        reason: row.get("reason")?,
        before,
        after,
    })
}
