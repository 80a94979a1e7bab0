//! `[carbon.watttime]`

use std::path::PathBuf;

use crate::providers::client::{network_settings, number_setting};

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

number_setting! {
    /// 1 to 72 hours.
    WattTimeHorizon: |hours| (1..=72).contains(hours), else "the API gives 1 to 72 hours"
}
