//! Replay of one job, from the job's start to the end of its work.

use chrono::{DateTime, Utc};

use super::job::Job;
use super::view::{Action, Decision, Step, View};
use crate::grid::{VisibleGrid, covered_until};
use wattune_core::domain::{Activity, CarbonSeries, Pausing, Profile, Slot};
use wattune_core::ledger::{self, Comparison, CompletedWork};
use wattune_core::plan::{FirstPlan, PastEmissions, Unplannable};
use wattune_core::profile::Curve;
use wattune_core::units::{GramsCo2e, GramsPerKwh, Joules, Samples, SamplesPerSecond, Seconds, Watts};

/// Largest fraction of the work that may be missing when a job counts as done; such a remainder comes from rounding.
const ROUNDING: f64 = 1e-9;
/// Longest time at the largest limit for which work may be missing when a job counts as done: the ends of a plan's
/// segments are rounded to the microsecond.
const RESOLUTION: Seconds = Seconds::new(2e-6);

/// A time span of a replay in which the job does one thing.
#[derive(Clone, Debug, PartialEq)]
pub struct Leg {
    /// Time span.
    pub slot: Slot,
    /// Activity of the job during the time span.
    pub action: Action,
}

/// Result of a replayed job.
#[derive(Clone, Debug, PartialEq)]
pub struct Replayed {
    /// Comparison of the job with the same job at the largest power limit.
    pub against_max: Comparison,
    /// Energy that the job used.
    pub energy: Joules,
    /// Emissions of the job.
    pub carbon: GramsCo2e,
    /// Duration of the job.
    pub time: Seconds,
    /// Activities of the job over time, oldest first.
    pub legs: Vec<Leg>,
}

/// Reason why a replay cannot be completed.
#[expect(missing_docs, reason = "the messages explain the fields")]
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ReplayError {
    /// The carbon trace ends, or has a gap, before the job or its reference has done the work.
    #[error("the carbon trace has no value at {}, before the work is done", .0.format("%FT%TZ"))]
    BeyondTrace(DateTime<Utc>),
    /// The job would have no emissions at the largest limit, so that nothing can be reduced.
    #[error("the carbon trace is zero for as long as the work takes at the largest limit: there is nothing to reduce")]
    NoCarbon,
    /// The policy cannot find a plan.
    #[error("the policy cannot plan")]
    Unplannable(#[from] Unplannable),
    /// The steps that the policy decided on take no time, so that the replay would never end.
    #[error("the policy's plan takes no time at {0}, so the replay would never end")]
    Idle(DateTime<Utc>),
    /// The jobs do not fit under the node's power cap, even if all have their lowest limits.
    #[error("the lowest limits of all jobs add up to {lowest}, more than the node's cap of {cap}")]
    NoRoom { lowest: Watts, cap: Watts },
}

/// Circumstances of a replay that do not depend on the policy.
#[derive(Clone, Copy)]
pub struct Setting<'a> {
    /// Job that is replayed.
    pub job: &'a Job,
    /// Profile that policies know: the job's true one, or one with measurement errors.
    pub believed: &'a Profile,
    /// Relative standard error of the throughputs and powers in `believed`, the profile that policies know.
    pub profile_error: f64,
    /// Start of the job.
    pub start: DateTime<Utc>,
    /// Conditions and costs of pauses; `None` if the job may not pause.
    pub pausing: Option<Pausing>,
    /// Grid on which the job is replayed.
    pub grid: &'a VisibleGrid<'a>,
}

impl Setting<'_> {
    /// Returns true if the job would have no emissions at the largest limit, so that nothing can be reduced.
    pub fn is_without_carbon(&self) -> bool {
        is_without_carbon(self.job, self.start, self.grid.actual())
    }
}

/// Returns true if the carbon intensity is zero for as long as the job's work takes at the largest limit.
fn is_without_carbon(job: &Job, start: DateTime<Utc>, actual: &CarbonSeries) -> bool {
    let end = start.checked_add_signed(job.time_at_max().to_delta());
    let intensity = end.and_then(|end| ledger::mean_intensity(actual, &Slot::new(start, end)?));
    intensity.is_some_and(|intensity| intensity <= GramsPerKwh::ZERO)
}

/// Replays a job to the end of its work. `budget` is the extra time that the job may take (0.03 is 3 %; `None` if the
/// policy uses its own weights). If `sweep` is not zero, the job first trains for the time `sweep` at each limit, from
/// the largest down: the cost of profiling.
///
/// # Errors
/// If the carbon trace ends before the work is done, or the policy makes no decision or no progress.
pub fn replay(
    setting: Setting<'_>,
    budget: Option<f64>,
    sweep: Seconds,
    decide: impl Fn(&View<'_>) -> Decision,
) -> Result<Replayed, ReplayError> {
    let curve = Curve::from_profile(setting.believed).ok_or(Unplannable::NoUsablePoint)?;
    let mut run = Run::new(&setting);
    if sweep > Seconds::ZERO {
        for point in 0..setting.job.profile.points.len() {
            run.apply(&Step::at(point, sweep))?;
        }
        run.swept = Swept { samples: run.samples_done, elapsed: run.elapsed, carbon: run.carbon };
    }
    while !run.is_done() {
        let before = run.elapsed;
        for step in decide(&run.view(&setting, &curve, budget))? {
            run.apply(&step)?;
        }
        if run.elapsed <= before {
            return Err(ReplayError::Idle(run.now()));
        }
    }
    run.end()
}

/// Totals of a job at the end of its sweep.
#[derive(Clone, Copy, Default)]
struct Swept {
    samples: Samples,
    elapsed: Seconds,
    carbon: GramsCo2e,
}

pub(super) struct Run<'a> {
    job: &'a Job,
    start: DateTime<Utc>,
    pausing: Option<Pausing>,
    actual: &'a CarbonSeries,
    samples_done: Samples,
    elapsed: Seconds,
    energy: Joules,
    carbon: GramsCo2e,
    swept: Swept,
    activity: Activity,
    legs: Vec<Leg>,
}

impl<'a> Run<'a> {
    pub(super) fn new(setting: &Setting<'a>) -> Self {
        Self {
            job: setting.job,
            start: setting.start,
            pausing: setting.pausing,
            actual: setting.grid.actual(),
            samples_done: Samples::ZERO,
            elapsed: Seconds::ZERO,
            energy: Joules::ZERO,
            carbon: GramsCo2e::ZERO,
            swept: Swept::default(),
            // The job counts as running for a long time, so that the minimum time between pauses does not apply at the
            // start.
            activity: Activity::RunningSince(DateTime::UNIX_EPOCH),
            legs: Vec::new(),
        }
    }

    pub(super) fn view<'b>(&self, setting: &Setting<'b>, curve: &'b Curve, budget: Option<f64>) -> View<'b> {
        View {
            now: self.now(),
            start: self.start,
            profile: setting.believed,
            curve,
            profile_error: setting.profile_error,
            max_power: self.job.max_power,
            work: self.job.work,
            samples_done: self.samples_done,
            elapsed: self.elapsed,
            first_plan: FirstPlan {
                elapsed: self.swept.elapsed,
                reference_time: self.swept.samples / curve.ceiling().throughput,
            },
            past_emissions: self.past_emissions(),
            budget,
            pausing: self.pausing,
            activity: self.activity,
            grid: setting.grid,
        }
    }

    fn past_emissions(&self) -> Option<PastEmissions> {
        let planned_from = self.start + self.swept.elapsed.to_delta();
        let intensity = ledger::mean_intensity(self.actual, &Slot::new(planned_from, self.now())?)?;
        Some(PastEmissions { intensity, carbon: self.carbon - self.swept.carbon })
    }

    pub(super) fn now(&self) -> DateTime<Utc> {
        self.start + self.elapsed.to_delta()
    }

    pub(super) fn is_done(&self) -> bool {
        let negligible = (self.job.work * ROUNDING).max(self.job.curve.ceiling().throughput * RESOLUTION);
        self.job.work - self.samples_done <= negligible
    }

    /// Returns the error for a time without a value in the trace.
    fn beyond_trace(&self) -> ReplayError {
        ReplayError::BeyondTrace(covered_until(self.actual, self.start))
    }

    fn at(&self, action: &Action) -> (Watts, SamplesPerSecond) {
        let points = &self.job.profile.points;
        match action {
            Action::Train(shares) => (
                shares.iter().map(|(index, share)| points[*index].power.mean * *share).sum(),
                shares.iter().map(|(index, share)| points[*index].throughput.mean * *share).sum(),
            ),
            Action::Pause => (self.pausing.map_or(Watts::ZERO, |costs| costs.idle_power), SamplesPerSecond::ZERO),
            Action::Checkpoint(index) => (points[*index].power.mean, SamplesPerSecond::ZERO),
        }
    }

    pub(super) fn apply(&mut self, step: &Step) -> Result<(), ReplayError> {
        if self.is_done() {
            return Ok(());
        }
        let (power, throughput) = self.at(&step.action);
        let works = throughput > SamplesPerSecond::ZERO;
        let lasts = if works { step.lasts.min((self.job.work - self.samples_done) / throughput) } else { step.lasts };
        let before = self.now();
        let end = self.start.checked_add_signed((self.elapsed + lasts).to_delta());
        let end = end.ok_or_else(|| self.beyond_trace())?;
        // A step that is shorter than the resolution of time counts without emissions.
        if let Some(slot) = Slot::new(before, end) {
            let intensity = ledger::mean_intensity(self.actual, &slot).ok_or_else(|| self.beyond_trace())?;
            self.carbon += power * lasts * intensity;
            match self.legs.last_mut() {
                Some(last) if last.action == step.action => {
                    last.slot = Slot::new(last.slot.start(), end).unwrap_or(slot)
                }
                _ => self.legs.push(Leg { slot, action: step.action.clone() }),
            }
        }
        self.activity = match (self.activity, &step.action) {
            (Activity::RunningSince(_), Action::Pause) => Activity::PausedSince(before),
            // A checkpoint after a pause already counts as running.
            (Activity::PausedSince(_), Action::Train(_) | Action::Checkpoint(_)) => Activity::RunningSince(before),
            (same, _) => same,
        };
        self.energy += power * lasts;
        self.samples_done += throughput * lasts;
        self.elapsed += lasts;
        Ok(())
    }

    pub(super) fn end(self) -> Result<Replayed, ReplayError> {
        let completed = CompletedWork {
            started: self.start,
            active: self.elapsed,
            stalled: Seconds::ZERO,
            stalled_energy: Joules::ZERO,
            samples: self.samples_done,
            energy: self.energy,
            carbon: self.carbon,
        };
        let curve = &self.job.curve;
        let ceiling = curve.ceiling();
        // Instead of training slower than at the most efficient throughput all the time, a job that may pause can train
        // at this throughput for part of the time.
        let efficient = curve.most_efficient().throughput;
        let constant = |throughput: SamplesPerSecond| {
            let pace = if self.pausing.is_some() { throughput.max(efficient) } else { throughput };
            Some(curve.power_at(pace)? * (throughput / pace))
        };
        let against_max = ledger::compare(&completed, (ceiling.throughput, ceiling.power), constant, self.actual);
        // The reference may lie in a time of zero intensity although the slower job has emissions.
        let missing = || match is_without_carbon(self.job, self.start, self.actual) {
            true => ReplayError::NoCarbon,
            false => self.beyond_trace(),
        };
        Ok(Replayed {
            against_max: against_max.ok_or_else(missing)?,
            energy: self.energy,
            carbon: self.carbon,
            time: self.elapsed,
            legs: self.legs,
        })
    }
}
