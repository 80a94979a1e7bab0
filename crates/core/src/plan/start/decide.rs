//! Decision whether a job waits, and for which window.

use chrono::{DateTime, TimeDelta, Utc};

use super::advice::{StartAdvice, StartReason, StartWindow, WaitingSaving};
use super::forecast::StartForecast;
use super::question::{InvalidStart, StartQuestion};
use super::spread;
use super::windows::Windows;
use crate::domain::Slot;

/// Time after which a waiting job decides again without a new forecast.
const DECIDE_AGAIN: TimeDelta = TimeDelta::hours(1);
/// Assumed relative standard error of the difference of two window means without data about past errors.
const ASSUMED_ERROR: f64 = 0.08;
/// 90 % quantile of the standard normal distribution.
const NORMAL: f64 = 1.2816;

/// Returns the advice when to start: at the window with the least expected emissions if the gain is worth its risk,
/// else as early as possible. If the latest start has passed, the advice is to start at once.
///
/// # Errors
/// If the question is invalid.
pub fn advise_start(question: &StartQuestion, forecast: &StartForecast) -> Result<StartAdvice, InvalidStart> {
    question.check()?;
    let windows = Windows::new(question, &forecast.carbon, forecast.price.as_ref(), &forecast.horizon);
    let all: Vec<StartWindow> = windows.starts().into_iter().map(|start| windows.at(start)).collect();
    let now = all[0];
    let later = (1..all.len()).min_by(|a, b| all[*a].cost.total_cmp(&all[*b].cost));
    let best = later.map_or(now, |place| all[place]);
    let (saving, loss_probability) = judge(question, &now, &best, forecast);
    let reason = if question.latest_start() < question.now {
        StartReason::LatestStartPassed
    } else if later.is_none() {
        StartReason::NoTimeToWait
    } else if forecast.knows_nothing() {
        StartReason::NothingKnown
    } else if saving.expected <= 0.0 {
        StartReason::CleanestNow
    } else if question.waiting_since.is_none() && saving.expected < question.min_gain {
        StartReason::GainTooSmall
    } else if loss_probability > question.max_loss_probability {
        StartReason::TooUncertain
    } else {
        StartReason::CleanerLater
    };
    let start = match (reason, later, &question.spread_key) {
        (StartReason::CleanerLater, Some(place), Some(key)) => {
            let starts: Vec<DateTime<Utc>> = all.iter().map(|window| window.start).collect();
            spread::spread(key, place, &starts, |start| windows.at(start).cost.get())
        }
        (StartReason::CleanerLater, ..) => best.start,
        _ => now.start,
    };
    let latest_start = question.latest_start().max(now.start);
    let decide_at = question.now.checked_add_signed(DECIDE_AGAIN).map_or(start, |next| next.min(start));
    let asked_at = question.now;
    Ok(StartAdvice {
        asked_at,
        start,
        latest_start,
        reason,
        now,
        best,
        saving,
        loss_probability,
        decide_at,
        windows: all,
    })
}

/// Returns the advice with the window of its start in place of the best one, for a job that others keep from that one.
pub(super) fn judged_again(advice: StartAdvice, question: &StartQuestion, forecast: &StartForecast) -> StartAdvice {
    let best = Windows::new(question, &forecast.carbon, forecast.price.as_ref(), &forecast.horizon).at(advice.start);
    let (saving, loss_probability) = judge(question, &advice.now, &best, forecast);
    StartAdvice { best, saving, loss_probability, ..advice }
}

/// Returns the saving of waiting for a window, and the probability that waiting for it and starting then loses.
fn judge(
    question: &StartQuestion,
    now: &StartWindow,
    best: &StartWindow,
    forecast: &StartForecast,
) -> (WaitingSaving, f64) {
    let base = now.cost.get();
    if base <= 0.0 || now.start == best.start {
        return (WaitingSaving::default(), 0.0);
    }
    let expected = 1.0 - best.cost.get() / base;
    // Prices are known, so only the weight of carbon has an error: relative to the cost, and not to the emissions.
    let carbon_weight = if forecast.price.is_some() { 1.0 - question.price_weight } else { 1.0 };
    let in_cost = carbon_weight * now.carbon.get() / base;
    let level = now.intensity.get().max(f64::MIN_POSITIVE);
    let error = in_cost * standard_error(now, best, forecast).map_or(ASSUMED_ERROR, |error| error / level);
    let saving = WaitingSaving { expected, low: expected - NORMAL * error, high: expected + NORMAL * error };
    let loses = if error > 0.0 { normal_cdf(-expected / error) } else { f64::from(u8::from(expected <= 0.0)) };
    (saving, loses)
}

/// Returns the standard error of the difference of two windows' mean intensities, from past errors.
fn standard_error(now: &StartWindow, best: &StartWindow, forecast: &StartForecast) -> Option<f64> {
    let mut slots = [Slot::new(now.start, now.end)?, Slot::new(best.start, best.end)?];
    let weights = if slots[0] <= slots[1] { [1.0, -1.0] } else { [-1.0, 1.0] };
    slots.sort_unstable();
    Some(forecast.errors.over(&slots)?.of(&weights))
}

/// Returns the distribution function of the standard normal distribution, within 1e-7.
fn normal_cdf(z: f64) -> f64 {
    // Abramowitz and Stegun, 26.2.17.
    let t = 1.0 / (1.0 + 0.231_641_9 * z.abs());
    let poly =
        t * (0.319_381_53 + t * (-0.356_563_782 + t * (1.781_477_937 + t * (-1.821_255_978 + t * 1.330_274_429))));
    let tail = (-0.5 * z * z).exp() / std::f64::consts::TAU.sqrt() * poly;
    if z > 0.0 { 1.0 - tail } else { tail }
}
