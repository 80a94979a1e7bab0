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

    /// Adds electricity prices, which count as far as a question weighs them: energy at the mean price costs as much as
    /// energy at the reference intensity `c_ref`, as in the plans of jobs. Times without a price have the mean price.
    #[must_use]
    pub fn with_prices(mut self, prices: Prices<'_>, c_ref: GramsPerKwh) -> Self {
        let Prices { known_prices, reference } = prices;
        if reference > PricePerMwh::ZERO && !known_prices.is_empty() {
            let relative = |slot: &Slot| {
                let mean = known_prices.mean_over(slot, |price| price.value.get());
                c_ref.get() * mean.map_or(1.0, |(mean, _)| mean / reference.get())
            };
            let slots = self.horizon.slots.iter().map(|s| (s.slot.start(), s.slot.end(), relative(&s.slot)));
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
