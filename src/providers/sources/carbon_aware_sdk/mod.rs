//! The Green Software Foundation's Carbon Aware SDK: a WebAPI that its operator runs in front of a data source.
//!
//! `carbon-apis.md` §4 describes the API and its pitfalls. Responses do not name their values as average or marginal;
//! the settings do. Actual values are rows or, if the data source has no rows, means over requested hours.

mod parse;
mod settings;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use chrono::{DateTime, DurationRound, SecondsFormat, TimeDelta, Utc};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use reqwest::header::HeaderMap;
use serde_json::Value;

use self::parse::{Location, ParsedForecast};
pub use self::settings::Settings;
use super::descriptor::{Descriptor, Table, ZonesError};
use crate::providers::client::json::{series, unknown_last_day};
use crate::providers::client::{Api, ApiSource, SharedSettings};
use crate::providers::error::{ProviderError, SettingsError};
use crate::providers::place::{Place, ZoneName, within_country};
use crate::providers::provider::{Actuals, Answer, Provider};
use wattune_core::domain::{CarbonSeries, Forecast, Origin, SignalKind, SignalScope, Slot};
use wattune_core::units::{GramsPerKwh, Seconds};

/// Time between polls. Data sources renew every 5 to 60 minutes, and the WebAPI's operator pays for requests to them.
const CADENCE: Seconds = Seconds::new(1800.0);

const HOUR: TimeDelta = TimeDelta::hours(1);
const DAY: TimeDelta = TimeDelta::days(1);

/// Longest past span of one request: about 2000 points of five minutes.
const LONGEST_WINDOW: TimeDelta = TimeDelta::days(7);

/// Maximum number of hourly means that one poll requests if the data source has no rows.
const MOST_HOURS: u32 = 6;

/// Time after an hour's end within which its mean is published. An hour without a value by then is not requested again.
const PUBLISHED_WITHIN: TimeDelta = TimeDelta::hours(3);

/// Distance in km from the coordinates beyond which a location is taken to belong to another grid.
const FARTHEST_KM: f64 = 500.0;

pub(super) const DESCRIPTOR: Descriptor = Descriptor {
    name: "carbon_aware_sdk",
    summary: Some("as the data source behind it"),
    rank: Some(1),
    countries: &[],
    #[cfg(any(test, feature = "fuzzing"))]
    fuzz: &[super::FuzzTarget { name: "carbon_aware_sdk", parse: parse_any }],
};

impl Table for Settings {
    fn is_set_up(&self, _: Option<&Place>) -> bool {
        self.base_url != Self::default().base_url
    }

    fn build(&self, shared: &SharedSettings<'_>) -> Result<Arc<dyn Provider>, SettingsError> {
        Ok(Arc::new(CarbonAwareSdk::new(self, shared)?))
    }

    fn zones<'a>(
        &'a self,
        shared: SharedSettings<'a>,
        now: DateTime<Utc>,
    ) -> BoxFuture<'a, Result<Vec<ZoneName>, ZonesError>> {
        async move {
            if !self.is_set_up(None) {
                let how = "set carbon.carbon_aware_sdk.base_url to the address of a WebAPI; then its locations are listed here";
                return Err(ZonesError::NotSetUp(how.to_owned()));
            }
            let source = CarbonAwareSdk::new(self, &shared)?;
            Ok(source.api.discreet(source.zones(now)).await?)
        }
        .boxed()
    }
}

/// The source for one location of a WebAPI.
#[derive(Debug)]
struct CarbonAwareSdk {
    api: Api,
    kind: SignalKind,
    scope: SignalScope,
    /// Hourly means of the last day that were requested already, by the start of the hour; `None` if there is no value.
    hours: Mutex<BTreeMap<DateTime<Utc>, Option<GramsPerKwh>>>,
}

impl CarbonAwareSdk {
    fn new(own: &Settings, shared: &SharedSettings<'_>) -> Result<Self, SettingsError> {
        let api = Api::new(DESCRIPTOR.name, own.network(), shared, CADENCE)?;
        Ok(Self { api, kind: own.kind, scope: own.scope, hours: Mutex::default() })
    }

    async fn get(&self, path: &str, query: &[(&str, &str)], now: DateTime<Utc>) -> Result<Value, ProviderError> {
        self.api.get(path, query, HeaderMap::new(), now).await.map_err(|error| match error {
            ProviderError::Refused { status, message, .. } => {
                let advice = "the WebAPI passes on what its data source answers, so this may concern the key of whoever \
                              runs it; otherwise check carbon.carbon_aware_sdk.headers";
                ProviderError::Refused { status, message, advice: advice.to_owned() }
            }
            other => other,
        })
    }

    async fn zones(&self, now: DateTime<Utc>) -> Result<Vec<ZoneName>, ProviderError> {
        let known = parse::locations(&self.get("/locations", &[], now).await?)?;
        Ok(known.iter().map(|l| ZoneName::new(&l.key, l.name.as_deref().unwrap_or_default())).collect())
    }

    /// Returns the location for requests: a code as it is written, else the location that the WebAPI has for the place.
    async fn location(&self, now: DateTime<Utc>) -> Result<String, ProviderError> {
        let place = self.api.place();
        if place.is_code() {
            return Ok(place.zone().to_string());
        }
        if let Some(pinned) = self.api.pinned() {
            return Ok(pinned);
        }
        let found = match self.get("/locations", &[], now).await {
            // The WebAPI has no list of locations, but its data source may still accept the country's code. A location
            // that an earlier run chose from the list is used instead.
            Err(ProviderError::Empty { .. } | ProviderError::Unexpected { status: 404, .. })
                if place.coordinates().is_none() && self.api.last_pinned().is_none() =>
            {
                return Ok(place.zone().to_string());
            }
            answer => answer.and_then(|body| choose(&parse::locations(&body)?, place)),
        };
        self.api.pin(found)
    }

    async fn rows(
        &self,
        location: &str,
        span: Slot,
        now: DateTime<Utc>,
    ) -> Result<Vec<(Slot, GramsPerKwh)>, ProviderError> {
        let (from, to) = (written(span.start()), written(span.end()));
        let query = [("location", location), ("time", from.as_str()), ("toTime", to.as_str())];
        let mut rows = parse::emissions(&self.get("/emissions/bylocation", &query, now).await?)?;
        // Some versions of the WebAPI return more than was requested.
        rows.retain(|(slot, _)| span.start() <= slot.start() && slot.end() <= span.end());
        Ok(rows)
    }

    /// Returns the known means of the last day's full hours, and an error if one occurred. A few unknown means are
    /// requested, newest first, as far as the hourly quota allows.
    async fn means(&self, location: &str, now: DateTime<Utc>) -> (Vec<(Slot, GramsPerKwh)>, Option<ProviderError>) {
        let hour = now.duration_trunc(HOUR).unwrap_or(now);
        self.hours().retain(|start, _| hour - DAY <= *start && *start < hour);
        let past = (1..=24).filter_map(|h| Slot::new(hour - HOUR * h, hour - HOUR * (h - 1)));
        let requests = self.api.requests(now);
        let room = requests.allowed_per_hour.saturating_sub(requests.last_hour) / 4;
        let unknown: Vec<_> = past.filter(|slot| !self.hours().contains_key(&slot.start())).collect();
        let mut problem = None;
        for slot in unknown.into_iter().take(room.min(MOST_HOURS) as usize) {
            match self.mean(location, slot, now).await {
                Ok(Some(mean)) => {
                    self.hours().insert(slot.start(), Some(mean));
                }
                Ok(None) if slot.end() + PUBLISHED_WITHIN <= now => {
                    self.hours().insert(slot.start(), None);
                }
                Ok(None) => {}
                Err(error) => {
                    problem = Some(error);
                    break;
                }
            }
        }
        let hours = self.hours();
        let known = hours.iter().filter_map(|(start, mean)| Some((Slot::new(*start, *start + HOUR)?, (*mean)?)));
        (known.collect(), problem)
    }

    async fn mean(&self, location: &str, span: Slot, now: DateTime<Utc>) -> Result<Option<GramsPerKwh>, ProviderError> {
        let (from, to) = (written(span.start()), written(span.end()));
        let query = [("location", location), ("startTime", from.as_str()), ("endTime", to.as_str())];
        match self.get("/emissions/average-carbon-intensity", &query, now).await {
            Ok(body) => parse::average(&body, location, span),
            Err(ProviderError::Empty { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn hours(&self) -> MutexGuard<'_, BTreeMap<DateTime<Utc>, Option<GramsPerKwh>>> {
        self.hours.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ApiSource for CarbonAwareSdk {
    const ACTUALS_WINDOW: TimeDelta = LONGEST_WINDOW;

    fn api(&self) -> &Api {
        &self.api
    }

    fn meaning(&self) -> Option<(SignalKind, SignalScope)> {
        Some((self.kind, self.scope))
    }

    async fn answer(&self, now: DateTime<Utc>) -> Result<Answer, ProviderError> {
        let location = self.location(now).await?;
        let mut notes = Vec::new();
        let parsed = match self.get("/emissions/forecasts/current", &[("location", &location)], now).await {
            Ok(body) => parse::forecast(&body, &location)?,
            Err(error) if not_offered(&error) => {
                notes.push(format!("the WebAPI's data source has no forecast: {error}"));
                ParsedForecast::default()
            }
            Err(error) => return Err(error),
        };
        let ahead = parsed.points.iter().filter(|(slot, _)| now < slot.end());
        let (expected, odd) = series(ahead.map(|(slot, value)| (*slot, Some(*value))), Origin::Forecast);
        notes.extend(parsed.notes);
        notes.extend(odd);
        let actuals = match Slot::new(now - DAY, now) {
            Some(day) => self.rows(&location, day, now).await,
            None => Ok(Vec::new()),
        };
        let actuals = match actuals {
            Err(error) if not_offered(&error) => {
                let (hours, problem) = self.means(&location, now).await;
                notes.extend(problem.map(|error| format!("some actual values of the last 24 h are missing: {error}")));
                hours
            }
            // The day has no values, which is not an error.
            Err(ProviderError::Empty { .. }) => Vec::new(),
            Err(error) => {
                notes.push(unknown_last_day(&error));
                Vec::new()
            }
            Ok(rows) => rows,
        };
        // The WebAPI does not pass on whether its data source measured or estimated a value.
        let (actual, _) = series(actuals.into_iter().map(|(slot, value)| (slot, Some(value))), Origin::Estimated);
        if expected.is_empty() && actual.is_empty() {
            let what = format!("no value for now or later at {location}");
            return Err(ProviderError::Empty { what });
        }
        if expected.is_empty() && notes.is_empty() {
            notes.push(format!("there is no forecast of now or later for {location}, only actual values"));
        }
        notes.extend(self.api.skew_note());
        let forecast = Forecast {
            issued_at: parsed.generated_at.filter(|t| *t <= now).unwrap_or(now),
            ..self.api.forecast((self.kind, self.scope), now, expected, actual)
        };
        Ok(Answer { forecast, notes })
    }

    async fn actuals(&self, span: Slot, now: DateTime<Utc>) -> Actuals<GramsPerKwh> {
        let end = span.end().min(now).min(span.start() + LONGEST_WINDOW);
        let Some(span) = Slot::new(span.start(), end) else { return Ok(Some(CarbonSeries::default())) };
        let location = self.location(now).await?;
        match self.rows(&location, span, now).await {
            Ok(rows) => {
                let rows = rows.into_iter().map(|(slot, value)| (slot, Some(value)));
                Ok(Some(series(rows, Origin::Estimated).0))
            }
            Err(ProviderError::Empty { .. }) => Ok(Some(CarbonSeries::default())),
            // Weeks of hourly means would take hundreds of requests.
            Err(error) if not_offered(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Returns true if the WebAPI answers that its data source does not offer the requested kind of data at all.
fn not_offered(error: &ProviderError) -> bool {
    matches!(
        error,
        ProviderError::Unexpected { status: 404 | 405, .. } | ProviderError::ServerError { status: 501, .. }
    )
}

/// Writes a time in the format that the WebAPI reads, with its time zone.
fn written(t: DateTime<Utc>) -> String {
    t.to_rfc3339_opts(SecondsFormat::Secs, true)
}

/// Chooses the location for a place among the WebAPI's locations. For coordinates, it is the nearest location; for a
/// country, the location with the country's name or code, else the only location in the country.
fn choose(known: &[Location], place: &Place) -> Result<String, ProviderError> {
    let refused = |why: String| {
        let what = format!(
            "{why}; set carbon.carbon_aware_sdk.zone to one of the WebAPI's locations: {}",
            parse::some_of(known)
        );
        ProviderError::Empty { what }
    };
    if let Some(here) = place.coordinates() {
        let distances = known.iter().filter_map(|l| Some((l, distance_km(here, l.coordinates?))));
        let nearest = distances.min_by(|(_, a), (_, b)| a.total_cmp(b));
        return match nearest {
            Some((location, distance)) if distance <= FARTHEST_KM => Ok(location.key.clone()),
            Some((location, distance)) => {
                Err(refused(format!("the nearest location, {}, is {distance:.0} km away", location.key)))
            }
            None => Err(refused("no location has coordinates".to_owned())),
        };
    }
    let country = place.country().unwrap_or_default();
    let is_name = |text: &str| text.eq_ignore_ascii_case(&country) || text.eq_ignore_ascii_case(place.zone().as_str());
    let named = known
        .iter()
        .find(|l| is_name(&l.key))
        .or_else(|| known.iter().find(|l| l.name.as_deref().is_some_and(is_name)));
    if let Some(location) = named {
        return Ok(location.key.clone());
    }
    let placed: Vec<_> = known.iter().filter_map(|l| Some((l, l.coordinates?))).collect();
    let points: Vec<_> = placed.iter().map(|(_, coordinates)| *coordinates).collect();
    let inside: Vec<_> = placed.iter().zip(within_country(&points, &country)).filter(|(_, inside)| *inside).collect();
    match inside.as_slice() {
        [((only, _), _)] => Ok(only.key.clone()),
        [] => Err(refused(format!("no location is in {country}"))),
        several => Err(refused(format!("{} locations are in {country}", several.len()))),
    }
}

/// Returns the distance in km between two points (latitude and longitude in degrees) on a sphere of the earth's size.
fn distance_km(a: (f64, f64), b: (f64, f64)) -> f64 {
    let ((lat_a, lon_a), (lat_b, lon_b)) = ((a.0.to_radians(), a.1.to_radians()), (b.0.to_radians(), b.1.to_radians()));
    let across = ((lat_b - lat_a) / 2.0).sin().powi(2);
    let along = lat_a.cos() * lat_b.cos() * ((lon_b - lon_a) / 2.0).sin().powi(2);
    2.0 * 6371.0 * (across + along).clamp(0.0, 1.0).sqrt().asin()
}

/// Runs the parsers on any bytes, which must not cause a panic.
#[cfg(any(test, feature = "fuzzing"))]
fn parse_any(body: &[u8]) {
    use crate::providers::feed::follow_rows;
    let Ok(body) = serde_json::from_slice(body) else { return };
    if let Ok(parsed) = parse::forecast(&body, "eastus") {
        follow_rows(parsed.points);
    }
    if let Ok(rows) = parse::emissions(&body) {
        follow_rows(rows);
    }
    if let Some(hour) = Slot::new(DateTime::UNIX_EPOCH, DateTime::UNIX_EPOCH + HOUR) {
        let _ = parse::average(&body, "eastus", hour);
    }
    if let Ok(known) = parse::locations(&body) {
        for zone in ["DE", "52.5,13.4"].into_iter().filter_map(|text| wattune_core::domain::Zone::new(text).ok()) {
            let _ = choose(&known, &Place::of(&zone));
        }
    }
}
