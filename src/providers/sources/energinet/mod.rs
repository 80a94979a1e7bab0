//! Energinet (Denmark): average carbon intensity of the two price areas in five-minute steps, without a key.
//!
//! `carbon-apis.md` §5.2 describes the API. Forecast and actual values are two data sets. Five-minute values are
//! averaged to quarters of an hour, because the forecast is no finer and because a plan then has a third of the slots
//! (time steps).

mod settings;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use chrono::{DateTime, TimeDelta, Utc};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use reqwest::header::HeaderMap;
use serde_json::Value;

pub use self::settings::Settings;
use super::descriptor::{Descriptor, Table, ZonesError};
use crate::providers::client::json::{
    array, by_starts, malformed, series, unexpected, unknown_last_day, utc_time, value,
};
use crate::providers::client::{Api, ApiSource, Contribution, SharedSettings};
use crate::providers::error::{ProviderError, SettingsError};
use crate::providers::place::ZoneName;
use crate::providers::provider::{Actuals, Answer, Provider};
use wattune_core::domain::{CarbonSeries, Origin, SignalKind, SignalScope, Slot};
use wattune_core::units::{GramsPerKwh, Seconds};

const CADENCE: Seconds = Seconds::new(900.0);

const STEP: TimeDelta = TimeDelta::minutes(5);
const QUARTER_S: i64 = 900;

/// Longest span of one request for actual values: about 4000 rows for both areas, below the request's row limit.
const LONGEST_WINDOW: TimeDelta = TimeDelta::days(7);

/// Largest offset of Danish time from UTC. The API reads the times in a request as Danish time.
const DANISH: TimeDelta = TimeDelta::hours(2);

/// Row limit of a request, more than any requested span has; without a limit the API returns 100 rows.
const LIMIT: &str = "5000";

const BOTH: [&str; 2] = ["DK1", "DK2"];

pub(super) const DESCRIPTOR: Descriptor = Descriptor {
    name: "energinet",
    summary: Some("average; no key"),
    rank: Some(3),
    countries: &["DK"],
    #[cfg(any(test, feature = "fuzzing"))]
    fuzz: &[super::FuzzTarget { name: "energinet", parse: parse_any }],
};

impl Table for Settings {
    fn build(&self, shared: &SharedSettings<'_>) -> Result<Arc<dyn Provider>, SettingsError> {
        Ok(Arc::new(Energinet::new(self, shared)?))
    }

    fn zones(&self, _: SharedSettings<'_>, _: DateTime<Utc>) -> BoxFuture<'_, Result<Vec<ZoneName>, ZonesError>> {
        let areas = [
            ("DK1", "Denmark west of the Great Belt"),
            ("DK2", "Denmark east of the Great Belt"),
            ("DK", "Denmark, the mean of both"),
        ];
        std::future::ready(Ok(areas.map(|(code, name)| ZoneName::new(code, name)).into())).boxed()
    }
}

/// The source for one Danish price area, or for both.
#[derive(Debug)]
struct Energinet {
    api: Api,
    areas: Vec<&'static str>,
    scope: SignalScope,
}

impl Energinet {
    fn new(own: &Settings, shared: &SharedSettings<'_>) -> Result<Self, SettingsError> {
        let api = Api::new(DESCRIPTOR.name, own.network(), shared, CADENCE)?;
        let place = api.place();
        let areas = match (place.price_area(), place.country().as_deref()) {
            (Some(area), _) => vec![area],
            (None, Some("DK")) => BOTH.to_vec(),
            _ => {
                return Err(place.refused(
                    api.source(),
                    "it covers Denmark only; write \"DK1\" (west of the Great Belt), \"DK2\" (east), \"DK\" (the mean \
                     of both) or coordinates",
                ));
            }
        };
        Ok(Self { api, areas, scope: own.scope })
    }

    async fn get(
        &self,
        dataset: &str,
        window: &[(&str, &str)],
        now: DateTime<Utc>,
    ) -> Result<Vec<(Slot, GramsPerKwh)>, ProviderError> {
        let filter = serde_json::json!({ "PriceArea": self.areas }).to_string();
        let common = [("filter", filter.as_str()), ("sort", "Minutes5UTC"), ("limit", LIMIT)];
        let body = self.api.get(dataset, &[&common, window].concat(), HeaderMap::new(), now).await?;
        read(&body, &self.areas)
    }
}

impl ApiSource for Energinet {
    const ACTUALS_WINDOW: TimeDelta = LONGEST_WINDOW;

    fn api(&self) -> &Api {
        &self.api
    }

    fn meaning(&self) -> Option<(SignalKind, SignalScope)> {
        Some((SignalKind::Average, self.scope))
    }

    async fn answer(&self, now: DateTime<Utc>) -> Result<Answer, ProviderError> {
        // The request begins a quarter of an hour ago, so that the forecast of the current quarter is complete.
        let no_forecast = self.api.contributes() == Contribution::Actual;
        let ahead = if no_forecast {
            Vec::new()
        } else {
            self.get("/dataset/CO2EmisProg", &[("start", "now-PT15M")], now).await?
        };
        let mut notes = Vec::new();
        let behind = match self.get("/dataset/CO2Emis", &[("start", "now-P1D")], now).await {
            Err(error) if !no_forecast => {
                notes.push(unknown_last_day(&error));
                Vec::new()
            }
            behind => behind?,
        };
        let ahead = ahead.into_iter().filter(|(slot, _)| now < slot.end());
        let (expected, odd) = series(ahead.map(|(slot, value)| (slot, Some(value))), Origin::Forecast);
        notes.extend(odd);
        let behind = behind.into_iter().filter(|(slot, _)| slot.end() <= now);
        let (actual, _) = series(behind.map(|(slot, value)| (slot, Some(value))), Origin::Measured);
        let areas = self.areas.join(" and ");
        if expected.is_empty() && actual.is_empty() {
            let what = format!("no value for the present or later for {areas}; trying again later");
            return Err(ProviderError::Empty { what });
        }
        if expected.is_empty() && !no_forecast {
            notes.push(format!("there is no forecast for {areas} now, only actual values"));
        }
        if self.areas.len() > 1 {
            notes.push(
                "this is the mean of both Danish price areas; set the zone to \"DK1\" (west of the Great Belt) or \"DK2\" \
                 (east) for that of one"
                    .to_owned(),
            );
        }
        notes.extend(self.api.skew_note());
        let forecast = self.api.forecast((SignalKind::Average, self.scope), now, expected, actual);
        Ok(Answer { forecast, notes })
    }

    async fn actuals(&self, span: Slot, now: DateTime<Utc>) -> Actuals<GramsPerKwh> {
        let end = span.end().min(now).min(span.start() + LONGEST_WINDOW);
        let Some(span) = Slot::new(span.start(), end) else { return Ok(Some(CarbonSeries::default())) };
        // The requested span contains the wanted one whether the API reads these times as Danish or as UTC.
        let write = |t: DateTime<Utc>| t.format("%Y-%m-%dT%H:%M").to_string();
        let (from, to) = (write(span.start()), write(span.end() + DANISH + STEP));
        let rows = self.get("/dataset/CO2Emis", &[("start", &from), ("end", &to)], now).await?;
        let inside = rows.into_iter().filter(|(slot, _)| span.start() < slot.end() && slot.end() <= span.end());
        Ok(Some(series(inside.map(|(slot, value)| (slot, Some(value))), Origin::Measured).0))
    }
}

/// Reads a body of either data set: unordered rows with UTC times that are not marked as such. If both areas are
/// requested, the value for a time is the mean of the areas' values, and absent if one area has no value.
fn read(body: &Value, areas: &[&str]) -> Result<Vec<(Slot, GramsPerKwh)>, ProviderError> {
    let mut by_time: BTreeMap<DateTime<Utc>, Vec<Option<GramsPerKwh>>> = BTreeMap::new();
    for (i, record) in array(body.get("records"), "records")?.iter().enumerate() {
        let at = |field: &str| format!("records[{i}].{field}");
        let area = record.get("PriceArea").unwrap_or(&Value::Null);
        let place = area.as_str().and_then(|given| areas.iter().position(|asked| *asked == given));
        let place = place.ok_or_else(|| unexpected(&at("PriceArea"), &areas.join(" or "), area))?;
        let start = utc_time(record.get("Minutes5UTC"), &at("Minutes5UTC"))?;
        let value = value(record.get("CO2Emission"), &at("CO2Emission"))?;
        by_time.entry(start).or_insert_with(|| vec![None; areas.len()])[place] = value;
    }
    let mean = |values: &[Option<GramsPerKwh>]| {
        let known: Option<Vec<f64>> = values.iter().map(|v| v.map(GramsPerKwh::get)).collect();
        known.filter(|known| !known.is_empty()).map(|known| mean(&known))
    };
    let points = by_time.iter().map(|(start, values)| (*start, mean(values)));
    quarters(&by_starts(points.collect(), Some(STEP)))
}

/// Averages values over quarters of an hour. Each returned slot reaches from the first to the last known value of its
/// quarter. Slots longer than a quarter stay as they are.
fn quarters(points: &[(Slot, Option<GramsPerKwh>)]) -> Result<Vec<(Slot, GramsPerKwh)>, ProviderError> {
    let known: Vec<(Slot, GramsPerKwh)> = points.iter().filter_map(|(slot, value)| Some((*slot, (*value)?))).collect();
    let quarter = |slot: &Slot| slot.start().timestamp().div_euclid(QUARTER_S);
    let groups = known.chunk_by(|(a, _), (b, _)| quarter(a) == quarter(b));
    let joined = groups.map(|group| {
        let (first, last) = (group.first()?.0, group.last()?.0);
        let values: Vec<f64> = group.iter().map(|(_, value)| value.get()).collect();
        Some((Slot::new(first.start(), last.end())?, mean(&values)))
    });
    joined.collect::<Option<_>>().ok_or_else(|| malformed("records", "slots without a length"))
}

#[expect(clippy::cast_precision_loss, reason = "no answer has so many points")]
fn mean(values: &[f64]) -> GramsPerKwh {
    GramsPerKwh::new(values.iter().sum::<f64>() / values.len() as f64)
}

/// Runs the parser on any bytes, which must not cause a panic.
#[cfg(any(test, feature = "fuzzing"))]
fn parse_any(body: &[u8]) {
    use crate::providers::feed::follow_rows;
    let Ok(body) = serde_json::from_slice(body) else { return };
    for areas in [&BOTH[..], &BOTH[..1]] {
        if let Ok(rows) = read(&body, areas) {
            follow_rows(rows);
        }
    }
}
