//! Electricity Maps, v3 and v4: average carbon intensity of the consumed electricity, with a key.
//!
//! `carbon-apis.md` §1 describes the API and its pitfalls. Only the responses show what the key's plan includes: if the
//! plan has no forecasts, only the history is used, from which wattune's local forecaster makes a forecast.

mod parse;
mod refusal;
mod settings;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use chrono::{DateTime, DurationRound, TimeDelta, Utc};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use serde_json::Value;

use self::parse::HistoryValue;
use self::refusal::{PORTAL, is_unexplained, not_in_plan, with_advice};
pub use self::settings::Settings;
use self::settings::{ApiVersion, EmissionFactors};
use super::descriptor::{Descriptor, Table, ZonesError};
use crate::providers::client::json::{note_short, series, unknown_last_day};
use crate::providers::client::{Api, ApiSource, Contribution, Denied, Secret, SharedSettings, abridged};
use crate::providers::error::{ProviderError, SettingsError};
use crate::providers::place::{Place, ZoneName};
use crate::providers::provider::{Actuals, Answer, Provider};
use wattune_core::domain::{CarbonSeries, Forecast, Intensity, Method, Origin, SignalKind, SignalScope, Slot};
use wattune_core::units::{GramsPerKwh, Seconds};

const HOUR: TimeDelta = TimeDelta::hours(1);

/// Longest span of one request to `/past-range` with hourly rows.
const LONGEST_WINDOW: TimeDelta = TimeDelta::days(10);

/// Horizon in hours that every plan with forecasts includes.
const USUAL_HOURS: u8 = 24;

/// Countries that consist of several zones of Electricity Maps.
const SEVERAL_ZONES: [&str; 14] = ["AU", "BR", "CA", "CL", "DK", "ID", "IN", "IT", "JP", "NO", "NZ", "RU", "SE", "US"];

pub(super) const DESCRIPTOR: Descriptor = Descriptor {
    name: "electricity_maps",
    summary: Some("average, with a key; worldwide"),
    rank: Some(2),
    countries: &[],
    #[cfg(any(test, feature = "fuzzing"))]
    fuzz: &[super::FuzzTarget { name: "electricity_maps", parse: parse_any }],
};

impl Table for Settings {
    fn is_set_up(&self, place: Option<&Place>) -> bool {
        (place.is_some() || self.zone.is_some()) && Secret::is_there(&self.key_env, self.key_file.as_deref())
    }

    fn build(&self, shared: &SharedSettings<'_>) -> Result<Arc<dyn Provider>, SettingsError> {
        Ok(Arc::new(ElectricityMaps::new(self, shared)?))
    }

    fn zones<'a>(
        &'a self,
        shared: SharedSettings<'a>,
        now: DateTime<Utc>,
    ) -> BoxFuture<'a, Result<Vec<ZoneName>, ZonesError>> {
        async move {
            let source = ElectricityMaps::new(&Settings { zone: None, ..self.clone() }, &shared)?;
            Ok(source.api.discreet(source.zones(now)).await?)
        }
        .boxed()
    }
}

/// The source for one zone: its forecast and its actual values.
#[derive(Debug)]
struct ElectricityMaps {
    api: Api,
    settings: Settings,
    /// Time of the last refusal of forecasts, if the key's plan lacks them.
    no_forecast: Denied,
    /// Time of the last refusal of the configured horizon, if the plan's forecasts are shorter.
    short_forecast: Denied,
    /// Time of the last refusal of older history, if the plan has only the last 24 hours.
    no_history: Denied,
}

impl ElectricityMaps {
    fn new(own: &Settings, shared: &SharedSettings<'_>) -> Result<Self, SettingsError> {
        let api = Api::new(DESCRIPTOR.name, own.network(), shared, Seconds::from_delta(HOUR))?;
        let (no_forecast, short_forecast, no_history) = Default::default();
        Ok(Self { api, settings: own.clone(), no_forecast, short_forecast, no_history })
    }

    /// Returns the value of the query parameter `emissionFactorType`.
    fn factors(&self) -> &'static str {
        match self.settings.emission_factors {
            EmissionFactors::Lifecycle => "lifecycle",
            EmissionFactors::Direct => "direct",
        }
    }

    fn scope(&self) -> SignalScope {
        match self.settings.emission_factors {
            EmissionFactors::Lifecycle => SignalScope::Lifecycle,
            EmissionFactors::Direct => SignalScope::Operational,
        }
    }

    fn key(&self) -> Result<Secret, ProviderError> {
        let own = &self.settings;
        Secret::find(&own.key_env, own.key_file.as_deref())?.ok_or_else(|| {
            let what = match &own.key_file {
                Some(path) => format!(
                    "the file {} (carbon.electricity_maps.key_file) holds no key; put it there, or get a free one at {PORTAL}",
                    abridged::path(path)
                ),
                None => format!(
                    "Electricity Maps needs a key: set the environment variable {}, or carbon.electricity_maps.key_file \
                     to the path of a file that holds it; get a free one at {PORTAL}",
                    abridged::variable(&own.key_env)
                ),
            };
            ProviderError::NoKey { what }
        })
    }

    /// Describes for messages where the key is read.
    fn key_from(&self) -> String {
        let file = self.settings.key_file.as_deref().map(abridged::path);
        file.unwrap_or_else(|| abridged::variable(&self.settings.key_env))
    }

    async fn get(&self, route: &str, query: &[(&str, &str)], now: DateTime<Utc>) -> Result<Value, ProviderError> {
        let key = self.key()?;
        let no_key = |what: String| ProviderError::NoKey { what };
        let name = HeaderName::from_bytes(self.settings.key_header.as_bytes()).map_err(|_| {
            no_key("carbon.electricity_maps.key_header is not the name of a header; write \"auth-token\"".to_owned())
        })?;
        let mut value = HeaderValue::from_str(key.expose())
            .map_err(|_| no_key(format!("the key in {} holds characters that no header may hold", self.key_from())))?;
        value.set_sensitive(true);
        let version = self.settings.api_version;
        // Without a zone that it knows, the API would use the location of the caller's IP address.
        let no_lookup = match version {
            ApiVersion::V3 => ("shouldUseFallbackCallerLookup", "false"),
            ApiVersion::V4 => ("disableCallerLookup", "true"),
        };
        let mut query = query.to_vec();
        query.push(no_lookup);
        let path = format!("/v{}{route}", u8::from(version));
        let answer = self.api.get(&path, &query, HeaderMap::from_iter([(name, value)]), now).await;
        let zone = query.iter().find(|(field, _)| *field == "zone").map_or("these coordinates", |(_, zone)| zone);
        answer.map_err(|error| with_advice(error, &self.key_from(), route, zone))
    }

    /// Lists the API's zones, which needs no key.
    async fn zones(&self, now: DateTime<Utc>) -> Result<Vec<ZoneName>, ProviderError> {
        let body = match self.get("/zones", &[], now).await {
            Err(ProviderError::NoKey { .. }) => {
                let path = format!("/v{}/zones", u8::from(self.settings.api_version));
                self.api.get(&path, &[], HeaderMap::new(), now).await?
            }
            answer => answer?,
        };
        parse::zones(&body)
    }

    /// Returns the zone in the API's own code. For coordinates, the first zone found is used until the next start, or
    /// until the API refuses it, because near a border the API's response varies.
    async fn zone_key(&self, now: DateTime<Utc>) -> Result<String, ProviderError> {
        let place = self.api.place();
        let Some((latitude, longitude)) = place.coordinates() else {
            let text = place.zone().as_str();
            let area = place.price_area().map(|area| format!("DK-{area}"));
            let country = || place.country().filter(|_| !place.is_code());
            return Ok(area.or_else(country).unwrap_or_else(|| text.to_owned()));
        };
        if let Some(zone) = self.api.pinned() {
            return Ok(zone);
        }
        let (latitude, longitude) = (latitude.to_string(), longitude.to_string());
        let query = [("lat", latitude.as_str()), ("lon", longitude.as_str())];
        let found = match self.get("/zone", &query, now).await.and_then(|body| parse::zone(&body)) {
            // Not every plan has this route, but every response names its zone.
            Err(error)
                if not_in_plan(&error)
                    || matches!(error, ProviderError::Unexpected { .. } | ProviderError::Malformed { .. }) =>
            {
                self.get("/carbon-intensity/latest", &query, now).await.and_then(|body| parse::zone(&body))
            }
            found => found,
        };
        self.api.pin(found)
    }

    async fn ask_ahead(
        &self,
        zone: &str,
        hours: u8,
        now: DateTime<Utc>,
    ) -> Result<parse::ParsedForecast, ProviderError> {
        let hours = hours.to_string();
        let query = [("zone", zone), ("horizonHours", &hours), ("emissionFactorType", self.factors())];
        parse::forecast(&self.get("/carbon-intensity/forecast", &query, now).await?, zone)
    }

    /// Requests the forecast, and returns it with the requested horizon in hours; `None` if the plan has no forecasts.
    async fn ahead(
        &self,
        zone: &str,
        now: DateTime<Utc>,
        notes: &mut Vec<String>,
    ) -> Result<Option<(parse::ParsedForecast, u8)>, ProviderError> {
        // If the settings use only the forecasts of this source, actual values cannot replace a forecast.
        let optional = self.api.contributes() != Contribution::Forecast;
        let without = || {
            format!(
                "the key's plan has no forecast for {zone}; only actual values of the last 24 h are known, from which \
                 wattune forecasts; plans with forecasts are at {PORTAL}"
            )
        };
        if optional && self.no_forecast.stands(now) {
            notes.push(without());
            return Ok(None);
        }
        let wanted = u8::from(self.settings.horizon_hours);
        let mut hours = if self.short_forecast.stands(now) { wanted.min(USUAL_HOURS) } else { wanted };
        let mut answer = self.ask_ahead(zone, hours, now).await;
        // A plan without this horizon is refused like one without forecasts.
        let is_refused = |error: &ProviderError| {
            let by_status = matches!(error, ProviderError::Unexpected { status: 400 | 422, .. });
            by_status || not_in_plan(error) || is_unexplained(error)
        };
        if hours > USUAL_HOURS && answer.as_ref().is_err_and(is_refused) {
            let shorter = self.ask_ahead(zone, USUAL_HOURS, now).await;
            // Without quota for a second request, the first refusal stands.
            if !matches!(shorter, Err(ProviderError::QuotaSpent { .. })) {
                (hours, answer) = (USUAL_HOURS, shorter);
            }
            if answer.is_ok() {
                self.short_forecast.note(now);
            }
        }
        match answer {
            Ok(mut ahead) => {
                if hours < wanted {
                    notes.push(format!(
                        "a forecast of {wanted} h was refused, so {hours} h are asked for; set \
                         carbon.electricity_maps.horizon_hours = {hours} if the plan has no more"
                    ));
                }
                let given = ahead.rows.len();
                ahead.rows.retain(|(slot, _)| now < slot.end());
                if ahead.rows.is_empty() {
                    let what = format!("{given} values in the forecast for {zone}, none for now or later");
                    return Err(ProviderError::Empty { what });
                }
                Ok(Some((ahead, hours)))
            }
            Err(error) if optional && not_in_plan(&error) => {
                self.no_forecast.note(now);
                notes.push(without());
                Ok(None)
            }
            // Either the plan has no forecasts, or the key is wrong; in the second case the history is refused too.
            Err(error) if optional && is_unexplained(&error) => {
                notes.push(format!("the forecast is not given, only actual values of the last 24 h: {error}"));
                Ok(None)
            }
            Err(error) => Err(self.with_hint(error)),
        }
    }

    async fn behind(&self, zone: &str, now: DateTime<Utc>) -> Result<Vec<(Slot, Intensity)>, ProviderError> {
        let query = [("zone", zone), ("emissionFactorType", self.factors())];
        let body = self.get("/carbon-intensity/history", &query, now).await.map_err(|e| self.with_hint(e))?;
        let mut rows = parse::history(&body, zone, self.factors())?;
        rows.retain(|(slot, _)| slot.end() <= now);
        if rows.is_empty() {
            return Err(ProviderError::Empty { what: format!("the history of {zone} has no past values") });
        }
        Ok(self.noted(rows))
    }

    /// Returns the carbon intensities, and stores their methods for the provenance.
    fn noted(&self, rows: Vec<(Slot, HistoryValue)>) -> Vec<(Slot, Intensity)> {
        let method = |(slot, actuals): &(Slot, HistoryValue)| {
            actuals.method.clone().map(|name| Method { start: slot.start(), end: slot.end(), name })
        };
        self.api.note_methods(rows.iter().filter_map(method));
        rows.into_iter().map(|(slot, actuals)| (slot, actuals.intensity)).collect()
    }

    /// Adds a hint to an error if a country may consist of several zones.
    fn with_hint(&self, error: ProviderError) -> ProviderError {
        let place = self.api.place();
        match error {
            ProviderError::Unexpected { status: status @ (400 | 404 | 422), message }
                if !place.is_code()
                    && place.coordinates().is_none()
                    && (message.to_lowercase().contains("zone")
                        || place.country().is_some_and(|country| SEVERAL_ZONES.contains(&&*country))) =>
            {
                let hint = "large countries are several zones: write one of them, or latitude,longitude";
                ProviderError::Unexpected { status, message: format!("{message}; {hint}") }
            }
            other => other,
        }
    }
}

impl ApiSource for ElectricityMaps {
    /// Three days: measurements replace estimates of the newest hours, mostly within a day.
    const FINAL_AFTER: Seconds = Seconds::new(3.0 * 86_400.0);

    const ACTUALS_WINDOW: TimeDelta = LONGEST_WINDOW;

    fn api(&self) -> &Api {
        &self.api
    }

    fn meaning(&self) -> Option<(SignalKind, SignalScope)> {
        Some((SignalKind::Average, self.scope()))
    }

    async fn answer(&self, now: DateTime<Utc>) -> Result<Answer, ProviderError> {
        let zone = self.zone_key(now).await?;
        let mut notes = Vec::new();
        let ahead = match self.api.contributes() {
            Contribution::Actual => None,
            Contribution::Both | Contribution::Forecast => self.ahead(&zone, now, &mut notes).await?,
        };
        let behind = match self.api.contributes() {
            Contribution::Forecast => Ok(Vec::new()),
            Contribution::Both | Contribution::Actual => self.behind(&zone, now).await,
        };
        let behind = match (behind, &ahead) {
            (Ok(behind), _) => behind,
            (Err(error), Some(_)) => {
                notes.push(unknown_last_day(&error));
                Vec::new()
            }
            (Err(error), None) => {
                // The user may replace a refused key by one with forecasts, so they are requested again. Other errors
                // do not concern the plan.
                if matches!(error, ProviderError::Refused { .. } | ProviderError::NoKey { .. }) {
                    self.no_forecast.lift();
                }
                return Err(error);
            }
        };
        let hours = ahead.as_ref().map(|(_, hours)| *hours);
        let (rows, updated_at) = ahead.map(|(ahead, _)| (ahead.rows, ahead.updated_at)).unwrap_or_default();
        let (expected, odd) = series(rows.into_iter().map(|(slot, value)| (slot, Some(value))), Origin::Forecast);
        notes.extend(odd);
        let forecast = Forecast {
            issued_at: updated_at.unwrap_or(now).min(now),
            ..self.api.forecast((SignalKind::Average, self.scope()), now, expected, CarbonSeries::from_points(behind).0)
        };
        notes.extend(hours.and_then(|hours| note_short(&forecast, now, hours.into())));
        notes.extend(self.api.skew_note());
        Ok(Answer { forecast, notes })
    }

    async fn actuals(&self, span: Slot, now: DateTime<Utc>) -> Actuals<GramsPerKwh> {
        if self.api.contributes() == Contribution::Forecast || self.no_history.stands(now) {
            return Ok(None);
        }
        // The API selects rows by their start. The request begins at the full hour, so that it includes the row in
        // which the span begins.
        let start = span.start().duration_trunc(HOUR).unwrap_or(span.start());
        let end = (start + LONGEST_WINDOW).min(span.end()).min(now);
        if end <= start {
            return Ok(Some(CarbonSeries::default()));
        }
        let zone = self.zone_key(now).await?;
        let text = |t: DateTime<Utc>| t.format("%Y-%m-%dT%H:%M:%SZ").to_string();
        let (start, end) = (text(start), text(end));
        let query = [("zone", &*zone), ("start", &start), ("end", &end), ("emissionFactorType", self.factors())];
        let body = match self.get("/carbon-intensity/past-range", &query, now).await {
            Err(error) if not_in_plan(&error) => {
                self.no_history.note(now);
                return Ok(None);
            }
            answer => answer?,
        };
        let mut rows = parse::history(&body, &zone, self.factors())?;
        rows.retain(|(slot, _)| span.start() < slot.end() && slot.end() <= now);
        Ok(Some(CarbonSeries::from_points(self.noted(rows)).0))
    }
}

/// Runs the parsers on any bytes, and the reader of refusals on a refusal with these bytes as its message; neither must
/// cause a panic.
#[cfg(any(test, feature = "fuzzing"))]
fn parse_any(body: &[u8]) {
    use crate::providers::feed::follow_rows;
    let refused = ProviderError::refused_with(body);
    let _ = (is_unexplained(&refused), with_advice(refused, "", "/zones", "DE"));
    let Ok(body) = serde_json::from_slice::<Value>(body) else { return };
    if let Ok(ahead) = parse::forecast(&body, "DE") {
        follow_rows(ahead.rows);
    }
    if let Ok(rows) = parse::history(&body, "DE", "lifecycle") {
        follow_rows(rows.into_iter().map(|(slot, actuals)| (slot, actuals.intensity.value)));
    }
    let _ = (parse::zone(&body), parse::zones(&body));
}
