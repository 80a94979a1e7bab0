//! The part of a recorded grid that a policy knows at a past time.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use chrono::{DateTime, Utc};

use super::recorded::RecordedGrid;
use wattune_core::domain::{CarbonSeries, Slot};
use wattune_core::forecast::{Basis, ErrorPaths, FALLBACK, Horizon, HorizonSlot, Model};
use wattune_core::plan::{PlanSlot, Settings, StartForecast, slots_ahead};
use wattune_core::units::{GramsPerKwh, Seconds};

/// Knowledge that a policy has of future carbon intensities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Foresight {
    /// The policy sees the forecasts published by the time of the decision, corrected and weighted as the daemon does.
    AsIssued,
    /// The policy sees the actual future values.
    Perfect,
    /// The policy sees no forecasts, only past values, which the daemon's local forecaster extrapolates.
    Nothing,
}

/// A recorded grid as a policy with some foresight sees it at a given time. Results are cached by time.
pub struct VisibleGrid<'a> {
    grid: &'a RecordedGrid,
    foresight: Foresight,
    horizon: Seconds,
    outlooks: Mutex<BTreeMap<DateTime<Utc>, Arc<Outlook>>>,
    starts: Mutex<BTreeMap<DateTime<Utc>, Arc<StartForecast>>>,
    published: Mutex<BTreeMap<DateTime<Utc>, Arc<CarbonSeries>>>,
}

struct Outlook {
    slots: Vec<PlanSlot>,
    /// Errors of the forecasts that were made on earlier days.
    errors: ErrorPaths,
    /// The source's forecast for the present slot, without correction (with perfect foresight, the actual value);
    /// `None` without a source.
    uncorrected: Option<GramsPerKwh>,
}

impl<'a> VisibleGrid<'a> {
    /// Makes a view of the grid, in which a policy sees up to `horizon` ahead of the present time.
    pub fn new(grid: &'a RecordedGrid, foresight: Foresight, horizon: Seconds) -> Self {
        Self {
            grid,
            foresight,
            horizon,
            outlooks: Mutex::default(),
            starts: Mutex::default(),
            published: Mutex::default(),
        }
    }

    /// Returns the grid's name in results.
    pub fn name(&self) -> &'a str {
        &self.grid.name
    }

    /// Returns the grid's actual values, including future ones.
    pub fn actual(&self) -> &'a CarbonSeries {
        &self.grid.actual
    }

    /// Returns the slots with which the daemon would plan at `now`. They are contiguous, and the first one may have
    /// begun before `now`.
    pub fn expected(&self, now: DateTime<Utc>) -> Vec<PlanSlot> {
        self.outlook(now).slots.clone()
    }

    /// Returns the errors of the forecasts that were made on the days before `now`.
    pub fn errors(&self, now: DateTime<Utc>) -> ErrorPaths {
        self.outlook(now).errors.clone()
    }

    /// Returns the source's forecast for the slot of `now` as it was published, without correction; without a source,
    /// the value of [`Self::expected`] for this slot. `None` if neither is known. With perfect foresight, returns the
    /// actual value.
    pub fn uncorrected(&self, now: DateTime<Utc>) -> Option<GramsPerKwh> {
        let outlook = self.outlook(now);
        let expected = || outlook.slots.iter().find(|s| s.slot.contains(now)).map(|s| s.intensity);
        outlook.uncorrected.or_else(expected)
    }

    /// Returns the actual values from `now` to the end of the horizon. Only for policies with perfect foresight.
    pub fn future(&self, now: DateTime<Utc>) -> Vec<PlanSlot> {
        let span = Slot::new(now, later(now, self.horizon));
        let part = span.map(|span| self.grid.actual.within(&span)).unwrap_or_default();
        part.points().iter().map(|(slot, i)| PlanSlot { slot: *slot, intensity: i.value }).collect()
    }

    /// Returns the source's forecast as published by `now`, without correction; it is empty without a source. With
    /// perfect foresight, returns the actual values.
    pub fn published(&self, now: DateTime<Utc>) -> Arc<CarbonSeries> {
        cached(&self.published, now, || match self.foresight {
            Foresight::AsIssued => self.grid.forecast_by(now),
            Foresight::Nothing => CarbonSeries::default(),
            Foresight::Perfect => {
                let span = Slot::new(now, later(now, self.horizon));
                span.map(|span| self.grid.actual.within(&span)).unwrap_or_default()
            }
        })
    }

    /// Returns the actual values of the last 29 days before `now`.
    pub fn past_actuals(&self, now: DateTime<Utc>) -> CarbonSeries {
        self.grid.actual_by(now)
    }

    /// Returns the forecast with which the daemon would choose a start at `now`.
    pub fn start_forecast(&self, now: DateTime<Utc>) -> Arc<StartForecast> {
        cached(&self.starts, now, || match self.foresight {
            Foresight::Perfect => self.actual_horizon(now),
            Foresight::AsIssued | Foresight::Nothing => {
                let (forecast, model) = self.model(now);
                StartForecast::new(&model, &forecast, (now, later(now, self.horizon)), FALLBACK)
            }
        })
    }

    /// Returns the actual values from `now` to the end of the horizon as a forecast without errors. Only for policies
    /// with perfect foresight.
    pub fn actual_horizon(&self, now: DateTime<Utc>) -> StartForecast {
        let slot = |s: PlanSlot| HorizonSlot {
            slot: s.slot,
            intensity: s.intensity,
            low: s.intensity,
            high: s.intensity,
            basis: Basis::Given,
        };
        StartForecast::of_horizon(Horizon { slots: self.future(now).into_iter().map(slot).collect() })
    }

    /// Returns the forecasts published by `now`, and the daemon's model fitted to them and to the actual values.
    fn model(&self, now: DateTime<Utc>) -> (Arc<CarbonSeries>, Model) {
        let forecast = self.published(now);
        let issues = if self.foresight == Foresight::AsIssued { self.grid.issues_by(now) } else { Vec::new() };
        let model = Model::fit(&forecast, &issues, &self.grid.actual_by(now), now);
        (forecast, model)
    }

    fn outlook(&self, now: DateTime<Utc>) -> Arc<Outlook> {
        cached(&self.outlooks, now, || self.outlook_at(now))
    }

    fn outlook_at(&self, now: DateTime<Utc>) -> Outlook {
        if self.foresight == Foresight::Perfect {
            let slots = self.future(now);
            return Outlook { uncorrected: slots.first().map(|s| s.intensity), slots, errors: ErrorPaths::default() };
        }
        let (forecast, model) = self.model(now);
        let span = (now, later(now, self.horizon));
        let slots = slots_ahead(&model, &forecast, span, FALLBACK, &Settings::default());
        Outlook { slots, errors: model.error_paths(), uncorrected: forecast.at(now).map(|(_, i)| i.value) }
    }
}

fn later(t: DateTime<Utc>, seconds: Seconds) -> DateTime<Utc> {
    t.checked_add_signed(seconds.to_delta()).unwrap_or(DateTime::<Utc>::MAX_UTC)
}

/// Returns the value that is cached for a time, and makes it first if there is none.
fn cached<T>(cache: &Mutex<BTreeMap<DateTime<Utc>, Arc<T>>>, now: DateTime<Utc>, make: impl FnOnce() -> T) -> Arc<T> {
    let lock = || cache.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = lock().get(&now).cloned() {
        return known;
    }
    let made = Arc::new(make());
    lock().insert(now, Arc::clone(&made));
    made
}
