//! Builders of the carbon signal in whole slots (time steps), for programs that take the daemon for a carbon source.

use chrono::{DateTime, DurationRound, TimeDelta, Utc};

use crate::controller::error::ControlError;
use crate::controller::snapshot::Snapshot;
use crate::controller::view::{CarbonSlot, SlotsAhead};
use wattune_core::domain::{CarbonSeries, Slot};
use wattune_core::forecast::{Basis, Horizon, HorizonSlot};

/// Minimum length of the forecast.
const AHEAD: TimeDelta = TimeDelta::hours(48);
/// Maximum length of the forecast, also of a source that publishes more.
const FARTHEST: TimeDelta = TimeDelta::days(8);
const HOUR: TimeDelta = TimeDelta::hours(1);
/// Longest slot that a source publishes; slots that begin this long before a span may reach into it.
const LONGEST_SLOT: TimeDelta = TimeDelta::days(1);

impl Snapshot<'_> {
    /// Returns the forecast that plans use, from the present slot on and in whole slots.
    pub(crate) fn carbon_slots_ahead(&self) -> SlotsAhead {
        let now = self.now.utc;
        let state = self.signal.state();
        let Some(forecast) = self.signal.forecast() else { return SlotsAhead::empty(now) };
        let published = &forecast.expected;
        let hours = (now + AHEAD).duration_trunc(HOUR).unwrap_or(now + AHEAD);
        let until = published.end().map_or(hours, |end| end.clamp(hours, (now + FARTHEST).max(hours)));
        let Horizon { slots } = self.signal.model().outlook(published, now, until, self.signal.fallback());
        let known = slots.iter().filter(|s| s.basis != Basis::Constant);
        SlotsAhead {
            now,
            zone: Some(forecast.zone.to_string()),
            // The model is fitted anew to each response, whether or not the source has issued another forecast.
            generated_at: state.source().and_then(|s| s.fetched_at).unwrap_or(forecast.issued_at).min(now),
            slots: known.map(|s| whole_slot(s, published, now)).collect(),
        }
    }

    /// Returns the actual carbon intensities of the slots that overlap `span`, in whole slots, oldest first.
    pub(crate) async fn carbon_actuals(&self, span: Slot) -> Result<Vec<CarbonSlot>, ControlError> {
        let now = self.now.utc;
        let Some(wider) = Slot::new(span.start() - LONGEST_SLOT, span.end() + LONGEST_SLOT) else {
            return Ok(Vec::new());
        };
        let series = self.intensities().best(&wider).await?;
        // Values of a generated grid have the same origin before and after their time.
        let is_actual = |slot: &Slot, origin: wattune_core::domain::Origin| {
            origin.is_measured() && slot.start() < now || origin.is_actual() && slot.end() <= now
        };
        let actual = series.overlapping(&span).iter().filter(|(slot, i)| is_actual(slot, i.origin));
        Ok(actual.map(|(slot, i)| CarbonSlot { slot: *slot, g_per_kwh: i.value.get() }).collect())
    }
}

/// Returns a slot of a horizon, which is cut off at `now`, with its whole length: that of the published slot, else an
/// hour.
fn whole_slot(slot: &HorizonSlot, published: &CarbonSeries, now: DateTime<Utc>) -> CarbonSlot {
    let (start, end) = (slot.slot.start(), slot.slot.end());
    let hour_before = if end - start < HOUR { end - HOUR } else { start };
    let begun = published.at(start).map_or(hour_before, |(slot, _)| slot.start());
    let start = if start == now { begun } else { start };
    CarbonSlot { slot: Slot::new(start, end).unwrap_or(slot.slot), g_per_kwh: slot.intensity.get() }
}
