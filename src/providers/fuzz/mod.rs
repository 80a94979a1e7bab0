//! Fuzz targets: the parsers of all sources, run on generated bodies, which may cause errors but no panic.

#[cfg(test)]
mod tests;

use chrono::{DateTime, TimeDelta, Utc};

use super::client::{cache, http, quota};
use super::feed::{check_series, follow};
pub use super::sources::FuzzTarget;
use super::sources::Source;
use wattune_core::units::{GramsPerKwh, PricePerMwh};

/// Returns all targets, sorted by name: the sources' parsers, the readers of stored files, and the reader of refusals
/// (error responses).
pub fn targets() -> Vec<FuzzTarget> {
    let mut targets = vec![
        FuzzTarget { name: "refusal", parse: |body| http::read_any(body, now()) },
        FuzzTarget { name: "stored", parse: parse_stored },
    ];
    targets.extend(Source::ALL.iter().flat_map(|source| source.descriptor().fuzz));
    targets.sort_by_key(|target| target.name);
    targets
}

/// Reads a body as each kind of file in the state directory: stored answers, and request counts.
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

/// Returns a fixed time near the times in the generated bodies.
fn now() -> DateTime<Utc> {
    DateTime::UNIX_EPOCH + TimeDelta::days(20_300)
}
