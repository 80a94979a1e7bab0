//! Which version of a span's settlements a report shows, and which hours' emissions changed.

use chrono::{DateTime, Utc};
use sqlx::Row as _;
use sqlx::sqlite::{SqliteConnection, SqliteRow};

use super::report::bound;
use super::settle::settlement;
use crate::domain::{SignalKind, Slot};
use crate::ledger::entry::Settlement;
use crate::ledger::report::{Restatement, Version, Wanted};
use crate::store::{StoreError, rows};
use crate::units::Micrograms;

/// Restatements listed in a report; the others are counted.
const RESTATEMENTS: usize = 500;

pub(super) async fn version(tx: &mut SqliteConnection, wanted: &Wanted) -> Result<Version, StoreError> {
    let span = &wanted.span;
    let sql = "SELECT COALESCE(MAX(version), 0) AS highest, COALESCE(SUM(version), 0) AS settlements, \
               COUNT(DISTINCT hour_us) FILTER (WHERE version > 1) AS resettled FROM settled \
               WHERE hour_us >= $1 AND hour_us < $2";
    let row = bound(sql, span).fetch_one(&mut *tx).await?;
    let number = |name: &str| Ok::<_, StoreError>(u64::try_from(row.try_get::<i64, _>(name)?).unwrap_or_default());
    let last = "SELECT MAX(at_us) AS last FROM restated WHERE hour_us >= $1 AND hour_us < $2";
    let last: Option<i64> = bound(last, span).fetch_one(&mut *tx).await?.try_get("last")?;
    let (restatements, left_out) = restatements(tx, span, wanted.restated_by_pct).await?;
    Ok(Version {
        highest: u32::try_from(number("highest")?).unwrap_or(u32::MAX),
        settlements: number("settlements")?,
        resettled_hours: number("resettled")?,
        last_restated_at: last.map(rows::moment).transpose()?,
        restatements,
        restatements_left_out: left_out,
    })
}

/// The versions by which the same energy emits another amount, the newest hour first, and how many more there are. Energy
/// that came with a version is no restatement: nothing that was said before was wrong. What it came with may be one.
async fn restatements(
    tx: &mut SqliteConnection,
    span: &Slot,
    by_pct: f64,
) -> Result<(Vec<Restatement>, u64), StoreError> {
    // Where the energy is the same, so few need to be read that the database may choose.
    let sql = "SELECT *, energy_mj <> energy_before_mj AS moved FROM restated WHERE hour_us >= $1 AND hour_us < $2 \
               AND (energy_mj <> energy_before_mj OR ABS(carbon_ug - carbon_before_ug) * 100.0 > $3 * carbon_before_ug \
               OR (carbon_ug = 0 AND carbon_before_ug > 0)) ORDER BY hour_us DESC, book, version DESC";
    let found = bound(sql, span).bind(by_pct).fetch_all(&mut *tx).await?;
    let (mut listed, mut left_out) = (Vec::new(), 0);
    let mut versions: (Option<DateTime<Utc>>, Vec<Settlement>) = (None, Vec::new());
    for row in &found {
        let mut found = restatement(row)?;
        if row.try_get("moved")? {
            if versions.0 != Some(found.hour) {
                versions = (Some(found.hour), versions_of(tx, found.hour).await?);
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

async fn versions_of(tx: &mut SqliteConnection, hour: DateTime<Utc>) -> Result<Vec<Settlement>, StoreError> {
    let sql = "SELECT seq, line FROM ledger WHERE kind = 'settlement' AND about_us = $1 ORDER BY seq";
    sqlx::query(sql).bind(hour.timestamp_micros()).fetch_all(&mut *tx).await?.iter().map(settlement).collect()
}

fn restatement(row: &SqliteRow) -> Result<Restatement, StoreError> {
    let carbon = |name: &str| {
        let ug = u64::try_from(row.try_get::<i64, _>(name)?).map_err(|e| rows::damaged("emissions", e))?;
        Ok::<_, StoreError>(Micrograms::new(ug))
    };
    Ok(Restatement {
        hour: rows::moment(row.try_get("hour_us")?)?,
        book: rows::from_name::<SignalKind>("settlement", row.try_get("book")?)?,
        version: u32::try_from(row.try_get::<i64, _>("version")?).unwrap_or(u32::MAX),
        at: rows::moment(row.try_get("at_us")?)?,
        reason: row.try_get("reason")?,
        before: carbon("carbon_before_ug")?,
        after: carbon("carbon_ug")?,
    })
}
