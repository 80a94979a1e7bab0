//! Times as the sources write them.

use chrono::{DateTime, Datelike, NaiveDateTime, Utc};

/// Reason why a text is not a time, with the remedy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(in crate::providers) enum TimeProblem {
    #[error("has no zone; write UTC with a Z (2026-03-01T12:30:00Z)")]
    NoZone,
    #[error(
        "does not exist in carbon.file.time_zone, because clocks are put forward then; is that the zone of the \
             file's times?"
    )]
    Skipped,
    #[error("is ambiguous, day or month may come first; write RFC 3339, such as 2026-03-01T12:30:00Z")]
    DayOrMonth,
    #[error("is not a time; write RFC 3339 in UTC (2026-03-01T12:30:00Z) or unix seconds")]
    NotATime,
    #[error("lies outside the years 1970 to 2200; unix times are in seconds or milliseconds")]
    OutOfRange,
}

/// Reads RFC 3339 with `Z` or an offset, with or without seconds and fraction, and unix seconds or milliseconds. Text
/// without a time zone is UTC if `assume_utc`, else refused.
pub(in crate::providers) fn parse_time(text: &str, assume_utc: bool) -> Result<DateTime<Utc>, TimeProblem> {
    match read_time(text)? {
        ReadTime::Timestamp(at) => Ok(at),
        ReadTime::Shown(shown) if assume_utc => in_range(shown.and_utc()),
        ReadTime::Shown(_) => Err(TimeProblem::NoZone),
    }
}

/// A time as written in a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::providers) enum ReadTime {
    /// A time with its time zone or offset.
    Timestamp(DateTime<Utc>),
    /// A local clock time, without its time zone.
    Shown(NaiveDateTime),
}

/// Reads a text as [`parse_time`] does, and accepts text without a time zone.
pub(in crate::providers) fn read_time(text: &str) -> Result<ReadTime, TimeProblem> {
    let text = text.trim();
    if let Ok(number) = text.parse::<f64>() {
        return from_unix(number).map(ReadTime::Timestamp);
    }
    let with_zone = DateTime::parse_from_rfc3339(text)
        .or_else(|_| DateTime::parse_from_str(text, "%Y-%m-%dT%H:%M%#z"))
        .or_else(|_| DateTime::parse_from_str(text, "%Y-%m-%d %H:%M%#z"))
        .map(|t| t.to_utc());
    // `%#z` does not accept a Z.
    let zulu = || NaiveDateTime::parse_from_str(text.strip_suffix(['Z', 'z'])?, "%Y-%m-%dT%H:%M").ok();
    let without_zone = || {
        let forms = [
            "%Y-%m-%dT%H:%M:%S%.f",
            "%Y-%m-%dT%H:%M",
            "%Y-%m-%d %H:%M:%S%.f",
            "%Y-%m-%d %H:%M",
            "%d.%m.%Y %H:%M:%S%.f",
            "%d.%m.%Y %H:%M",
        ];
        forms.iter().find_map(|form| NaiveDateTime::parse_from_str(text, form).ok())
    };
    if let Some(time) = with_zone.ok().or_else(|| Some(zulu()?.and_utc())) {
        return in_range(time).map(ReadTime::Timestamp);
    }
    match without_zone() {
        Some(shown) => Ok(ReadTime::Shown(shown)),
        None if text.len() <= 40 && text.matches('/').count() == 2 && text.contains(':') => {
            Err(TimeProblem::DayOrMonth)
        }
        None => Err(TimeProblem::NotATime),
    }
}

/// Reads Unix seconds, or milliseconds where seconds would lie beyond the year 5000.
pub(in crate::providers) fn from_unix(number: f64) -> Result<DateTime<Utc>, TimeProblem> {
    let milliseconds = if number.abs() < 1e11 { number * 1e3 } else { number };
    if !(0.0..1e13).contains(&milliseconds) {
        return Err(TimeProblem::OutOfRange);
    }
    #[expect(clippy::cast_possible_truncation, reason = "within 1e13")]
    let time = DateTime::from_timestamp_millis(milliseconds.round() as i64).ok_or(TimeProblem::OutOfRange)?;
    in_range(time)
}

/// Refuses years outside 1970 to 2199, which are mistakes and would overflow when durations are added.
pub(in crate::providers) fn in_range(time: DateTime<Utc>) -> Result<DateTime<Utc>, TimeProblem> {
    if (1970..2200).contains(&time.year()) { Ok(time) } else { Err(TimeProblem::OutOfRange) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn all_forms_that_providers_use_are_read() {
        let expected = DateTime::parse_from_rfc3339("2025-10-22T23:30:00Z").expect("a time").to_utc();
        for text in [
            "2025-10-22T23:30Z",
            "2025-10-22T23:30:00Z",
            "2025-10-22T23:30:00.000Z",
            "2025-10-23T00:30:00+01:00",
            "2025-10-23T00:30+01:00",
            "2025-10-23 00:30+01:00",
            "2025-10-22 23:30:00Z",
            "1761175800",
            "1761175800000",
            " 1761175800.0 ",
        ] {
            assert_eq!(parse_time(text, false), Ok(expected), "{text}");
        }
        for text in ["2025-10-22T23:30:00", "2025-10-22T23:30", "2025-10-22 23:30:00.5"] {
            assert_eq!(parse_time(text, false), Err(TimeProblem::NoZone), "{text}");
            assert!(parse_time(text, true).is_ok(), "{text}");
        }
        for text in ["", "yesterday", "2025-10-22", "2025-13-01T00:00Z", "12:30Z"] {
            assert_eq!(parse_time(text, true), Err(TimeProblem::NotATime), "{text}");
        }
        for text in ["9999-01-01T00:00:00Z", "0001-01-01T00:00Z", "-5", "NaN", "inf", "1e300"] {
            assert_eq!(parse_time(text, true), Err(TimeProblem::OutOfRange), "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "\\PC*", stamp in "[-0-9TZ:+. é]{0,30}") {
            let _ = (parse_time(&text, true), parse_time(&stamp, false));
        }
    }
}
