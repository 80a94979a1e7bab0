//! What is known around a horizon, and what can be concluded from it for spans about which nothing was said.

use chrono::{DateTime, TimeDelta, Utc};

use crate::domain::{CarbonSeries, Intensity, Slot};

/// How far back and ahead other days are asked. Older days say more about the season than about the day.
const DAYS: i32 = 14;

/// What a day counts against the next younger one, in the daily shape.
const WEIGHT_PER_DAY: f64 = 0.8;

/// What remains of a deviation from the daily shape after an hour: the AR(1) coefficient of hourly intensities was
/// 0.951 to 0.994 on four grids (`carbon-apis.md` §9.2).
const PERSISTENCE_PER_HOUR: f64 = 0.96;

/// Expected values from `now` on, and before it the past ones with what was expected in their gaps.
#[derive(Debug)]
pub(super) struct Known {
    series: CarbonSeries,
}

impl Known {
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

    /// The mean over `span`, if something is known about every moment of it.
    fn whole(&self, span: &Slot) -> Option<f64> {
        let (mean, covered) = self.series.mean_over(span, value)?;
        (covered >= span.duration()).then_some(mean)
    }

    /// The same time of day on the nearest day about which something is known; of two equally near ones the past.
    pub(super) fn other_day(&self, span: &Slot) -> Option<f64> {
        (1..=DAYS).flat_map(|n| [-n, n]).find_map(|days| self.whole(&shifted(span, days)?))
    }

    /// The weighted mean of the same time of day on the days before, younger days counting more.
    pub(super) fn daily_shape(&self, span: &Slot) -> Option<f64> {
        let start = self.series.start()?;
        let (mut weight, mut weights, mut sum) = (1.0, 0.0, 0.0);
        // Far ahead the days in between are unknown too: begin with the first that can be known.
        let ahead = (span.end() - self.series.end()?).as_seconds_f64() / 86_400.0;
        #[expect(clippy::cast_possible_truncation, reason = "a horizon has 3660 days at the most")]
        let first = ahead.ceil().max(1.0) as i32;
        for days in first..first.saturating_add(DAYS) {
            let Some(earlier) = shifted(span, -days) else { break };
            if earlier.start() < start {
                break;
            }
            if let Some(mean) = self.whole(&earlier) {
                sum += weight * mean;
                weights += weight;
                weight *= WEIGHT_PER_DAY;
            }
        }
        (weights > 0.0).then(|| sum / weights)
    }

    /// By how much the last known slot lay off the daily shape, and when it was.
    pub(super) fn last_deviation(&self) -> Option<(DateTime<Utc>, f64)> {
        let (slot, last) = self.series.points().last()?;
        Some((slot.end(), last.value.get() - self.daily_shape(slot)?))
    }

    /// On the line between the nearest known slots on both sides, at the middle of `span`.
    pub(super) fn between_neighbours(&self, span: &Slot) -> Option<f64> {
        let points = self.series.points();
        let next = points.partition_point(|(s, _)| s.end() <= span.start());
        let (before, after) = (points.get(next.checked_sub(1)?)?, points.get(next)?);
        let (a, b, t) = (middle(&before.0), middle(&after.0), middle(span));
        let share = (t - a).as_seconds_f64() / (b - a).as_seconds_f64();
        let (from, to) = (value(&before.1), value(&after.1));
        Some(from + (to - from) * share.clamp(0.0, 1.0))
    }

    /// The time-weighted mean of all that is known.
    pub(super) fn mean(&self) -> Option<f64> {
        let all = Slot::new(self.series.start()?, self.series.end()?)?;
        Some(self.series.mean_over(&all, value)?.0)
    }
}

/// What is left of a deviation some time later.
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
