//! The time zone of a file's times.

use std::fmt;

use chrono::{DateTime, Datelike, FixedOffset, NaiveDateTime, TimeZone, Timelike, Utc};
use serde::{Deserialize, Serialize};
use tz::TimeZoneRef;
use tz::datetime::FoundDateTimeKind;
use tzdb_data::{TZ_NAMES, find_tz, time_zone};

use wattune_core::domain::nearest;

/// Time zone of a file's times: a name of the IANA database ("Europe/Berlin", "UTC") or an offset ("+01:00").
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum TimeZoneName {
    /// A named time zone, whose offset to UTC may change.
    Named(NamedZone),
    /// An offset to UTC that is the same all year.
    Fixed(FixedOffset),
}

/// A time zone of the IANA database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamedZone {
    name: &'static str,
    zone: &'static TimeZoneRef<'static>,
}

impl TimeZoneName {
    /// The time zone UTC.
    pub const UTC: Self = Self::Named(NamedZone { name: "UTC", zone: &time_zone::UTC });

    /// Returns the times at which clocks of this time zone show `shown`: none in the hour that is skipped when clocks
    /// are put forward, two in the hour that is repeated when they are put back.
    pub(super) fn moments(self, shown: NaiveDateTime) -> Vec<DateTime<Utc>> {
        match self {
            Self::Named(named) => moments_in(*named.zone, shown),
            Self::Fixed(offset) => {
                offset.from_local_datetime(&shown).map(|t| t.to_utc()).single().into_iter().collect()
            }
        }
    }
}

fn moments_in(zone: TimeZoneRef<'_>, shown: NaiveDateTime) -> Vec<DateTime<Utc>> {
    let two = |part: u32| u8::try_from(part).unwrap_or(u8::MAX);
    let (month, day) = (two(shown.month()), two(shown.day()));
    let (hour, minute, second) = (two(shown.hour()), two(shown.minute()), two(shown.second()));
    let found = tz::DateTime::find(shown.year(), month, day, hour, minute, second, shown.nanosecond(), zone);
    let normal = |kind: FoundDateTimeKind| match kind {
        FoundDateTimeKind::Normal(at) => DateTime::from_timestamp(at.unix_time(), at.nanoseconds()),
        FoundDateTimeKind::Skipped { .. } => None,
    };
    let mut moments: Vec<_> = found.into_iter().flat_map(|list| list.into_inner()).filter_map(normal).collect();
    moments.sort_unstable();
    moments.dedup();
    moments
}

impl TryFrom<String> for TimeZoneName {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        let text = text.trim();
        if matches!(text, "Z" | "z") {
            return Ok(Self::UTC);
        }
        if let Some(name) = TZ_NAMES.iter().find(|name| **name == text)
            && let Some(zone) = find_tz(name.as_bytes())
        {
            return Ok(Self::Named(NamedZone { name, zone }));
        }
        let offset = text.strip_prefix("UTC").unwrap_or(text);
        if offset.starts_with(['+', '-'])
            && let Ok(offset) = offset.parse()
        {
            return Ok(Self::Fixed(offset));
        }
        let meant = nearest(text, TZ_NAMES.iter().copied());
        let meant = meant.map(|name| format!("; did you mean {name:?}?")).unwrap_or_default();
        let short: String = text.chars().take(80).collect();
        Err(format!(
            "{short:?} is no time zone; write a name such as \"Europe/Berlin\" or \"UTC\", or an offset such as \"+01:00\"{meant}"
        ))
    }
}

impl From<TimeZoneName> for String {
    fn from(zone: TimeZoneName) -> String {
        zone.to_string()
    }
}

impl fmt::Display for TimeZoneName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Named(named) => f.write_str(named.name),
            Self::Fixed(offset) => write!(f, "{offset}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> NaiveDateTime {
        text.parse().expect(text)
    }

    #[test]
    fn zones_are_names_or_offsets() {
        let table = [
            ("UTC", "UTC"),
            (" Europe/Berlin ", "Europe/Berlin"),
            ("+01:00", "+01:00"),
            ("UTC-05:30", "-05:30"),
            ("Z", "UTC"),
        ];
        for (text, right) in table {
            let zone = TimeZoneName::try_from(text.to_owned()).expect(text);
            assert_eq!(zone.to_string(), right);
            assert_eq!(TimeZoneName::try_from(zone.to_string()), Ok(zone));
        }
        for text in ["", "Berlin", "local", "+25:00", "5"] {
            let error = TimeZoneName::try_from(text.to_owned()).expect_err(text);
            assert!(error.contains("such as \"Europe/Berlin\""), "{error}");
        }
        for (text, meant) in [("Europe/Berln", "Europe/Berlin"), ("europe/paris", "Europe/Paris"), ("CEST", "CET")] {
            let error = TimeZoneName::try_from(text.to_owned()).expect_err(text);
            assert!(error.contains(&format!("did you mean \"{meant}\"")), "{error}");
        }
    }

    #[test]
    fn clocks_that_are_put_back_and_forward_are_known() {
        let berlin = TimeZoneName::try_from("Europe/Berlin".to_owned()).expect("a zone");
        let moments =
            |text| berlin.moments(shown(text)).iter().map(|t| t.format("%H:%M").to_string()).collect::<Vec<_>>();
        assert_eq!(moments("2026-07-01T12:00:00"), ["10:00"]);
        assert_eq!(moments("2026-12-01T12:00:00"), ["11:00"]);
        assert_eq!(moments("2026-10-25T02:30:00"), ["00:30", "01:30"]);
        assert!(moments("2026-03-29T02:30:00").is_empty());
    }
}
