//! Forecast scores from pairs of forecast and actual value.

use chrono::{DateTime, TimeDelta, Utc};
use serde::Serialize;

use crate::domain::{CarbonSeries, Issued, Slot};
use crate::units::{GramsPerKwh, Seconds};

/// Total duration in seconds of the hours that count as the cleanest of a day.
const CLEANEST_HOURS: f64 = 6.0 * 3600.0;
/// Minimum duration in seconds for which a day's values must be known for statistics by day.
const LEAST_KNOWN_OF_DAY: f64 = 20.0 * 3600.0;

/// Forecast and actual value of a slot.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pair {
    /// Time span of the slot.
    pub slot: Slot,
    /// Forecast intensity.
    pub forecast: GramsPerKwh,
    /// Lower and upper bound of the 80 % prediction interval, if the forecast has one.
    pub interval: Option<(GramsPerKwh, GramsPerKwh)>,
    /// Actual intensity.
    pub actual: GramsPerKwh,
}

/// Forecast quality. Statistics that cannot be computed are absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Score {
    /// Mean absolute percentage error over time. Excludes actual values of zero.
    pub mape_pct: Option<f64>,
    /// Mean of forecast − actual over time, in g/kWh.
    pub bias_g_per_kwh: Option<f64>,
    /// Spearman's rank correlation of forecast and actual within each day, averaged over days. Excludes days on which
    /// either is flat.
    pub rank_correlation: Option<f64>,
    /// Σ (day's mean − mean of the 6 hours with the lowest forecast) / Σ (day's mean − mean of the 6 cleanest hours):
    /// the fraction of the saving with perfect foresight that the forecast achieves.
    pub caught_gain: Option<f64>,
    /// Fraction of time in which the actual value was within the 80 % prediction interval.
    pub interval80_coverage: Option<f64>,
    /// Number of scored slots.
    pub slots: usize,
    /// Total duration of the scored slots in hours.
    pub hours: f64,
}

/// Scores pairs in time order. Days are 24 hours counted from `origin`; those with less than 20 known hours count for
/// neither rank correlation nor caught gain.
pub fn score(pairs: &[Pair], origin: DateTime<Utc>) -> Score {
    score_parts(&[pairs], origin)
}

/// Scores several lists of pairs, which may cover the same days, as one.
pub(super) fn score_parts(parts: &[impl AsRef<[Pair]>], origin: DateTime<Utc>) -> Score {
    let pairs = || parts.iter().flat_map(AsRef::as_ref);
    let mut off = Mean::default();
    let (mut relative, mut covered) = (Mean::default(), Mean::default());
    for pair in pairs() {
        let length = pair.slot.duration().get();
        let error = (pair.forecast - pair.actual).get();
        off.add(length, error);
        if pair.actual > GramsPerKwh::ZERO {
            relative.add(length, error.abs() / pair.actual.get());
        }
        if let Some((low, high)) = pair.interval {
            covered.add(length, if low <= pair.actual && pair.actual <= high { 1.0 } else { 0.0 });
        }
    }
    let (mut rank, mut caught, mut possible) = (Mean::default(), 0.0, 0.0);
    let day_of = |pair: &Pair| (pair.slot.start() - origin).num_milliseconds().div_euclid(86_400_000);
    let days = parts.iter().flat_map(|pairs| pairs.as_ref().chunk_by(|a, b| day_of(a) == day_of(b)));
    for day in days {
        if day.iter().map(|p| p.slot.duration().get()).sum::<f64>() < LEAST_KNOWN_OF_DAY {
            continue;
        }
        if let Some(correlation) = spearman(day) {
            rank.add(1.0, correlation);
        }
        let mut mean = Mean::default();
        day.iter().for_each(|p| mean.add(p.slot.duration().get(), p.actual.get()));
        let mean = mean.get().unwrap_or(0.0);
        caught += mean - cleanest_hours(day, |p| p.forecast);
        possible += mean - cleanest_hours(day, |p| p.actual);
    }
    Score {
        mape_pct: relative.get().map(|part| 100.0 * part),
        bias_g_per_kwh: off.get(),
        rank_correlation: rank.get(),
        caught_gain: (possible > 1e-9).then(|| caught / possible),
        interval80_coverage: covered.get(),
        slots: pairs().count(),
        hours: off.weight / 3600.0,
    }
}

/// Scores issued forecasts against actual values, each slot with the forecast that was available beforehand.
///
/// Time is divided into blocks of `horizon` from 1970-01-01 00:00 UTC on, so blocks of a day start at midnight. Each
/// slot is scored with the latest forecast issued by the start of its block that covers the slot: for one hour, the
/// forecast available when the hour began; for 24 hours, the one available at midnight. Omits slots without such a
/// forecast or without an actual value by `now`. Only forecasts of one source, zone, kind and scope are scored
/// together: those of the first.
pub fn score_issued(issued: &[Issued], actual: &CarbonSeries, now: DateTime<Utc>, horizon: Seconds) -> Score {
    let block_ms = horizon.to_delta().num_milliseconds().max(60_000);
    let Some(first) = issued.first() else { return Score::default() };
    let mut alike: Vec<&Issued> = issued.iter().filter(|i| i.is_like(first)).collect();
    alike.sort_by_key(|i| i.issued_at);
    let mut pairs = Vec::new();
    for (slot, outcome) in actual.points().iter().filter(|(slot, _)| slot.end() <= now) {
        let into = slot.start().timestamp_millis().rem_euclid(block_ms);
        let block = slot.start() - TimeDelta::milliseconds(into);
        let known = alike.partition_point(|i| i.issued_at <= block);
        let published = alike[..known].iter().rev().find_map(|i| mean_if_covered(&i.series, slot));
        pairs.extend(published.map(|forecast| Pair { slot: *slot, forecast, interval: None, actual: outcome.value }));
    }
    score(&pairs, DateTime::UNIX_EPOCH)
}

/// Returns the mean over a slot if the series covers the slot fully.
pub fn mean_if_covered(series: &CarbonSeries, slot: &Slot) -> Option<GramsPerKwh> {
    let (mean, covered) = series.mean_over(slot, |i| i.value.get())?;
    (covered >= slot.duration()).then(|| GramsPerKwh::new(mean))
}

/// Weighted mean of values added one by one.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Mean {
    weight: f64,
    sum: f64,
}

impl Mean {
    pub(super) fn add(&mut self, weight: f64, value: f64) {
        self.weight += weight;
        self.sum += weight * value;
    }

    pub(super) fn get(self) -> Option<f64> {
        (self.weight > 0.0).then(|| self.sum / self.weight)
    }
}

/// Returns the mean actual value over the six hours with the lowest `key`, the earlier of equal ones first. A slot that
/// exceeds the six hours counts in part.
fn cleanest_hours(day: &[Pair], key: impl Fn(&Pair) -> GramsPerKwh) -> f64 {
    let mut order: Vec<&Pair> = day.iter().collect();
    order.sort_by(|a, b| key(a).total_cmp(&key(b)));
    let (mut left, mut mean) = (CLEANEST_HOURS, Mean::default());
    for pair in order {
        let taken = pair.slot.duration().get().min(left);
        if taken <= 0.0 {
            break;
        }
        mean.add(taken, pair.actual.get());
        left -= taken;
    }
    mean.get().unwrap_or(0.0)
}

/// Returns Spearman's rank correlation of forecast and actual; `None` if either is flat.
fn spearman(day: &[Pair]) -> Option<f64> {
    let published = ranks(&day.iter().map(|p| p.forecast.get()).collect::<Vec<_>>());
    let outcome = ranks(&day.iter().map(|p| p.actual.get()).collect::<Vec<_>>());
    let middle = published.iter().sum::<f64>() / f64::from(u32::try_from(published.len()).ok()?);
    let (mut product, mut a, mut b) = (0.0, 0.0, 0.0);
    for (s, c) in published.iter().zip(&outcome) {
        product += (s - middle) * (c - middle);
        a += (s - middle) * (s - middle);
        b += (c - middle) * (c - middle);
    }
    (a > 0.0 && b > 0.0).then(|| product / (a * b).sqrt())
}

/// Returns ranks from 0; equal values share their mean rank.
#[expect(clippy::cast_precision_loss, reason = "slots of a day")]
fn ranks(values: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|a, b| values[*a].total_cmp(&values[*b]));
    let mut ranks = vec![0.0; values.len()];
    let mut next = 0;
    for equal in order.chunk_by(|a, b| values[*a].total_cmp(&values[*b]).is_eq()) {
        let shared = next as f64 + (equal.len() - 1) as f64 / 2.0;
        equal.iter().for_each(|i| ranks[*i] = shared);
        next += equal.len();
    }
    ranks
}
