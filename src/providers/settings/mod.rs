//! The settings of the sources. Values are checked when they are read, so that an error names file and line.

mod chain;
mod price;
#[cfg(test)]
mod tests;

use std::path::Path;

use serde::{Deserialize, Serialize};

pub use chain::Chain;
pub use price::{Currency, PriceSettings, PriceSource};

use super::client::checks::{body_bytes, intensity, interval, jump_factor, timeout};
use super::client::settings::SharedSettings;
use super::error::SettingsError;
use super::sources::{self, Source, Table, each_source};
use wattune_core::domain::Zone;
use wattune_core::forecast::FALLBACK;
use wattune_core::units::{GramsPerKwh, Seconds};

macro_rules! carbon_settings {
    ($($(#[$about:meta])* $variant:ident: $name:ident,)*) => {
        /// Settings of the table `[carbon]`.
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields, default)]
        pub struct CarbonSettings {
            /// The sources that are used, in order of preference.
            pub source: Chain,
            /// Place whose grid supplies the machine: a country, `latitude,longitude`, or a source's own code. If
            /// absent, the source's default applies; using a source without a default is an error then.
            pub zone: Option<Zone>,
            /// Carbon intensity that is assumed where none is known, in gCO2e/kWh.
            #[serde(deserialize_with = "intensity")]
            pub fallback_g_per_kwh: GramsPerKwh,
            /// Factor by which a value must lie above (or below) the range of the last four weeks to be quarantined: it
            /// is not used until later answers confirm it.
            #[serde(deserialize_with = "jump_factor")]
            pub jump_factor: f64,
            /// Time between polls, in seconds; the source's own interval if absent.
            #[serde(deserialize_with = "interval")]
            pub poll_interval_s: Option<Seconds>,
            /// Longest wait for a connection, in seconds.
            #[serde(deserialize_with = "timeout")]
            pub connect_timeout_s: Seconds,
            /// Longest wait for a complete answer, in seconds.
            #[serde(deserialize_with = "timeout")]
            pub timeout_s: Seconds,
            /// Maximum length of an answer, in bytes.
            #[serde(deserialize_with = "body_bytes")]
            pub max_body_bytes: u64,
            $($(#[$about])* pub $name: sources::$name::Settings,)*
        }

        impl Default for CarbonSettings {
            fn default() -> Self {
                Self {
                    source: Chain::default(),
                    zone: None,
                    fallback_g_per_kwh: FALLBACK,
                    jump_factor: 4.0,
                    poll_interval_s: None,
                    connect_timeout_s: Seconds::new(5.0),
                    timeout_s: Seconds::new(10.0),
                    max_body_bytes: 1 << 20,
                    $($name: Default::default(),)*
                }
            }
        }

        impl CarbonSettings {
            pub(super) fn table(&self, source: Source) -> &dyn Table {
                match source {
                    $(Source::$variant => &self.$name,)*
                }
            }
        }
    };
}
each_source!(carbon_settings);

impl CarbonSettings {
    /// Returns the settings that apply to every source.
    pub fn shared<'a>(&'a self, state_dir: Option<&'a Path>) -> SharedSettings<'a> {
        SharedSettings {
            zone: self.zone.as_ref(),
            fallback: self.fallback_g_per_kwh,
            poll_interval: self.poll_interval_s,
            connect_timeout: self.connect_timeout_s,
            timeout: self.timeout_s,
            max_body_bytes: self.max_body_bytes,
            state_dir,
        }
    }

    /// Checks for settings that are valid singly but contradict each other.
    pub fn check(&self) -> Result<(), SettingsError> {
        Source::ALL.iter().try_for_each(|source| self.table(*source).check(self.source.has(*source)))
    }
}
