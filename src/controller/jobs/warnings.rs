//! Warnings about a job: promises (constraints that the user set, such as a deadline) that cannot be kept, and
//! obstacles to the job's measurement and planning.

use chrono::{DateTime, Utc};

use super::job::{Job, Phase};
use wattune_core::domain::{Broken, Circumstance, Outcome, Promise};
use wattune_core::plan::Weighing;
use wattune_core::time::{Now, later};
use wattune_core::units::{GramsCo2e, Samples, SamplesPerSecond, Seconds};

const NO_PRICES: &str = "no price is known: its plan follows carbon alone although it sets price_weight";
/// Maximum excess over the allowed slowdown that counts as rounding, as a fraction: 1e-4 is 0.01 percentage points.
const SLOWDOWN_ROUNDING: f64 = 1e-4;

impl Job {
    /// Returns the job's warnings, in one sentence each.
    pub(in crate::controller) fn warnings(&self, now: Now) -> Vec<String> {
        let is_planned = matches!(self.phase, Phase::Planned | Phase::Paused | Phase::Observing);
        let broken = self.broken(is_planned, now);
        let mut warnings: Vec<String> = broken.iter().map(|(broken, how)| broken.describe(*how)).collect();
        if is_planned && self.plan.as_ref().is_some_and(|plan| plan.weighing == Weighing::NoPrices) {
            warnings.push(NO_PRICES.to_owned());
        }
        warnings.extend(self.sweep_ceiling.describe());
        warnings.extend(self.describe_setback());
        warnings.extend(self.presence_warnings());
        warnings.extend(self.likely_mistakes());
        warnings
    }

    /// Returns likely mistakes in the job's progress reports, for running and for ended jobs.
    pub(in crate::controller) fn likely_mistakes(&self) -> Vec<String> {
        self.received_reports.likely_mistakes(&self.spec)
    }

    /// Returns the number of promises that cannot be kept: by the plan in force or, if none is applied, by any plan.
    pub(in crate::controller) fn broken_promises(&self, now: Now) -> usize {
        self.broken(matches!(self.phase, Phase::Planned | Phase::Paused), now).len()
    }

    /// Returns the promises that the job broke, in one sentence each, given that it ended at `ended_at` with the
    /// emissions `carbon`, to which those of earlier jobs with the same key are added.
    pub(in crate::controller) fn broken_at_end(&self, ended_at: DateTime<Utc>, carbon: GramsCo2e) -> Vec<String> {
        let carbon = Some(self.emitted_before() + carbon);
        let outcome = Outcome { ends_at: Some(ended_at), slowdown: self.final_slowdown(), carbon };
        self.judge(&outcome).iter().map(|broken| broken.describe(Circumstance::Ended)).collect()
    }

    /// Returns the promises that cannot be kept (by the job's plan if `is_followed`, else by any plan), each with the
    /// circumstance that explains why.
    fn broken(&self, is_followed: bool, now: Now) -> Vec<(Broken, Circumstance)> {
        let inevitable = self.judge(&self.best_outcome(now)).into_iter().map(|b| (b, Circumstance::Inevitable));
        let Some(plan) = self.plan.as_ref().filter(|_| is_followed) else { return inevitable.collect() };
        let how = plan.verdict.circumstance(self.planned_out_of_band_cap);
        let mut broken: Vec<_> = plan.verdict.broken().iter().map(|broken| (*broken, how)).collect();
        // The plan's check of its promises does not include time lost and carbon emitted since the plan was made.
        let judged: Vec<Promise> = broken.iter().map(|(broken, _)| broken.promise).collect();
        let is_new = |promise: &Promise| !matches!(promise, Promise::Deadline(_)) && !judged.contains(promise);
        broken.extend(inevitable.filter(|(broken, _)| is_new(&broken.promise)));
        broken
    }

    fn judge(&self, outcome: &Outcome) -> Vec<Broken> {
        let rounding = |promise| if matches!(promise, Promise::Slowdown(_)) { SLOWDOWN_ROUNDING } else { 0.0 };
        Broken::among(self.spec.objective.promises(), outcome, rounding)
    }

    /// Returns the job's best possible outcome (earliest end, lowest slowdown, emissions so far), as far as that
    /// outcome is known without a plan.
    fn best_outcome(&self, now: Now) -> Outcome {
        let fastest = self.profile().points.iter().map(|p| p.throughput.mean).reduce(SamplesPerSecond::max);
        let fastest = fastest.filter(|rate| *rate > SamplesPerSecond::ZERO);
        let since_report = self.progress_now(now).0 - self.progress.account.samples;
        let left = self.remaining().filter(|left| *left > Samples::ZERO);
        let left = left.map(|left| (left - since_report).max(Samples::ZERO));
        let needed = left.map(|left| fastest.map_or(Seconds::ZERO, |rate| left / rate));
        let presence = &self.progress.presence;
        // A suspended job has saved its checkpoint already.
        let suspended = presence.suspended_since().and(self.spec.offers.suspend.as_ref());
        let restart = suspended.map_or(self.restart_left(now), |offer| presence.restarts.estimate(offer.restart));
        Outcome {
            ends_at: needed.map(|needed| later(now.utc, (restart + needed).to_delta())),
            slowdown: self.least_slowdown(),
            carbon: Some(self.emitted_before() + self.emissions.sum().carbon),
        }
    }
}
