//! Storage of the responses of the carbon feed's sources: each is stored once, as received.

use std::sync::Arc;

use chrono::{DateTime, TimeDelta, Utc};

use super::accounting_series::{changes, withdrawn};
use crate::controller::planning::ReplanReason;
use crate::providers::{Contribution, SourceState};
use crate::store::{SourceKey, Store, StoreError};
use wattune_core::domain::{CarbonSeries, Forecast, Intensity, Origin, Slot};

/// Changes of the carbon signal since the last tick that affect the ledger, the jobs and the plans.
#[derive(Debug, Default)]
pub(crate) struct SignalUpdate {
    /// Slots with new or withdrawn actual values. The emissions of their hours are computed again, both in the ledger
    /// and for running jobs.
    pub(crate) reported: Vec<Slot>,
    /// Slots whose value in the ledger's series (`AccountingSeries`) has changed. The emissions of their hours are
    /// computed again for running jobs.
    pub(crate) revised: Vec<Slot>,
    /// True if the ledger's series has other sources than before. The emissions of all hours are then computed again
    /// for running jobs.
    pub(crate) is_other_series: bool,
    /// Hours whose values a source has declared final.
    pub(crate) finalised: Vec<Slot>,
    /// True if the signal has received its first forecast since the daemon's start.
    pub(crate) is_first: bool,
    /// Reason to plan every job again, if there is one.
    pub(crate) replan: Option<ReplanReason>,
    /// Failed reads and writes of the store.
    pub(crate) faults: Vec<StoreError>,
}

/// Newest response of one source that was stored, with the times up to which values were stored.
#[derive(Default)]
pub(super) struct StoredResponses {
    forecast: Option<Arc<Forecast>>,
    issued: Option<Arc<Forecast>>,
    final_until: Option<DateTime<Utc>>,
    /// True once the actual values that an earlier daemon stored were compared with a response, to find those that the
    /// source withdrew meanwhile.
    is_compared: bool,
    /// Time up to which the forecast value of each slot that has begun is stored.
    begun_until: Option<DateTime<Utc>>,
}

impl StoredResponses {
    /// Stores what is new in a source's response: actual values with their provenance, its newest forecast as issued,
    /// and the time up to which values are final.
    pub(super) async fn store_new(
        &mut self,
        source: &SourceState,
        store: &Store,
        now: DateTime<Utc>,
        update: &mut SignalUpdate,
    ) -> Result<(), StoreError> {
        let Some(newest) = &source.forecast else { return Ok(()) };
        if self.forecast.as_ref().is_none_or(|before| !Arc::ptr_eq(before, newest)) {
            self.store_actuals(newest, source, store, update).await?;
        }
        let issued = source.issued.as_ref().filter(|i| !i.expected.is_empty());
        if let Some(issued) = issued
            && self.issued.as_ref().is_none_or(|before| before.expected != issued.expected)
        {
            store.append_issued(issued).await?;
            self.issued = Some(Arc::clone(issued));
        }
        // A clock that ran ahead has left a time that lies ahead, too.
        let latest = now - source.final_after.to_delta();
        if source.final_until != self.final_until
            && let Some(until) = source.final_until.map(|until| until.min(latest))
        {
            let key = SourceKey::of(newest);
            let before = store.final_until(&key).await?.map(|before| before.min(latest));
            let hours = store.unsettled_hours(before.unwrap_or_default() - TimeDelta::hours(1)).await?;
            // Last, so that the hours are read again if that fails.
            store.set_final_until(&key, until, latest).await?;
            let hours = hours.into_iter().filter(|hour| *hour < until);
            update.finalised.extend(hours.filter_map(|hour| Slot::new(hour, hour + TimeDelta::hours(1))));
            self.final_until = source.final_until;
        }
        Ok(())
    }

    async fn store_actuals(
        &mut self,
        newest: &Arc<Forecast>,
        source: &SourceState,
        store: &Store,
        update: &mut SignalUpdate,
    ) -> Result<(), StoreError> {
        let before = self.forecast.as_ref().filter(|b| SourceKey::of(b) == SourceKey::of(newest));
        let mut actual = changes(&newest.actual, before.map(|b| &b.actual));
        let mut withdrawn = before.map(|before| withdrawn(&before.actual, newest)).unwrap_or_default();
        let was_compared = before.is_some() && self.is_compared;
        // The response lacks its quarantined values, although the source has not withdrawn them.
        let is_comparable = source.quarantined.is_none();
        // A source that was not asked for actual values cannot have withdrawn any.
        if !was_compared && is_comparable && source.contributes != Contribution::Forecast {
            let since = withdrawn_since(newest, store).await?;
            withdrawn.retain(|point| !since.contains(point));
            withdrawn.extend(since);
        }
        if before.is_none() {
            actual = not_stored(newest, actual, store).await?;
            self.begun_until = None;
        }
        store.withdraw_intensities(newest, &withdrawn).await?;
        store.append_intensities(newest, &actual).await?;
        update.reported.extend(actual.iter().chain(&withdrawn).map(|(slot, _)| *slot));
        self.is_compared = was_compared || is_comparable;
        self.forecast = Some(Arc::clone(newest));
        Ok(())
    }

    /// Stores the forecast value of each slot once the slot has begun, since an actual value may never be published.
    /// Values for later slots are stored only within the forecasts as issued.
    pub(super) async fn store_begun(&mut self, now: DateTime<Utc>, store: &Store) -> Result<(), StoreError> {
        let Some(forecast) = &self.forecast else { return Ok(()) };
        let points = forecast.expected.points();
        let from = self.begun_until.map_or(0, |until| points.partition_point(|(slot, _)| slot.start() <= until));
        let to = points.partition_point(|(slot, _)| slot.start() <= now);
        let mut begun = points.get(from..to).unwrap_or_default().to_vec();
        // For a generated (synthetic) grid, storing the forecast would replace the slot's actual value in the store.
        let is_known = |slot: &Slot| forecast.actual.at(slot.start()).is_some();
        begun.retain(|(slot, i)| !is_known(slot) || (self.begun_until.is_some() && i.origin != Origin::Synthetic));
        if self.begun_until.is_none() {
            begun = not_stored(forecast, begun, store).await?;
        }
        if !begun.is_empty() {
            store.append_intensities(forecast, &begun).await?;
        }
        self.begun_until = Some(now);
        Ok(())
    }
}

/// Returns the points that the store does not have. An earlier daemon may have stored the other points already, if the
/// response comes from the cache.
async fn not_stored(
    newest: &Forecast,
    points: Vec<(Slot, Intensity)>,
    store: &Store,
) -> Result<Vec<(Slot, Intensity)>, StoreError> {
    let span = points.first().zip(points.last()).and_then(|(a, b)| Slot::new(a.0.start(), b.0.end()));
    let Some(span) = span else { return Ok(points) };
    let stored = store.intensities(&[SourceKey::of(newest)], &span).await?;
    Ok(points.into_iter().filter(|p| stored.at(p.0.start()) != Some(p)).collect())
}

/// Returns actual values stored by an earlier daemon that a source no longer publishes.
async fn withdrawn_since(newest: &Forecast, store: &Store) -> Result<Vec<(Slot, Intensity)>, StoreError> {
    let covered = if newest.actual.is_empty() { &newest.expected } else { &newest.actual };
    let span = covered.start().zip(covered.end()).and_then(|(start, end)| Slot::new(start, end));
    let Some(span) = span else { return Ok(Vec::new()) };
    let stored = store.intensities(&[SourceKey::of(newest)], &span).await?;
    let actual = stored.points().iter().filter(|(_, i)| i.origin.is_actual()).copied().collect();
    Ok(withdrawn(&CarbonSeries::from_points(actual).0, newest))
}
