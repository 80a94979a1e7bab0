//! Time of each device's first interval in the ledger: before that the daemon did not monitor it.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use rusqlite::{Connection, Row, params};

use crate::store::{StoreError, rows};
use wattune_core::domain::DeviceId;
use wattune_core::ledger::Interval;
use wattune_core::ledger::report::first_seen::{add_open, first_of, searched_from};

/// Returns the start of each device's first interval. `open` holds the intervals of the open block.
pub(super) fn first_seen(tx: &Connection, open: &[Interval]) -> Result<BTreeMap<DeviceId, DateTime<Utc>>, StoreError> {
    let sql = "SELECT MIN(about_us) FROM ledger WHERE kind = 'terms'";
    let begun: Option<i64> = rows::one(tx, sql, [], rows::first)?;
    let begun = begun.map(rows::moment).transpose()?;
    // One row per device and day: the first one leads to the first interval without a scan.
    let sql = "SELECT device, MIN(day_us) AS day_us FROM balance_days GROUP BY device";
    let of_device = |row: &Row<'_>| Ok::<_, StoreError>((rows::device(row)?, rows::moment(row.get("day_us")?)?));
    let mut first = BTreeMap::new();
    for (device, day) in rows::all(tx, sql, [], of_device)? {
        let from = params![searched_from(day).timestamp_micros(), device.as_str()];
        let moment = |row: &Row<'_>| rows::moment(row.get(0)?);
        let sql = "SELECT start_us FROM intervals WHERE start_us >= ?1 AND device = ?2 ORDER BY start_us LIMIT 1";
        let minute = rows::optional(tx, sql, from, moment)?;
        let sql = "SELECT hour_us FROM rolled_up WHERE hour_us >= ?1 AND device = ?2 ORDER BY hour_us LIMIT 1";
        let hour = rows::optional(tx, sql, from, moment)?;
        if let Some(at) = first_of(minute, hour, begun) {
            first.insert(device, at);
        }
    }
    add_open(&mut first, open);
    Ok(first)
}
