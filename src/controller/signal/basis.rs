//! What the present is reckoned with, and since when.

use chrono::{DateTime, TimeDelta, Utc};

use crate::providers::FeedState;
use wattune_core::domain::{CarbonSeries, Forecast, Origin, Slot};
use wattune_core::forecast::{Basis, HorizonPolicy, Model};
use wattune_core::time::{Monotonic, Now};
use wattune_core::units::{GramsPerKwh, Seconds};

/// Time between two looks at what the present rests on.
const LOOK: Seconds = Seconds::new(5.0);

/// What the present is reckoned with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::controller) enum BasisLevel {
    /// What the followed source says.
    Source,
    /// The local forecaster.
    Local,
    /// The last known shape of a day.
    DailyShape,
    /// The configured constant.
    Constant,
}

impl BasisLevel {
    pub(in crate::controller) fn name(self) -> &'static str {
        match self {
            Self::Source => "source",
            Self::Local => "local",
            Self::DailyShape => "daily_shape",
            Self::Constant => "constant",
        }
    }
}

/// What the present is reckoned with, and since when.
#[derive(Clone, Copy, Debug)]
pub(in crate::controller) struct SignalBasis {
    pub(in crate::controller) level: BasisLevel,
    pub(in crate::controller) source: Option<&'static str>,
    pub(in crate::controller) value: GramsPerKwh,
    /// For how long from now on it holds.
    pub(super) slot: Slot,
    pub(in crate::controller) since: DateTime<Utc>,
    looked_at: Option<Monotonic>,
}

impl SignalBasis {
    pub(in crate::controller) fn unknown(now: DateTime<Utc>, fallback: GramsPerKwh) -> Self {
        let slot = Slot::new(now, now + LOOK.to_delta()).expect("LOOK is more than nothing");
        Self { level: BasisLevel::Constant, source: None, value: fallback, slot, since: now, looked_at: None }
    }

    /// What `now` is reckoned with.
    pub(in crate::controller) fn of(
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
            // Nobody says anything about now: it is filled from other days or from around it.
            _ if forecast.is_none_or(|f| f.best_at(now).is_none()) => BasisLevel::DailyShape,
            // A constant that nobody chose is a source in form only.
            _ if forecast.is_some_and(made_up) => BasisLevel::Constant,
            _ => BasisLevel::Source,
        };
        let source = state.source().map(|s| s.source);
        Self { level, source, value: present.intensity, slot: present.slot, since: now, looked_at: None }
    }

    /// Whether it is time to look at the present again.
    pub(super) fn is_due(&self, now: Now) -> bool {
        self.looked_at.is_none_or(|at| now.monotonic.since(at) >= LOOK)
    }

    /// Has the present looked at again at once.
    pub(super) fn expire(&mut self) {
        self.looked_at = None;
    }

    /// Takes over what was found now; whether the present rests on another basis than before.
    pub(super) fn replace(&mut self, found: Self, now: Now) -> bool {
        let changed = (self.level, self.source) != (found.level, found.source);
        let since = if changed { now.utc } else { self.since };
        if changed {
            let (from, to, source) = (self.level.name(), found.level.name(), found.source);
            tracing::info!(from, to, source, "carbon signal: the present now rests on another basis");
        }
        *self = Self { since, looked_at: Some(now.monotonic), ..found };
        changed
    }
}
