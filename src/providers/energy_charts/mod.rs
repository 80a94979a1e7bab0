//! Energy-Charts (Fraunhofer ISE): average intensity of most European countries by quarters of an hour, without a key.
//!
//! `carbon-apis.md` §5.1 has the shapes and the traps. One request tells of the present day and of what is forecast;
//! what came before today is fetched by [`Provider::settle`].

#[cfg(test)]
mod tests;

use std::path::Path;

use chrono::{DateTime, TimeDelta, Utc};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use reqwest::header::HeaderMap;
use serde_json::Value;

use super::api::{Api, told_by_api};
use super::fuzz::follow;
use super::json::{array, by_starts, malformed, series, time, value};
use super::place::{energy_charts_countries, energy_charts_has};
use super::{Answer, CarbonSettings, Provider, ProviderError, SettingsError, Settled, Source};
use wattune_core::domain::{CarbonSeries, Forecast, Origin, SignalKind, SignalScope, SignalValue, Slot};
use wattune_core::units::{GramsPerKwh, Seconds};

/// The forecast is computed anew every hour.
const CADENCE: Seconds = Seconds::new(3600.0);

/// The length of a slot, where a body has one slot only and so does not tell.
pub(super) const QUARTER: TimeDelta = TimeDelta::minutes(15);

/// What one request asks of the past: about 3000 quarters of an hour.
pub(super) const LONGEST_WINDOW: TimeDelta = TimeDelta::days(31);

/// A country's intensity.
#[derive(Debug)]
pub(super) struct EnergyCharts {
    api: Api,
    /// As the API writes it, in small letters.
    country: String,
    scope: SignalScope,
}

impl EnergyCharts {
    /// Connects to nothing yet.
    ///
    /// # Errors
    /// Without a place, or with one in a country that it does not know.
    pub(super) fn new(settings: &CarbonSettings, state_dir: Option<&Path>) -> Result<Self, SettingsError> {
        let own = (settings.energy_charts.common(), &settings.energy_charts.base_url);
        let api = Api::new(Source::EnergyCharts, settings, own, None, CADENCE, state_dir)?;
        let place = api.place();
        let country = place.country().filter(|country| energy_charts_has(country)).ok_or_else(|| {
            let countries = energy_charts_countries().collect::<Vec<_>>().join(", ");
            place.refused(api.source(), format!("it knows countries ({countries}), and coordinates within them"))
        })?;
        Ok(Self { api, country: country.to_ascii_lowercase(), scope: settings.energy_charts.scope })
    }

    async fn get(&self, window: &[(&str, &str)], now: DateTime<Utc>) -> Result<Vec<Row>, ProviderError> {
        let query = [&[("country", self.country.as_str())], window].concat();
        read(&self.api.get("/co2eq", &query, HeaderMap::new(), now).await?)
    }

    async fn answer(&self, now: DateTime<Utc>) -> Result<Answer, ProviderError> {
        let rows = self.get(&[], now).await?;
        let ahead = || rows.iter().filter(|row| now < row.slot.end());
        let (mut expected, mut notes) = series(ahead().map(|row| (row.slot, row.forecast)), Origin::Forecast);
        // The slot in progress may be measured in part already, and have no forecast any more.
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
            notes.push(format!("there is no forecast for {} now, only what came", self.country));
        }
        notes.extend(self.api.skew_note());
        let forecast = Forecast {
            zone: self.api.zone(),
            source: self.source().to_owned(),
            kind: SignalKind::Average,
            scope: self.scope,
            // The body does not say when it was made.
            issued_at: now,
            retrieved_at: now,
            provenance: Default::default(),
            expected,
            actual,
        };
        Ok(Answer { forecast, notes })
    }

    async fn came(&self, span: Slot, now: DateTime<Utc>) -> Result<CarbonSeries, ProviderError> {
        let Some((span, window)) = window(span, now) else { return Ok(CarbonSeries::default()) };
        let rows = self.get(&[("start", &window.0), ("end", &window.1)], now).await?;
        let inside = rows.iter().filter(|row| span.start() <= row.slot.start() && row.slot.end() <= span.end());
        Ok(series(inside.map(|row| (row.slot, row.measured)), Origin::Measured).0)
    }
}

/// As much of a past span as one request asks for, with its ends as the API reads them.
pub(super) fn window(span: Slot, now: DateTime<Utc>) -> Option<(Slot, (String, String))> {
    let end = span.end().min(now).min(span.start().checked_add_signed(LONGEST_WINDOW)?);
    let span = Slot::new(span.start(), end)?;
    Some((span, (span.start().timestamp().to_string(), span.end().timestamp().to_string())))
}

impl Provider for EnergyCharts {
    told_by_api!(GramsPerKwh);

    fn meaning(&self) -> Option<(SignalKind, SignalScope)> {
        Some((SignalKind::Average, self.scope))
    }

    fn fetch(&self, now: DateTime<Utc>) -> BoxFuture<'_, Result<Answer, ProviderError>> {
        self.api.discreet_answer(self.answer(now)).boxed()
    }

    fn settle(&self, span: Slot, now: DateTime<Utc>) -> BoxFuture<'_, Settled<GramsPerKwh>> {
        async move { self.api.discreet(self.came(span, now)).await.map(Some) }.boxed()
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Row {
    slot: Slot,
    measured: Option<GramsPerKwh>,
    forecast: Option<GramsPerKwh>,
}

/// A body of `/co2eq`: parallel arrays, in which measured and forecast values may overlap and both may be null.
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

/// `unix_seconds`, which mark the slots' starts.
pub(super) fn starts(body: &Value) -> Result<Vec<DateTime<Utc>>, ProviderError> {
    let starts = array(body.get("unix_seconds"), "unix_seconds")?.iter().enumerate();
    starts.map(|(i, start)| time(Some(start), &format!("unix_seconds[{i}]"))).collect()
}

/// An array beside `unix_seconds`, which must be as long.
pub(super) fn numbers<V: SignalValue>(
    body: &Value,
    name: &str,
    length: usize,
) -> Result<Vec<Option<V>>, ProviderError> {
    let numbers = array(body.get(name), name)?;
    if numbers.len() != length {
        let what = format!(
            "has {} entries, but unix_seconds has {length}; which belong together cannot be told",
            numbers.len()
        );
        return Err(malformed(name, what));
    }
    numbers.iter().enumerate().map(|(i, number)| value(Some(number), &format!("{name}[{i}]"))).collect()
}

/// Whatever a body holds, no parser of this source may panic on it.
pub(super) fn parse_any(body: &[u8]) {
    let Ok(body) = serde_json::from_slice(body) else { return };
    if let Ok(rows) = read(&body) {
        follow(rows.iter().filter_map(|row| Some((row.slot, row.measured?))));
        follow(rows.iter().filter_map(|row| Some((row.slot, row.forecast?))));
    }
}
