//! The settings of this room. Values are checked as they are read, so that an error carries file and line.

use std::fmt;
use std::path::PathBuf;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Deserializer, Serialize, de};

use super::MAX_G_PER_KWH;
use super::time::parse_time;
use crate::domain::{Origin, SignalKind, SignalScope, Zone};
use crate::units::{GramsPerKwh, Seconds};

/// Where intensities come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// One constant for all times.
    #[default]
    Fixed,
    /// A CSV or JSON file.
    File,
    /// The UK Carbon Intensity API, without a key.
    UkCarbonIntensity,
}

/// `[carbon]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CarbonSettings {
    /// Which of the sources below is used.
    pub source: Source,
    /// The part of the grid, in the source's own code; the source's default if absent.
    pub zone: Option<Zone>,
    /// What to reckon with when nothing is known, in gCO2e/kWh.
    #[serde(deserialize_with = "intensity")]
    pub fallback_g_per_kwh: GramsPerKwh,
    /// Time between polls, in seconds; the source's own rhythm if absent.
    #[serde(deserialize_with = "interval")]
    pub poll_interval_s: Option<Seconds>,
    /// Longest wait for a connection, in seconds.
    #[serde(deserialize_with = "timeout")]
    pub connect_timeout_s: Seconds,
    /// Longest wait for a complete answer, in seconds.
    #[serde(deserialize_with = "timeout")]
    pub timeout_s: Seconds,
    /// Longest answer that is read, in bytes.
    #[serde(deserialize_with = "body_bytes")]
    pub max_body_bytes: u64,
    /// Used with `source = "fixed"`.
    pub fixed: FixedSettings,
    /// Used with `source = "file"`.
    pub file: FileSettings,
    /// Used with `source = "uk_carbon_intensity"`.
    pub uk_carbon_intensity: UkSettings,
}

impl Default for CarbonSettings {
    fn default() -> Self {
        Self {
            source: Source::Fixed,
            zone: None,
            fallback_g_per_kwh: GramsPerKwh::new(475.0),
            poll_interval_s: None,
            connect_timeout_s: Seconds::new(5.0),
            timeout_s: Seconds::new(10.0),
            max_body_bytes: 1 << 20,
            fixed: FixedSettings::default(),
            file: FileSettings::default(),
            uk_carbon_intensity: UkSettings::default(),
        }
    }
}

/// `[carbon.fixed]`
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FixedSettings {
    /// The intensity in gCO2e/kWh; `carbon.fallback_g_per_kwh` if absent.
    #[serde(deserialize_with = "some_intensity")]
    pub g_per_kwh: Option<GramsPerKwh>,
}

/// How a file's times relate to the clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Timing {
    /// The times in the file are meant.
    #[default]
    Absolute,
    /// The file is played from the moment it is first read.
    Replay,
}

/// `[carbon.file]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FileSettings {
    /// CSV with a header line, or JSON. Read again when it changes.
    pub path: Option<PathBuf>,
    /// Whether the file's times are meant, or played from now on.
    pub timing: Timing,
    /// With `timing = "replay"`: the moment of the file that is placed at now; its first row if absent. Earlier rows
    /// become the past.
    #[serde(deserialize_with = "some_time")]
    pub replay_start: Option<DateTime<Utc>>,
    /// With `timing = "replay"`: whether to begin again at the end.
    pub repeat: bool,
    /// Whether times without a zone are UTC; refused otherwise.
    pub assume_utc: bool,
    /// Average or marginal; the file does not say.
    pub kind: SignalKind,
    /// Lifecycle or operational; the file does not say.
    pub scope: SignalScope,
    /// What the past values are: measured, estimated or synthetic.
    pub origin: Origin,
    /// Length of a row's slot in seconds, where neither the file nor its neighbours tell.
    #[serde(deserialize_with = "interval")]
    pub step_s: Option<Seconds>,
    /// Column of the slot's start; recognised by its name if absent. The same goes for the columns below.
    pub time_column: Option<String>,
    /// Column of the slot's end.
    pub end_column: Option<String>,
    /// Column of the slot's length in minutes.
    pub duration_column: Option<String>,
    /// Column of the value: the forecast, or the only value there is.
    pub value_column: Option<String>,
    /// Column of what came.
    pub actual_column: Option<String>,
    /// Column of the part of the grid.
    pub zone_column: Option<String>,
}

impl Default for FileSettings {
    fn default() -> Self {
        Self {
            path: None,
            timing: Timing::Absolute,
            replay_start: None,
            repeat: true,
            assume_utc: false,
            kind: SignalKind::Unspecified,
            scope: SignalScope::Unspecified,
            origin: Origin::Measured,
            step_s: None,
            time_column: None,
            end_column: None,
            duration_column: None,
            value_column: None,
            actual_column: None,
            zone_column: None,
        }
    }
}

/// `[carbon.uk_carbon_intensity]`
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct UkSettings {
    /// One of the seventeen regions; the whole country if absent. Regions have forecasts only.
    pub region: Option<RegionId>,
    /// Outward part of a postcode ("BS16"), in place of a region.
    pub postcode: Option<Postcode>,
    /// Where the API is.
    pub base_url: BaseUrl,
}

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
}

impl Default for BaseUrl {
    fn default() -> Self {
        Self("https://api.carbonintensity.org.uk".to_owned())
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

/// Settings that are each right, but not together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// `source = "file"` without a path.
    #[error("carbon.source is \"file\", but carbon.file.path is not set; write the path of a CSV or JSON file")]
    NoPath,
    /// Both a region and a postcode.
    #[error("carbon.uk_carbon_intensity has both region and postcode; remove one of them")]
    RegionAndPostcode,
    /// A forecast cannot be an origin of past values.
    #[error("carbon.file.origin is \"{0}\"; write \"measured\", \"estimated\" or \"synthetic\"")]
    Origin(&'static str),
}

impl CarbonSettings {
    /// Looks for settings that are right one by one but not together.
    ///
    /// # Errors
    /// With the first contradiction found.
    pub fn check(&self) -> Result<(), SettingsError> {
        if self.source == Source::File && self.file.path.is_none() {
            return Err(SettingsError::NoPath);
        }
        if self.uk_carbon_intensity.region.is_some() && self.uk_carbon_intensity.postcode.is_some() {
            return Err(SettingsError::RegionAndPostcode);
        }
        match self.file.origin {
            Origin::Forecast => Err(SettingsError::Origin("forecast")),
            Origin::Fallback => Err(SettingsError::Origin("fallback")),
            Origin::Measured | Origin::Estimated | Origin::Synthetic => Ok(()),
        }
    }
}

fn checked<E: de::Error>(value: f64, from: f64, to: f64, unit: &str) -> Result<f64, E> {
    if (from..=to).contains(&value) {
        return Ok(value);
    }
    let right = format!("a number of {unit} from {from} to {to}");
    Err(E::invalid_value(de::Unexpected::Float(value), &right.as_str()))
}

fn timeout<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Seconds, D::Error> {
    checked(f64::deserialize(deserializer)?, 0.1, 300.0, "seconds").map(Seconds::new)
}

fn interval<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Seconds>, D::Error> {
    let value = Option::<f64>::deserialize(deserializer)?;
    value.map(|v| checked(v, 1.0, 86_400.0, "seconds").map(Seconds::new)).transpose()
}

fn intensity<'de, D: Deserializer<'de>>(deserializer: D) -> Result<GramsPerKwh, D::Error> {
    checked(f64::deserialize(deserializer)?, 0.0, MAX_G_PER_KWH, "gCO2e/kWh").map(GramsPerKwh::new)
}

fn some_intensity<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<GramsPerKwh>, D::Error> {
    let value = Option::<f64>::deserialize(deserializer)?;
    value.map(|v| checked(v, 0.0, MAX_G_PER_KWH, "gCO2e/kWh").map(GramsPerKwh::new)).transpose()
}

fn body_bytes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    let value = u64::deserialize(deserializer)?;
    if (1 << 10..=64 << 20).contains(&value) {
        return Ok(value);
    }
    Err(de::Error::invalid_value(de::Unexpected::Unsigned(value), &"a number of bytes from 1024 to 67108864"))
}

fn some_time<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<DateTime<Utc>>, D::Error> {
    let Some(text) = Option::<String>::deserialize(deserializer)? else { return Ok(None) };
    parse_time(&text, false).map(Some).map_err(|problem| de::Error::custom(format!("{text:?} {problem}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(text: &str) -> String {
        toml::from_str::<CarbonSettings>(text).expect_err(text).to_string()
    }

    #[test]
    fn an_empty_table_gives_the_defaults() {
        let settings: CarbonSettings = toml::from_str("").expect("no setting is needed");
        assert_eq!(settings, CarbonSettings::default());
        assert_eq!(settings.check(), Ok(()));
    }

    #[test]
    fn errors_name_the_line_and_what_would_be_right() {
        let refused = refusal("source = \"file\"\ntimeout_s = -1\n");
        assert!(refused.contains("line 2") && refused.contains("from 0.1 to 300"), "{refused}");
        assert!(refusal("soruce = \"file\"").contains("unknown field"));
        assert!(refusal("[file]\nreplay_start = \"2021-07-01T00:00:00\"").contains("has no zone"));
        assert!(refusal("[uk_carbon_intensity]\nregion = 18").contains("1 (North Scotland) to 17 (Wales)"));
        assert!(refusal("[uk_carbon_intensity]\npostcode = \"BS16 1QY\"").contains("outward part"));
        assert!(refusal("[uk_carbon_intensity]\nbase_url = \"https://me:secret@host\"").contains("password"));
        assert!(refusal("fallback_g_per_kwh = nan").contains("gCO2e/kWh"));
        assert!(refusal("max_body_bytes = 1").contains("bytes from"));
    }

    #[test]
    fn contradictions_are_found() {
        let check = |text: &str| toml::from_str::<CarbonSettings>(text).expect(text).check();
        assert_eq!(check("source = \"file\""), Err(SettingsError::NoPath));
        let both = "[uk_carbon_intensity]\nregion = 13\npostcode = \"e1\"";
        assert_eq!(check(both), Err(SettingsError::RegionAndPostcode));
        assert_eq!(check("[file]\norigin = \"forecast\""), Err(SettingsError::Origin("forecast")));
    }

    #[test]
    fn settings_survive_being_written_and_read() {
        let text = "source = \"file\"\nzone = \"DE\"\npoll_interval_s = 60\n[file]\npath = \"a.csv\"\n\
                    replay_start = \"2021-07-01T00:00Z\"\n[uk_carbon_intensity]\npostcode = \"bs16\"";
        let settings: CarbonSettings = toml::from_str(text).expect(text);
        let written = toml::to_string(&settings).expect("plain data");
        assert_eq!(toml::from_str::<CarbonSettings>(&written).expect("as written"), settings);
    }
}
