//! The parsers of all sources, for runs with made-up bodies: whatever comes, there is an error at most.

#[cfg(test)]
mod tests;

use chrono::{DateTime, TimeDelta, Utc};

use super::client::{cache, http, quota};
use super::feed::{check_series, follow};
pub use super::sources::FuzzTarget;
use super::sources::Source;
use wattune_core::units::{GramsPerKwh, PricePerMwh};

/// Returns all targets by name: those of the sources, the state directory's files, and refusals.
pub fn targets() -> Vec<FuzzTarget> {
    let mut targets = vec![
        FuzzTarget { name: "refusal", parse: |body| http::read_any(body, now()) },
        FuzzTarget { name: "stored", parse: parse_stored },
    ];
    targets.extend(Source::ALL.iter().flat_map(|source| source.descriptor().fuzz));
    targets.sort_by_key(|target| target.name);
    targets
}

/// Reads what an earlier run may have left in the state directory: answers, and counts of requests.
fn parse_stored(body: &[u8]) {
    if let Ok(forecast) = cache::read::<GramsPerKwh>(body) {
        check_series(&forecast.expected);
        follow(&forecast);
    }
    if let Ok(forecast) = cache::read::<PricePerMwh>(body) {
        check_series(&forecast.actual);
    }
    quota::read_any(body, now());
}

/// A time that the made-up bodies lie around.
fn now() -> DateTime<Utc> {
    DateTime::UNIX_EPOCH + TimeDelta::days(20_300)
}
