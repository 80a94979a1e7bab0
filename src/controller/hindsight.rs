//! What the followed source expected of the present, and of the newest time of which it has told what came.

use super::Controller;
use super::show::spelled;
use super::signal::HORIZONS_H;
use super::view::{ForeseenView, OutcomeView};
use crate::store::{SourceKey, StoreError};
use wattune_core::domain::{Intensity, Slot};
use wattune_core::forecast::over_whole;
use wattune_core::units::Seconds;

/// Forecasts beside what they were about.
#[derive(Default)]
pub(super) struct Hindsight {
    /// What it was worked out for: nothing else can change it.
    about: Option<About>,
    /// What was expected of the present slot.
    pub(super) foreseen: Vec<ForeseenView>,
    /// The newest outcome.
    pub(super) outcome: Option<OutcomeView>,
}

#[derive(Clone, PartialEq)]
struct About {
    source: SourceKey,
    present: Option<Slot>,
    outcome: Option<(Slot, Intensity)>,
}

impl Controller {
    /// Looks up the forecasts of slots that have not been looked at.
    pub(super) async fn look_back(&mut self) {
        let now = self.now().utc;
        let about = self.forecast.as_deref().map(|forecast| About {
            source: SourceKey::of(forecast),
            present: forecast.best_at(now).map(|(slot, _)| slot),
            outcome: (forecast.actual.points().iter())
                .rfind(|(slot, i)| slot.start() <= now && i.origin.is_outcome())
                .copied(),
        });
        if self.hindsight.about == about {
            return;
        }
        match self.hindsight_of(about).await {
            Ok(hindsight) => self.hindsight = hindsight,
            Err(error) => self.note_store_fault(&error),
        }
    }

    async fn hindsight_of(&self, about: Option<About>) -> Result<Hindsight, StoreError> {
        let Some(About { source, present, outcome }) = &about else { return Ok(Hindsight::default()) };
        let foreseen = match present {
            Some(slot) => self.foreseen(source, slot).await?,
            None => Vec::new(),
        };
        let outcome = match outcome {
            Some((slot, intensity)) => Some(OutcomeView {
                start: slot.start(),
                end: slot.end(),
                intensity_g_per_kwh: intensity.value.get(),
                origin: spelled(&intensity.origin).unwrap_or_default(),
                foreseen: self.foreseen(source, slot).await?,
            }),
            None => None,
        };
        Ok(Hindsight { about, foreseen, outcome })
    }

    /// What was expected of a slot some time before it began, by the newest forecast that was at hand then.
    async fn foreseen(&self, source: &SourceKey, slot: &Slot) -> Result<Vec<ForeseenView>, StoreError> {
        let mut foreseen = Vec::new();
        for horizon_h in HORIZONS_H {
            let by = slot.start() - Seconds::new(horizon_h * 3600.0).to_delta();
            let issued = self.store.issued_by(source, by).await?;
            let expected = issued.and_then(|issued| over_whole(&issued.series, slot));
            foreseen.extend(expected.map(|g| ForeseenView { horizon_h, intensity_g_per_kwh: g.get() }));
        }
        Ok(foreseen)
    }
}
