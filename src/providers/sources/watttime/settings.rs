//! Settings of WattTime.

use std::path::PathBuf;

use crate::providers::client::{network_settings, number_setting};

network_settings! {
    /// Settings of the table `[carbon.watttime]`.
    at "https://api.watttime.org", at most 120 an hour;
    /// Environment variable that holds the user name.
    username_env: String = "WATTTIME_USERNAME".to_owned(),
    /// File that holds the user name; if set, the environment variable is not read.
    username_file: Option<PathBuf> = None,
    /// Environment variable that holds the password.
    password_env: String = "WATTTIME_PASSWORD".to_owned(),
    /// File that holds the password; if set, the environment variable is not read.
    password_file: Option<PathBuf> = None,
    /// Horizon of the forecast in hours, 1 to 72.
    horizon_hours: WattTimeHorizon = WattTimeHorizon(48),
}

number_setting! {
    /// Horizon of a forecast, 1 to 72 hours.
    WattTimeHorizon: |hours| (1..=72).contains(hours), else "the API gives 1 to 72 hours"
}
