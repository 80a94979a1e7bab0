//! `[carbon.watttime]`

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::providers::client::network_settings;

network_settings! {
    /// `[carbon.watttime]`
    at "https://api.watttime.org", at most 120 an hour;
    /// The environment variable that holds the user's name.
    username_env: String = "WATTTIME_USERNAME".to_owned(),
    /// A file that holds the user's name, in place of the variable.
    username_file: Option<PathBuf> = None,
    /// The environment variable that holds the password.
    password_env: String = "WATTTIME_PASSWORD".to_owned(),
    /// A file that holds the password, in place of the variable.
    password_file: Option<PathBuf> = None,
    /// Horizon of the forecast in hours: 1 to 72.
    horizon_hours: WattTimeHorizon = WattTimeHorizon(48),
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
