//! Settings of Electricity Maps.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::providers::client::{network_settings, number_setting};

network_settings! {
    /// Settings of the table `[carbon.electricity_maps]`.
    at "https://api.electricitymaps.com", at most 30 an hour;
    /// Version of the API, 3 or 4.
    api_version: ApiVersion = ApiVersion::V3,
    /// Environment variable that holds the key.
    key_env: String = "ELECTRICITY_MAPS_API_KEY".to_owned(),
    /// File that holds the key; if set, the environment variable is not read.
    key_file: Option<PathBuf> = None,
    /// HTTP header in which the key is sent.
    key_header: String = "auth-token".to_owned(),
    /// Lifecycle or direct (operational) emission factors.
    emission_factors: EmissionFactors = EmissionFactors::Lifecycle,
    /// Horizon of the forecast in hours: 6, 24, 48 or 72; 24 is used if the plan refuses more.
    horizon_hours: MapsHorizon = MapsHorizon(48),
}

/// A version of Electricity Maps' API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "u8", into = "u8")]
pub enum ApiVersion {
    /// Version 3 of the API, under `/v3`.
    V3,
    /// Version 4 of the API, under `/v4`.
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

/// Emission factors of Electricity Maps: which emissions of a power plant count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EmissionFactors {
    /// Emissions of the whole life cycle, with construction, fuel supply and disposal.
    Lifecycle,
    /// Emissions of operation only, at the power plant.
    Direct,
}

number_setting! {
    /// Horizon of a forecast: 6, 24, 48 or 72 hours.
    MapsHorizon: |hours| [6, 24, 48, 72].contains(hours), else "the API knows 6, 24, 48 and 72 hours"
}
