//! Forecast skill, measured on past forecasts and actual values.

use chrono::{DateTime, TimeDelta, Utc};
use serde::Serialize;

use super::horizon::Horizon;
use crate::domain::{CarbonSeries, Slot};
use crate::units::{GramsPerKwh, Seconds};

/// Length of the period before now whose mean serves as reference intensity.
const REFERENCE_WINDOW: TimeDelta = TimeDelta::days(30);

/// Period before now whose forecasts and actual values count.
const WINDOW: Seconds = Seconds::new(14.0 * 86_400.0);
/// Value of [`Skill::factor`] assumed without evidence. Daily slopes of four day-ahead forecasts were mostly 0.6 to 1.1
/// (CarbonCast, second half of 2021), those of the MISO trace −0.2 to 0.0: one half lies between these two kinds of
/// forecast.
const PRIOR: f64 = 0.5;
/// Duration of evidence that has the same weight as the prior: one day of evidence shows which kind a forecast is.
const PRIOR_WEIGHT: Seconds = Seconds::new(6.0 * 3600.0);

/// Skill of a forecast, from pairs of forecast and actual value.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Skill {
    /// Factor on deviations from the mean: 0 ignores the forecast, 1 uses it in full. See `shrink`.
    pub factor: f64,
    /// Duration for which forecast and actual value are both known.
    pub evidence_s: Seconds,
    /// Regression slope of actual deviations from the mean of the day on forecast ones; absent if the forecast was
    /// flat.
    pub slope: Option<f64>,
    /// Correlation of actual and forecast deviations from the mean of their day; absent if either was flat.
    pub correlation: Option<f64>,
    /// Mean of forecast less actual value, in g/kWh; absent without evidence.
    pub bias_g_per_kwh: Option<f64>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    weight: f64,
    forecast: f64,
    actual: f64,
    forecast_squared: f64,
    actual_squared: f64,
    product: f64,
}

impl Sums {
    fn add(&mut self, weight: f64, forecast: f64, actual: f64) {
        self.weight += weight;
        self.forecast += weight * forecast;
        self.actual += weight * actual;
        self.forecast_squared += weight * forecast * forecast;
        self.actual_squared += weight * actual * actual;
        self.product += weight * forecast * actual;
    }
}

/// Measures the skill of forecasts against actual values over the window that ends at `now`.
///
/// Uses deviations from the mean of each day (24 h blocks counted back from `now`), because plans exploit the shape of
/// the coming day; a bias has no effect. The slope of actual on forecast deviations is the factor on forecast
/// deviations that minimises the squared error. It is averaged with the prior, weighted by duration, and clamped to [0,
/// 1].
pub(super) fn measure_skill(issued: &CarbonSeries, actual: &CarbonSeries, now: DateTime<Utc>) -> Skill {
    let (mut total, mut forecast_sum, mut actual_sum) = (Sums::default(), 0.0, 0.0);
    let mut end = now;
    let oldest = now - WINDOW.to_delta();
    while end > oldest {
        let start = (end - TimeDelta::days(1)).max(oldest);
        if let Some(day) = Slot::new(start, end) {
            let sums = day_sums(issued, actual, &day);
            if sums.weight > 0.0 {
                let centred = |sum: f64, a: f64, b: f64| sum - a * b / sums.weight;
                total.weight += sums.weight;
                total.forecast_squared += centred(sums.forecast_squared, sums.forecast, sums.forecast).max(0.0);
                total.actual_squared += centred(sums.actual_squared, sums.actual, sums.actual).max(0.0);
                total.product += centred(sums.product, sums.forecast, sums.actual);
                forecast_sum += sums.forecast;
                actual_sum += sums.actual;
            }
        }
        end = start;
    }
    // Deviations below 0.001 g/kWh are rounding.
    let varied = |squares: f64| squares > total.weight * 1e-6;
    let slope = varied(total.forecast_squared).then(|| total.product / total.forecast_squared);
    let correlation = (varied(total.forecast_squared) && varied(total.actual_squared))
        .then(|| total.product / (total.forecast_squared * total.actual_squared).sqrt());
    let prior_weight = PRIOR_WEIGHT.get();
    let factor = match slope {
        Some(slope) => (slope * total.weight + PRIOR * prior_weight) / (total.weight + prior_weight),
        None => PRIOR,
    };
    Skill {
        factor: factor.clamp(0.0, 1.0),
        evidence_s: Seconds::new(total.weight),
        slope,
        correlation,
        bias_g_per_kwh: (total.weight > 0.0).then(|| (forecast_sum - actual_sum) / total.weight),
    }
}

fn day_sums(issued: &CarbonSeries, actual: &CarbonSeries, day: &Slot) -> Sums {
    let mut sums = Sums::default();
    for (slot, published) in issued.overlapping(day) {
        let Some(slot) = slot.intersection(day) else { continue };
        for (other, outcome) in actual.overlapping(&slot) {
            if let Some(both) = slot.intersection(other) {
                sums.add(both.duration().get(), published.value.get(), outcome.value.get());
            }
        }
    }
    sums
}

/// Moves each slot towards a common value by its own `factor`: 0 moves it all the way, 1 leaves it. The common value is
/// such that the horizon's mean does not change (`planning.md` §6: a forecast without skill must not be followed).
/// Intervals move with their slots.
#[must_use]
pub(super) fn shrink(horizon: &Horizon, factor: impl Fn(&Slot) -> f64) -> Horizon {
    let parts: Vec<f64> = horizon.slots.iter().map(|s| 1.0 - factor(&s.slot).clamp(0.0, 1.0)).collect();
    let (mut weight, mut sum) = (0.0, 0.0);
    for (slot, part) in horizon.slots.iter().zip(&parts) {
        let moved = part * slot.slot.duration().get();
        weight += moved;
        sum += moved * slot.intensity.get();
    }
    if weight <= 0.0 {
        return horizon.clone();
    }
    let middle = GramsPerKwh::new(sum / weight);
    let mut shrunk = horizon.clone();
    for (slot, part) in shrunk.slots.iter_mut().zip(parts) {
        let moved = (middle - slot.intensity) * part;
        slot.intensity += moved;
        slot.low = (slot.low + moved).max(GramsPerKwh::ZERO);
        slot.high = (slot.high + moved).max(GramsPerKwh::ZERO);
    }
    shrunk
}

/// Returns the reference intensity c_ref of `planning.md` §1: the mean of the last 30 days' values if they cover a day,
/// else the forecast's mean from `now` on, else the mean of any past values; `None` without any.
pub fn reference_intensity(recent: &CarbonSeries, expected: &CarbonSeries, now: DateTime<Utc>) -> Option<GramsPerKwh> {
    let mean = |series: &CarbonSeries, from, to| {
        let span = Slot::new(from, to)?;
        series.mean_over(&span, |intensity| intensity.value.get())
    };
    let past = mean(recent, now - REFERENCE_WINDOW, now);
    let chosen = match past {
        Some((value, covered)) if covered.get() >= 86_400.0 => Some(value),
        _ => expected.end().and_then(|end| mean(expected, now, end)).or(past).map(|(value, _)| value),
    };
    chosen.map(GramsPerKwh::new)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{Intensity, Origin};
    use crate::forecast::{Basis, HorizonSlot};

    fn at(hours: i64) -> DateTime<Utc> {
        DateTime::UNIX_EPOCH + TimeDelta::days(20_000) + TimeDelta::hours(hours)
    }

    fn hour(h: i64) -> Slot {
        Slot::new(at(h), at(h + 1)).expect("an hour")
    }

    fn hourly(from: i64, to: i64, value: impl Fn(i64) -> f64) -> CarbonSeries {
        let intensity = |h| Intensity { value: GramsPerKwh::new(value(h)), origin: Origin::Measured };
        CarbonSeries::from_points((from..to).map(|h| (hour(h), intensity(h))).collect()).0
    }

    #[expect(clippy::cast_precision_loss, reason = "hours of a fortnight")]
    fn wave(h: i64) -> f64 {
        300.0 + 100.0 * (h as f64 / 24.0 * std::f64::consts::TAU).sin()
    }

    fn factor(forecast: impl Fn(i64) -> f64, actual: impl Fn(i64) -> f64, hours: i64) -> f64 {
        let skill = measure_skill(&hourly(0, hours, forecast), &hourly(0, hours, actual), at(hours));
        assert!((skill.evidence_s.get() / 3600.0).round() == (hours.min(14 * 24)) as f64);
        skill.factor
    }

    #[test]
    fn evidence_moves_the_factor_away_from_the_prior() {
        assert_eq!(factor(wave, wave, 0), 0.5);
        assert!((factor(wave, wave, 24) - 0.9).abs() < 1e-9, "24 h at 1 and 6 h at 0.5");
        assert!(factor(wave, wave, 400) > 0.99);
        assert!((factor(|h| 300.0 + 2.0 * (wave(h) - 300.0), wave, 24) - 0.5).abs() < 1e-9, "twice too wide");
        assert!(factor(wave, |h| 600.0 - wave(h), 24) < 1e-9, "the wrong way round");
        assert!(factor(wave, |_| 300.0, 24) < 0.11);
    }

    #[test]
    fn a_bias_does_not_reduce_skill() {
        let biased = hourly(0, 48, |h| wave(h) + 60.0);
        let skill = measure_skill(&biased, &hourly(0, 48, wave), at(48));
        assert!(skill.factor > 0.94);
        assert!((skill.bias_g_per_kwh.expect("evidence") - 60.0).abs() < 1e-9);
        assert!((skill.correlation.expect("varied") - 1.0).abs() < 1e-9);
    }

    #[test]
    fn a_flat_forecast_has_no_measurable_skill() {
        let skill = measure_skill(&hourly(0, 24, |_| 300.0), &hourly(0, 24, wave), at(24));
        assert_eq!((skill.factor, skill.slope, skill.correlation), (0.5, None, None));
    }

    #[test]
    fn data_outside_the_window_do_not_count() {
        let actual = hourly(0, 384, |h| if h < 24 { 600.0 - wave(h) } else { wave(h) });
        let skill = measure_skill(&hourly(0, 408, wave), &actual, at(360));
        assert_eq!(skill.evidence_s, Seconds::new(14.0 * 86_400.0));
        assert!((skill.slope.expect("varied") - 1.0).abs() < 1e-9);
    }

    #[test]
    fn shrinking_keeps_the_mean() {
        let slots = [100.0, 200.0, 600.0].into_iter().zip(0..).map(|(value, h)| HorizonSlot {
            slot: hour(h),
            intensity: GramsPerKwh::new(value),
            low: GramsPerKwh::ZERO,
            high: GramsPerKwh::new(2.0 * value),
            basis: Basis::Given,
        });
        let horizon = Horizon { slots: slots.collect() };
        let values =
            |factor| -> Vec<f64> { shrink(&horizon, |_| factor).slots.iter().map(|s| s.intensity.get()).collect() };
        assert_eq!(values(0.0), [300.0, 300.0, 300.0]);
        assert_eq!(values(0.5), [200.0, 250.0, 450.0]);
        assert_eq!(shrink(&horizon, |_| 1.0), horizon);
        assert!(shrink(&Horizon::default(), |_| 0.5).slots.is_empty());
    }

    #[test]
    fn the_reference_is_the_trailing_mean_once_it_covers_a_day() {
        let expected = hourly(0, 24, |_| 200.0);
        let reference = |recent: &CarbonSeries| reference_intensity(recent, &expected, at(0)).map(GramsPerKwh::get);
        assert_eq!(reference(&hourly(-24, 0, |_| 400.0)), Some(400.0));
        assert_eq!(reference(&hourly(-23, 0, |_| 400.0)), Some(200.0));
        assert_eq!(reference(&CarbonSeries::default()), Some(200.0));
        assert_eq!(
            reference_intensity(&hourly(-3, 0, |_| 400.0), &CarbonSeries::default(), at(0)).map(GramsPerKwh::get),
            Some(400.0)
        );
        assert_eq!(reference_intensity(&CarbonSeries::default(), &CarbonSeries::default(), at(0)), None);
    }
}
