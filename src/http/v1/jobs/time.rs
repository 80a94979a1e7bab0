//! Times in requests about jobs.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Deserializer, de};

/// Reads a time in RFC 3339. The error names missing parts, such as the time zone.
pub(super) fn time<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<DateTime<Utc>>, D::Error> {
    let Some(text) = Option::<String>::deserialize(deserializer)? else { return Ok(None) };
    let lacking = [
        ("", ""),
        ("Z", "it lacks a time zone"),
        (":00Z", "it lacks seconds and a time zone"),
        (":00:00Z", "it lacks minutes, seconds and a time zone"),
        ("T00:00:00Z", "it lacks a time of day and a time zone"),
    ];
    let completed = |(suffix, lacks): (&str, &'static str)| {
        let complete = format!("{}{suffix}", text.replacen(' ', "T", 1));
        complete.parse::<DateTime<Utc>>().ok().map(|at| (at, complete, lacks))
    };
    match lacking.into_iter().find_map(completed) {
        Some((at, _, "")) => Ok(Some(at)),
        Some((_, complete, lacks)) => {
            Err(de::Error::custom(format!("is no time in RFC 3339: {lacks}; \"{complete}\" is one in UTC")))
        }
        None => Err(de::Error::custom("is no time in RFC 3339")),
    }
}
