//! Checks of settings that are numbers or times; errors name the valid range.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Deserializer, de};

use super::time::parse_time;
use wattune_core::domain::{SignalValue, check_intensity};
use wattune_core::units::{GramsPerKwh, Seconds};

fn checked<E: de::Error>(value: f64, from: f64, to: f64, unit: &str) -> Result<f64, E> {
    if (from..=to).contains(&value) {
        return Ok(value);
    }
    let right = format!("a number of {unit} from {from} to {to}");
    Err(E::invalid_value(de::Unexpected::Float(value), &right.as_str()))
}

pub(in crate::providers) fn timeout<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Seconds, D::Error> {
    checked(f64::deserialize(deserializer)?, 0.1, 300.0, "seconds").map(Seconds::new)
}

pub(in crate::providers) fn interval<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Seconds>, D::Error> {
    let value = Option::<f64>::deserialize(deserializer)?;
    value.map(|v| checked(v, 1.0, 86_400.0, "seconds").map(Seconds::new)).transpose()
}

pub(in crate::providers) fn intensity<'de, D: Deserializer<'de>>(deserializer: D) -> Result<GramsPerKwh, D::Error> {
    grams(f64::deserialize(deserializer)?)
}

fn grams<E: de::Error>(value: f64) -> Result<GramsPerKwh, E> {
    let intensity = checked(value, 0.0, GramsPerKwh::HIGHEST, "gCO2e/kWh").map(GramsPerKwh::new)?;
    check_intensity(intensity).map_err(|why| E::custom(format!("the intensity is {why}")))?;
    Ok(intensity)
}

pub(in crate::providers) fn some_intensity<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<GramsPerKwh>, D::Error> {
    let value = Option::<f64>::deserialize(deserializer)?;
    value.map(grams).transpose()
}

pub(in crate::providers) fn body_bytes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    let value = u64::deserialize(deserializer)?;
    if (1 << 10..=64 << 20).contains(&value) {
        return Ok(value);
    }
    Err(de::Error::invalid_value(de::Unexpected::Unsigned(value), &"a number of bytes from 1024 to 67108864"))
}

pub(in crate::providers) fn some_time<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<DateTime<Utc>>, D::Error> {
    let Some(text) = Option::<String>::deserialize(deserializer)? else { return Ok(None) };
    parse_time(&text, false).map(Some).map_err(|problem| de::Error::custom(format!("{text:?} {problem}")))
}

pub(in crate::providers) fn some_timeout<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Seconds>, D::Error> {
    let value = Option::<f64>::deserialize(deserializer)?;
    value.map(|v| checked(v, 0.1, 300.0, "seconds").map(Seconds::new)).transpose()
}

pub(in crate::providers) fn jump_factor<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    checked(f64::deserialize(deserializer)?, 1.5, 1000.0, "times the known range")
}

pub(in crate::providers) fn per_hour<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    let value = u32::deserialize(deserializer)?;
    if (1..=36_000).contains(&value) {
        return Ok(value);
    }
    Err(de::Error::invalid_value(de::Unexpected::Unsigned(value.into()), &"a number of requests from 1 to 36000"))
}
