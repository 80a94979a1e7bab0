//! Since when each device is in the ledger: before that the daemon did not have it.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use rusqlite::{Connection, Row, params};

use crate::store::{StoreError, rows};
use wattune_core::domain::DeviceId;
use wattune_core::ledger::Interval;

const DAY_US: i64 = 86_400_000_000;

/// When the first interval of each device began. `open` are those of the open block. Of a device whose first intervals were
/// rolled up the hour is known, and that nothing began before the ledger did.
pub(super) fn first_seen(tx: &Connection, open: &[Interval]) -> Result<BTreeMap<DeviceId, DateTime<Utc>>, StoreError> {
    let mut first = BTreeMap::new();
    // One row for each device and day, of which the first leads to the first interval without looking at the others.
    let sql = "SELECT device, MIN(day_us) FROM balance_days GROUP BY device";
    let of_device = |row: &Row<'_>| Ok::<(String, i64), StoreError>((row.get(0)?, row.get(1)?));
    for (device, day) in rows::all(tx, sql, [], of_device)? {
        // A block that is closed after midnight is of the day before, and may have begun in the one before that.
        if let Some(at) = first_of(tx, &device, day - DAY_US)? {
            let device = DeviceId::new(device).map_err(|e| rows::damaged("device", e))?;
            first.insert(device, rows::moment(at)?);
        }
    }
    for row in open {
        let known = first.entry(row.device.clone()).or_insert(row.slot.start());
        *known = row.slot.start().min(*known);
    }
    Ok(first)
}

fn first_of(tx: &Connection, device: &str, from: i64) -> Result<Option<i64>, StoreError> {
    let sql = "SELECT start_us FROM intervals WHERE start_us >= ?1 AND device = ?2 ORDER BY start_us LIMIT 1";
    let minute: Option<i64> = rows::optional(tx, sql, params![from, device], rows::first)?;
    let sql = "SELECT hour_us FROM rolled_up WHERE hour_us >= ?1 AND device = ?2 ORDER BY hour_us LIMIT 1";
    let hour: Option<i64> = rows::optional(tx, sql, params![from, device], rows::first)?;
    let sql = "SELECT MIN(about_us) FROM ledger WHERE kind = 'terms'";
    let begun: Option<i64> = rows::one(tx, sql, [], rows::first)?;
    let hour = hour.map(|hour| begun.map_or(hour, |begun| hour.max(begun)));
    Ok([minute, hour].into_iter().flatten().min())
}
