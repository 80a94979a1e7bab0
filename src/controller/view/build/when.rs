//! Builder of the advice when to start a job.

use chrono::{DateTime, TimeDelta, Utc};

use super::carbon::intensities;
use crate::blocking;
use crate::controller::signal::BasisLevel;
use crate::controller::snapshot::Snapshot;
use crate::controller::view::{ANY_POWER, WhenView, WindowAhead, WindowView, spelled};
use crate::providers::{FeedState, Freshness};
use wattune_core::domain::{CarbonSeries, Forecast};
use wattune_core::forecast::{Basis, Model};
use wattune_core::plan::{
    InvalidStart, Latest, StartAdvice, StartForecast, StartQuestion, StartReason, StartWindow, advise_start,
};
use wattune_core::units::{GramsPerKwh, Seconds};

/// Durations in hours for which dashboards show the best start.
const USUAL_DURATIONS_H: [u32; 4] = [1, 4, 8, 24];
/// Time after the end of a source's forecast for which the local forecaster is of use.
const FORESEEABLE: TimeDelta = TimeDelta::days(2);
/// Time for which a job of a usual duration may wait.
const USUAL_WAIT: TimeDelta = TimeDelta::hours(24);

impl Snapshot<'_> {
    /// Returns the advice when to start a job. `power_known` is false if the question's power is a placeholder.
    pub(crate) fn when(&self, question: &StartQuestion, power_known: bool) -> Result<WhenView, InvalidStart> {
        // Cloned, because the feed waits for those who borrow it.
        let state = self.signal.state().clone();
        blocking::in_place(|| self.start_signal(&state).advise(question, power_known))
    }

    /// Returns the best starts of jobs of usual durations within the next day; empty while nothing is known.
    pub(crate) fn windows_ahead(&self) -> Vec<WindowAhead> {
        let state = self.signal.state();
        let signal = self.start_signal(&state);
        let now = self.now.utc;
        let questions = USUAL_DURATIONS_H.map(|hours| {
            let duration = Seconds::new(f64::from(hours) * 3600.0);
            (hours, StartQuestion::new(now, duration, ANY_POWER, Latest::Start(now + USUAL_WAIT)))
        });
        let until = questions.iter().map(|(_, question)| question.forecast_until()).max().unwrap_or(now);
        let forecast = signal.forecast_until(until);
        let ahead = |(duration_h, question): &(u32, StartQuestion)| {
            let advice = advise_start(question, &forecast).ok().filter(|a| a.reason != StartReason::NothingKnown)?;
            let waits = !advice.starts_at_once();
            let saving = if waits { advice.saving.expected } else { 0.0 };
            let loss_probability = waits.then_some(advice.loss_probability);
            Some(WindowAhead { duration_h: *duration_h, start: advice.start, saving, loss_probability })
        };
        questions.iter().filter_map(ahead).collect()
    }

    fn start_signal<'s>(&'s self, state: &'s FeedState) -> StartSignal<'s> {
        StartSignal {
            now: self.now.utc,
            state,
            forecast: self.signal.forecast(),
            model: self.signal.model(),
            fallback: self.signal.fallback(),
            as_published: false,
        }
    }
}

/// Returns the advice when to start a job from a carbon feed's state, for use without a daemon. If `as_published`, the
/// values of the source count unchanged; the local forecaster only continues them.
///
/// # Errors
/// If the question is invalid.
pub fn describe_start(
    state: &FeedState,
    fallback: GramsPerKwh,
    question: &StartQuestion,
    power_known: bool,
    as_published: bool,
) -> Result<WhenView, InvalidStart> {
    let now = question.now;
    let forecast = state.forecast.as_deref();
    let nothing = CarbonSeries::default();
    let fit = |f: &Forecast| {
        // A model without both earlier forecasts and actual values neither corrects the source nor mixes it with the
        // local forecaster.
        let published = if as_published && !f.actual.is_empty() { &nothing } else { &f.expected };
        Model::fit(published, &[], &f.actual, now)
    };
    let model = forecast.map(fit).unwrap_or_default();
    StartSignal { now, state, forecast, model: &model, fallback, as_published }.advise(question, power_known)
}

/// Carbon signal from which start times are advised.
struct StartSignal<'a> {
    now: DateTime<Utc>,
    state: &'a FeedState,
    forecast: Option<&'a Forecast>,
    model: &'a Model,
    fallback: GramsPerKwh,
    /// True if the values of the source count unchanged.
    as_published: bool,
}

impl StartSignal<'_> {
    fn forecast_until(&self, until: DateTime<Utc>) -> StartForecast {
        let nothing = CarbonSeries::default();
        let expected = self.forecast.map_or(&nothing, |f| &f.expected);
        StartForecast::new(self.model, expected, (self.now, until), self.fallback)
    }

    /// Returns the advice, and the forecast that it is based on.
    fn judge(&self, question: &StartQuestion) -> Result<(StartForecast, StartAdvice), InvalidStart> {
        question.check()?;
        let forecast = self.forecast_until(question.forecast_until());
        if self.as_published {
            // The errors of the local forecaster say nothing about values that are not its own. They count as soon as
            // one of the compared windows needs the forecaster, in a gap of the source's values or beyond their end.
            let published = StartForecast::of_horizon(forecast.horizon().clone());
            let advice = advise_start(question, &published)?;
            if poorest_basis(&advice) == Basis::Given {
                return Ok((published, advice));
            }
        }
        let advice = advise_start(question, &forecast)?;
        Ok((forecast, advice))
    }

    fn advise(&self, question: &StartQuestion, power_known: bool) -> Result<WhenView, InvalidStart> {
        let (forecast, advice) = self.judge(question)?;
        let window = |window: &StartWindow| WindowView {
            start: window.start,
            end: window.end,
            intensity_g_per_kwh: window.intensity.get(),
            carbon_g: power_known.then(|| window.carbon.get()),
            basis: level(window.basis),
        };
        let basis = poorest_basis(&advice);
        Ok(WhenView {
            start: advice.start,
            starts_at_once: advice.start <= question.now,
            asked_at: question.now,
            latest_start: advice.latest_start,
            reason: spelled(&advice.reason).unwrap_or_default(),
            advice: advice.to_string(),
            duration_s: question.duration.get(),
            power_w: power_known.then(|| question.power.get()),
            expected_saving_pct: 100.0 * advice.saving.expected,
            saving_low_pct: 100.0 * advice.saving.low,
            saving_high_pct: 100.0 * advice.saving.high,
            loss_probability: advice.loss_probability,
            decide_at: advice.decide_at,
            at_once: window(&advice.now),
            best: window(&advice.best),
            basis: level(basis),
            zone: self.forecast.map(|f| f.zone.to_string()),
            source: self.forecast.map(|f| f.source.clone()),
            forecast_until: self.source_end(),
            warnings: self.warnings(question, &advice, basis),
            windows: advice.windows.iter().map(window).collect(),
            forecast: intensities(forecast.horizon(), self.forecast),
        })
    }

    /// Returns the end of the source's forecast, if it is ahead.
    fn source_end(&self) -> Option<DateTime<Utc>> {
        self.forecast.and_then(|f| f.expected.end()).filter(|end| self.now < *end)
    }

    /// Returns the warnings about an advice whose windows have `basis` as their poorest one.
    fn warnings(&self, question: &StartQuestion, advice: &StartAdvice, basis: Basis) -> Vec<String> {
        let mut warnings = Vec::new();
        if advice.reason == StartReason::LatestStartPassed {
            let latest = question.latest_start().format("%Y-%m-%d %H:%M:%S UTC");
            warnings.push(format!("the latest start, {latest}, has passed: the job starts as soon as it can"));
        }
        let failed = self.state.source().or(self.state.sources.first());
        let error = failed.and_then(|s| Some((s.source, s.last_error.as_deref()?)));
        let at = |t: DateTime<Utc>| t.format("%Y-%m-%d %H:%M UTC");
        match (self.state.freshness(self.now), error) {
            (Freshness::Stale { since }, Some((source, error))) => {
                warnings.push(format!("{source} is stale since {}: {error}", at(since)));
            }
            (Freshness::Stale { since }, None) => {
                warnings.push(format!("the active source is stale since {}", at(since)));
            }
            (_, Some((source, error))) => warnings.push(format!("{source} does not answer: {error}")),
            _ => {}
        }
        if let Some(source) = self.state.source()
            && let Some(quarantined) = &source.quarantined
        {
            warnings.push(format!("{}: {quarantined}", source.source));
        }
        let end = self.source_end();
        if question.latest_start() > end.unwrap_or(self.now) + FORESEEABLE && basis <= Basis::FilledFromNeighbours {
            let reach = end
                .map_or_else(|| "there is no forecast".to_owned(), |end| format!("the forecast ends at {}", at(end)));
            warnings.push(format!("{reach}: later starts are judged by the daily profile of earlier days"));
        }
        let from = end.map_or_else(|| "now on".to_owned(), |end| format!("{} on", at(end)));
        match basis {
            Basis::Local => warnings.push(format!("from {from}, the forecast is that of the local forecaster")),
            Basis::DailyShape => {
                warnings.push(format!("from {from}, the forecast is the daily profile of earlier days"));
            }
            Basis::Constant if advice.reason == StartReason::NothingKnown => {
                warnings.push("no carbon source has a value, so no time is known to be cleaner than now".to_owned());
            }
            Basis::Constant => warnings.push(format!("from {from}, no forecast is known")),
            _ => {}
        }
        warnings
    }
}

/// Returns the poorest basis of the two windows that an advice compares.
fn poorest_basis(advice: &StartAdvice) -> Basis {
    advice.now.basis.max(advice.best.basis)
}

/// Returns the basis of a window in the words of the current intensity's basis.
const fn level(basis: Basis) -> BasisLevel {
    match basis {
        Basis::Given | Basis::Corrected | Basis::FilledFromOtherDay | Basis::FilledFromNeighbours => BasisLevel::Source,
        Basis::Local => BasisLevel::Local,
        Basis::DailyShape => BasisLevel::DailyShape,
        Basis::Constant => BasisLevel::Constant,
    }
}
