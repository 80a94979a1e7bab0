//! Parts of a report's span: whole days, the rest before and after the whole days, and times with one accounting
//! boundary each; and the start of each device's monitoring.

use std::collections::BTreeMap;

use chrono::{DateTime, TimeDelta, Utc};

use crate::domain::{DeviceId, Slot};
use crate::ledger::Interval;
use crate::ledger::apportion::{day_of, hour_of};
use crate::ledger::entry::{Boundary, Terms};

/// Returns the time from the first to the last UTC midnight of a span; `None` if the span contains no whole day.
pub fn whole_days(span: &Slot) -> Option<Slot> {
    Slot::new(day_of(span.start() - TimeDelta::microseconds(1)) + TimeDelta::days(1), day_of(span.end()))
}

/// Returns the parts of a span before and after its whole UTC days.
pub fn edges(span: &Slot) -> Vec<Slot> {
    match whole_days(span) {
        Some(days) => {
            Slot::new(span.start(), days.start()).into_iter().chain(Slot::new(days.end(), span.end())).collect()
        }
        None => vec![*span],
    }
}

/// Returns the settings of the ledger that applied in a span, oldest first. If the span lies before the first settings,
/// the first settings are returned.
pub fn in_force(all: impl IntoIterator<Item = Terms>, span: &Slot) -> Vec<Terms> {
    let mut found: Vec<Terms> = Vec::new();
    for terms in all {
        if terms.at >= span.end() && !found.is_empty() {
            break;
        }
        if terms.at <= span.start() {
            found.clear();
        }
        found.push(terms);
    }
    found
}

/// Divides a span at the full hours from which the accounting boundary (factors for what devices do not measure)
/// changes: the hour in which the settings change keeps the earlier boundary. Time before the first settings has the
/// boundary of the first settings.
pub fn by_boundary(terms: &[Terms], span: &Slot) -> Vec<(Slot, Boundary)> {
    let mut found: Vec<(Slot, Boundary)> = Vec::new();
    let mut from = span.start();
    let mut present = terms.first().map(|t| t.boundary.clone()).unwrap_or_default();
    for next in terms.iter().skip(1).filter(|t| t.at > span.start()) {
        if next.boundary == present {
            continue;
        }
        let cut = hour_of(next.at + TimeDelta::hours(1) - TimeDelta::microseconds(1));
        if let Some(part) = Slot::new(from, cut) {
            found.push((part, present));
            from = cut;
        }
        present = next.boundary.clone();
    }
    found.extend(Slot::new(from, span.end()).map(|part| (part, present)));
    found
}

/// Returns the time from which to search for a device's first interval: one day before `first_day`, the first day with
/// an energy balance of the device. The balance is of a block that is closed on that day, or within ten minutes after
/// it, and that may have begun on the day before.
pub fn searched_from(first_day: DateTime<Utc>) -> DateTime<Utc> {
    first_day - TimeDelta::days(1)
}

/// Returns the start of a device's first interval: the earlier of the start `minute` of the device's first row and the
/// start `hour` of its first rolled-up hour; `None` without either. An interval in a rolled-up hour did not begin
/// before the ledger did, at `begun`.
pub fn first_of(
    minute: Option<DateTime<Utc>>,
    hour: Option<DateTime<Utc>>,
    begun: Option<DateTime<Utc>>,
) -> Option<DateTime<Utc>> {
    let hour = hour.map(|hour| begun.map_or(hour, |begun| hour.max(begun)));
    [minute, hour].into_iter().flatten().min()
}

/// Returns the time up to which to search for a device's last interval: an hour after `last_day`, the last day with
/// energy in an energy balance of the device. The balance is of a block that is closed on that day, or within ten
/// minutes after it.
pub fn searched_until(last_day: DateTime<Utc>) -> DateTime<Utc> {
    last_day + TimeDelta::days(1) + TimeDelta::hours(1)
}

/// Returns the end of the last hour in which a device used energy: of the latest of some starts of its rows and of its
/// rolled-up hours; `None` without any. Hours are exact enough, and do not change when rows are rolled up.
pub fn last_hour(starts: impl IntoIterator<Item = DateTime<Utc>>) -> Option<DateTime<Utc>> {
    starts.into_iter().max().map(|start| hour_of(start) + TimeDelta::hours(1))
}

/// Sets the time in `first` of each device to the start of the device's first row in the open block, if that is earlier
/// or `first` has no time for the device.
pub fn add_open(first: &mut BTreeMap<DeviceId, DateTime<Utc>>, open: &[Interval]) {
    for row in open {
        let known = first.entry(row.device.clone()).or_insert(row.slot.start());
        *known = row.slot.start().min(*known);
    }
}
