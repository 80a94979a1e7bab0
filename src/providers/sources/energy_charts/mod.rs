//! Energy-Charts (Fraunhofer ISE): average carbon intensity of most European countries in steps of a quarter of an
//! hour, without a key.
//!
//! `carbon-apis.md` §5.1 describes the API and its pitfalls. One request covers the present day and the forecast;
//! actual values from before today are requested by [`Provider::fetch_actuals`].

mod columns;
mod price;
mod settings;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use chrono::{DateTime, TimeDelta, Utc};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use reqwest::header::HeaderMap;
use serde_json::Value;

use self::columns::{LONGEST_WINDOW, QUARTER, numbers, starts, window};
pub(in crate::providers) use self::price::EnergyChartsPrice;
pub use self::settings::Settings;
use super::descriptor::{Descriptor, Table, ZonesError};
use crate::providers::client::json::{by_starts, malformed, series};
use crate::providers::client::{Api, ApiSource, SharedSettings};
use crate::providers::error::{ProviderError, SettingsError};
use crate::providers::place::{ZoneName, name_and_bidding_zone};
use crate::providers::provider::{Actuals, Answer, Provider};
use wattune_core::domain::{CarbonSeries, Origin, SignalKind, SignalScope, Slot};
use wattune_core::units::{GramsPerKwh, Seconds};

/// Time between polls: the forecast is computed anew every hour.
const CADENCE: Seconds = Seconds::new(3600.0);

/// Countries that Energy-Charts serves. For smaller ones the response may contain only actual values.
const COUNTRIES: [&str; 32] = [
    "AT", "BA", "BE", "BG", "CH", "CY", "CZ", "DE", "DK", "EE", "ES", "FI", "FR", "GR", "HR", "HU", "IE", "IT", "LT",
    "LU", "LV", "ME", "MK", "NL", "NO", "PL", "PT", "RO", "RS", "SE", "SI", "SK",
];

pub(super) const DESCRIPTOR: Descriptor = Descriptor {
    name: "energy_charts",
    summary: Some("average; no key"),
    rank: Some(3),
    countries: &COUNTRIES,
    #[cfg(any(test, feature = "fuzzing"))]
    fuzz: &[
        super::FuzzTarget { name: "energy_charts", parse: parse_any },
        super::FuzzTarget { name: "price", parse: price::parse_any },
    ],
};

impl Table for Settings {
    fn build(&self, shared: &SharedSettings<'_>) -> Result<Arc<dyn Provider>, SettingsError> {
        Ok(Arc::new(EnergyCharts::new(self, shared)?))
    }

    fn zones(&self, _: SharedSettings<'_>, _: DateTime<Utc>) -> BoxFuture<'_, Result<Vec<ZoneName>, ZonesError>> {
        let zone = |code: &&str| {
            let (name, bidding_zone) = name_and_bidding_zone(code)?;
            Some(ZoneName::new(code, &format!("{name}{}", bidding_zone.map_or("", |_| ", with its price too"))))
        };
        std::future::ready(Ok(COUNTRIES.iter().filter_map(zone).collect())).boxed()
    }
}

/// The source of a country's carbon intensity.
#[derive(Debug)]
struct EnergyCharts {
    api: Api,
    /// Country code as the API reads it, in lower case.
    country: String,
    scope: SignalScope,
}

impl EnergyCharts {
    fn new(own: &Settings, shared: &SharedSettings<'_>) -> Result<Self, SettingsError> {
        let api = Api::new(DESCRIPTOR.name, own.network(), shared, CADENCE)?;
        let place = api.place();
        let country = place.country().filter(|country| COUNTRIES.contains(&&**country)).ok_or_else(|| {
            let countries = COUNTRIES.join(", ");
            place.refused(api.source(), format!("it knows countries ({countries}), and coordinates within them"))
        })?;
        Ok(Self { api, country: country.to_ascii_lowercase(), scope: own.scope })
    }

    async fn get(&self, window: &[(&str, &str)], now: DateTime<Utc>) -> Result<Vec<Row>, ProviderError> {
        let query = [&[("country", self.country.as_str())], window].concat();
        read(&self.api.get("/co2eq", &query, HeaderMap::new(), now).await?)
    }
}

impl ApiSource for EnergyCharts {
    const ACTUALS_WINDOW: TimeDelta = LONGEST_WINDOW;

    fn api(&self) -> &Api {
        &self.api
    }

    fn meaning(&self) -> Option<(SignalKind, SignalScope)> {
        Some((SignalKind::Average, self.scope))
    }

    async fn answer(&self, now: DateTime<Utc>) -> Result<Answer, ProviderError> {
        let rows = self.get(&[], now).await?;
        let ahead = || rows.iter().filter(|row| now < row.slot.end());
        let (mut expected, mut notes) = series(ahead().map(|row| (row.slot, row.forecast)), Origin::Forecast);
        // The current slot may have a preliminary measured value in place of a forecast.
        let measured = ahead().filter(|row| row.forecast.is_none()).map(|row| (row.slot, row.measured));
        let (measured, _) = series(measured, Origin::Estimated);
        expected.overwrite(&measured);
        let behind = rows.iter().filter(|row| row.slot.end() <= now);
        let (actual, _) = series(behind.map(|row| (row.slot, row.measured)), Origin::Measured);
        if expected.is_empty() && actual.is_empty() {
            let what = format!("{} slots for {}, none with a value; trying again later", rows.len(), self.country);
            return Err(ProviderError::Empty { what });
        }
        if expected.is_empty() {
            notes.push(format!("there is no forecast for {} now, only actual values", self.country));
        }
        notes.extend(self.api.skew_note());
        let forecast = self.api.forecast((SignalKind::Average, self.scope), now, expected, actual);
        Ok(Answer { forecast, notes })
    }

    async fn actuals(&self, span: Slot, now: DateTime<Utc>) -> Actuals<GramsPerKwh> {
        let Some((span, window)) = window(span, now) else { return Ok(Some(CarbonSeries::default())) };
        let rows = self.get(&[("start", &window.0), ("end", &window.1)], now).await?;
        let inside = rows.iter().filter(|row| span.start() <= row.slot.start() && row.slot.end() <= span.end());
        Ok(Some(series(inside.map(|row| (row.slot, row.measured)), Origin::Measured).0))
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Row {
    slot: Slot,
    measured: Option<GramsPerKwh>,
    forecast: Option<GramsPerKwh>,
}

/// Reads a body of `/co2eq`: parallel arrays, in which measured and forecast values may overlap and both may be null.
fn read(body: &Value) -> Result<Vec<Row>, ProviderError> {
    let starts = starts(body)?;
    let column = |name: &str| match body.get(name).filter(|column| !column.is_null()) {
        Some(_) => numbers::<GramsPerKwh>(body, name, starts.len()).map(Some),
        None => Ok(None),
    };
    let (measured, forecast) = (column("co2eq")?, column("co2eq_forecast")?);
    if measured.is_none() && forecast.is_none() {
        return Err(malformed("the answer", "has neither co2eq nor co2eq_forecast"));
    }
    let at = |column: &Option<Vec<Option<GramsPerKwh>>>, i: usize| column.as_ref().and_then(|c| *c.get(i)?);
    let points = starts.iter().enumerate().map(|(i, start)| (*start, (at(&measured, i), at(&forecast, i))));
    let slots = by_starts(points.collect(), Some(QUARTER));
    Ok(slots.into_iter().map(|(slot, (measured, forecast))| Row { slot, measured, forecast }).collect())
}

/// Runs the parser on any bytes, which must not cause a panic.
#[cfg(any(test, feature = "fuzzing"))]
fn parse_any(body: &[u8]) {
    use crate::providers::feed::follow_rows;
    let Ok(body) = serde_json::from_slice(body) else { return };
    if let Ok(rows) = read(&body) {
        follow_rows(rows.iter().filter_map(|row| Some((row.slot, row.measured?))));
        follow_rows(rows.iter().filter_map(|row| Some((row.slot, row.forecast?))));
    }
}
