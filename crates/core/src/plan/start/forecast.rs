//! Forecast for choosing a start time: the corrected horizon, and the errors that such forecasts had.

use chrono::{DateTime, Utc};

use super::windows::Cumulated;
use crate::domain::{CarbonSeries, Slot};
use crate::forecast::{Basis, ErrorPaths, Horizon, Model};
use crate::plan::request::Prices;
use crate::units::{GramsPerKwh, PricePerMwh};

/// Forecast for choosing a start time.
#[derive(Clone, Debug)]
pub struct StartForecast {
    pub(super) horizon: Horizon,
    pub(super) carbon: Cumulated,
    /// Price as a carbon intensity: c_ref·π/π_ref, in g/kWh; `None` without prices.
    pub(super) price: Option<Cumulated>,
    pub(super) errors: ErrorPaths,
}

impl StartForecast {
    /// Makes the forecast from `now` to `until` ([`super::StartQuestion::forecast_until`]) with the daemon's forecast
    /// model. `expected` is the source's forecast; it may be empty.
    pub fn new(
        model: &Model,
        expected: &CarbonSeries,
        (now, until): (DateTime<Utc>, DateTime<Utc>),
        fallback: GramsPerKwh,
    ) -> Self {
        let horizon = model.outlook(expected, now, until, fallback);
        Self { errors: model.error_paths(), ..Self::of_horizon(horizon) }
    }

    /// Makes a forecast of a horizon whose errors are unknown.
    pub fn of_horizon(horizon: Horizon) -> Self {
        let slots = horizon.slots.iter().map(|s| (s.slot.start(), s.slot.end(), s.intensity.get()));
        let carbon = Cumulated::new(slots);
        Self { carbon, horizon, price: None, errors: ErrorPaths::default() }
    }

    /// Adds electricity prices, which count as far as a question weighs them: energy at the price π_ref costs as much as
    /// energy at the reference intensity `c_ref`, as in the plans of jobs. Times without a price have the mean price.
    #[must_use]
    pub fn with_prices(mut self, prices: Prices<'_>, c_ref: GramsPerKwh) -> Self {
        if prices.reference > PricePerMwh::ZERO && !prices.known_prices.is_empty() {
            let relative = prices.relative();
            let price = |slot: &Slot| c_ref.get() * relative(slot);
            let slots = self.horizon.slots.iter().map(|s| (s.slot.start(), s.slot.end(), price(&s.slot)));
            self.price = Some(Cumulated::new(slots));
        }
        self
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
