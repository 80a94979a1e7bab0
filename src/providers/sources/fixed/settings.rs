//! Settings of the constant carbon intensity.

use serde::{Deserialize, Serialize};

use crate::providers::client::checks::some_intensity;
use wattune_core::units::GramsPerKwh;

/// Settings of the table `[carbon.fixed]`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// Carbon intensity in gCO2e/kWh; `carbon.fallback_g_per_kwh` if absent.
    #[serde(deserialize_with = "some_intensity")]
    pub g_per_kwh: Option<GramsPerKwh>,
}
