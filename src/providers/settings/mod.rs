//! The settings of this room. Values are checked as they are read, so that an error carries file and line.

mod chain;
mod file;
mod price;
mod sources;
#[cfg(test)]
mod tests;
mod types;

use serde::{Deserialize, Serialize};

pub use chain::{Chain, Source};
pub use file::{FileUnit, TimeZoneName};
pub use price::{Currency, PriceSettings, PriceSource};
pub(super) use sources::Common;
pub use sources::{
    ApiVersion, CarbonAwareSdkSettings, ElectricityMapsSettings, EmissionFactors, EnerginetSettings,
    EnergyChartsSettings, FileSettings, FixedSettings, MapsHorizon, Timing, UkSettings, WattTimeHorizon,
    WattTimeSettings,
};
pub use types::{BaseUrl, Contribution, Headers, Postcode, RegionId};
use types::{body_bytes, intensity, interval, jump_factor, timeout};

use wattune_core::domain::{Origin, Zone};
use wattune_core::units::{GramsPerKwh, Seconds};

/// `[carbon]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CarbonSettings {
    /// Which of the sources below are used, in which order.
    pub source: Chain,
    /// The part of the grid: an ISO country, `latitude,longitude`, or a source's own code; the source's default if
    /// absent.
    pub zone: Option<Zone>,
    /// What to reckon with when nothing is known, in gCO2e/kWh.
    #[serde(deserialize_with = "intensity")]
    pub fallback_g_per_kwh: GramsPerKwh,
    /// A value this many times above (or below) all that is known of four weeks is held back at first.
    #[serde(deserialize_with = "jump_factor")]
    pub jump_factor: f64,
    /// Time between polls, in seconds; the source's own rhythm if absent.
    #[serde(deserialize_with = "interval")]
    pub poll_interval_s: Option<Seconds>,
    /// Longest wait for a connection, in seconds.
    #[serde(deserialize_with = "timeout")]
    pub connect_timeout_s: Seconds,
    /// Longest wait for a complete answer, in seconds.
    #[serde(deserialize_with = "timeout")]
    pub timeout_s: Seconds,
    /// Longest answer that is read, in bytes.
    #[serde(deserialize_with = "body_bytes")]
    pub max_body_bytes: u64,
    /// One constant for all times.
    pub fixed: FixedSettings,
    /// A CSV or JSON file.
    pub file: FileSettings,
    /// Electricity Maps.
    pub electricity_maps: ElectricityMapsSettings,
    /// WattTime.
    pub watttime: WattTimeSettings,
    /// The UK Carbon Intensity API.
    pub uk_carbon_intensity: UkSettings,
    /// The Carbon Aware SDK's WebAPI.
    pub carbon_aware_sdk: CarbonAwareSdkSettings,
    /// Energy-Charts.
    pub energy_charts: EnergyChartsSettings,
    /// Energinet.
    pub energinet: EnerginetSettings,
}

impl Default for CarbonSettings {
    fn default() -> Self {
        Self {
            source: Chain::default(),
            zone: None,
            fallback_g_per_kwh: GramsPerKwh::new(475.0),
            jump_factor: 4.0,
            poll_interval_s: None,
            connect_timeout_s: Seconds::new(5.0),
            timeout_s: Seconds::new(10.0),
            max_body_bytes: 1 << 20,
            fixed: FixedSettings::default(),
            file: FileSettings::default(),
            electricity_maps: ElectricityMapsSettings::default(),
            watttime: WattTimeSettings::default(),
            uk_carbon_intensity: UkSettings::default(),
            carbon_aware_sdk: CarbonAwareSdkSettings::default(),
            energy_charts: EnergyChartsSettings::default(),
            energinet: EnerginetSettings::default(),
        }
    }
}

/// Settings that are each right, but not together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// `source = "file"` without a path.
    #[error("{table}.source is \"file\", but {table}.file.path is not set; write the path of a CSV or JSON file")]
    NoPath {
        /// `carbon` or `price`.
        table: &'static str,
    },
    /// Both a region and a postcode.
    #[error("carbon.uk_carbon_intensity has both region and postcode; remove one of them")]
    RegionAndPostcode,
    /// A forecast cannot be an origin of past values.
    #[error("{table}.file.origin is \"{origin}\"; write \"measured\", \"estimated\" or \"synthetic\"")]
    Origin {
        /// `carbon` or `price`.
        table: &'static str,
        /// What was written.
        origin: &'static str,
    },
    /// UTC, and a zone that is not.
    #[error("{table}.file.assume_utc is true, and {table}.file.time_zone is \"{zone}\"; remove one of them")]
    TwoZones {
        /// `carbon` or `price`.
        table: &'static str,
        /// What was written.
        zone: TimeZoneName,
    },
    /// A unit of prices for intensities, or the other way round.
    #[error("{table}.file.unit is not a unit of what the file holds; write one of {right}")]
    Unit {
        /// `carbon` or `price`.
        table: &'static str,
        /// What would be right.
        right: &'static str,
    },
    /// A source that cannot do with the place it is given.
    #[error("{source_name} cannot be asked about {place}: {why}")]
    Place {
        /// The source.
        source_name: &'static str,
        /// The place as written.
        place: String,
        /// What would be right.
        why: String,
    },
    /// A source that needs a zone has none.
    #[error(
        "carbon.source has \"{0}\", which needs carbon.zone or carbon.{0}.zone; `wattune carbon zones` lists zones"
    )]
    NoZone(&'static str),
}

impl CarbonSettings {
    /// Looks for settings that are right one by one but not together.
    ///
    /// # Errors
    /// With the first contradiction found.
    pub fn check(&self) -> Result<(), SettingsError> {
        if self.source.has(Source::File) && self.file.path.is_none() {
            return Err(SettingsError::NoPath { table: "carbon" });
        }
        if self.uk_carbon_intensity.region.is_some() && self.uk_carbon_intensity.postcode.is_some() {
            return Err(SettingsError::RegionAndPostcode);
        }
        check_file(&self.file, "carbon")
    }
}

fn check_file(file: &FileSettings, table: &'static str) -> Result<(), SettingsError> {
    if let Some(zone) = file.time_zone.filter(|zone| file.assume_utc && *zone != TimeZoneName::UTC) {
        return Err(SettingsError::TwoZones { table, zone });
    }
    let is_price = table == "price";
    if file.unit.is_some_and(|unit| unit.of_intensity().is_none() != is_price) {
        let right = match is_price {
            true => "\"per_mwh\", \"per_kwh\", \"cents_per_kwh\"",
            false => "\"g_per_kwh\", \"kg_per_kwh\", \"t_per_mwh\", \"lb_per_mwh\"",
        };
        return Err(SettingsError::Unit { table, right });
    }
    let origin = match file.origin {
        Origin::Forecast => "forecast",
        Origin::Fallback => "fallback",
        Origin::Measured | Origin::Estimated | Origin::Synthetic => return Ok(()),
    };
    Err(SettingsError::Origin { table, origin })
}
