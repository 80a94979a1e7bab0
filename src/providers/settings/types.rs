//! Settings' values that are more than a number or a word, and the checks of those that are numbers.

use std::collections::BTreeMap;
use std::fmt;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Deserializer, Serialize, de};

use crate::providers::abridged;
use crate::providers::time::parse_time;
use wattune_core::domain::{SignalValue, check_intensity};
use wattune_core::units::{GramsPerKwh, Seconds};

/// A region of the UK Carbon Intensity API, 1 (North Scotland) to 17 (Wales).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "u8", into = "u8")]
pub struct RegionId(u8);

impl TryFrom<u8> for RegionId {
    type Error = &'static str;
    fn try_from(id: u8) -> Result<Self, Self::Error> {
        if (1..=17).contains(&id) { Ok(Self(id)) } else { Err("regions are numbered 1 (North Scotland) to 17 (Wales)") }
    }
}

impl From<RegionId> for u8 {
    fn from(id: RegionId) -> u8 {
        id.0
    }
}

/// The outward part of a UK postcode, in capitals.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Postcode(String);

impl Postcode {
    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for Postcode {
    type Error = &'static str;
    fn try_from(text: String) -> Result<Self, Self::Error> {
        let text = text.trim().to_ascii_uppercase();
        let shape = (2..=4).contains(&text.len())
            && text.chars().all(|c| c.is_ascii_alphanumeric())
            && text.starts_with(|c: char| c.is_ascii_alphabetic())
            && text.contains(|c: char| c.is_ascii_digit());
        if shape { Ok(Self(text)) } else { Err("write the outward part of the postcode only, like \"BS16\" or \"E1\"") }
    }
}

impl From<Postcode> for String {
    fn from(postcode: Postcode) -> String {
        postcode.0
    }
}

/// The address of an API: http or https, without credentials and query.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct BaseUrl(String);

impl BaseUrl {
    /// The text, without a slash at its end.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// A provider's own address, which is known to be one.
    pub(super) fn of(text: &str) -> Self {
        Self(text.to_owned())
    }

    /// The address of `path` ("/v3/forecast") with a query.
    pub(in crate::providers) fn with(&self, path: &str, query: &[(&str, &str)]) -> reqwest::Url {
        let mut url = reqwest::Url::parse(&self.0).expect("checked when it was read");
        url.set_path(&format!("{}{path}", url.path().trim_end_matches('/')));
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        url
    }
}

impl TryFrom<String> for BaseUrl {
    type Error = &'static str;
    fn try_from(text: String) -> Result<Self, Self::Error> {
        let url =
            reqwest::Url::parse(text.trim()).map_err(|_| "write a complete address, like \"https://host/path\"")?;
        if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none() {
            return Err("the address must begin with https:// or http:// and name a host");
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err("the address must not hold a user name or password");
        }
        if url.query().is_some() || url.fragment().is_some() {
            return Err("the address must not hold a query or fragment");
        }
        Ok(Self(url.as_str().trim_end_matches('/').to_owned()))
    }
}

impl From<BaseUrl> for String {
    fn from(url: BaseUrl) -> String {
        url.0
    }
}

impl fmt::Display for BaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Headers that are sent along with every request to a source. A value of the form `env:NAME` is read from the
/// environment at each request; none is ever shown.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "BTreeMap<String, String>", into = "BTreeMap<String, String>")]
pub struct Headers(BTreeMap<String, String>);

impl Headers {
    /// Names and values, with those from the environment looked up; variables that are not set are left out.
    pub(in crate::providers) fn resolved(&self) -> impl Iterator<Item = (&str, String)> {
        self.0.iter().filter_map(|(name, value)| {
            let value = match value.strip_prefix("env:") {
                Some(variable) => std::env::var(variable).ok()?.trim().to_owned(),
                None => value.clone(),
            };
            Some((name.as_str(), value))
        })
    }
}

impl TryFrom<BTreeMap<String, String>> for Headers {
    type Error = String;
    fn try_from(given: BTreeMap<String, String>) -> Result<Self, String> {
        for (name, value) in &given {
            reqwest::header::HeaderName::from_bytes(name.as_bytes())
                .map_err(|_| format!("{:?} is not the name of a header", abridged::start(name)))?;
            reqwest::header::HeaderValue::from_str(value)
                .map_err(|_| format!("the value of header {name} holds characters that no header may hold"))?;
        }
        Ok(Self(given))
    }
}

impl From<Headers> for BTreeMap<String, String> {
    fn from(headers: Headers) -> Self {
        headers.0
    }
}

impl fmt::Debug for Headers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

/// What of a source's answers is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Contribution {
    /// What it expects, and what came.
    #[default]
    Both,
    /// What it expects only.
    Forecast,
    /// What came only; the local forecaster makes a forecast of it.
    Actual,
}

fn checked<E: de::Error>(value: f64, from: f64, to: f64, unit: &str) -> Result<f64, E> {
    if (from..=to).contains(&value) {
        return Ok(value);
    }
    let right = format!("a number of {unit} from {from} to {to}");
    Err(E::invalid_value(de::Unexpected::Float(value), &right.as_str()))
}

pub(super) fn timeout<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Seconds, D::Error> {
    checked(f64::deserialize(deserializer)?, 0.1, 300.0, "seconds").map(Seconds::new)
}

pub(super) fn interval<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Seconds>, D::Error> {
    let value = Option::<f64>::deserialize(deserializer)?;
    value.map(|v| checked(v, 1.0, 86_400.0, "seconds").map(Seconds::new)).transpose()
}

pub(super) fn intensity<'de, D: Deserializer<'de>>(deserializer: D) -> Result<GramsPerKwh, D::Error> {
    grams(f64::deserialize(deserializer)?)
}

fn grams<E: de::Error>(value: f64) -> Result<GramsPerKwh, E> {
    let intensity = checked(value, 0.0, GramsPerKwh::HIGHEST, "gCO2e/kWh").map(GramsPerKwh::new)?;
    check_intensity(intensity).map_err(|why| E::custom(format!("the intensity is {why}")))?;
    Ok(intensity)
}

pub(super) fn some_intensity<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<GramsPerKwh>, D::Error> {
    let value = Option::<f64>::deserialize(deserializer)?;
    value.map(grams).transpose()
}

pub(super) fn body_bytes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    let value = u64::deserialize(deserializer)?;
    if (1 << 10..=64 << 20).contains(&value) {
        return Ok(value);
    }
    Err(de::Error::invalid_value(de::Unexpected::Unsigned(value), &"a number of bytes from 1024 to 67108864"))
}

pub(super) fn some_time<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<DateTime<Utc>>, D::Error> {
    let Some(text) = Option::<String>::deserialize(deserializer)? else { return Ok(None) };
    parse_time(&text, false).map(Some).map_err(|problem| de::Error::custom(format!("{text:?} {problem}")))
}

pub(super) fn some_timeout<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Seconds>, D::Error> {
    let value = Option::<f64>::deserialize(deserializer)?;
    value.map(|v| checked(v, 0.1, 300.0, "seconds").map(Seconds::new)).transpose()
}

pub(super) fn jump_factor<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    checked(f64::deserialize(deserializer)?, 1.5, 1000.0, "times the known range")
}

pub(super) fn per_hour<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    let value = u32::deserialize(deserializer)?;
    if (1..=36_000).contains(&value) {
        return Ok(value);
    }
    Err(de::Error::invalid_value(de::Unexpected::Unsigned(value.into()), &"a number of requests from 1 to 36000"))
}
