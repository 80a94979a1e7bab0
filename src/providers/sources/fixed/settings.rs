//! `[carbon.fixed]`

use serde::{Deserialize, Serialize};

use crate::providers::client::checks::some_intensity;
use wattune_core::units::GramsPerKwh;

/// `[carbon.fixed]`
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// The intensity in gCO2e/kWh; `carbon.fallback_g_per_kwh` if absent.
    #[serde(deserialize_with = "some_intensity")]
    pub g_per_kwh: Option<GramsPerKwh>,
}
