//! Settings of files: the tables `[carbon.file]` and `[price.file]`.

use std::path::PathBuf;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use super::signal::FileSignal;
use super::time_zone::TimeZoneName;
use crate::providers::client::Contribution;
use crate::providers::client::checks::{interval, some_time};
use crate::providers::error::SettingsError;
use wattune_core::domain::{Origin, SignalKind, SignalScope, Unit};
use wattune_core::units::{Rounded, Seconds, Short};

/// Relation between the times in a file and the clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Timing {
    /// The times in the file are used as they are.
    #[default]
    Absolute,
    /// The file is replayed from the time at which it is first read.
    Replay,
}

/// Settings of the tables `[carbon.file]` and `[price.file]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// Path of a CSV file with a header line, or of a JSON file. The file is read again when it changes.
    pub path: Option<PathBuf>,
    /// Relation between the times in the file and the clock: used as they are, or replayed from now on.
    pub timing: Timing,
    /// With `timing = "replay"`: the time in the file that is mapped to the start of the replay; the file's first row
    /// if absent. Earlier rows become the past.
    #[serde(deserialize_with = "some_time")]
    pub replay_start: Option<DateTime<Utc>>,
    /// With `timing = "replay"`: true to begin again when the file ends.
    pub repeat: bool,
    /// Time zone of times that do not name one. If absent, such times are refused, unless `assume_utc` is true or the
    /// name of the time column ends with "utc".
    pub time_zone: Option<TimeZoneName>,
    /// True for the same effect as `time_zone = "UTC"`.
    pub assume_utc: bool,
    /// Unit of the values; gCO2e/kWh, or prices per MWh, if absent.
    pub unit: Option<FileUnit>,
    /// Kind of the carbon intensities, average or marginal, which the file does not name.
    pub kind: SignalKind,
    /// Scope of the carbon intensities, lifecycle or operational, which the file does not name.
    pub scope: SignalScope,
    /// Origin of past values: measured, estimated or synthetic.
    pub origin: Origin,
    /// Length in seconds of the slots for which the file has no end; the usual distance between rows if absent.
    #[serde(deserialize_with = "interval")]
    pub step_s: Option<Seconds>,
    /// Name of the column of the slot's start; recognised automatically if absent, as are the columns below.
    pub time_column: Option<String>,
    /// Name of the column of the slot's end.
    pub end_column: Option<String>,
    /// Name of the column of the slot's length in minutes.
    pub duration_column: Option<String>,
    /// Name of the column of the forecast, or of the values if the file has only one column of values.
    pub value_column: Option<String>,
    /// Name of the column of the actual value.
    pub actual_column: Option<String>,
    /// Name of the column of the grid's zone.
    pub zone_column: Option<String>,
    /// The part of the file's values that is used.
    pub contributes: Contribution,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            path: None,
            timing: Timing::Absolute,
            replay_start: None,
            repeat: true,
            time_zone: None,
            assume_utc: false,
            unit: None,
            kind: SignalKind::Unspecified,
            scope: SignalScope::Unspecified,
            origin: Origin::Measured,
            step_s: None,
            time_column: None,
            end_column: None,
            duration_column: None,
            value_column: None,
            actual_column: None,
            zone_column: None,
            contributes: Contribution::Both,
        }
    }
}

impl Settings {
    /// Checks for settings that are valid singly but contradict each other, for a file of values of type `V`.
    ///
    /// # Errors
    /// If settings contradict each other, or if the file `is_chosen` as a source and has no path.
    pub(in crate::providers) fn check_for<V: FileSignal>(&self, is_chosen: bool) -> Result<(), SettingsError> {
        let table = V::TABLE;
        if is_chosen && self.path.is_none() {
            return Err(SettingsError::NoPath { table });
        }
        if let Some(zone) = self.time_zone.filter(|zone| self.assume_utc && *zone != TimeZoneName::UTC) {
            return Err(SettingsError::TwoZones { table, zone: zone.to_string() });
        }
        if self.unit.is_some_and(|unit| unit.of_intensity().is_some() != V::UNIT.is_some()) {
            return Err(SettingsError::Unit { table, right: format!("\"{}\"", V::UNITS.join("\", \"")) });
        }
        let origin = match self.origin {
            Origin::Forecast => "forecast",
            Origin::Fallback => "fallback",
            Origin::Measured | Origin::Estimated | Origin::Synthetic => return Ok(()),
        };
        Err(SettingsError::Origin { table, origin })
    }
}

/// The unit of a file's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FileUnit {
    /// Intensities in grams of CO2 equivalent per kWh.
    GPerKwh,
    /// Intensities in kilograms per kWh.
    KgPerKwh,
    /// Intensities in tonnes per MWh.
    TPerMwh,
    /// Intensities in pounds per MWh.
    LbPerMwh,
    /// Prices per MWh.
    PerMwh,
    /// Prices per kWh.
    PerKwh,
    /// Prices in hundredths of the currency per kWh.
    CentsPerKwh,
}

impl FileUnit {
    /// Returns the factor from this unit to g/kWh, or to a price per MWh.
    pub(super) const fn factor(self) -> f64 {
        match self {
            Self::GPerKwh | Self::PerMwh => 1.0,
            Self::KgPerKwh | Self::TPerMwh | Self::PerKwh => 1000.0,
            Self::LbPerMwh => Unit::PoundsPerMwh.in_g_per_kwh(),
            Self::CentsPerKwh => 10.0,
        }
    }

    /// Describes a value in the unit of the signal, such as ": 100 kg/kWh are 100000 g/kWh"; empty if this is it.
    pub(super) fn describe_conversion(self, value: f64) -> String {
        let own = if self.of_intensity().is_some() { Self::GPerKwh } else { Self::PerMwh };
        if self == own || !value.is_finite() {
            return String::new();
        }
        let converted = Rounded(value * self.factor());
        format!(": {} {} are {converted} {}", Short(value), self.label(), own.label())
    }

    const fn label(self) -> &'static str {
        match self {
            Self::GPerKwh => "g/kWh",
            Self::KgPerKwh => "kg/kWh",
            Self::TPerMwh => "t/MWh",
            Self::LbPerMwh => "lb/MWh",
            Self::PerMwh => "per MWh",
            Self::PerKwh => "per kWh",
            Self::CentsPerKwh => "hundredths per kWh",
        }
    }

    /// Returns the unit of carbon intensities; `None` for prices.
    pub(super) const fn of_intensity(self) -> Option<Unit> {
        match self {
            Self::GPerKwh => Some(Unit::GramsPerKwh),
            Self::KgPerKwh => Some(Unit::KilogramsPerKwh),
            Self::TPerMwh => Some(Unit::TonnesPerMwh),
            Self::LbPerMwh => Some(Unit::PoundsPerMwh),
            Self::PerMwh | Self::PerKwh | Self::CentsPerKwh => None,
        }
    }
}
