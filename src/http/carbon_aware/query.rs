//! Reads the query parameters of the Carbon Aware SDK: names in any letter case, unknown ones ignored, as the SDK does.

use axum::extract::{FromRequestParts, Query};
use axum::http::request::Parts;
use chrono::{DateTime, NaiveDate, NaiveDateTime, Utc};
use serde::de::DeserializeOwned;

use super::refusal::SdkProblem;
use wattune_core::time::is_usable;

/// Maximum number of locations in one request.
const MOST_LOCATIONS: usize = 64;
/// Maximum number of entries in the body of one request.
const LARGEST_BATCH: usize = 100;

/// The parameters of a request, in order.
#[derive(Clone, Debug, Default)]
pub(in crate::http) struct QueryParameters(Vec<(String, String)>);

impl<S: Send + Sync> FromRequestParts<S> for QueryParameters {
    type Rejection = SdkProblem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, SdkProblem> {
        let pairs = Query::<Vec<(String, String)>>::from_request_parts(parts, state).await;
        pairs.map(|Query(pairs)| Self(pairs)).map_err(|rejection| SdkProblem::argument("query", rejection.body_text()))
    }
}

impl QueryParameters {
    fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        let named = self.0.iter().filter(move |(given, _)| given.eq_ignore_ascii_case(name));
        named.map(|(_, value)| value.trim()).filter(|value| !value.is_empty())
    }

    /// Returns the locations, at least one. The plural `locations` is that of the SDK's documentation.
    pub(super) fn locations(&self) -> Result<Vec<&str>, SdkProblem> {
        let given: Vec<&str> = self.all("location").chain(self.all("locations")).collect();
        match given.len() {
            0 => Err(SdkProblem::argument("location", "The location field is required; give location=ZONE")),
            count if count > MOST_LOCATIONS => {
                let why = format!("{count} locations; give at most {MOST_LOCATIONS}");
                Err(SdkProblem::argument("location", why))
            }
            _ => Ok(given),
        }
    }

    /// Returns the only location.
    pub(super) fn location(&self) -> Result<&str, SdkProblem> {
        match self.locations()?.as_slice() {
            [only] => Ok(only),
            several => {
                let why = format!("{} locations; this route accepts one", several.len());
                Err(SdkProblem::argument("location", why))
            }
        }
    }

    /// Returns a time; `None` if it is not given.
    pub(super) fn time(&self, name: &'static str) -> Result<Option<DateTime<Utc>>, SdkProblem> {
        let Some(text) = self.all(name).next() else { return Ok(None) };
        time(text).map(Some).ok_or_else(|| {
            let short: String = text.chars().take(80).collect();
            let why = format!("The value '{short}' is not valid for {name}; give a time such as 2026-11-25T18:00:00Z");
            SdkProblem::argument(name, why)
        })
    }

    /// Returns a time that must be given.
    pub(super) fn required_time(&self, name: &'static str) -> Result<DateTime<Utc>, SdkProblem> {
        let missing = || SdkProblem::argument(name, format!("The {name} field is required"));
        self.time(name)?.ok_or_else(missing)
    }

    /// Returns the window in minutes; `None` without one, which 0 also means.
    pub(super) fn window_min(&self) -> Result<Option<u32>, SdkProblem> {
        let Some(text) = self.all("windowSize").next() else { return Ok(None) };
        window(text.parse().ok(), text)
    }
}

/// Checks a window in minutes, of which `text` is what the client wrote; `None` for 0, which means no window.
pub(super) fn window(minutes: Option<u32>, text: &str) -> Result<Option<u32>, SdkProblem> {
    let minutes = minutes.filter(|minutes| *minutes <= 14 * 1440).ok_or_else(|| {
        let short: String = text.chars().take(80).collect();
        let why = format!("The value '{short}' is not valid for windowSize; give minutes from 1 to 20160");
        SdkProblem::argument("windowSize", why)
    })?;
    Ok(Some(minutes).filter(|minutes| *minutes > 0))
}

/// Reads the body of a request for several answers, a JSON array.
pub(super) fn batch<T: DeserializeOwned>(body: &[u8]) -> Result<Vec<T>, SdkProblem> {
    let entries: Vec<T> =
        serde_json::from_slice(body).map_err(|error| SdkProblem::argument("body", error.to_string()))?;
    if entries.len() > LARGEST_BATCH {
        let why = format!("{} entries; give at most {LARGEST_BATCH}", entries.len());
        return Err(SdkProblem::argument("body", why));
    }
    Ok(entries)
}

/// Reads a time in a body.
pub(super) fn field(name: &str, text: &str) -> Result<DateTime<Utc>, SdkProblem> {
    time(text).ok_or_else(|| {
        let short: String = text.chars().take(80).collect();
        SdkProblem::argument(name, format!("{short:?} is not a time; give one such as 2026-11-25T18:00:00Z"))
    })
}

/// Reads a time as ASP.NET does: without a zone it is UTC, and month, day and hour may lack their zero. A `+` that the
/// client did not encode arrives as a space. Times far from the present are refused ([`is_usable`]).
pub(super) fn time(text: &str) -> Option<DateTime<Utc>> {
    read_time(text).filter(|at| is_usable(*at))
}

fn read_time(text: &str) -> Option<DateTime<Utc>> {
    let bytes = text.as_bytes();
    let plus = bytes.len().checked_sub(6).filter(|at| bytes[*at] == b' ' && bytes[at + 3] == b':' && *at > 8);
    let mended = plus.and_then(|at| Some(format!("{}+{}", text.get(..at)?, text.get(at + 1..)?)));
    let text = mended.as_deref().unwrap_or(text);
    if let Ok(time) = text.parse::<DateTime<Utc>>() {
        return Some(time);
    }
    let zoned = ["%Y-%m-%dT%H:%M:%S%.f%#z", "%Y-%m-%dT%H:%M%#z", "%Y-%m-%d %H:%M:%S%.f%#z", "%Y-%m-%d %H:%M%#z"];
    let zoned = zoned.iter().find_map(|format| DateTime::parse_from_str(text, format).ok());
    let plain = ["%Y-%m-%dT%H:%M:%S%.f", "%Y-%m-%dT%H:%M", "%Y-%m-%d %H:%M:%S%.f", "%Y-%m-%d %H:%M"];
    let utc = text.strip_suffix(['Z', 'z']).unwrap_or(text);
    let naive = || plain.iter().find_map(|format| NaiveDateTime::parse_from_str(utc, format).ok());
    let date = || NaiveDate::parse_from_str(utc, "%Y-%m-%d").ok()?.and_hms_opt(0, 0, 0);
    zoned.map(|time| time.to_utc()).or_else(|| naive().or_else(date).map(|naive| naive.and_utc()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_the_sdk_reads_them() {
        let table = [
            ("2022-07-19T14:00:00Z", Some("2022-07-19T14:00:00+00:00")),
            ("2022-07-19T14:00:00+02:00", Some("2022-07-19T12:00:00+00:00")),
            ("2022-07-19T14:00:00 02:00", Some("2022-07-19T12:00:00+00:00")),
            ("2022-07-19T14:00:00-0500", Some("2022-07-19T19:00:00+00:00")),
            ("2022-07-19T14:00:00.1234567+00:00", Some("2022-07-19T14:00:00.123456700+00:00")),
            ("2022-07-19T14:00Z", Some("2022-07-19T14:00:00+00:00")),
            ("2022-07-19T14:00", Some("2022-07-19T14:00:00+00:00")),
            ("2022-7-9T6:05:00Z", Some("2022-07-09T06:05:00+00:00")),
            ("2022-07-19 14:00:00", Some("2022-07-19T14:00:00+00:00")),
            ("2022-07-19", Some("2022-07-19T00:00:00+00:00")),
            ("soon", None),
            ("+262142-12-31T23:59:59.999999999Z", None),
            ("-262143-01-01T00:00:00Z", None),
            ("2022-13-01", None),
            ("  éé:é", None),
        ];
        for (text, expected) in table {
            assert_eq!(time(text).map(|t| t.to_rfc3339()).as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn parameters_may_be_repeated_and_in_any_letter_case() {
        let pairs = [("Location", "DE"), ("location", " FR "), ("WINDOWSIZE", "30"), ("startTime", "x")];
        let parameters = QueryParameters(pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect());
        assert_eq!(parameters.locations(), Ok(vec!["DE", "FR"]));
        assert!(parameters.location().is_err());
        assert_eq!(parameters.window_min(), Ok(Some(30)));
        assert_eq!(parameters.time("time"), Ok(None));
        for window in ["-5", "1.5", "99999999999", "many"] {
            let parameters = QueryParameters(vec![("windowSize".into(), window.into())]);
            assert!(parameters.window_min().is_err(), "{window}");
        }
        assert_eq!(QueryParameters(vec![("windowSize".into(), "0".into())]).window_min(), Ok(None));
        assert!(QueryParameters::default().locations().is_err());
    }
}
