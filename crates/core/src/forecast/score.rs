//! How good forecasts were, told from pairs of what was said and what came.

use chrono::{DateTime, TimeDelta, Utc};
use serde::Serialize;

use crate::domain::{CarbonSeries, Issued, Slot};
use crate::units::{GramsPerKwh, Seconds};

/// How much of a day the greenest hours are.
const GREENEST: f64 = 6.0 * 3600.0;
/// A day of which less is known is left out where days are looked at.
const LEAST_OF_DAY: f64 = 20.0 * 3600.0;

/// What was said about a slot, and what came.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pair {
    /// When.
    pub slot: Slot,
    /// What was said, in gCO2e/kWh.
    pub forecast: GramsPerKwh,
    /// The bounds that the outcome was to keep four times in five, if any were given.
    pub interval: Option<(GramsPerKwh, GramsPerKwh)>,
    /// What came, in gCO2e/kWh.
    pub actual: GramsPerKwh,
}

/// How good forecasts were. What cannot be told is absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Score {
    /// The mean of |forecast − outcome| / outcome over time, in percent. Outcomes of zero are left out.
    pub mape_pct: Option<f64>,
    /// The mean of forecast − outcome over time, in g/kWh.
    pub bias_g_per_kwh: Option<f64>,
    /// Spearman's correlation of forecast and outcome within each day, equal ones sharing their ranks, averaged over
    /// days. Days on which either is flat are left out.
    pub rank_correlation: Option<f64>,
    /// Σ (day's mean − mean of the 6 hours that the forecast called greenest) / Σ (day's mean − mean of the 6 truly
    /// greenest): how much of what perfect foresight saves is saved by acting on the forecast.
    pub caught_gain: Option<f64>,
    /// The part of the time for which the outcome lay within its 80 % interval.
    pub interval80_coverage: Option<f64>,
    /// How many slots were scored.
    pub slots: usize,
    /// How many hours they are.
    pub hours: f64,
}

/// Scores pairs. Days are the 24 hours counted from `origin`; those of which less than 20 hours are there count for
/// neither rank correlation nor caught gain. Pairs are in time order.
pub fn score(pairs: &[Pair], origin: DateTime<Utc>) -> Score {
    score_parts(&[pairs], origin)
}

/// Scores several such lists, whose days may be the same, as one.
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
        if day.iter().map(|p| p.slot.duration().get()).sum::<f64>() < LEAST_OF_DAY {
            continue;
        }
        if let Some(correlation) = spearman(day) {
            rank.add(1.0, correlation);
        }
        let mut mean = Mean::default();
        day.iter().for_each(|p| mean.add(p.slot.duration().get(), p.actual.get()));
        let mean = mean.get().unwrap_or(0.0);
        caught += mean - greenest(day, |p| p.forecast);
        possible += mean - greenest(day, |p| p.actual);
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

/// Scores issued forecasts against what came, as they stood when they were needed.
///
/// Time is cut into blocks of `horizon` from 00:00 UTC on (of 1970-01-01, so that blocks of a day begin at midnight).
/// Each slot is scored by the newest forecast that was issued by the start of its block and speaks of the slot. With
/// one hour that is the forecast at hand when the hour began; with 24 hours the one at hand at midnight, for the whole
/// day. Slots that no such forecast speaks of, or whose outcome is not known by `now`, are left out. Only forecasts of
/// one source, zone, kind and scope can be scored together: those of the first are taken.
pub fn score_issued(issued: &[Issued], actual: &CarbonSeries, now: DateTime<Utc>, horizon: Seconds) -> Score {
    let block_ms = horizon.to_delta().num_milliseconds().max(60_000);
    let Some(first) = issued.first() else { return Score::default() };
    let mut alike: Vec<&Issued> = issued.iter().filter(|i| i.is_like(first)).collect();
    alike.sort_by_key(|i| i.issued_at);
    let mut pairs = Vec::new();
    for (slot, came) in actual.points().iter().filter(|(slot, _)| slot.end() <= now) {
        let into = slot.start().timestamp_millis().rem_euclid(block_ms);
        let block = slot.start() - TimeDelta::milliseconds(into);
        let known = alike.partition_point(|i| i.issued_at <= block);
        let said = alike[..known].iter().rev().find_map(|i| over_whole(&i.series, slot));
        pairs.extend(said.map(|forecast| Pair { slot: *slot, forecast, interval: None, actual: came.value }));
    }
    score(&pairs, DateTime::UNIX_EPOCH)
}

/// The mean over a slot, if something is said about every moment of it.
pub fn over_whole(series: &CarbonSeries, slot: &Slot) -> Option<GramsPerKwh> {
    let (mean, covered) = series.mean_over(slot, |i| i.value.get())?;
    (covered >= slot.duration()).then(|| GramsPerKwh::new(mean))
}

/// A weighted mean.
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

/// The mean outcome of the six hours that are lowest by `key`; of equal ones the earlier. A longer slot counts with the
/// part that is needed.
fn greenest(day: &[Pair], key: impl Fn(&Pair) -> GramsPerKwh) -> f64 {
    let mut order: Vec<&Pair> = day.iter().collect();
    order.sort_by(|a, b| key(a).total_cmp(&key(b)));
    let (mut left, mut mean) = (GREENEST, Mean::default());
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

/// `None` if either side is flat.
fn spearman(day: &[Pair]) -> Option<f64> {
    let said = ranks(&day.iter().map(|p| p.forecast.get()).collect::<Vec<_>>());
    let came = ranks(&day.iter().map(|p| p.actual.get()).collect::<Vec<_>>());
    let middle = said.iter().sum::<f64>() / f64::from(u32::try_from(said.len()).ok()?);
    let (mut product, mut a, mut b) = (0.0, 0.0, 0.0);
    for (s, c) in said.iter().zip(&came) {
        product += (s - middle) * (c - middle);
        a += (s - middle) * (s - middle);
        b += (c - middle) * (c - middle);
    }
    (a > 0.0 && b > 0.0).then(|| product / (a * b).sqrt())
}

/// Ranks from 0; equal values share the mean of theirs.
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
