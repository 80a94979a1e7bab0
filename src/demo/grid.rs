//! Carbon-intensity grids for the demo: a generated grid, and a source that replays any grid.

use chrono::{DateTime, TimeDelta, Timelike, Utc};
use futures_util::future::BoxFuture;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, StandardNormal};

use crate::providers::{Answer, Provider, ProviderError};
use wattune_core::domain::{
    CarbonSeries, Forecast, Intensity, Origin, SignalKind, SignalScope, Slot, TimeSeries, Zone,
};
use wattune_core::units::{GramsPerKwh, Seconds};

/// A generated grid of no real place, with a solar dip, an evening peak and weather. Its values are labelled synthetic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SyntheticGrid {
    /// The seed of the random values; the same seed gives the same grid.
    pub seed: u64,
}

const STEP: TimeDelta = TimeDelta::minutes(30);

impl SyntheticGrid {
    /// Returns first the forecast and second the actual values of carbon intensity, from `start` on for `span`.
    pub fn generate(self, start: DateTime<Utc>, span: Seconds) -> (CarbonSeries, CarbonSeries) {
        let mut rng = ChaCha8Rng::seed_from_u64(self.seed);
        let mut normal = move || -> f64 { StandardNormal.sample(&mut rng) };
        let (mut weather, mut surprise, mut at) = (0.0_f64, 0.0_f64, start);
        let (mut expected, mut actual) = (TimeSeries::default(), TimeSeries::default());
        while at < start + span.to_delta() {
            let hour = f64::from(at.hour()) + f64::from(at.minute()) / 60.0;
            weather = 0.98 * weather + 0.2 * normal();
            surprise = 0.9 * surprise + 0.25 * normal();
            let bump = |centre: f64, width: f64| (-((hour - centre) / width).powi(2)).exp();
            let forecast = 320.0 - 130.0 * bump(12.5, 3.5) + 90.0 * bump(19.5, 2.5) + 30.0 * weather;
            let value = |g: f64, origin| Intensity { value: GramsPerKwh::new(g.max(20.0)), origin };
            if let Some(slot) = Slot::new(at, at + STEP) {
                expected.insert(slot, value(forecast, Origin::Synthetic));
                actual.insert(slot, value(forecast + 12.0 * surprise, Origin::Synthetic));
            }
            at += STEP;
        }
        (expected, actual)
    }
}

/// A carbon source that replays a recorded or generated grid: forecasts are available from the start, actual values
/// once their slots have passed.
pub struct TraceProvider {
    source: &'static str,
    zone: Zone,
    kind: SignalKind,
    scope: SignalScope,
    expected: CarbonSeries,
    actual: CarbonSeries,
}

impl TraceProvider {
    /// Creates a source of this name that replays the grid for `zone`.
    pub fn new(
        source: &'static str,
        zone: Zone,
        (kind, scope): (SignalKind, SignalScope),
        expected: CarbonSeries,
        actual: CarbonSeries,
    ) -> Self {
        Self { source, zone, kind, scope, expected, actual }
    }
}

impl Provider for TraceProvider {
    fn source(&self) -> &'static str {
        self.source
    }

    fn zone(&self) -> Zone {
        self.zone.clone()
    }

    fn cadence(&self) -> Seconds {
        Seconds::new(1800.0)
    }

    fn keeps_answers(&self) -> bool {
        false
    }

    fn fetch(&self, now: DateTime<Utc>) -> BoxFuture<'_, Result<Answer, ProviderError>> {
        let passed = self.actual.points().iter().take_while(|(slot, _)| slot.end() <= now);
        let (actual, _) = TimeSeries::from_points(passed.copied().collect());
        let forecast = Forecast {
            zone: self.zone.clone(),
            source: self.source.to_owned(),
            kind: self.kind,
            scope: self.scope,
            issued_at: self.expected.start().unwrap_or(now).min(now),
            retrieved_at: now,
            provenance: Default::default(),
            expected: self.expected.clone(),
            actual,
        };
        Box::pin(async move { Ok(forecast.into()) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_is_a_grid_with_a_clean_noon_and_a_dirty_evening() {
        let start = "2026-01-01T00:00:00Z".parse().expect("a time");
        let week = Seconds::new(7.0 * 86_400.0);
        let (expected, actual) = SyntheticGrid { seed: 1 }.generate(start, week);
        assert_eq!((expected.clone(), actual), SyntheticGrid { seed: 1 }.generate(start, week));
        assert_ne!(expected, SyntheticGrid { seed: 2 }.generate(start, week).0);
        let mean = |from: u32, to: u32| {
            let hours = expected.points().iter().filter(|(s, _)| (from..to).contains(&s.start().hour()));
            let values: Vec<f64> = hours.map(|(_, i)| i.value.get()).collect();
            values.iter().sum::<f64>() / values.len() as f64
        };
        assert!(mean(11, 14) + 100.0 < mean(18, 21));
    }
}
