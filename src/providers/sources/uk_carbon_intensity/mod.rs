//! The UK Carbon Intensity API (NESO): average operational carbon intensity by half hour, without a key.
//!
//! `carbon-apis.md` §3 describes the API and its pitfalls. Of past slots, only `actual` is used: the archive overwrites
//! past values of `forecast`, which would make the measured skill too good.
//!
//! A zone is the country ("GB", or coordinates in it), one of its seventeen regions by number ("GB-13", "13"), or the
//! outward part of a postcode ("BS16"). Coordinates mean the country, because only the country has actual values.

mod settings;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use chrono::{DateTime, DurationRound, TimeDelta, Utc};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use reqwest::header::HeaderMap;
use serde_json::Value;

pub use self::settings::Settings;
use self::settings::{Postcode, RegionId};
use super::descriptor::{Descriptor, Table, ZonesError};
use crate::providers::client::json::{
    MOST_POINTS, malformed, note_short, notes as notes_of, time, unexpected, unknown_last_day, value,
};
use crate::providers::client::{Api, ApiSource, Contribution, Network, SharedSettings};
use crate::providers::error::{ProviderError, SettingsError, shortened};
use crate::providers::place::{Place, ZoneName};
use crate::providers::provider::{Actuals, Answer, Provider};
use wattune_core::domain::{CarbonSeries, Intensity, Origin, SignalKind, SignalScope, Slot, Zone};
use wattune_core::units::{GramsPerKwh, Seconds};

const HALF_HOUR: TimeDelta = TimeDelta::minutes(30);

/// Longest past span of one request: one slot less than the 14 days that the API allows.
const LONGEST_WINDOW: TimeDelta = TimeDelta::minutes(14 * 24 * 60 - 30);

const AHEAD_H: f64 = 48.0;

/// Maximum depth of nested `data` fields: regions contain slots.
const DEPTH: u8 = 3;

/// Names of the regions in the order of their numbers, from 1.
const REGIONS: [&str; 17] = [
    "North Scotland",
    "South Scotland",
    "North West England",
    "North East England",
    "Yorkshire",
    "North Wales",
    "South Wales",
    "West Midlands",
    "East Midlands",
    "East England",
    "South West England",
    "South England",
    "London",
    "South East England",
    "England",
    "Scotland",
    "Wales",
];

pub(super) const DESCRIPTOR: Descriptor = Descriptor {
    name: "uk_carbon_intensity",
    summary: Some("average, operational; no key"),
    rank: Some(3),
    countries: &["GB"],
    #[cfg(any(test, feature = "fuzzing"))]
    fuzz: &[super::FuzzTarget { name: "uk_carbon_intensity", parse: parse_any }],
};

impl Table for Settings {
    fn check(&self, _: bool) -> Result<(), SettingsError> {
        if self.region.is_some() && self.postcode.is_some() {
            let what = "carbon.uk_carbon_intensity has both region and postcode; remove one of them";
            return Err(SettingsError::Contradiction(what));
        }
        Ok(())
    }

    fn build(&self, shared: &SharedSettings<'_>) -> Result<Arc<dyn Provider>, SettingsError> {
        Ok(Arc::new(UkCarbonIntensity::new(self, shared)?))
    }

    fn zones(&self, _: SharedSettings<'_>, _: DateTime<Utc>) -> BoxFuture<'_, Result<Vec<ZoneName>, ZonesError>> {
        let country = ZoneName::new("GB", "Great Britain, with actual values");
        let region =
            |(number, name): (u8, &str)| ZoneName::new(&format!("GB-{number}"), &format!("{name}, forecast only"));
        let zones = std::iter::once(country).chain((1..).zip(REGIONS).map(region)).collect();
        std::future::ready(Ok(zones)).boxed()
    }
}

/// The source for the whole country with actual values, or for a region or postcode with forecasts only.
#[derive(Debug)]
struct UkCarbonIntensity {
    api: Api,
    area: Area,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Area {
    Country,
    Region(u8),
    Postcode(String),
}

impl Area {
    /// Returns the area that a place means, or advice on how to write one.
    fn of(place: &Place) -> Result<Self, &'static str> {
        const RIGHT: &str = "it covers Great Britain only; write \"GB\", a region like \"GB-13\", the outward part of a \
                             postcode like \"BS16\", or coordinates";
        const OTHER_GRID: &str =
            "Northern Ireland is part of the Irish grid, and this source covers Great Britain only";
        let zone = place.zone().as_str();
        if !place.is_code() {
            let northern_ireland = place.coordinates().is_some_and(|(lat, lon)| is_northern_ireland(lat, lon));
            return match place.country().as_deref() {
                Some("GB") if northern_ireland => Err(OTHER_GRID),
                Some("GB") => Ok(Self::Country),
                _ => Err(RIGHT),
            };
        }
        let british = zone.get(..3).filter(|start| start.eq_ignore_ascii_case("GB-")).and_then(|_| zone.get(3..));
        if let Ok(id) = british.unwrap_or(zone).parse::<u8>() {
            return RegionId::try_from(id).map(|id| Self::Region(id.into()));
        }
        match british {
            Some(part) if part.eq_ignore_ascii_case("NIR") => Err(OTHER_GRID),
            // Other codes name a part of the country that has no region of its own in the API, like Orkney's "GB-ORK".
            Some(_) => Ok(Self::Country),
            // "SE1" is both a Swedish bidding zone and a postcode in London.
            None if place.country().is_some_and(|country| country != "SE") => Err(RIGHT),
            None => Postcode::try_from(zone.to_owned()).map(|p| Self::Postcode(p.into())).map_err(|_| RIGHT),
        }
    }
}

/// Returns true for points of the United Kingdom that lie in Northern Ireland, west of the North Channel.
fn is_northern_ireland(latitude: f64, longitude: f64) -> bool {
    longitude < -5.4 && (54.0..55.25).contains(&latitude)
}

impl UkCarbonIntensity {
    fn new(own: &Settings, shared: &SharedSettings<'_>) -> Result<Self, SettingsError> {
        let chosen = match (own.region.map(u8::from), &own.postcode) {
            (Some(region), _) => Some((Area::Region(region), region.to_string())),
            (None, Some(postcode)) => {
                Some((Area::Postcode(postcode.as_str().to_owned()), postcode.as_str().to_owned()))
            }
            (None, None) => None,
        };
        let country = Zone::new("GB").ok();
        let part = chosen.as_ref().and_then(|(_, name)| Zone::new(name.clone()).ok());
        // A configured region or postcode is the source's zone, whatever `carbon.zone` is.
        let zone = part.as_ref().or(own.zone.as_ref()).or(shared.zone).or(country.as_ref());
        let own = Network { zone, ..own.network() };
        let api = Api::new(DESCRIPTOR.name, own, shared, Seconds::from_delta(HALF_HOUR))?;
        let area = match chosen {
            Some((area, _)) => area,
            None => Area::of(api.place()).map_err(|why| api.place().refused(api.source(), why))?,
        };
        Ok(Self { api, area })
    }

    async fn get(&self, path: &str, now: DateTime<Utc>) -> Result<Vec<Row>, ProviderError> {
        let body = self.api.get(path, &[], HeaderMap::new(), now).await?;
        let region = if let Area::Region(id) = self.area { Some(id) } else { None };
        let mut rows = Vec::new();
        read_rows(&body, region, &mut rows)?;
        Ok(rows)
    }
}

impl ApiSource for UkCarbonIntensity {
    const ACTUALS_WINDOW: TimeDelta = LONGEST_WINDOW;

    fn api(&self) -> &Api {
        &self.api
    }

    async fn answer(&self, now: DateTime<Utc>) -> Result<Answer, ProviderError> {
        // If a request begins at a full half hour, the API returns one slot too many at the start; if it begins a
        // minute later, the API does not.
        let from = now.duration_trunc(HALF_HOUR).unwrap_or(now) + TimeDelta::minutes(1);
        let from = from.format("%Y-%m-%dT%H:%MZ");
        let path = match &self.area {
            Area::Country => format!("/intensity/{from}/fw48h"),
            Area::Region(id) => format!("/regional/intensity/{from}/fw48h/regionid/{id}"),
            Area::Postcode(code) => format!("/regional/intensity/{from}/fw48h/postcode/{code}"),
        };
        let mut notes = Vec::new();
        let contributes = self.api.contributes();
        let ahead = match self.get(&path, now).await {
            // The forecast is not used here, and actual values may exist without it.
            Err(
                error @ (ProviderError::Empty { .. }
                | ProviderError::Malformed { .. }
                | ProviderError::Unexpected { .. }),
            ) if contributes == Contribution::Actual && self.area == Area::Country => {
                notes.push(format!("the forecast, which is not used, cannot be read: {error}"));
                Vec::new()
            }
            answer => answer?,
        };
        let behind = match self.area {
            Area::Country => self.get(&format!("/intensity/{from}/pt24h"), now).await.unwrap_or_else(|error| {
                notes.push(unknown_last_day(&error));
                Vec::new()
            }),
            Area::Region(_) | Area::Postcode(_) => Vec::new(),
        };
        let forecasts = ahead.iter().chain(&behind).filter(|row| now < row.slot.end());
        let expected = points(forecasts.clone().map(|row| (row.slot, row.forecast)), Origin::Forecast);
        // NESO calls these values actual, but they are estimates, which change for a day.
        let actuals = behind.iter().chain(&ahead).filter(|row| row.slot.end() <= now);
        let actual = CarbonSeries::from_points(points(actuals.map(|row| (row.slot, row.actual)), Origin::Estimated)).0;
        let (expected, problems) = CarbonSeries::from_points(expected);
        notes.extend(notes_of(&problems));
        // After an error the earlier forecast stays in use. That is better than an answer without a forecast, unless
        // only actual values are used.
        if expected.is_empty() && (actual.is_empty() || contributes != Contribution::Actual) {
            let what =
                format!("{} slots, none with a forecast for now or later; trying again next half hour", ahead.len());
            return Err(ProviderError::Empty { what });
        }
        let forecast = self.api.forecast((SignalKind::Average, SignalScope::Operational), now, expected, actual);
        if contributes != Contribution::Actual {
            notes.extend(note_short(&forecast, now, AHEAD_H));
        }
        notes.extend(self.api.skew_note());
        Ok(Answer { forecast, notes })
    }

    /// Requests actual values, which only the whole country has.
    async fn actuals(&self, span: Slot, now: DateTime<Utc>) -> Actuals<GramsPerKwh> {
        if self.area != Area::Country {
            return Ok(None);
        }
        let end = span.end().min(now).min(span.start() + LONGEST_WINDOW);
        let Some(span) = Slot::new(span.start(), end) else { return Ok(None) };
        let written = |t: DateTime<Utc>| t.format("%Y-%m-%dT%H:%MZ");
        let rows = self.get(&format!("/intensity/{}/{}", written(span.start()), written(span.end())), now).await?;
        // If a request begins at a full half hour, the API returns one slot too many at the start.
        let inside = rows.iter().filter(|row| span.start() < row.slot.end() && row.slot.end() <= span.end());
        let actual = points(inside.map(|row| (row.slot, row.actual)), Origin::Estimated);
        Ok(Some(CarbonSeries::from_points(actual).0))
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
    // The two responses share a slot with the same value, which needs no note.
    points.sort_by_key(|(slot, _)| *slot);
    points.dedup_by_key(|(slot, _)| *slot);
    points
}

fn read_rows(body: &Value, region: Option<u8>, rows: &mut Vec<Row>) -> Result<(), ProviderError> {
    if let Some(error) = body.get("error") {
        let message = error.get("message").and_then(Value::as_str).unwrap_or("no message");
        return Err(ProviderError::Unexpected { status: 200, message: shortened(message) });
    }
    // A body of `{}` or without `data` means that the API has no values.
    collect(body.get("data").unwrap_or(&Value::Null), "data", region, DEPTH, rows)
}

/// Adds the slots in `data` to `rows`. `data` is an array of slots, a region, or an array of regions; a region holds
/// its slots in a `data` field of its own.
fn collect(data: &Value, at: &str, region: Option<u8>, depth: u8, rows: &mut Vec<Row>) -> Result<(), ProviderError> {
    match data {
        Value::Null => Ok(()),
        Value::Array(entries) => {
            let entries = entries.iter().enumerate();
            entries.into_iter().try_for_each(|(i, entry)| collect(entry, &format!("{at}[{i}]"), region, depth, rows))
        }
        Value::Object(object) => {
            if let (Some(area), Some(given)) = (region, object.get("regionid"))
                && given.as_u64() != Some(u64::from(area))
            {
                return Err(malformed(
                    &format!("{at}.regionid"),
                    format!("is {}, but region {area} was requested", shortened(&given.to_string())),
                ));
            }
            match object.get("data") {
                Some(inner) if depth > 0 => collect(inner, &format!("{at}.data"), region, depth - 1, rows),
                Some(_) => Err(malformed(at, "nested too deeply")),
                None if object.is_empty() => Ok(()),
                None if rows.len() >= MOST_POINTS => {
                    Err(malformed(at, format!("more than {MOST_POINTS} slots are accepted")))
                }
                None => read_row(data, at).map(|row| rows.push(row)),
            }
        }
        other => Err(unexpected(at, "slots", other)),
    }
}

fn read_row(row: &Value, at: &str) -> Result<Row, ProviderError> {
    let time = |field: &str| time(row.get(field), &format!("{at}.{field}"));
    let slot = Slot::new(time("from")?, time("to")?).filter(|slot| slot.duration() <= Seconds::new(86_400.0));
    let slot = slot.ok_or_else(|| malformed(at, "the slot must end after it starts, and within a day"))?;
    let intensity = row.get("intensity").unwrap_or(&Value::Null);
    if !matches!(intensity, Value::Null | Value::Object(_)) {
        return Err(unexpected(&format!("{at}.intensity"), "an object", intensity));
    }
    let value = |field: &str| value(intensity.get(field), &format!("{at}.intensity.{field}"));
    Ok(Row { slot, forecast: value("forecast")?, actual: value("actual")? })
}

/// Runs the parser on any bytes, which must not cause a panic.
#[cfg(any(test, feature = "fuzzing"))]
fn parse_any(body: &[u8]) {
    use crate::providers::feed::follow_rows;
    let Ok(body) = serde_json::from_slice(body) else { return };
    for region in [None, Some(11)] {
        let mut rows = Vec::new();
        if read_rows(&body, region, &mut rows).is_ok() {
            let given = |value: fn(&Row) -> Option<GramsPerKwh>| {
                let given = points(rows.iter().map(|row| (row.slot, value(row))), Origin::Forecast);
                given.into_iter().map(|(slot, intensity)| (slot, intensity.value))
            };
            follow_rows(given(|row| row.forecast));
            follow_rows(given(|row| row.actual));
        }
    }
}
