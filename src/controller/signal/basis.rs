//! Basis of the signal's present value: the active source, the local forecaster, a daily shape or the constant.

use chrono::{DateTime, TimeDelta, Utc};
use serde::Serialize;
use utoipa::ToSchema;

use crate::providers::FeedState;
use wattune_core::domain::{CarbonSeries, Forecast, Origin, Slot};
use wattune_core::forecast::{Basis, HorizonPolicy, Model};
use wattune_core::time::{Monotonic, Now};
use wattune_core::units::{GramsPerKwh, Seconds};

/// Time between two updates of the basis.
const UPDATE_PERIOD: Seconds = Seconds::new(5.0);

/// Basis of the present value: a `source` (corrected), the `local` forecaster, the last known shape of a day
/// (`daily_shape`) or the configured `constant`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum BasisLevel {
    /// A source, corrected.
    Source,
    /// The local forecaster.
    Local,
    /// Last known shape of a day.
    DailyShape,
    /// Configured constant.
    Constant,
}

impl BasisLevel {
    /// Returns its name in the API and in labels.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Source => "source",
            Self::Local => "local",
            Self::DailyShape => "daily_shape",
            Self::Constant => "constant",
        }
    }
}

/// Basis of the present value, and since when.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SignalBasis {
    pub(crate) level: BasisLevel,
    pub(crate) source: Option<&'static str>,
    pub(crate) value: GramsPerKwh,
    /// Slot for which it holds.
    pub(super) slot: Slot,
    pub(crate) since: DateTime<Utc>,
    looked_at: Option<Monotonic>,
}

impl SignalBasis {
    pub(crate) fn unknown(now: DateTime<Utc>, fallback: GramsPerKwh) -> Self {
        let slot = Slot::new(now, now + UPDATE_PERIOD.to_delta()).expect("UPDATE_PERIOD is more than nothing");
        Self { level: BasisLevel::Constant, source: None, value: fallback, slot, since: now, looked_at: None }
    }

    /// Returns the basis of the value at `now`.
    pub(crate) fn of(
        model: &Model,
        forecast: Option<&Forecast>,
        state: &FeedState,
        fallback: GramsPerKwh,
        now: DateTime<Utc>,
    ) -> Self {
        let policy = HorizonPolicy { fallback, ..HorizonPolicy::default() };
        let nothing = CarbonSeries::default();
        let expected = forecast.map_or(&nothing, |f| &f.expected);
        let horizon = model.outlook(expected, now, now + TimeDelta::hours(1), &policy);
        let Some(present) = horizon.slots.first() else { return Self::unknown(now, fallback) };
        let made_up = |f: &Forecast| f.best_at(now).is_some_and(|(_, i)| i.origin == Origin::Fallback);
        let level = match present.basis {
            Basis::Local => BasisLevel::Local,
            Basis::DailyShape => BasisLevel::DailyShape,
            Basis::Constant => BasisLevel::Constant,
            // No source covers the present: it is filled from other days or from around it.
            _ if forecast.is_none_or(|f| f.best_at(now).is_none()) => BasisLevel::DailyShape,
            // A constant that nobody chose is a source in form only.
            _ if forecast.is_some_and(made_up) => BasisLevel::Constant,
            _ => BasisLevel::Source,
        };
        let source = state.source().map(|s| s.source);
        Self { level, source, value: present.intensity, slot: present.slot, since: now, looked_at: None }
    }

    /// Returns whether an update is due.
    pub(super) fn is_due(&self, now: Now) -> bool {
        self.looked_at.is_none_or(|at| now.monotonic.since(at) >= UPDATE_PERIOD)
    }

    /// Makes an update due at once.
    pub(super) fn expire(&mut self) {
        self.looked_at = None;
    }

    /// Replaces the basis. Returns whether its kind or source changed.
    pub(super) fn replace(&mut self, basis: Self, now: Now) -> bool {
        let changed = (self.level, self.source) != (basis.level, basis.source);
        let since = if changed { now.utc } else { self.since };
        if changed && (self.level != basis.level || basis.level != BasisLevel::Constant) {
            let (from, to, source) = (self.level.as_str(), basis.level.as_str(), basis.source);
            tracing::info!(from, to, source, "carbon signal changed");
        }
        *self = Self { since, looked_at: Some(now.monotonic), ..basis };
        changed
    }
}
