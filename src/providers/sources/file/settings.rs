//! `[carbon.file]` and `[price.file]`

use std::path::PathBuf;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use super::signal::FileSignal;
use super::time_zone::TimeZoneName;
use crate::providers::client::Contribution;
use crate::providers::client::checks::{interval, some_time};
use crate::providers::error::SettingsError;
use wattune_core::domain::{Origin, SignalKind, SignalScope, Unit};
use wattune_core::units::Seconds;

/// Relation of a file's times to the clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Timing {
    /// The times in the file are meant.
    #[default]
    Absolute,
    /// The file is played from the moment it is first read.
    Replay,
}

/// `[carbon.file]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// CSV with a header line, or JSON. Read again when it changes.
    pub path: Option<PathBuf>,
    /// The times in the file are meant, or played from now on.
    pub timing: Timing,
    /// With `timing = "replay"`: the moment of the file that is placed at now; its first row if absent. Earlier rows
    /// become the past.
    #[serde(deserialize_with = "some_time")]
    pub replay_start: Option<DateTime<Utc>>,
    /// With `timing = "replay"`: begin again at the end.
    pub repeat: bool,
    /// The zone of times that do not say theirs; they are refused if it is absent.
    pub time_zone: Option<TimeZoneName>,
    /// The same as `time_zone = "UTC"`.
    pub assume_utc: bool,
    /// The unit of the values; gCO2e/kWh, or prices per MWh, if absent.
    pub unit: Option<FileUnit>,
    /// Average or marginal; the file does not say.
    pub kind: SignalKind,
    /// Lifecycle or operational; the file does not say.
    pub scope: SignalScope,
    /// Origin of past values: measured, estimated or synthetic.
    pub origin: Origin,
    /// Length of a row's slot in seconds, where neither the file nor its neighbours determine it.
    #[serde(deserialize_with = "interval")]
    pub step_s: Option<Seconds>,
    /// Column of the slot's start; recognised by its name if absent. The same goes for the columns below.
    pub time_column: Option<String>,
    /// Column of the slot's end.
    pub end_column: Option<String>,
    /// Column of the slot's length in minutes.
    pub duration_column: Option<String>,
    /// Column of the value: the forecast, or the only value there is.
    pub value_column: Option<String>,
    /// Column of the actual value.
    pub actual_column: Option<String>,
    /// Column of the part of the grid.
    pub zone_column: Option<String>,
    /// The part of the file that is used.
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
    /// Looks for settings that are right one by one but not together, where the file holds values of `V`.
    ///
    /// # Errors
    /// With the first contradiction found; without a path if it `is_chosen`.
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
    /// Prices in hundredths per kWh.
    CentsPerKwh,
}

impl FileUnit {
    /// Returns the factor to g/kWh, or to a price per MWh.
    pub(super) const fn factor(self) -> f64 {
        match self {
            Self::GPerKwh | Self::PerMwh => 1.0,
            Self::KgPerKwh | Self::TPerMwh | Self::PerKwh => 1000.0,
            Self::LbPerMwh => Unit::PoundsPerMwh.in_g_per_kwh(),
            Self::CentsPerKwh => 10.0,
        }
    }

    /// Returns the unit of intensities; `None` for prices.
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
