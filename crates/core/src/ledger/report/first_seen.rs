//! Time of each device's first interval: before that the daemon did not monitor it.

use std::collections::BTreeMap;

use chrono::{DateTime, TimeDelta, Utc};

use crate::domain::DeviceId;
use crate::ledger::Interval;

/// Returns the time from which to search for a device's first interval, given its first day with a balance. A block
/// that is closed after midnight counts for the day before, and may have begun one day earlier.
pub fn searched_from(first_day: DateTime<Utc>) -> DateTime<Utc> {
    first_day - TimeDelta::days(1)
}

/// Returns the start of a device's first interval: the earlier of its first row, `minute`, and its first rolled-up
/// hour, `hour`. The interval began somewhere in that hour, but not before the ledger's start, `begun`.
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
