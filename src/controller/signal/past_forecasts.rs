//! Past forecasts for the current slot (time step of the carbon signal) and for the latest slot with an actual value.

use chrono::{DateTime, Utc};

use super::HORIZONS_H;
use crate::controller::view::{ActualView, PastForecastView};
use crate::store::{SourceKey, Store, StoreError};
use wattune_core::domain::{Forecast, Intensity, Slot};
use wattune_core::forecast::mean_if_covered;
use wattune_core::units::Seconds;

/// Past forecasts of the active source.
#[derive(Default)]
pub(crate) struct PastForecasts {
    /// Key of the last lookup: the forecasts are looked up again only if the key changes.
    key: Option<LookupKey>,
    /// Past forecasts for the current slot.
    pub(crate) of_present: Vec<PastForecastView>,
    /// Latest actual value with the past forecasts for its slot.
    pub(crate) outcome: Option<ActualView>,
}

#[derive(Clone, PartialEq)]
struct LookupKey {
    source: SourceKey,
    present: Option<Slot>,
    outcome: Option<(Slot, Intensity)>,
}

impl PastForecasts {
    /// Looks up the past forecasts if the source, the slots or the latest actual value changed.
    pub(super) async fn update(
        &mut self,
        forecast: Option<&Forecast>,
        store: &Store,
        now: DateTime<Utc>,
    ) -> Result<(), StoreError> {
        let key = forecast.map(|forecast| LookupKey {
            source: SourceKey::of(forecast),
            present: forecast.best_at(now).map(|(slot, _)| slot),
            outcome: (forecast.actual.points().iter())
                .rfind(|(slot, i)| slot.start() <= now && i.origin.is_actual())
                .copied(),
        });
        if self.key != key {
            *self = Self::of(key, store).await?;
        }
        Ok(())
    }

    async fn of(key: Option<LookupKey>, store: &Store) -> Result<Self, StoreError> {
        let Some(LookupKey { source, present, outcome }) = &key else { return Ok(Self::default()) };
        let of_present = match present {
            Some(slot) => lookup(source, slot, store).await?,
            None => Vec::new(),
        };
        let outcome = match outcome {
            Some((slot, intensity)) => Some(ActualView {
                start: slot.start(),
                end: slot.end(),
                intensity_g_per_kwh: intensity.value.get(),
                origin: intensity.origin.into(),
                past_forecasts: lookup(source, slot, store).await?,
            }),
            None => None,
        };
        Ok(Self { key, of_present, outcome })
    }
}

/// Returns, for each horizon of h hours in `HORIZONS_H`, the value that the newest forecast available h hours before
/// the slot's start had for the slot. Omits horizons for which no such forecast is stored.
async fn lookup(source: &SourceKey, slot: &Slot, store: &Store) -> Result<Vec<PastForecastView>, StoreError> {
    let mut forecasts = Vec::new();
    for horizon_h in HORIZONS_H {
        let by = slot.start() - Seconds::new(horizon_h * 3600.0).to_delta();
        let issued = store.issued_by(source, by).await?;
        let expected = issued.and_then(|issued| mean_if_covered(&issued.series, slot));
        forecasts.extend(expected.map(|g| PastForecastView { horizon_h, intensity_g_per_kwh: g.get() }));
    }
    Ok(forecasts)
}
