//! A table of settings per source: what all of them have, and what only one has.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::file::{FileUnit, TimeZoneName};
use super::types::{
    BaseUrl, Contribution, Headers, Postcode, RegionId, interval, per_hour, some_intensity, some_time, some_timeout,
};
use wattune_core::domain::{Origin, SignalKind, SignalScope, Zone};
use wattune_core::units::{GramsPerKwh, Seconds};

/// What the tables of all sources behind a network have.
#[derive(Clone, Copy, Debug)]
pub(in crate::providers) struct Common<'a> {
    pub(in crate::providers) zone: Option<&'a Zone>,
    pub(in crate::providers) headers: &'a Headers,
    pub(in crate::providers) connect_timeout: Option<Seconds>,
    pub(in crate::providers) timeout: Option<Seconds>,
    pub(in crate::providers) poll_interval: Option<Seconds>,
    pub(in crate::providers) contributes: Contribution,
    pub(in crate::providers) requests_per_hour: u32,
}

macro_rules! source_settings {
    (
        $(#[$doc:meta])* $name:ident: at $url:expr, at most $requests:literal an hour;
        $($(#[$field_doc:meta])* $field:ident: $type:ty = $default:expr,)*
    ) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields, default)]
        pub struct $name {
            /// The place for this source alone, in place of `carbon.zone`.
            pub zone: Option<Zone>,
            $($(#[$field_doc])* pub $field: $type,)*
            /// What of its answers is used.
            pub contributes: Contribution,
            /// Where the API is.
            pub base_url: BaseUrl,
            /// Headers that are sent along.
            pub headers: Headers,
            /// Longest wait for a connection, in seconds; `carbon.connect_timeout_s` if absent.
            #[serde(deserialize_with = "some_timeout")]
            pub connect_timeout_s: Option<Seconds>,
            /// Longest wait for a complete answer, in seconds; `carbon.timeout_s` if absent.
            #[serde(deserialize_with = "some_timeout")]
            pub timeout_s: Option<Seconds>,
            /// Time between polls, in seconds; `carbon.poll_interval_s`, else the source's own rhythm, if absent.
            #[serde(deserialize_with = "interval")]
            pub poll_interval_s: Option<Seconds>,
            /// No more requests than this are made within an hour.
            #[serde(deserialize_with = "per_hour")]
            pub requests_per_hour: u32,
        }

        impl Default for $name {
            fn default() -> Self {
                Self {
                    zone: None,
                    $($field: $default,)*
                    contributes: Contribution::Both,
                    base_url: BaseUrl::of($url),
                    headers: Headers::default(),
                    connect_timeout_s: None,
                    timeout_s: None,
                    poll_interval_s: None,
                    requests_per_hour: $requests,
                }
            }
        }

        impl $name {
            pub(in crate::providers) fn common(&self) -> Common<'_> {
                Common {
                    zone: self.zone.as_ref(),
                    headers: &self.headers,
                    connect_timeout: self.connect_timeout_s,
                    timeout: self.timeout_s,
                    poll_interval: self.poll_interval_s,
                    contributes: self.contributes,
                    requests_per_hour: self.requests_per_hour,
                }
            }
        }
    };
}

source_settings! {
    /// `[carbon.electricity_maps]`
    ElectricityMapsSettings: at "https://api.electricitymaps.com", at most 30 an hour;
    /// The version of the API, 3 or 4.
    api_version: ApiVersion = ApiVersion::V3,
    /// The environment variable that holds the key.
    key_env: String = "ELECTRICITY_MAPS_API_KEY".to_owned(),
    /// A file that holds the key, in place of the variable.
    key_file: Option<PathBuf> = None,
    /// The header in which the key is sent.
    key_header: String = "auth-token".to_owned(),
    /// Lifecycle or direct (operational) emission factors.
    emission_factors: EmissionFactors = EmissionFactors::Lifecycle,
    /// How far ahead is asked: 6, 24, 48 or 72 hours; less where the plan has less.
    horizon_hours: MapsHorizon = MapsHorizon(48),
}

source_settings! {
    /// `[carbon.watttime]`
    WattTimeSettings: at "https://api.watttime.org", at most 120 an hour;
    /// The environment variable that holds the user's name.
    username_env: String = "WATTTIME_USERNAME".to_owned(),
    /// A file that holds the user's name, in place of the variable.
    username_file: Option<PathBuf> = None,
    /// The environment variable that holds the password.
    password_env: String = "WATTTIME_PASSWORD".to_owned(),
    /// A file that holds the password, in place of the variable.
    password_file: Option<PathBuf> = None,
    /// How far ahead is asked, in hours: 1 to 72.
    horizon_hours: WattTimeHorizon = WattTimeHorizon(48),
}

source_settings! {
    /// `[carbon.uk_carbon_intensity]`
    UkSettings: at "https://api.carbonintensity.org.uk", at most 60 an hour;
    /// One of the seventeen regions; the whole country if absent. Regions have forecasts only.
    region: Option<RegionId> = None,
    /// Outward part of a postcode ("BS16"), in place of a region.
    postcode: Option<Postcode> = None,
}

source_settings! {
    /// `[carbon.carbon_aware_sdk]`
    CarbonAwareSdkSettings: at "http://127.0.0.1:5073", at most 120 an hour;
    /// Average or marginal, which depends on the data source behind the SDK; its answers do not say.
    kind: SignalKind = SignalKind::Unspecified,
    /// Lifecycle or operational, likewise.
    scope: SignalScope = SignalScope::Unspecified,
}

source_settings! {
    /// `[carbon.energy_charts]`
    EnergyChartsSettings: at "https://api.energy-charts.info", at most 30 an hour;
    /// Lifecycle or operational; the API does not say.
    scope: SignalScope = SignalScope::Unspecified,
    /// The bidding zone whose price is asked for ("DE-LU"); the country's if absent.
    bidding_zone: Option<Zone> = None,
}

source_settings! {
    /// `[carbon.energinet]`
    EnerginetSettings: at "https://api.energidataservice.dk", at most 60 an hour;
    /// Lifecycle or operational; the API does not say.
    scope: SignalScope = SignalScope::Unspecified,
}

/// A version of Electricity Maps' API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "u8", into = "u8")]
pub enum ApiVersion {
    /// `/v3`
    V3,
    /// `/v4`
    V4,
}

impl TryFrom<u8> for ApiVersion {
    type Error = &'static str;
    fn try_from(version: u8) -> Result<Self, Self::Error> {
        match version {
            3 => Ok(Self::V3),
            4 => Ok(Self::V4),
            _ => Err("the versions are 3 and 4"),
        }
    }
}

impl From<ApiVersion> for u8 {
    fn from(version: ApiVersion) -> u8 {
        if version == ApiVersion::V3 { 3 } else { 4 }
    }
}

/// Which emissions Electricity Maps counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EmissionFactors {
    /// With construction, fuel supply and disposal.
    Lifecycle,
    /// What leaves the stack: operational.
    Direct,
}

/// 6, 24, 48 or 72 hours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "u8", into = "u8")]
pub struct MapsHorizon(u8);

impl TryFrom<u8> for MapsHorizon {
    type Error = &'static str;
    fn try_from(hours: u8) -> Result<Self, Self::Error> {
        if [6, 24, 48, 72].contains(&hours) { Ok(Self(hours)) } else { Err("the API knows 6, 24, 48 and 72 hours") }
    }
}

impl From<MapsHorizon> for u8 {
    fn from(hours: MapsHorizon) -> u8 {
        hours.0
    }
}

/// 1 to 72 hours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "u8", into = "u8")]
pub struct WattTimeHorizon(u8);

impl TryFrom<u8> for WattTimeHorizon {
    type Error = &'static str;
    fn try_from(hours: u8) -> Result<Self, Self::Error> {
        if (1..=72).contains(&hours) { Ok(Self(hours)) } else { Err("the API gives 1 to 72 hours") }
    }
}

impl From<WattTimeHorizon> for u8 {
    fn from(hours: WattTimeHorizon) -> u8 {
        hours.0
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
    pub replay_start: Option<chrono::DateTime<chrono::Utc>>,
    /// With `timing = "replay"`: whether to begin again at the end.
    pub repeat: bool,
    /// The zone of times that do not say theirs; they are refused if it is absent.
    pub time_zone: Option<TimeZoneName>,
    /// The same as `time_zone = "UTC"`.
    pub assume_utc: bool,
    /// The unit of the values; gCO2e/kWh, or prices per MWh, if absent.
    pub unit: Option<FileUnit>,
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
    /// What of the file is used.
    pub contributes: Contribution,
}

impl Default for FileSettings {
    fn default() -> Self {
        Self {
            path: None,
            timing: Timing::Absolute,
            replay_start: None,
            repeat: true,
            time_zone: None,
            assume_utc: false,
            unit: None,
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
            contributes: Contribution::Both,
        }
    }
}
