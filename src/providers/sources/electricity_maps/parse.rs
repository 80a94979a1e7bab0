//! Parsers of Electricity Maps' responses (`carbon-apis.md` §1.3); the fields that are read are the same in v3 and v4.

use chrono::{DateTime, TimeDelta, Utc};
use serde_json::Value;

use crate::providers::client::json::{
    MOST_POINTS, array, by_starts, is_code, malformed, no_fault, same_zone, time, unexpected, value,
};
use crate::providers::error::{ProviderError, shortened};
use crate::providers::place::ZoneName;
use wattune_core::domain::{Intensity, Origin, Slot};
use wattune_core::units::GramsPerKwh;

#[derive(Clone, Debug, PartialEq)]
pub(super) struct ParsedForecast {
    pub(super) rows: Vec<(Slot, GramsPerKwh)>,
    /// Time at which the forecast was computed, if the body names it.
    pub(super) updated_at: Option<DateTime<Utc>>,
}

/// Reads the body of `/carbon-intensity/forecast`. A horizon of N hours has N + 1 points, the first being the hour in
/// progress.
///
/// # Errors
/// If the body is of another zone, or of another form.
pub(super) fn forecast(body: &Value, zone: &str) -> Result<ParsedForecast, ProviderError> {
    check(body, zone)?;
    let rows = read(body, "forecast", |row, at| value(row.get("carbonIntensity"), at))?;
    // The time is optional: the forecast is usable without it.
    let updated_at = time(body.get("updatedAt"), "updatedAt").ok();
    Ok(ParsedForecast { rows, updated_at })
}

/// An actual value, and the method by which it was made, if the body names it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct HistoryValue {
    pub(super) intensity: Intensity,
    pub(super) method: Option<String>,
}

/// Reads the body of `/carbon-intensity/history` and `/past-range`, oldest first. `factors` is the requested
/// `emissionFactorType`.
///
/// # Errors
/// If the body is of another zone or of other emission factors, or of another form.
pub(super) fn history(body: &Value, zone: &str, factors: &str) -> Result<Vec<(Slot, HistoryValue)>, ProviderError> {
    check(body, zone)?;
    read(body, "history", |row, at| {
        if let Some(given) = row.get("zone").filter(|z| !z.is_null()) {
            same_zone(Some(given), zone, at)?;
        }
        if let Some(given) = row.get("emissionFactorType").and_then(Value::as_str)
            && given != factors
        {
            let what = format!("counts {} emissions, but {factors} ones were asked for", shortened(given));
            return Err(malformed(at, what));
        }
        let value = value(row.get("carbonIntensity"), at)?;
        let method = row.get("estimationMethod").and_then(Value::as_str).map(shortened);
        Ok(value.map(|value| HistoryValue { intensity: Intensity { value, origin: origin(row) }, method }))
    })
}

/// Reads the zone's key in the body of `/zone`, or of any other response that names its zone.
pub(super) fn zone(body: &Value) -> Result<String, ProviderError> {
    check_status(body)?;
    let named = ["zoneKey", "zone", "key"].iter().find_map(|field| body.get(field)?.as_str());
    named
        .filter(|key| is_code(key))
        .map(str::to_owned)
        .ok_or_else(|| malformed("the answer", "names no zone for these coordinates"))
}

/// Reads the body of `/zones`: a map of zones by key.
pub(super) fn zones(body: &Value) -> Result<Vec<ZoneName>, ProviderError> {
    from_map(body, |zone| {
        let text = |field: &str| zone.get(field).and_then(Value::as_str).unwrap_or_default();
        format!("{} {}", text("zoneName"), text("countryName"))
    })
}

/// Returns the origin of a value. The flag `isEstimated` decides, because Electricity Maps may add new methods; without
/// the flag, `estimationMethod` decides. A value without both counts as an estimate.
fn origin(row: &Value) -> Origin {
    let measured = match row.get("isEstimated").and_then(Value::as_bool) {
        Some(estimated) => !estimated,
        None => row.get("estimationMethod").and_then(Value::as_str) == Some("MEASURED"),
    };
    if measured { Origin::Measured } else { Origin::Estimated }
}

/// Checks that a response is for the zone: for an unknown one, the API returns the zone of the caller's IP address.
fn check(body: &Value, zone: &str) -> Result<(), ProviderError> {
    check_status(body)?;
    if body.as_object().is_some_and(serde_json::Map::is_empty) {
        return Err(malformed("the answer", "is empty ({}); check the zone and the address"));
    }
    same_zone(body.get("zone"), zone, "zone")
}

fn check_status(body: &Value) -> Result<(), ProviderError> {
    no_fault(body)?;
    match body.get("status").and_then(Value::as_str) {
        Some(status) if status != "ok" => {
            let what = format!("Electricity Maps reports the status \"{}\" for the zone", shortened(status));
            Err(ProviderError::Empty { what })
        }
        _ => Ok(()),
    }
}

/// Returns the rows in the field `name`, or else in `data`, with their slots. Rows without a value are considered when
/// lengths of slots are determined, so that the slot before such a row does not extend over it.
fn read<T>(
    body: &Value,
    name: &str,
    mut row: impl FnMut(&Value, &str) -> Result<Option<T>, ProviderError>,
) -> Result<Vec<(Slot, T)>, ProviderError> {
    let given = |name: &str| body.get(name).filter(|rows| !rows.is_null());
    let rows = array(given(name).or_else(|| given("data")), name)?;
    let mut points = Vec::with_capacity(rows.len());
    for (i, entry) in rows.iter().enumerate() {
        let at = format!("{name}[{i}]");
        points.push((time(entry.get("datetime"), &format!("{at}.datetime"))?, row(entry, &at)?));
    }
    let longest = granularity(body);
    let cut = |slot: Slot| Slot::new(slot.start(), slot.end().min(slot.start() + longest));
    let slots = by_starts(points, Some(longest)).into_iter();
    Ok(slots.filter_map(|(slot, value)| Some((cut(slot)?, value?))).collect())
}

/// Returns the maximum length of a slot: v4 names it ("hourly", "15_minutes"); without a name it is an hour.
fn granularity(body: &Value) -> TimeDelta {
    let given = body.get("temporalGranularity").and_then(Value::as_str);
    let minutes = given.and_then(|text| text.strip_suffix("_minutes")?.parse::<u8>().ok());
    TimeDelta::minutes(minutes.filter(|m| (1..=60).contains(m)).unwrap_or(60).into())
}

/// Reads a map from codes of zones to objects; `name` makes a zone's name from its object.
fn from_map(body: &Value, name: impl Fn(&Value) -> String) -> Result<Vec<ZoneName>, ProviderError> {
    let map = body.as_object().filter(|m| m.len() <= MOST_POINTS);
    let map = map.ok_or_else(|| unexpected("the answer", "a map of zones", body))?;
    if map.is_empty() {
        return Err(ProviderError::Empty { what: "the list of zones is empty, as it is with some keys".to_owned() });
    }
    Ok(map.iter().map(|(code, zone)| ZoneName::new(code, &name(zone))).collect())
}
