//! Columns of Energy-Charts' responses, and spans of requests, for carbon intensities and prices alike.

use chrono::{DateTime, TimeDelta, Utc};
use serde_json::Value;

use crate::providers::client::json::{array, malformed, time, value};
use crate::providers::error::ProviderError;
use wattune_core::domain::{SignalValue, Slot};

/// Length of a slot if a response has only one.
pub(super) const QUARTER: TimeDelta = TimeDelta::minutes(15);

/// Longest past span of one request: about 3000 quarters of an hour.
pub(super) const LONGEST_WINDOW: TimeDelta = TimeDelta::days(31);

/// Returns first the part of a past span that one request covers, second the start and end of that part as the API
/// reads them (Unix seconds); `None` if the part would be empty.
pub(super) fn window(span: Slot, now: DateTime<Utc>) -> Option<(Slot, (String, String))> {
    let end = span.end().min(now).min(span.start().checked_add_signed(LONGEST_WINDOW)?);
    let span = Slot::new(span.start(), end)?;
    Some((span, (span.start().timestamp().to_string(), span.end().timestamp().to_string())))
}

/// Reads `unix_seconds`, the starts of the slots.
pub(super) fn starts(body: &Value) -> Result<Vec<DateTime<Utc>>, ProviderError> {
    let starts = array(body.get("unix_seconds"), "unix_seconds")?.iter().enumerate();
    starts.map(|(i, start)| time(Some(start), &format!("unix_seconds[{i}]"))).collect()
}

/// Reads the array of values in the field `name`, which must have `length` entries, as many as `unix_seconds`.
pub(super) fn numbers<V: SignalValue>(
    body: &Value,
    name: &str,
    length: usize,
) -> Result<Vec<Option<V>>, ProviderError> {
    let numbers = array(body.get(name), name)?;
    if numbers.len() != length {
        let what = format!(
            "has {} entries, but unix_seconds has {length}; it is unclear which belong together",
            numbers.len()
        );
        return Err(malformed(name, what));
    }
    numbers.iter().enumerate().map(|(i, number)| value(Some(number), &format!("{name}[{i}]"))).collect()
}
