//! Deserialization of dates and times in settings and requests.

use std::fmt;

use chrono::{DateTime, Datelike, Utc};
use serde::{Deserialize, Deserializer, de};
use toml::value::Datetime;

/// Years in which a time may lie; any other year is refused as a mistake.
const YEARS: std::ops::RangeInclusive<i32> = 2000..=2999;

/// Deserializes a time with its time zone, from a string in RFC 3339 or from a TOML date-time.
pub(super) fn datetime<'de, D: Deserializer<'de>>(deserializer: D) -> Result<DateTime<Utc>, D::Error> {
    deserializer.deserialize_any(DateTimeVisitor)
}

/// Deserializes a time that may be absent or null.
pub(super) fn optional_datetime<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<DateTime<Utc>>, D::Error> {
    struct Present(DateTime<Utc>);
    impl<'de> Deserialize<'de> for Present {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            datetime(deserializer).map(Self)
        }
    }
    Ok(Option::<Present>::deserialize(deserializer)?.map(|Present(at)| at))
}

struct DateTimeVisitor;

impl DateTimeVisitor {
    fn read<E: de::Error>(self, text: &str) -> Result<DateTime<Utc>, E> {
        let at = text.parse::<DateTime<Utc>>().ok().filter(|at| YEARS.contains(&at.year()));
        at.ok_or_else(|| {
            let short: String = text.chars().take(80).collect();
            E::invalid_value(de::Unexpected::Str(&short), &self)
        })
    }
}

impl<'de> de::Visitor<'de> for DateTimeVisitor {
    type Value = DateTime<Utc>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (first, last) = (YEARS.start(), YEARS.end());
        write!(f, "a time in RFC 3339 with its zone, such as \"2026-12-01T17:00:00Z\", in the years {first} to {last}")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<DateTime<Utc>, E> {
        self.read(text)
    }

    fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<DateTime<Utc>, A::Error> {
        let written = Datetime::deserialize(de::value::MapAccessDeserializer::new(map));
        let written = written.map_err(|_| de::Error::invalid_type(de::Unexpected::Map, &self))?;
        self.read(&written.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Deserialize)]
    struct Span {
        #[serde(deserialize_with = "datetime")]
        start: DateTime<Utc>,
        #[serde(default, deserialize_with = "optional_datetime")]
        end: Option<DateTime<Utc>>,
    }

    #[test]
    fn times_are_read_as_text_and_as_tomls_own() {
        let noon: DateTime<Utc> = "2026-12-01T12:00:00Z".parse().expect("a datetime");
        for text in ["\"2026-12-01T12:00:00Z\"", "2026-12-01T12:00:00Z", "2026-12-01T13:00:00+01:00"] {
            let span: Span = toml::from_str(&format!("start = {text}\nend = {text}")).expect(text);
            assert_eq!((span.start, span.end), (noon, Some(noon)), "{text}");
        }
        let span: Span = serde_json::from_str(r#"{"start": "2026-12-01T12:00:00Z", "end": null}"#).expect("right");
        assert_eq!((span.start, span.end), (noon, None));
    }

    #[test]
    fn what_is_no_time_is_refused_with_an_example() {
        let right = "expected a time in RFC 3339 with its zone, such as \"2026-12-01T17:00:00Z\"";
        for text in
            ["2026-12-01T12:00:00", "2026-12-01", "12:00:00", "\"2026-12-01T12:00:00\"", "\"soon\"", "5", "{ a = 1 }"]
        {
            let error = toml::from_str::<Span>(&format!("start = {text}")).expect_err(text).to_string();
            assert!(error.contains(right), "{text}: {error}");
        }
        for text in ["\"1999-12-31T23:59:59Z\"", "\"3000-01-01T00:00:00Z\""] {
            let error = toml::from_str::<Span>(&format!("start = {text}")).expect_err(text).to_string();
            assert!(error.contains("in the years 2000 to 2999"), "{text}: {error}");
        }
        assert!(serde_json::from_str::<Span>(r#"{"start": {"year": 2026}}"#).is_err());
    }
}
