//! Decision whether a job waits, and for which window.

use chrono::{DateTime, TimeDelta, Utc};

use super::advice::{StartAdvice, StartReason, StartWindow, WaitingSaving};
use super::forecast::StartForecast;
use super::question::{InvalidStart, StartQuestion};
use super::spread;
use super::windows::Windows;
use crate::domain::Slot;
use crate::units::{GramsCo2e, GramsPerKwh};

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
    let Judged { saving, cost_saving, loss_probability } = judge(question, &now, &best, forecast);
    let reason = if question.latest_start() < question.now {
        StartReason::LatestStartPassed
    } else if later.is_none() {
        StartReason::NoTimeToWait
    } else if forecast.knows_nothing() {
        StartReason::NothingKnown
    } else if cost_saving.expected <= 0.0 {
        StartReason::CleanestNow
    } else if question.waiting_since.is_none() && cost_saving.expected < question.min_gain {
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
        cost_saving,
        loss_probability,
        decide_at,
        windows: all,
    })
}

/// Returns the advice with the window of its start in place of the best one, for a job that others keep from that one.
pub(super) fn judged_again(advice: StartAdvice, question: &StartQuestion, forecast: &StartForecast) -> StartAdvice {
    let best = Windows::new(question, &forecast.carbon, forecast.price.as_ref(), &forecast.horizon).at(advice.start);
    let Judged { saving, cost_saving, loss_probability } = judge(question, &advice.now, &best, forecast);
    StartAdvice { best, saving, cost_saving, loss_probability, ..advice }
}

/// What waiting for a window saves, and the probability that waiting for it and starting then costs more.
#[derive(Default)]
struct Judged {
    saving: WaitingSaving,
    cost_saving: WaitingSaving,
    loss_probability: f64,
}

/// Compares waiting for a window with starting as early as possible.
fn judge(question: &StartQuestion, now: &StartWindow, best: &StartWindow, forecast: &StartForecast) -> Judged {
    if now.start == best.start {
        return Judged::default();
    }
    // Prices are known, so the forecast of carbon is the only source of error.
    let error = carbon_error(question, now, best, forecast);
    let carbon_weight = if forecast.price.is_some() { 1.0 - question.price_weight } else { 1.0 };
    let saving = waiting_saving(now.carbon, best.carbon, error);
    let cost_saving = waiting_saving(now.cost, best.cost, error * carbon_weight);
    let loss_probability = match now.cost - best.cost {
        // Without a cost there is nothing to win, and the job does not wait.
        _ if now.cost <= GramsCo2e::ZERO => 0.0,
        gain if error * carbon_weight > GramsCo2e::ZERO => normal_cdf(-(gain / (error * carbon_weight))),
        gain => f64::from(u8::from(gain <= GramsCo2e::ZERO)),
    };
    Judged { saving, cost_saving, loss_probability }
}

/// Returns the saving of an amount against another, with an 80 % prediction interval by the standard error of their
/// difference. If there is nothing to save, the saving is 0.
fn waiting_saving(now: GramsCo2e, best: GramsCo2e, error: GramsCo2e) -> WaitingSaving {
    if now <= GramsCo2e::ZERO {
        return WaitingSaving::default();
    }
    let (expected, error) = (1.0 - best / now, error / now);
    WaitingSaving { expected, low: expected - NORMAL * error, high: expected + NORMAL * error }
}

/// Returns the standard error of the difference of two windows' emissions.
fn carbon_error(
    question: &StartQuestion,
    now: &StartWindow,
    best: &StartWindow,
    forecast: &StartForecast,
) -> GramsCo2e {
    // The energy with which the window's mean intensity gives its emissions; at an intensity of 0 it does not follow from
    // them.
    let energy_factor = match now.intensity {
        zero if zero <= GramsPerKwh::ZERO => (question.power * question.duration) * GramsPerKwh::new(1.0),
        intensity => now.carbon * (1.0 / intensity.get()),
    };
    let error = standard_error(now, best, forecast).unwrap_or(ASSUMED_ERROR * now.intensity.get().max(0.0));
    energy_factor * error
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
