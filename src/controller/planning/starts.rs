//! Starts of held jobs: all are chosen together, so that they neither use a GPU at once nor exceed the node's cap.

use chrono::{DateTime, TimeDelta, Utc};
use tokio::task::JoinHandle;

use super::inputs::prices;
use crate::controller::jobs::{Job, StartChoice};
use crate::controller::node::Node;
use crate::controller::signal::BasisLevel;
use crate::store::ExpectedSaving;
use wattune_core::domain::{CarbonSeries, JobId, StartOffer, Work};
use wattune_core::forecast::{Model, reference_intensity};
use wattune_core::plan::{
    HeldStart, InvalidStart, Latest, Prices, Reservation, StartAdvice, StartForecast, StartProfile, StartQuestion,
    StartReason, plan_held_starts,
};
use wattune_core::time::Now;
use wattune_core::units::{Samples, Seconds, Watts};

/// Longest time between two choices.
const RETHOUGHT: TimeDelta = TimeDelta::hours(1);
/// Time that a running job without a known end is assumed to keep its GPUs.
const ASSUMED_RUN: TimeDelta = TimeDelta::hours(1);
/// Time after the daemon's start for which held jobs wait for the first response of a source.
const FIRST_ANSWER: TimeDelta = TimeDelta::minutes(5);
/// Time ahead over which the node's cap is considered: its lowest value in this time counts for all starts, so that
/// long jobs stay under the cap, too.
const CAP_AHEAD: TimeDelta = TimeDelta::days(2);

/// Owner of the choice of starts.
#[derive(Default)]
pub(super) struct Starts {
    choosing: Option<Choosing>,
    /// Held jobs of the last choice, and the time of the next one; `None` before the first choice.
    chosen: Option<(Vec<JobId>, DateTime<Utc>)>,
}

/// A choice in progress, on a thread of its own.
struct Choosing {
    jobs: Vec<JobId>,
    task: JoinHandle<Vec<Result<StartAdvice, InvalidStart>>>,
    caveat: Option<String>,
}

impl Starts {
    /// Requests a new choice, because the forecast or the jobs on the GPUs changed.
    pub(super) fn rethink(&mut self) {
        self.chosen = None;
    }

    /// Chooses the starts of the held jobs again if that is due: at each new forecast, when a held job comes or goes,
    /// and at least once an hour.
    pub(super) async fn plan(&mut self, node: &mut Node<'_>, now: Now) {
        if self.choosing.as_ref().is_some_and(|choosing| choosing.task.is_finished()) {
            self.adopt(node, now, Seconds::ZERO).await;
        }
        let held: Vec<JobId> = node.jobs.iter().filter(|job| job.is_held()).map(|job| job.id.clone()).collect();
        let is_due = self.chosen.as_ref().is_none_or(|(jobs, until)| *jobs != held || now.utc >= *until);
        if !is_due || self.choosing.is_some() {
            return;
        }
        // Right after the daemon's start the forecast is not fetched yet: that is no reason to start at once.
        let until = node.started_at + FIRST_ANSWER;
        let all_failed = node.signal.state().sources.iter().all(|source| source.consecutive_failures > 0);
        if node.signal.forecast().is_none() && !all_failed && now.utc < until {
            for job in node.jobs.iter_mut().filter(|job| job.is_held()) {
                job.await_forecast(until);
            }
            return;
        }
        self.chosen = Some((held.clone(), now.utc + RETHOUGHT));
        if held.is_empty() {
            return;
        }
        self.choosing = Some(choose(held, node, now));
        self.adopt(node, now, node.settings.solve_limit_s).await;
    }

    /// Waits for the choice in progress, at most `patience`, and adopts it.
    async fn adopt(&mut self, node: &mut Node<'_>, now: Now, patience: Seconds) {
        let Some(mut choosing) = self.choosing.take() else { return };
        let advice = match tokio::time::timeout(patience.to_std(), &mut choosing.task).await {
            Ok(Ok(advice)) => advice,
            Ok(Err(error)) => {
                tracing::error!(
                    "starts of held jobs cannot be chosen ({error}); each job starts at its planned or its latest start"
                );
                return;
            }
            Err(_) => {
                self.choosing = Some(choosing);
                return;
            }
        };
        let mut next = now.utc + RETHOUGHT;
        for (id, advice) in choosing.jobs.iter().zip(advice) {
            let Some(job) = node.jobs.get_mut(id).filter(|job| job.is_held()) else { continue };
            let choice = choice(job, advice, choosing.caveat.clone(), now.utc);
            next = next.min(choice.decide_at.max(now.utc + TimeDelta::minutes(1)));
            if job.start.as_ref().map(|before| before.start) != Some(choice.start) {
                tracing::info!(job.id = %id, "job {id}: start chosen for {}", choice.start.format("%FT%TZ"));
            }
            let waits = &mut job.progress.presence.waits_for_window;
            *waits = match choice.kind {
                Some(StartReason::CleanerLater | StartReason::AroundOthers) => true,
                Some(StartReason::AfterOthers) | None => *waits,
                Some(_) => false,
            };
            job.reason.clone_from(&choice.reason);
            job.start = Some(choice);
        }
        if let Some((_, until)) = &mut self.chosen {
            *until = next;
        }
    }
}

/// Begins a choice of the starts of these jobs.
fn choose(held: Vec<JobId>, node: &Node<'_>, now: Now) -> Choosing {
    let questions = |id: &JobId| Some(node.jobs.get(id)?.held_start(node, now.utc));
    let starts: Vec<HeldStart> = held.iter().filter_map(questions).collect();
    let taken: Vec<Reservation> = node.jobs.iter().filter_map(|job| job.reservation(node, now.utc)).collect();
    let until = starts.iter().map(|start| start.question.forecast_until()).max().unwrap_or(now.utc);
    let fallback = node.signal.fallback();
    let forecast = node.signal.forecast();
    let expected = forecast.map_or_else(CarbonSeries::default, |forecast| forecast.expected.clone());
    let recent = forecast.map_or_else(CarbonSeries::default, |forecast| forecast.known_values());
    let c_ref = reference_intensity(&recent, &expected, now.utc).unwrap_or(fallback);
    let prices = prices(node.signal, now.utc);
    let model: Model = node.signal.model().clone();
    let cap = wattune_core::domain::Slot::new(now.utc, now.utc + CAP_AHEAD)
        .and_then(|span| node.cap.schedule(node.gpus.maximum_limits(), now.utc).over(&span));
    let at = now.utc;
    let task = tokio::task::spawn_blocking(move || {
        let mut forecast = StartForecast::new(&model, &expected, (at, until), fallback);
        if let Some((known_prices, reference)) = &prices {
            forecast = forecast.with_prices(Prices { known_prices, reference: *reference }, c_ref);
        }
        plan_held_starts(&starts, &forecast, &taken, cap)
    });
    Choosing { jobs: held, task, caveat: caveat(node) }
}

/// Returns why the choice rests on less than a source's forecast, in one sentence; `None` if it rests on one.
fn caveat(node: &Node<'_>) -> Option<String> {
    let basis = node.signal.basis();
    match basis.level {
        BasisLevel::Source => None,
        BasisLevel::Local => Some(
            "no source forecasts the carbon intensity now: the start follows the local forecaster's daily shape".into(),
        ),
        BasisLevel::DailyShape => Some(
            "no source forecasts the carbon intensity now: the start follows the daily shape of earlier days".into(),
        ),
        BasisLevel::Constant => {
            Some("nothing is known of the carbon intensity now: there is no reason to wait".to_owned())
        }
    }
}

fn choice(
    job: &Job,
    advice: Result<StartAdvice, InvalidStart>,
    caveat: Option<String>,
    now: DateTime<Utc>,
) -> StartChoice {
    let offered = job.held_offer().map_or(now, |offer| offer.latest);
    match advice {
        Ok(advice) => StartChoice {
            start: if advice.starts_at_once() { now } else { advice.start },
            decide_at: advice.decide_at,
            latest: advice.latest_start.min(offered),
            saving: Some(ExpectedSaving {
                expected: advice.saving.expected,
                low: advice.saving.low,
                high: advice.saving.high,
                loss_probability: advice.loss_probability,
            }),
            reason: advice.to_string(),
            kind: Some(advice.reason),
            caveat,
        },
        Err(why) => StartChoice {
            start: now,
            decide_at: now + RETHOUGHT,
            latest: offered.min(now),
            saving: None,
            reason: format!("Start now: {why}"),
            kind: None,
            caveat,
        },
    }
}

impl Job {
    /// Returns the expected duration of a held job, and the power of its GPUs together: as offered, otherwise by the
    /// stored profile. `None` where neither is known.
    pub(in crate::controller) fn expected_run(&self) -> (Option<Seconds>, Option<Watts>) {
        let Some(offer) = &self.spec.offers.start else { return (None, None) };
        let ceiling = self.profile().ceiling();
        let left = match self.spec.work {
            Work::TotalSamples(total) => Some((total - self.done_before()).max(Samples::ZERO)),
            Work::Unknown => None,
        };
        let by_profile = || Some(left? / self.reference()?);
        let part = match self.spec.work {
            Work::TotalSamples(total) if total.get() > 0.0 => left.map_or(1.0, |left| left / total),
            _ => 1.0,
        };
        let duration = offer.duration.map(|duration| duration * part).or_else(by_profile);
        (duration, offer.power.or_else(|| ceiling.map(|point| point.power.mean)))
    }

    /// Returns the profile with which a held job's limits are chosen together with its start: the stored one, unless the
    /// offer states what the job needs.
    fn start_profile(&self) -> Option<StartProfile> {
        let offer = self.held_offer()?;
        let max_slowdown = self.spec.objective.max_slowdown.filter(|_| self.spec.control)?;
        let Work::TotalSamples(total) = self.spec.work else { return None };
        let is_open = offer.duration.is_none() && offer.power.is_none();
        let left = (total - self.done_before()).max(Samples::ZERO);
        StartProfile::of(&self.profile().points, left, max_slowdown).filter(|_| is_open)
    }

    fn held_start(&self, node: &Node<'_>, now: DateTime<Utc>) -> HeldStart {
        let (duration, power) = self.expected_run();
        let limits = self.spec.gpus.iter().filter_map(|gpu| node.gpus.original_limit(gpu));
        let limit: Watts = limits.map(|limit| limit.watts()).sum();
        let offer = self.held_offer();
        let latest = offer.map_or(now, |offer| offer.latest);
        let profile = self.start_profile();
        let duration = profile.as_ref().and_then(StartProfile::longest_duration).or(duration);
        let duration = duration.unwrap_or(Seconds::new(3600.0)).max(Seconds::new(1.0));
        let by_end = self.spec.objective.deadline.filter(|end| *end - duration.to_delta() < latest);
        let mut question = StartQuestion::new(
            now,
            duration,
            power.unwrap_or(limit),
            by_end.map_or(Latest::Start(latest), Latest::End),
        );
        if let Some(StartOffer { min_gain, max_loss_probability, idle_power, .. }) = offer {
            question.min_gain = min_gain.unwrap_or(question.min_gain);
            question.max_loss_probability = max_loss_probability.unwrap_or(question.max_loss_probability);
            question.idle_power = *idle_power;
        }
        question.price_weight = self.spec.objective.price_weight;
        question.profile = profile;
        question.spread_key = Some(self.id.to_string());
        // A job that already waits for a cleaner window goes on waiting for any gain: the minimum gain counts when it
        // begins to wait.
        question.waiting_since = self.progress.presence.waits_for_window.then(|| self.asked_at());
        HeldStart { question, gpus: self.spec.gpus.clone(), limit }
    }

    /// Returns the time for which a job on its GPUs keeps them; `None` for an absent job.
    fn reservation(&self, node: &Node<'_>, now: DateTime<Utc>) -> Option<Reservation> {
        if self.is_absent() {
            return None;
        }
        let until = self.plan.as_ref().map_or(now + ASSUMED_RUN, |plan| plan.ends_at().max(now));
        let limits = self.spec.gpus.iter().filter_map(|gpu| node.gpus.original_limit(gpu));
        let limit = limits.map(|limit| limit.watts()).sum();
        Some(Reservation { from: now, until, gpus: self.spec.gpus.clone(), limit })
    }
}
