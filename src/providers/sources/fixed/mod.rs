//! A source of one constant carbon intensity, for grids without another source.

mod settings;

use std::sync::Arc;

use chrono::{DateTime, DurationRound, TimeDelta, Utc};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;

pub use self::settings::Settings;
use super::descriptor::{Descriptor, Table};
use crate::providers::client::SharedSettings;
use crate::providers::error::{ProviderError, SettingsError};
use crate::providers::provider::{Answer, Provider};
use wattune_core::domain::{CarbonSeries, Forecast, Intensity, Origin, SignalKind, SignalScope, Slot, Zone};
use wattune_core::units::{GramsPerKwh, Seconds};

pub(super) const DESCRIPTOR: Descriptor = Descriptor {
    name: "fixed",
    summary: None,
    rank: None,
    countries: &[],
    #[cfg(any(test, feature = "fuzzing"))]
    fuzz: &[],
};

impl Table for Settings {
    fn build(&self, shared: &SharedSettings<'_>) -> Result<Arc<dyn Provider>, SettingsError> {
        Ok(Arc::new(FixedProvider::new(self, shared)))
    }
}

/// A source of one constant carbon intensity. With this source, no time is better to plan for than another, but
/// emissions can be computed.
#[derive(Debug)]
pub struct FixedProvider {
    value: GramsPerKwh,
    /// True if the settings name the value; false if it is the fallback.
    chosen: bool,
    zone: Zone,
    cadence: Seconds,
}

impl FixedProvider {
    /// Makes the source. The carbon intensity is that of `[carbon.fixed]`, else `carbon.fallback_g_per_kwh`.
    pub fn new(own: &Settings, shared: &SharedSettings<'_>) -> Self {
        Self {
            value: own.g_per_kwh.unwrap_or(shared.fallback),
            chosen: own.g_per_kwh.is_some(),
            zone: shared.zone.cloned().unwrap_or_else(|| Zone::new("fixed").expect("a plain word")),
            cadence: shared.poll_interval.unwrap_or(Seconds::new(3600.0)),
        }
    }

    fn answer(&self, now: DateTime<Utc>) -> Answer {
        let hour = now.duration_trunc(TimeDelta::hours(1)).unwrap_or(now);
        let slots = |from: i64, to: i64, origin: Origin| {
            let origin = if self.chosen { origin } else { Origin::Fallback };
            let start = |h: i64| hour + TimeDelta::hours(h);
            let slots = (from..to).filter_map(|h| Slot::new(start(h), start(h + 1)));
            CarbonSeries::from_points(slots.map(|slot| (slot, Intensity { value: self.value, origin })).collect()).0
        };
        let forecast = Forecast {
            zone: self.zone.clone(),
            source: self.source().to_owned(),
            kind: SignalKind::Unspecified,
            scope: SignalScope::Unspecified,
            issued_at: now,
            retrieved_at: now,
            provenance: Default::default(),
            expected: slots(-24, 48, Origin::Forecast),
            actual: slots(-24, 0, Origin::Estimated),
        };
        forecast.into()
    }
}

impl Provider for FixedProvider {
    fn source(&self) -> &'static str {
        "fixed"
    }

    fn zone(&self) -> Zone {
        self.zone.clone()
    }

    fn cadence(&self) -> Seconds {
        self.cadence
    }

    fn is_constant(&self) -> bool {
        true
    }

    /// Returns false: the value is in the settings, so nothing needs to be stored.
    fn keeps_answers(&self) -> bool {
        false
    }

    fn fetch(&self, now: DateTime<Utc>) -> BoxFuture<'_, Result<Answer, ProviderError>> {
        std::future::ready(Ok(self.answer(now))).boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::providers::CarbonSettings;

    #[tokio::test]
    async fn a_constant_has_its_origin() {
        let now = DateTime::UNIX_EPOCH + TimeDelta::minutes(1_000_030);
        let settings = CarbonSettings::default();
        let answer =
            FixedProvider::new(&settings.fixed, &settings.shared(None)).fetch(now).await.expect("always answers");
        let (_, best) = answer.forecast.best_at(now).expect("covers now");
        assert_eq!((best.value, best.origin), (GramsPerKwh::new(475.0), Origin::Fallback));

        let fixed = Settings { g_per_kwh: Some(GramsPerKwh::new(20.0)) };
        let answer = FixedProvider::new(&fixed, &settings.shared(None)).fetch(now).await.expect("always answers");
        let forecast = answer.forecast;
        assert_eq!(forecast.best_at(now).expect("covers now").1.origin, Origin::Forecast);
        assert_eq!(forecast.actual.end(), forecast.expected.at(now).map(|(slot, _)| slot.start()));
        assert_eq!(forecast.actual.points()[0].1.origin, Origin::Estimated);
    }
}
