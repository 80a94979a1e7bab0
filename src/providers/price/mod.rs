//! Day-ahead prices as a second signal, through the same machinery as intensities.
//!
//! `carbon-apis.md` §6 has the shapes and the traps. Energy-Charts quotes in EUR per MWh everywhere, also where the
//! zone has another currency; prices below zero are normal.

#[cfg(test)]
mod tests;

use std::path::Path;
use std::sync::Arc;

use chrono::{DateTime, Timelike, Utc};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use reqwest::header::HeaderMap;
use serde_json::Value;

use super::api::Api;
use super::cache::file_name;
use super::energy_charts::{QUARTER, numbers, starts, window};
use super::fuzz::follow;
use super::json::{by_starts, series, unexpected};
use super::place::{Place, bidding_zone};
use super::{
    Answer, CarbonSettings, FileProvider, PriceSettings, PriceSource, Provider, ProviderError, Requests, SettingsError,
    Settled, Source,
};
use wattune_core::domain::{Forecast, Origin, SignalKind, SignalScope, Slot, Zone};
use wattune_core::units::{PricePerMwh, Seconds};

/// Tomorrow's prices come once a day, but not always at the same hour.
const CADENCE: Seconds = Seconds::new(3600.0);

/// Bidding zones that are not countries, by how Energy-Charts names them.
const ZONES: [&str; 22] = [
    "DE-LU",
    "DK1",
    "DK2",
    "IT-Calabria",
    "IT-Centre-North",
    "IT-Centre-South",
    "IT-North",
    "IT-SACOAC",
    "IT-SACODC",
    "IT-Sardinia",
    "IT-Sicily",
    "IT-South",
    "NO1",
    "NO2",
    "NO2NSL",
    "NO3",
    "NO4",
    "NO5",
    "SE1",
    "SE2",
    "SE3",
    "SE4",
];

/// A chain of price sources: groups in order, the sources of a group being equals.
pub type PriceChain = Vec<Vec<Arc<dyn Provider<PricePerMwh>>>>;

/// The chain of price sources that the settings choose; empty for none. Nothing is read or connected yet. Requests are
/// counted in a file in `state_dir`.
///
/// # Errors
/// If settings contradict each other, or the bidding zone cannot be told from the place.
pub fn build_price(
    price: &PriceSettings,
    carbon: &CarbonSettings,
    state_dir: Option<&Path>,
) -> Result<PriceChain, SettingsError> {
    price.check()?;
    let source: Arc<dyn Provider<PricePerMwh>> = match price.source {
        PriceSource::None => return Ok(Vec::new()),
        PriceSource::File => Arc::new(FileProvider::prices(price, carbon)?),
        PriceSource::EnergyCharts => Arc::new(EnergyChartsPrice::new(carbon, state_dir)?),
    };
    Ok(vec![vec![source]])
}

/// The day-ahead price of a bidding zone.
#[derive(Debug)]
struct EnergyChartsPrice {
    api: Api,
}

impl EnergyChartsPrice {
    fn new(settings: &CarbonSettings, state_dir: Option<&Path>) -> Result<Self, SettingsError> {
        let (own, source) = (&settings.energy_charts, Source::EnergyCharts);
        let zone = zone(settings)?;
        // The API counts prices and intensities apart.
        let counted_as = format!("price-{}", file_name(source.name(), &zone));
        let own = (own.common(), &own.base_url);
        let api = Api::about(Place::of(&zone), source, settings, own, CADENCE, state_dir, &counted_as);
        Ok(Self { api })
    }

    async fn get(&self, window: &(String, String), now: DateTime<Utc>) -> Result<Points, ProviderError> {
        let zone = self.api.zone();
        let query = [("bzn", zone.as_str()), ("start", &window.0), ("end", &window.1)];
        read(&self.api.get("/price", &query, HeaderMap::new(), now).await?)
    }

    async fn answer(&self, now: DateTime<Utc>) -> Result<Answer<PricePerMwh>, ProviderError> {
        // Yesterday, today and tomorrow, wherever their midnight is. The window stays the same for an hour.
        let hour = now.timestamp() - i64::from(now.minute() * 60 + now.second());
        let at = |hours: i64| (hour + hours * 3600).to_string();
        let points = self.get(&(at(-24), at(72)), now).await?;
        let ahead = points.iter().filter(|(slot, _)| now < slot.end()).copied();
        let behind = points.iter().filter(|(slot, _)| slot.end() <= now).copied();
        let (expected, mut notes) = series(ahead, Origin::Forecast);
        let (actual, _) = series(behind, Origin::Measured);
        if expected.is_empty() {
            let what = format!("no price of now or later for {}; trying again later", self.api.zone());
            return Err(ProviderError::Empty { what });
        }
        notes.extend(self.api.skew_note());
        let forecast = Forecast {
            zone: self.api.zone(),
            source: self.source().to_owned(),
            kind: SignalKind::Unspecified,
            scope: SignalScope::Unspecified,
            issued_at: now,
            retrieved_at: now,
            provenance: Default::default(),
            expected,
            actual,
        };
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

    fn settle(&self, span: Slot, now: DateTime<Utc>) -> BoxFuture<'_, Settled<PricePerMwh>> {
        async move {
            let Some((span, window)) = window(span, now) else { return Ok(None) };
            let points = self.api.discreet(self.get(&window, now)).await?;
            let inside = points.into_iter().filter(|(s, _)| span.start() <= s.start() && s.end() <= span.end());
            Ok(Some(series(inside, Origin::Measured).0))
        }
        .boxed()
    }

    /// An auction's result changes no more.
    fn final_after(&self) -> Seconds {
        Seconds::ZERO
    }
}

/// The bidding zone: the one that is set, else that of the place.
fn zone(settings: &CarbonSettings) -> Result<Zone, SettingsError> {
    let own = &settings.energy_charts;
    if let Some(zone) = &own.bidding_zone {
        return Ok(zone.clone());
    }
    let name = Source::EnergyCharts.name();
    let Some(place) = own.zone.as_ref().or(settings.zone.as_ref()) else {
        let why = "no bidding zone is set; write carbon.energy_charts.bidding_zone, like \"DE-LU\", or carbon.zone";
        return Err(SettingsError::Place { source_name: name, place: "prices".to_owned(), why: why.to_owned() });
    };
    let place = Place::of(place);
    let country = place.country();
    let found = place
        .price_area()
        .or_else(|| bidding_zone_named(place.zone().as_str()))
        .or_else(|| bidding_zone(country.as_deref()?));
    found.and_then(|zone| Zone::new(zone).ok()).ok_or_else(|| {
        let why = match country.as_deref() {
            Some(country @ ("SE" | "NO" | "IT" | "DK")) => {
                let zones: Vec<_> = ZONES.iter().copied().filter(|zone| zone.starts_with(country)).collect();
                format!(
                    "{country} has several bidding zones; set carbon.energy_charts.bidding_zone to {}",
                    one_of(&zones)
                )
            }
            _ => "its bidding zone is not known; set carbon.energy_charts.bidding_zone, like \"DE-LU\"".to_owned(),
        };
        place.refused(name, why)
    })
}

/// A place's code that is a bidding zone, also with its country before it ("SE-SE3").
pub(super) fn bidding_zone_named(code: &str) -> Option<&'static str> {
    let known = |code: &str| ZONES.iter().copied().find(|zone| zone.eq_ignore_ascii_case(code));
    known(code).or_else(|| known(code.split_once('-')?.1))
}

fn one_of(zones: &[&str]) -> String {
    match zones.split_last() {
        Some((last, [])) => (*last).to_owned(),
        Some((last, others)) => format!("{} or {last}", others.join(", ")),
        None => String::new(),
    }
}

type Points = Vec<(Slot, Option<PricePerMwh>)>;

/// A body of `/price`: parallel arrays, in EUR per MWh.
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

/// Whatever a body holds, no parser of this source may panic on it.
pub(super) fn parse_any(body: &[u8]) {
    let Ok(body) = serde_json::from_slice(body) else { return };
    if let Ok(points) = read(&body) {
        follow(points.into_iter().filter_map(|(slot, price)| Some((slot, price?))));
    }
}
