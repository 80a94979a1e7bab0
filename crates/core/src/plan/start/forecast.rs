//! Forecast for choosing a start time: the corrected horizon, and the errors that such forecasts had.

use chrono::{DateTime, Utc};

use super::windows::Cumulated;
use crate::domain::CarbonSeries;
use crate::forecast::{Basis, ErrorPaths, Horizon, HorizonPolicy, Model};

/// Forecast for choosing a start time.
#[derive(Clone, Debug)]
pub struct StartForecast {
    pub(super) horizon: Horizon,
    pub(super) carbon: Cumulated,
    pub(super) errors: ErrorPaths,
}

impl StartForecast {
    /// Makes the forecast from `now` to `until` ([`super::StartQuestion::forecast_until`]) with the daemon's forecast
    /// model. `expected` is the source's forecast; it may be empty.
    pub fn new(
        model: &Model,
        expected: &CarbonSeries,
        (now, until): (DateTime<Utc>, DateTime<Utc>),
        policy: &HorizonPolicy,
    ) -> Self {
        let horizon = model.outlook(expected, now, until, policy);
        Self { errors: model.error_paths(), ..Self::of_horizon(model.correct_weekends(&horizon)) }
    }

    /// Makes a forecast of a horizon whose errors are unknown.
    pub fn of_horizon(horizon: Horizon) -> Self {
        let slots = horizon.slots.iter().map(|s| (s.slot.start(), s.slot.end(), s.intensity.get()));
        let carbon = Cumulated::new(slots);
        Self { carbon, horizon, errors: ErrorPaths::default() }
    }

    /// Returns the horizon.
    pub fn horizon(&self) -> &Horizon {
        &self.horizon
    }

    /// Returns true if no slot has a value from data.
    pub(super) fn knows_nothing(&self) -> bool {
        self.horizon.slots.iter().all(|s| s.basis == Basis::Constant)
    }
}
