//! Past forecasts for the present slot and for the latest slot with an actual value.

use chrono::{DateTime, Utc};

use super::HORIZONS_H;
use crate::controller::view::{ForeseenView, OutcomeView};
use crate::store::{SourceKey, Store, StoreError};
use wattune_core::domain::{Forecast, Intensity, Slot};
use wattune_core::forecast::mean_if_covered;
use wattune_core::units::Seconds;

/// Past forecasts of the active source.
#[derive(Default)]
pub(crate) struct PastForecasts {
    /// Key of the lookup: nothing else can change the result.
    about: Option<About>,
    /// Forecasts for the present slot.
    pub(crate) foreseen: Vec<ForeseenView>,
    /// Latest actual value with its forecasts.
    pub(crate) outcome: Option<OutcomeView>,
}

#[derive(Clone, PartialEq)]
struct About {
    source: SourceKey,
    present: Option<Slot>,
    outcome: Option<(Slot, Intensity)>,
}

impl PastForecasts {
    /// Looks up the forecasts if the slots changed.
    pub(super) async fn update(
        &mut self,
        forecast: Option<&Forecast>,
        store: &Store,
        now: DateTime<Utc>,
    ) -> Result<(), StoreError> {
        let about = forecast.map(|forecast| About {
            source: SourceKey::of(forecast),
            present: forecast.best_at(now).map(|(slot, _)| slot),
            outcome: (forecast.actual.points().iter())
                .rfind(|(slot, i)| slot.start() <= now && i.origin.is_actual())
                .copied(),
        });
        if self.about != about {
            *self = Self::of(about, store).await?;
        }
        Ok(())
    }

    async fn of(about: Option<About>, store: &Store) -> Result<Self, StoreError> {
        let Some(About { source, present, outcome }) = &about else { return Ok(Self::default()) };
        let foreseen = match present {
            Some(slot) => foreseen(source, slot, store).await?,
            None => Vec::new(),
        };
        let outcome = match outcome {
            Some((slot, intensity)) => Some(OutcomeView {
                start: slot.start(),
                end: slot.end(),
                intensity_g_per_kwh: intensity.value.get(),
                origin: intensity.origin.into(),
                foreseen: self::foreseen(source, slot, store).await?,
            }),
            None => None,
        };
        Ok(Self { about, foreseen, outcome })
    }
}

/// Returns the forecasts for a slot at each horizon before it began, by the newest forecast available then.
async fn foreseen(source: &SourceKey, slot: &Slot, store: &Store) -> Result<Vec<ForeseenView>, StoreError> {
    let mut foreseen = Vec::new();
    for horizon_h in HORIZONS_H {
        let by = slot.start() - Seconds::new(horizon_h * 3600.0).to_delta();
        let issued = store.issued_by(source, by).await?;
        let expected = issued.and_then(|issued| mean_if_covered(&issued.series, slot));
        foreseen.extend(expected.map(|g| ForeseenView { horizon_h, intensity_g_per_kwh: g.get() }));
    }
    Ok(foreseen)
}
