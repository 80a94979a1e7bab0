//! Fills gaps in a forecast from the known values around them.

use chrono::{DateTime, TimeDelta, Utc};

use crate::domain::{CarbonSeries, Intensity, Slot};

/// Number of days that are searched before and after a gap. Days further away differ too much in season.
const DAYS: i32 = 14;

/// Weight of a day relative to the next more recent one, in the daily profile.
const WEIGHT_PER_DAY: f64 = 0.8;

/// Fraction of a deviation from the daily profile that remains after an hour. The AR(1) coefficient of hourly
/// intensities was 0.951 to 0.994 on four grids (`carbon-apis.md` §9.2).
const PERSISTENCE_PER_HOUR: f64 = 0.96;

/// Values from which gaps are filled: from `now` on forecasts; before `now` actual values, or past forecasts where
/// actual values are missing.
#[derive(Debug)]
pub(super) struct KnownValues {
    series: CarbonSeries,
}

impl KnownValues {
    pub(super) fn new(
        expected: &CarbonSeries,
        recent: &CarbonSeries,
        now: DateTime<Utc>,
        until: DateTime<Utc>,
    ) -> Self {
        let days = TimeDelta::days(i64::from(DAYS) + 1);
        let part = |series: &CarbonSeries, from, to| match Slot::new(from, to) {
            Some(span) => series.within(&span),
            None => CarbonSeries::default(),
        };
        let mut series = part(expected, now - days, now);
        series.overwrite(&part(recent, now - days, until + days));
        series.overwrite(&part(expected, now, until + days));
        Self { series }
    }

    pub(super) fn series(&self) -> &CarbonSeries {
        &self.series
    }

    /// Returns the mean over `span` if the known values cover it fully.
    fn fully_known_mean(&self, span: &Slot) -> Option<f64> {
        let (mean, covered) = self.series.mean_over(span, value)?;
        (covered >= span.duration()).then_some(mean)
    }

    /// Returns the mean at the same time of day as `span` on the nearest day on which that time is fully known; of two
    /// equally near days, on the earlier one.
    pub(super) fn other_day(&self, span: &Slot) -> Option<f64> {
        (1..=DAYS).flat_map(|n| [-n, n]).find_map(|days| self.fully_known_mean(&shifted(span, days)?))
    }

    /// Returns the weighted mean at the same time of day as `span` on up to 14 earlier days, of which recent ones weigh
    /// more; `None` if that time is unknown on all of them.
    pub(super) fn daily_shape(&self, span: &Slot) -> Option<f64> {
        let start = self.series.start()?;
        let (mut weight, mut weights, mut sum) = (1.0, 0.0, 0.0);
        // Far ahead, the days just before the span are unknown too: starts with the latest day that may be known.
        let ahead = (span.end() - self.series.end()?).as_seconds_f64() / 86_400.0;
        #[expect(clippy::cast_possible_truncation, reason = "a horizon has 3660 days at the most")]
        let first = ahead.ceil().max(1.0) as i32;
        for days in first..first.saturating_add(DAYS) {
            let Some(earlier) = shifted(span, -days) else { break };
            if earlier.start() < start {
                break;
            }
            if let Some(mean) = self.fully_known_mean(&earlier) {
                sum += weight * mean;
                weights += weight;
                weight *= WEIGHT_PER_DAY;
            }
        }
        (weights > 0.0).then(|| sum / weights)
    }

    /// Returns the end of the last known slot and that slot's deviation from the daily profile.
    pub(super) fn last_deviation(&self) -> Option<(DateTime<Utc>, f64)> {
        let (slot, last) = self.series.points().last()?;
        Some((slot.end(), last.value.get() - self.daily_shape(slot)?))
    }

    /// Interpolates between the nearest known slots at the middle of `span`.
    pub(super) fn between_neighbours(&self, span: &Slot) -> Option<f64> {
        let points = self.series.points();
        let next = points.partition_point(|(s, _)| s.end() <= span.start());
        let (before, after) = (points.get(next.checked_sub(1)?)?, points.get(next)?);
        let (a, b, t) = (middle(&before.0), middle(&after.0), middle(span));
        let share = (t - a).as_seconds_f64() / (b - a).as_seconds_f64();
        let (from, to) = (value(&before.1), value(&after.1));
        Some(from + (to - from) * share.clamp(0.0, 1.0))
    }

    /// Returns the time-weighted mean of all known values.
    pub(super) fn mean(&self) -> Option<f64> {
        let all = Slot::new(self.series.start()?, self.series.end()?)?;
        Some(self.series.mean_over(&all, value)?.0)
    }
}

/// Returns the part of a deviation from the daily profile that remains after a time.
pub(super) fn decayed(deviation: f64, after: TimeDelta) -> f64 {
    deviation * PERSISTENCE_PER_HOUR.powf(after.as_seconds_f64().max(0.0) / 3600.0)
}

pub(super) fn middle(slot: &Slot) -> DateTime<Utc> {
    slot.start() + (slot.end() - slot.start()) / 2
}

fn value(intensity: &Intensity) -> f64 {
    intensity.value.get()
}

fn shifted(slot: &Slot, days: i32) -> Option<Slot> {
    let delta = TimeDelta::days(i64::from(days));
    Slot::new(slot.start().checked_add_signed(delta)?, slot.end().checked_add_signed(delta)?)
}
