//! The UK Carbon Intensity API (NESO): half-hourly average operational intensity, without a key.
//!
//! `carbon-apis.md` §3 has the shapes and the traps. Of the past only `actual` is taken: the archive's `forecast` is
//! overwritten afterwards, so that it would flatter the measured skill.

#[cfg(test)]
mod tests;

use std::path::Path;

use chrono::{DateTime, DurationRound, TimeDelta, Utc};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use reqwest::header::HeaderMap;
use serde_json::Value;

use super::api::Api;
use super::time::parse_time;
use super::{Answer, CarbonSettings, Contribution, Provider, ProviderError, Requests, SettingsError, Source};
use crate::domain::{CarbonSeries, Forecast, Intensity, Origin, SignalKind, SignalScope, SignalValue, Slot, Zone};
use crate::units::{GramsPerKwh, Seconds};

const HALF_HOUR: TimeDelta = TimeDelta::minutes(30);

/// Depth to which `data` may hold regions that hold slots.
const DEPTH: u8 = 3;

/// The whole country with what came, or a region or postcode with forecasts only.
#[derive(Debug)]
pub struct UkProvider {
    api: Api,
    asked: Asked,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Asked {
    Country,
    Region(u8),
    Postcode(String),
}

impl UkProvider {
    /// Connects to nothing yet.
    ///
    /// # Errors
    /// If the zone lies elsewhere.
    pub fn new(settings: &CarbonSettings, state_dir: Option<&Path>) -> Result<Self, SettingsError> {
        let uk = &settings.uk_carbon_intensity;
        let region = uk.region.map(u8::from);
        let (asked, usual_zone) = match (region, &uk.postcode) {
            (Some(region), _) => (Asked::Region(region), region.to_string()),
            (None, Some(postcode)) => (Asked::Postcode(postcode.as_str().to_owned()), postcode.as_str().to_owned()),
            (None, None) => (Asked::Country, "GB".to_owned()),
        };
        let cadence = Seconds::from_delta(HALF_HOUR);
        let own = (uk.common(), &uk.base_url);
        let api = Api::new(Source::UkCarbonIntensity, settings, own, Some(&usual_zone), cadence, state_dir)?;
        let place = api.place();
        if asked == Asked::Country && place.country().is_some_and(|c| c != "GB") {
            return Err(place.refused(api.source(), "it tells of Great Britain alone; write \"GB\""));
        }
        Ok(Self { api, asked })
    }

    async fn get(&self, path: &str, now: DateTime<Utc>) -> Result<Vec<Row>, ProviderError> {
        let body = self.api.get(path, &[], HeaderMap::new(), now).await?;
        let region = if let Asked::Region(id) = self.asked { Some(id) } else { None };
        let mut rows = Vec::new();
        read_rows(&body, region, &mut rows)?;
        Ok(rows)
    }

    async fn answer(&self, now: DateTime<Utc>) -> Result<Answer, ProviderError> {
        // Asked at the full half hour, windows begin one slot early; one minute past they begin with the current one.
        let from = now.duration_trunc(HALF_HOUR).unwrap_or(now) + TimeDelta::minutes(1);
        let from = from.format("%Y-%m-%dT%H:%MZ");
        let path = match &self.asked {
            Asked::Country => format!("/intensity/{from}/fw48h"),
            Asked::Region(id) => format!("/regional/intensity/{from}/fw48h/regionid/{id}"),
            Asked::Postcode(code) => format!("/regional/intensity/{from}/fw48h/postcode/{code}"),
        };
        let ahead = self.get(&path, now).await?;
        let mut notes = Vec::new();
        let behind = match self.asked {
            Asked::Country => self.get(&format!("/intensity/{from}/pt24h"), now).await.unwrap_or_else(|error| {
                notes.push(format!("what came in the last 24 h is not known: {error}"));
                Vec::new()
            }),
            Asked::Region(_) | Asked::Postcode(_) => Vec::new(),
        };
        let forecasts = ahead.iter().chain(&behind).filter(|row| now < row.slot.end());
        let expected = points(forecasts.clone().map(|row| (row.slot, row.forecast)), Origin::Forecast);
        // NESO calls it actual, but it is an estimate that changes for a day.
        let came = behind.iter().chain(&ahead).filter(|row| row.slot.end() <= now);
        let actual = points(came.map(|row| (row.slot, row.actual)), Origin::Estimated);
        let (expected, problems) = CarbonSeries::from_points(expected);
        notes.extend(problems.iter().take(5).map(ToString::to_string));
        let Some(end) = expected.end() else {
            let what =
                format!("{} slots, none with a forecast for now or later; trying again next half hour", ahead.len());
            return Err(ProviderError::Empty { what });
        };
        if end - now < TimeDelta::hours(47) {
            let hours = (end - now).as_seconds_f64() / 3600.0;
            notes.push(format!("the forecast reaches {hours:.1} h ahead; 48 h were asked for"));
        }
        notes.extend(self.api.skew_note());
        let forecast = Forecast {
            zone: self.api.zone(),
            source: self.source().to_owned(),
            kind: SignalKind::Average,
            scope: SignalScope::Operational,
            issued_at: now,
            retrieved_at: now,
            expected,
            actual: CarbonSeries::from_points(actual).0,
        };
        Ok(Answer { forecast, notes })
    }
}

impl Provider for UkProvider {
    fn source(&self) -> &'static str {
        self.api.source()
    }

    fn zone(&self) -> Zone {
        self.api.zone()
    }

    fn cadence(&self) -> Seconds {
        self.api.cadence()
    }

    fn contributes(&self) -> Contribution {
        self.api.contributes()
    }

    fn requests(&self, now: DateTime<Utc>) -> Option<Requests> {
        Some(self.api.requests(now))
    }

    fn fetch(&self, now: DateTime<Utc>) -> BoxFuture<'_, Result<Answer, ProviderError>> {
        self.answer(now).boxed()
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Row {
    slot: Slot,
    forecast: Option<GramsPerKwh>,
    actual: Option<GramsPerKwh>,
}

fn points(values: impl Iterator<Item = (Slot, Option<GramsPerKwh>)>, origin: Origin) -> Vec<(Slot, Intensity)> {
    let mut points: Vec<_> =
        values.filter_map(|(slot, value)| Some((slot, Intensity { value: value?, origin }))).collect();
    // The two windows share a slot; both say the same, and it is not worth a note.
    points.sort_by_key(|(slot, _)| *slot);
    points.dedup_by_key(|(slot, _)| *slot);
    points
}

fn read_rows(body: &Value, region: Option<u8>, rows: &mut Vec<Row>) -> Result<(), ProviderError> {
    if let Some(error) = body.get("error") {
        let message = error.get("message").and_then(Value::as_str).unwrap_or("no message");
        return Err(ProviderError::Unexpected { status: 200, message: super::error::shortened(message) });
    }
    // A body of `{}` or without `data` is how the API says that it knows nothing.
    collect(body.get("data").unwrap_or(&Value::Null), "data", region, DEPTH, rows)
}

/// `data` is an array of slots, or one region or an array of regions with slots in a `data` of their own.
fn collect(data: &Value, at: &str, region: Option<u8>, depth: u8, rows: &mut Vec<Row>) -> Result<(), ProviderError> {
    match data {
        Value::Null => Ok(()),
        Value::Array(entries) => {
            let entries = entries.iter().enumerate();
            entries.into_iter().try_for_each(|(i, entry)| collect(entry, &format!("{at}[{i}]"), region, depth, rows))
        }
        Value::Object(object) => {
            if let (Some(asked), Some(given)) = (region, object.get("regionid"))
                && given.as_u64() != Some(u64::from(asked))
            {
                return Err(malformed(
                    &format!("{at}.regionid"),
                    format!("is {given}, but region {asked} was asked for"),
                ));
            }
            match object.get("data") {
                Some(inner) if depth > 0 => collect(inner, &format!("{at}.data"), region, depth - 1, rows),
                Some(_) => Err(malformed(at, "nested too deeply".to_owned())),
                None if object.is_empty() => Ok(()),
                None => read_row(data, at).map(|row| rows.push(row)),
            }
        }
        other => Err(malformed(at, format!("expected slots, found {}", super::error::shortened(&other.to_string())))),
    }
}

fn read_row(row: &Value, at: &str) -> Result<Row, ProviderError> {
    let time = |field: &str| {
        let at = format!("{at}.{field}");
        let text =
            row.get(field).and_then(Value::as_str).ok_or_else(|| malformed(&at, "expected a time".to_owned()))?;
        parse_time(text, false)
            .map_err(|_| malformed(&at, format!("{:?} is not a time", super::error::shortened(text))))
    };
    let (from, to) = (time("from")?, time("to")?);
    let slot = Slot::new(from, to).filter(|slot| slot.duration() <= Seconds::new(86_400.0));
    let slot = slot.ok_or_else(|| malformed(at, "the slot must end after it starts, and within a day".to_owned()))?;
    let intensity = row.get("intensity").unwrap_or(&Value::Null);
    if !matches!(intensity, Value::Null | Value::Object(_)) {
        return Err(malformed(&format!("{at}.intensity"), "expected an object".to_owned()));
    }
    let value = |field: &str| {
        let number = match intensity.get(field) {
            None | Some(Value::Null) => return Ok(None),
            Some(number) => number,
        };
        let grams = number.as_f64().and_then(GramsPerKwh::checked);
        grams.map(Some).ok_or_else(|| {
            let shown = super::error::shortened(&number.to_string());
            malformed(&format!("{at}.intensity.{field}"), format!("expected gCO2/kWh or null, found {shown}"))
        })
    };
    Ok(Row { slot, forecast: value("forecast")?, actual: value("actual")? })
}

fn malformed(at: &str, what: String) -> ProviderError {
    ProviderError::Malformed { what, at: at.to_owned() }
}
