//! Parsers of WattTime's responses (`carbon-apis.md` §2.3), which convert lb/MWh to g/kWh.

use chrono::{DateTime, TimeDelta, Utc};
use serde_json::Value;

use crate::providers::client::json::{
    array, by_starts, is_code, malformed, no_fault, same_zone, scaled, time, unexpected,
};
use crate::providers::error::{ProviderError, shortened};
use crate::providers::place::ZoneName;
use wattune_core::domain::{Slot, Unit};
use wattune_core::units::GramsPerKwh;

/// WattTime's name of the signal, the marginal operating emissions rate.
pub(super) const SIGNAL: &str = "co2_moer";

/// WattTime's name of lb/MWh, the only unit that is accepted.
const UNITS: &str = "lbs_co2_per_mwh";

/// Maximum number of warnings that are shown.
const MOST_WARNINGS: usize = 5;

/// Marginal carbon intensities of one region, oldest first.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Rows {
    pub(super) rows: Vec<Row>,
    /// Time at which the forecast was made, if the body names it.
    pub(super) generated_at: Option<DateTime<Utc>>,
    /// Date of the model of WattTime's forecasts, if the body names it.
    pub(super) model: Option<String>,
    /// WattTime's warnings, in WattTime's words.
    pub(super) warnings: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Row {
    pub(super) slot: Slot,
    pub(super) value: GramsPerKwh,
    /// True if the value is from WattTime's backup model.
    pub(super) imputed: bool,
}

/// Reads the body of `/v3/forecast` and `/v3/historical`.
///
/// # Errors
/// If the body is of another region or signal, in another unit, or of another form.
pub(super) fn rows(body: &Value, region: &str) -> Result<Rows, ProviderError> {
    no_fault(body)?;
    let meta = body.get("meta").unwrap_or(&Value::Null);
    if !meta.is_object() {
        return Err(unexpected("meta", "an object", meta));
    }
    check(meta, region)?;
    let period = period(meta)?;
    let mut points = Vec::new();
    for (i, row) in array(body.get("data"), "data")?.iter().enumerate() {
        let start = time(row.get("point_time"), &format!("data[{i}].point_time"))?;
        let value = scaled(row.get("value"), Unit::PoundsPerMwh.in_g_per_kwh(), &format!("data[{i}].value"))?;
        let imputed = row.get("imputed_data_used").and_then(Value::as_bool).unwrap_or(false);
        points.push((start, value.map(|value| (value, imputed))));
    }
    let row = |(slot, value): (Slot, Option<(GramsPerKwh, bool)>)| {
        let (value, imputed) = value?;
        // The period in the body is authoritative; the distance between rows is used only if the body names no period.
        let end = period.map_or(slot.end(), |period| slot.start() + period);
        Some(Row { slot: Slot::new(slot.start(), end)?, value, imputed })
    };
    Ok(Rows {
        rows: by_starts(points, period).into_iter().filter_map(row).collect(),
        generated_at: time(meta.get("generated_at"), "meta.generated_at").ok(),
        model: meta.pointer("/model/date").and_then(Value::as_str).map(shortened),
        warnings: warnings(meta),
    })
}

pub(super) fn region(body: &Value) -> Result<String, ProviderError> {
    no_fault(body)?;
    let named = body.get("region").and_then(Value::as_str);
    named
        .filter(|region| is_code(region))
        .map(str::to_owned)
        .ok_or_else(|| malformed("region", "no region for these coordinates"))
}

/// Reads the token in the body of `/login`. Errors repeat nothing of the body.
pub(super) fn token(body: &Value) -> Result<String, ProviderError> {
    let token = body.get("token").and_then(Value::as_str).map(str::trim);
    let token = token.filter(|t| !t.is_empty() && t.chars().all(|c| c.is_ascii_graphic()));
    let none = || malformed("the answer to /login", "holds no token; check that base_url is WattTime's address");
    token.map(str::to_owned).ok_or_else(none)
}

pub(super) fn zones(body: &Value) -> Result<Vec<ZoneName>, ProviderError> {
    let mut zones = Vec::new();
    for signal in array(body.get("signal_types"), "signal_types")? {
        for region in array(signal.get("regions"), "signal_types.regions")? {
            let text = |field: &str| region.get(field).and_then(Value::as_str).unwrap_or_default();
            let endpoints = region.get("endpoints").and_then(Value::as_array);
            let forecast = endpoints.into_iter().flatten().any(|e| e["endpoint"] == "v3/forecast");
            let what = if forecast { "forecast" } else { "no forecast" };
            zones.push(ZoneName::new(text("region"), &format!("{}: {what}", text("region_full_name"))));
        }
    }
    Ok(zones)
}

fn check(meta: &Value, region: &str) -> Result<(), ProviderError> {
    match meta.get("units").unwrap_or(&Value::Null) {
        Value::String(units) if units == UNITS => {}
        other => return Err(unexpected("meta.units", &format!("\"{UNITS}\""), other)),
    }
    same_zone(meta.get("region"), region, "meta.region")?;
    match meta.get("signal_type").unwrap_or(&Value::Null) {
        Value::Null => Ok(()),
        Value::String(signal) if signal == SIGNAL => Ok(()),
        other => Err(unexpected("meta.signal_type", &format!("\"{SIGNAL}\""), other)),
    }
}

fn period(meta: &Value) -> Result<Option<TimeDelta>, ProviderError> {
    let at = "meta.data_point_period_seconds";
    let Some(field) = meta.get("data_point_period_seconds").filter(|p| !p.is_null()) else { return Ok(None) };
    #[expect(clippy::cast_possible_truncation, reason = "within a day")]
    let seconds = field.as_f64().filter(|s| (1.0..=86_400.0).contains(s)).map(|s| s as i64);
    let seconds = seconds.ok_or_else(|| unexpected(at, "seconds, at most a day", field))?;
    Ok(Some(TimeDelta::seconds(seconds)))
}

fn warnings(meta: &Value) -> Vec<String> {
    let given = meta.get("warnings").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let text = |warning: &Value| {
        let text = warning.as_str().or_else(|| warning.get("message")?.as_str());
        let kind = warning.get("type").and_then(Value::as_str);
        Some(shortened(text.or(kind)?))
    };
    given.iter().filter_map(text).take(MOST_WARNINGS).collect()
}
