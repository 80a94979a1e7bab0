//! The time since when each device is in the ledger: before that the daemon did not have it.

use std::collections::BTreeMap;

use chrono::{DateTime, TimeDelta, Utc};

use crate::domain::DeviceId;
use crate::ledger::Interval;

/// Returns the time at which to begin the search for a device's first interval, given its first day with a balance: a
/// block that is closed after midnight is of the day before, and may have begun in the one before that.
pub fn searched_from(first_day: DateTime<Utc>) -> DateTime<Utc> {
    first_day - TimeDelta::days(1)
}

/// Returns when a device's first interval began: the oldest of `minute`, its first row, and `hour`, the first hour of it
/// that was rolled up. Somewhere in that hour it began, and not before the ledger did, `begun`.
pub fn first_of(
    minute: Option<DateTime<Utc>>,
    hour: Option<DateTime<Utc>>,
    begun: Option<DateTime<Utc>>,
) -> Option<DateTime<Utc>> {
    let hour = hour.map(|hour| begun.map_or(hour, |begun| hour.max(begun)));
    [minute, hour].into_iter().flatten().min()
}

/// Adds the rows of the open block.
pub fn add_open(first: &mut BTreeMap<DeviceId, DateTime<Utc>>, open: &[Interval]) {
    for row in open {
        let known = first.entry(row.device.clone()).or_insert(row.slot.start());
        *known = row.slot.start().min(*known);
    }
}
