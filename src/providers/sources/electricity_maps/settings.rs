//! `[carbon.electricity_maps]`

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::providers::client::{network_settings, number_setting};

network_settings! {
    /// `[carbon.electricity_maps]`
    at "https://api.electricitymaps.com", at most 30 an hour;
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
    /// Horizon of the forecast: 6, 24, 48 or 72 hours; less where the plan has less.
    horizon_hours: MapsHorizon = MapsHorizon(48),
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

/// The emissions that Electricity Maps counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EmissionFactors {
    /// With construction, fuel supply and disposal.
    Lifecycle,
    /// Emissions at the stack: operational.
    Direct,
}

number_setting! {
    /// 6, 24, 48 or 72 hours.
    MapsHorizon: |hours| [6, 24, 48, 72].contains(hours), else "the API knows 6, 24, 48 and 72 hours"
}
