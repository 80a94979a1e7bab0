//! Basis of the current carbon intensity: the active source, the local forecaster, a daily profile or the constant.

use chrono::{DateTime, TimeDelta, Utc};
use serde::Serialize;
use utoipa::ToSchema;

use crate::providers::FeedState;
use wattune_core::domain::{CarbonSeries, Forecast, Origin, Slot};
use wattune_core::forecast::{Basis, Model};
use wattune_core::time::{Monotonic, Now};
use wattune_core::units::{GramsPerKwh, Seconds};

/// Time between two checks of which slots have begun.
const UPDATE_PERIOD: Seconds = Seconds::new(5.0);

/// Time for which a basis is kept within its slot: values age so slowly that computing the basis anew more often changes
/// nothing.
const KEPT: Seconds = Seconds::new(60.0);

/// Basis of the current carbon intensity: a `source` (corrected for the source's recent errors), the `local`
/// forecaster, the profile of earlier days (`daily_shape`) or the configured `constant`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum BasisLevel {
    /// A source published the value; it is corrected for the source's recent errors.
    Source,
    /// The local forecaster made the value from actual values at most a day old.
    Local,
    /// The value comes from the daily profile of older actual values, or of forecasts of other days.
    DailyShape,
    /// The value is the configured constant, for lack of any data.
    Constant,
}

impl BasisLevel {
    /// Returns the basis's name in the API and in metric labels.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Source => "source",
            Self::Local => "local",
            Self::DailyShape => "daily_shape",
            Self::Constant => "constant",
        }
    }
}

/// Current carbon intensity with its basis, and the time since which this basis applies.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SignalBasis {
    pub(crate) level: BasisLevel,
    pub(crate) source: Option<&'static str>,
    pub(crate) value: GramsPerKwh,
    /// Slot to which the value applies.
    pub(super) slot: Slot,
    pub(crate) since: DateTime<Utc>,
    checked_at: Option<Monotonic>,
    computed_at: Option<Monotonic>,
}

impl SignalBasis {
    pub(crate) fn unknown(now: DateTime<Utc>, fallback: GramsPerKwh) -> Self {
        let slot = Slot::new(now, now + UPDATE_PERIOD.to_delta()).expect("UPDATE_PERIOD is more than nothing");
        Self {
            level: BasisLevel::Constant,
            source: None,
            value: fallback,
            slot,
            since: now,
            checked_at: None,
            computed_at: None,
        }
    }

    /// Returns the intensity at `now` and its basis.
    pub(crate) fn of(
        model: &Model,
        forecast: Option<&Forecast>,
        state: &FeedState,
        fallback: GramsPerKwh,
        now: DateTime<Utc>,
    ) -> Self {
        let nothing = CarbonSeries::default();
        let expected = forecast.map_or(&nothing, |f| &f.expected);
        let horizon = model.outlook(expected, now, now + TimeDelta::hours(1), fallback);
        let Some(present) = horizon.slots.first() else { return Self::unknown(now, fallback) };
        let made_up = |f: &Forecast| f.best_at(now).is_some_and(|(_, i)| i.origin == Origin::Fallback);
        let level = match present.basis {
            Basis::Local => BasisLevel::Local,
            Basis::DailyShape => BasisLevel::DailyShape,
            Basis::Constant => BasisLevel::Constant,
            // No source covers the current slot: its value is filled from other days or from neighbouring slots.
            _ if forecast.is_none_or(|f| f.best_at(now).is_none()) => BasisLevel::DailyShape,
            // The source's value was filled in by wattune, so that the source says nothing about the current slot.
            _ if forecast.is_some_and(made_up) => BasisLevel::Constant,
            _ => BasisLevel::Source,
        };
        let source = state.source().map(|s| s.source);
        Self {
            level,
            source,
            value: present.intensity,
            slot: present.slot,
            since: now,
            checked_at: None,
            computed_at: None,
        }
    }

    /// Returns whether an update of the basis is due.
    pub(super) fn is_due(&self, now: Now) -> bool {
        self.checked_at.is_none_or(|at| now.monotonic.since(at) >= UPDATE_PERIOD)
    }

    /// Makes an update of the basis due at once.
    pub(super) fn expire(&mut self) {
        (self.checked_at, self.computed_at) = (None, None);
    }

    /// Returns whether the basis must be computed anew: its slot is over, or it is old. Records the time of this check.
    pub(super) fn needs_update(&mut self, now: Now) -> bool {
        self.checked_at = Some(now.monotonic);
        !self.slot.contains(now.utc) || self.computed_at.is_none_or(|at| now.monotonic.since(at) >= KEPT)
    }

    /// Replaces the basis. Returns whether the new basis has another level or another source than the old one.
    pub(super) fn replace(&mut self, basis: Self, now: Now) -> bool {
        let changed = (self.level, self.source) != (basis.level, basis.source);
        let since = if changed { now.utc } else { self.since };
        if changed && (self.level != basis.level || basis.level != BasisLevel::Constant) {
            let (from, to, source) = (self.level.as_str(), basis.level.as_str(), basis.source);
            tracing::info!(from, to, source, "basis of the carbon intensity changed");
        }
        *self = Self { since, checked_at: Some(now.monotonic), computed_at: Some(now.monotonic), ..basis };
        changed
    }
}
