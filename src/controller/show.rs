//! Views of the controller's state.

mod job;

use chrono::{DateTime, TimeDelta, Utc};

pub(super) use job::ended_view;

use super::view::{CarbonView, IntensityView, StatusView};
use super::{ControlError, Controller};
use crate::domain::Slot;
use crate::providers::Freshness;
use crate::units::Seconds;

impl Controller {
    /// The daemon as a whole.
    pub fn status(&self) -> StatusView {
        let gpus = self.gpus();
        StatusView {
            version: env!("CARGO_PKG_VERSION"),
            mode: if self.settings.observe { "observe" } else { "control" },
            simulated: !gpus.is_empty() && gpus.iter().all(|g| g.simulated),
            started_at: self.started_at,
            now: self.now().utc,
            carbon: self.carbon_now(),
            problems: self.problems(),
            gpus,
            jobs: self.jobs(),
        }
    }

    /// The carbon signal now.
    pub fn carbon_now(&self) -> CarbonView {
        let now = self.now().utc;
        let state = self.signal.borrow();
        let forecast = self.forecast.as_deref();
        let present = forecast.and_then(|f| f.best_at(now)).map(|(_, i)| i);
        let freshness = state.freshness(now);
        let ahead = now + TimeDelta::hours(24);
        let shown = state.source().or(state.sources.first());
        let mut notes = shown.map(|s| s.notes.clone()).unwrap_or_default();
        if forecast.is_some() {
            let filled = self.outlook_summary(now, ahead);
            notes.extend(filled);
        } else {
            notes.push(format!("no forecast; planning with {} throughout", self.carbon.fallback_g_per_kwh));
        }
        CarbonView {
            zone: forecast.map(|f| f.zone.to_string()),
            source: forecast.map(|f| f.source.clone()),
            kind: forecast.and_then(|f| spelled(&f.kind)),
            scope: forecast.and_then(|f| spelled(&f.scope)),
            intensity_g_per_kwh: present.map(|i| i.value.get()),
            origin: present.and_then(|i| spelled(&i.origin)),
            freshness: match freshness {
                Freshness::Fresh => "fresh",
                Freshness::Stale { .. } => "stale",
                Freshness::None => "none",
            }
            .into(),
            stale_since: match freshness {
                Freshness::Stale { since } => Some(since),
                _ => None,
            },
            fetched_at: shown.and_then(|s| s.fetched_at),
            next_poll_at: shown.map(|s| s.next_poll_at),
            last_error: shown.and_then(|s| s.last_error.clone()),
            followed: forecast.map(|_| self.followed()),
            fallback_g_per_kwh: self.carbon.fallback_g_per_kwh.get(),
            notes,
        }
    }

    /// What is expected of the grid from now on, two days at most.
    pub fn carbon_forecast(&self) -> Vec<IntensityView> {
        self.expected_series(48)
            .into_iter()
            .map(|(slot, value, origin)| IntensityView {
                start: slot.start(),
                end: slot.end(),
                intensity_g_per_kwh: value.get(),
                origin: spelled(&origin).unwrap_or_default(),
            })
            .collect()
    }

    /// What is known of the grid's past hours.
    ///
    /// # Errors
    /// If the database cannot be read, or `hours` is not within 0 to a year.
    pub async fn carbon_history(&self, hours: f64) -> Result<Vec<IntensityView>, ControlError> {
        if !(hours > 0.0 && hours <= 8784.0) {
            let why = format!("is {hours}; it must be more than 0 and at most 8784 (a year)");
            return Err(ControlError::Invalid(crate::domain::InvalidJob { field: "hours", why }));
        }
        let now = self.now().utc;
        let span = Slot::new(now - Seconds::new(hours * 3600.0).to_delta(), now);
        let (Some(span), Some(forecast)) = (span, &self.forecast) else { return Ok(Vec::new()) };
        let series = self.store.intensities(&forecast.zone, &forecast.source, &span).await?.within(&span);
        let point = |(slot, i): &(Slot, crate::domain::Intensity)| IntensityView {
            start: slot.start(),
            end: slot.end(),
            intensity_g_per_kwh: i.value.get(),
            origin: spelled(&i.origin).unwrap_or_default(),
        };
        Ok(series.points().iter().map(point).collect())
    }

    fn outlook_summary(&self, now: DateTime<Utc>, until: DateTime<Utc>) -> Option<String> {
        let forecast = self.forecast.as_ref()?;
        let horizon = self.model.outlook(&forecast.expected, now, until, &crate::forecast::HorizonPolicy::default());
        let summary = horizon.summary();
        let made_up = horizon.slots.len() - summary.given - summary.corrected;
        (made_up > 0).then(|| format!("the next 24 h: {summary}"))
    }
}

/// A unit variant as serde spells it.
fn spelled<T: serde::Serialize>(value: &T) -> Option<String> {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(text)) => Some(text),
        _ => None,
    }
}
