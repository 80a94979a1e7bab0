//! The registry of sources. Each source has a folder, a module, and a line in `each_source`.

pub mod carbon_aware_sdk;
mod descriptor;
pub mod electricity_maps;
pub mod energinet;
pub mod energy_charts;
pub mod file;
pub mod fixed;
pub mod uk_carbon_intensity;
pub mod watttime;

use serde::{Deserialize, Serialize};

#[cfg(any(test, feature = "fuzzing"))]
pub use descriptor::FuzzTarget;
pub(super) use descriptor::{Descriptor, Table};

/// Passes all sources to the macro `$then`: for each source, the variant of [`Source`] and the module. The module's
/// name is also that of the source's settings table in `[carbon]`.
macro_rules! each_source {
    ($then:ident) => {
        $then! {
            /// One constant carbon intensity for all times.
            Fixed: fixed,
            /// A CSV or JSON file on this machine.
            File: file,
            /// Electricity Maps, with a key.
            ElectricityMaps: electricity_maps,
            /// WattTime, with an account.
            #[serde(rename = "watttime")]
            WattTime: watttime,
            /// The UK Carbon Intensity API, without a key.
            UkCarbonIntensity: uk_carbon_intensity,
            /// A WebAPI server of the Carbon Aware SDK.
            CarbonAwareSdk: carbon_aware_sdk,
            /// Energy-Charts (Fraunhofer ISE), without a key.
            EnergyCharts: energy_charts,
            /// Energinet (Denmark), without a key.
            Energinet: energinet,
        }
    };
}
pub(super) use each_source;

macro_rules! source {
    ($($(#[$about:meta])* $variant:ident: $name:ident,)*) => {
        /// A source of carbon intensities.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum Source {
            $($(#[$about])* $variant,)*
        }

        impl Source {
            /// All sources.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// Valid words of `carbon.source`.
            pub(super) const CHOICES: &'static [&'static str] = &["auto", $(stringify!($name)),*];

            /// Returns the facts about the source that do not depend on settings.
            pub(super) fn descriptor(self) -> &'static Descriptor {
                match self {
                    $(Self::$variant => &$name::DESCRIPTOR,)*
                }
            }
        }
    };
}
each_source!(source);

impl Source {
    /// Returns the source's name in configuration and API.
    pub fn name(self) -> &'static str {
        self.descriptor().name
    }
}
