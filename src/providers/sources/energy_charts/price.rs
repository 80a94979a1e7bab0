//! Day-ahead prices from Energy-Charts, a second signal beside the carbon intensity.
//!
//! `carbon-apis.md` §6 describes the API and its pitfalls. All prices are in EUR per MWh, even where the zone has
//! another currency; negative prices are normal.

#[cfg(test)]
#[path = "price_tests.rs"]
mod tests;

use chrono::{DateTime, TimeDelta, Timelike, Utc};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use reqwest::header::HeaderMap;
use serde_json::Value;

use super::columns::{LONGEST_WINDOW, QUARTER, numbers, starts, window};
use super::settings::Settings;
use crate::providers::client::cache::file_name;
use crate::providers::client::json::{by_starts, series, unexpected};
use crate::providers::client::quota::Requests;
use crate::providers::client::{Api, SharedSettings};
use crate::providers::error::{ProviderError, SettingsError};
use crate::providers::place::{BIDDING_ZONES, Place, bidding_zone_named, name_and_bidding_zone};
use crate::providers::provider::{Actuals, Answer, Provider};
use wattune_core::domain::{Origin, SignalKind, SignalScope, Slot, Zone};
use wattune_core::units::{PricePerMwh, Seconds};

const SOURCE: &str = "energy_charts";

/// Time between polls: the next day's prices appear once a day, but not always at the same hour.
const CADENCE: Seconds = Seconds::new(3600.0);

/// The source of a bidding zone's day-ahead price.
#[derive(Debug)]
pub(in crate::providers) struct EnergyChartsPrice {
    api: Api,
}

impl EnergyChartsPrice {
    pub(in crate::providers) fn new(own: &Settings, shared: &SharedSettings<'_>) -> Result<Self, SettingsError> {
        let zone = zone(own, shared)?;
        // The API counts requests for prices and for carbon intensities separately, so wattune does too.
        let counted_as = format!("price-{}", file_name(SOURCE, &zone));
        let api = Api::about(Place::of(&zone), SOURCE, own.network(), shared, CADENCE, &counted_as);
        Ok(Self { api })
    }

    async fn get(&self, window: &(String, String), now: DateTime<Utc>) -> Result<Points, ProviderError> {
        let zone = self.api.zone();
        let query = [("bzn", zone.as_str()), ("start", &window.0), ("end", &window.1)];
        read(&self.api.get("/price", &query, HeaderMap::new(), now).await?)
    }

    async fn answer(&self, now: DateTime<Utc>) -> Result<Answer<PricePerMwh>, ProviderError> {
        // The span contains yesterday, today and tomorrow in any time zone. It stays the same for an hour.
        let hour = now.timestamp() - i64::from(now.minute() * 60 + now.second());
        let at = |hours: i64| (hour + hours * 3600).to_string();
        let points = self.get(&(at(-24), at(72)), now).await?;
        let ahead = points.iter().filter(|(slot, _)| now < slot.end()).copied();
        let behind = points.iter().filter(|(slot, _)| slot.end() <= now).copied();
        let (expected, mut notes) = series(ahead, Origin::Forecast);
        let (actual, _) = series(behind, Origin::Measured);
        if expected.is_empty() {
            let what = format!("no price for now or later for {}; trying again later", self.api.zone());
            return Err(ProviderError::Empty { what });
        }
        notes.extend(self.api.skew_note());
        let forecast = self.api.forecast((SignalKind::Unspecified, SignalScope::Unspecified), now, expected, actual);
        Ok(Answer { forecast, notes })
    }
}

impl Provider<PricePerMwh> for EnergyChartsPrice {
    fn source(&self) -> &'static str {
        self.api.source()
    }

    fn zone(&self) -> Zone {
        self.api.zone()
    }

    fn cadence(&self) -> Seconds {
        self.api.cadence()
    }

    fn requests(&self, now: DateTime<Utc>) -> Option<Requests> {
        Some(self.api.requests(now))
    }

    fn fetch(&self, now: DateTime<Utc>) -> BoxFuture<'_, Result<Answer<PricePerMwh>, ProviderError>> {
        self.api.discreet_answer(self.answer(now)).boxed()
    }

    fn fetch_actuals(&self, span: Slot, now: DateTime<Utc>) -> BoxFuture<'_, Actuals<PricePerMwh>> {
        async move {
            let Some((span, window)) = window(span, now) else { return Ok(None) };
            let points = self.api.discreet(self.get(&window, now)).await?;
            let inside = points.into_iter().filter(|(s, _)| span.start() <= s.start() && s.end() <= span.end());
            Ok(Some(series(inside, Origin::Measured).0))
        }
        .boxed()
    }

    fn actuals_window(&self) -> Option<TimeDelta> {
        Some(LONGEST_WINDOW)
    }

    /// Returns zero: the prices result from an auction and are never revised.
    fn final_after(&self) -> Seconds {
        Seconds::ZERO
    }
}

/// Returns the bidding zone: the configured one, else that of the place.
fn zone(own: &Settings, shared: &SharedSettings<'_>) -> Result<Zone, SettingsError> {
    if let Some(zone) = &own.bidding_zone {
        return Ok(zone.clone());
    }
    let Some(place) = own.zone.as_ref().or(shared.zone) else {
        let why = "no bidding zone is set; write carbon.energy_charts.bidding_zone, like \"DE-LU\", or carbon.zone";
        return Err(SettingsError::Place { source_name: SOURCE, place: "prices".to_owned(), why: why.to_owned() });
    };
    let place = Place::of(place);
    let country = place.country();
    let found = place
        .price_area()
        .or_else(|| bidding_zone_named(place.zone().as_str()))
        .or_else(|| name_and_bidding_zone(country.as_deref()?)?.1);
    found.and_then(|zone| Zone::new(zone).ok()).ok_or_else(|| {
        let why = match country.as_deref() {
            Some(country @ ("SE" | "NO" | "IT" | "DK")) => {
                let zones: Vec<_> = BIDDING_ZONES.iter().copied().filter(|zone| zone.starts_with(country)).collect();
                format!(
                    "{country} has several bidding zones; set carbon.energy_charts.bidding_zone to {}",
                    one_of(&zones)
                )
            }
            _ => "its bidding zone is not known; set carbon.energy_charts.bidding_zone, like \"DE-LU\"".to_owned(),
        };
        place.refused(SOURCE, why)
    })
}

fn one_of(zones: &[&str]) -> String {
    match zones.split_last() {
        Some((last, [])) => (*last).to_owned(),
        Some((last, others)) => format!("{} or {last}", others.join(", ")),
        None => String::new(),
    }
}

type Points = Vec<(Slot, Option<PricePerMwh>)>;

/// Reads a body of `/price`: parallel arrays of times and prices in EUR per MWh.
fn read(body: &Value) -> Result<Points, ProviderError> {
    let starts = starts(body)?;
    let prices = numbers(body, "price", starts.len())?;
    let unit = body.get("unit").unwrap_or(&Value::Null);
    let plain: String = unit.as_str().unwrap_or_default().chars().filter(|c| !c.is_whitespace() && *c != '_').collect();
    if !matches!(plain.to_lowercase().as_str(), "eur/mwh" | "€/mwh" | "eur/megawatthour") {
        return Err(unexpected("unit", "\"EUR / MWh\"", unit));
    }
    Ok(by_starts(starts.into_iter().zip(prices).collect(), Some(QUARTER)))
}

/// Runs the parser on any bytes, which must not cause a panic.
#[cfg(any(test, feature = "fuzzing"))]
pub(super) fn parse_any(body: &[u8]) {
    use crate::providers::feed::follow_rows;
    let Ok(body) = serde_json::from_slice(body) else { return };
    if let Ok(points) = read(&body) {
        follow_rows(points.into_iter().filter_map(|(slot, price)| Some((slot, price?))));
    }
}
