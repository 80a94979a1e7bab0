//! Plans a job's remaining work from its state and a forecast; only the present of a plan is applied (`planning.md`
//! §4).
//!
//! Planning is repeated on each relevant change. The slowdown budget covers the job's whole life, (1+ε)·W/r(l_max) of
//! active time, so time lost early is recovered later. Because r(l_max) is an estimate, plans use ε less a reserve
//! ([`crate::profile::reserve`]).

use chrono::{DateTime, Utc};

use super::budget::{OverBudget, solve_within};
use super::dwell::shortest_dwell;
use super::pausing::{Paused, Rules, solve_pausing};
use super::problem::{Infeasible, InvalidProblem, PlanSlot, Point, Problem, Solution, check_horizon};
use super::reason::{PlanContext, Reason, explain};
use super::request::{Progress, Request, Unplannable};
use super::schedule::{Expected, JobActivity, Plan, Segment, Verdict};
use super::shares::{SHORTEST, Shares, carbon, fill, mean, spans, time, without_short_parts};
use super::slots::coarser;
use crate::domain::{Activity, Promise, SetPoint, Slot, Work};
use crate::profile::{Curve, HullPoint};
use crate::time::later;
use crate::units::{GramsPerKwh, Joules, Samples, SamplesPerSecond, Seconds, Watts};

/// Maximum length of a plan, about 3,000 years.
const FURTHEST: Seconds = Seconds::new(1e11);
/// Minimum duration of work; shorter work counts as none.
const NO_TIME: Seconds = Seconds::new(1e-12);
/// Maximum number of slots; more are averaged to longer ones first.
const MOST_SLOTS: usize = 4096;

/// Plans the rest of a job, or the next window of a job with unknown work. In a slot with two settings the faster comes
/// first; each part lasts at least a second unless it is alone.
///
/// If the time constraints cannot be met, the job runs at full speed; if only the carbon budget cannot be met, the plan
/// of least carbon that meets the others is used. The verdict states the violations. For unknown work, the work of the
/// window is `window · r(l_max)/(1+ε)` less what the job is ahead; without a maximum slowdown, or ahead by a whole
/// window, each slot takes argmin (η·c_t·p(l) + (1−η)·c_ref·P_max)/r(l).
///
/// # Errors
/// If the input allows no plan.
pub fn plan(request: &Request<'_>) -> Result<Plan, Unplannable> {
    Planner::new(request)?.plan()
}

/// The usable points of a profile.
pub(super) struct UsablePoints {
    pub(super) points: Vec<Point>,
    /// Index in the profile of each point.
    pub(super) places: Vec<usize>,
}

impl UsablePoints {
    fn of(request: &Request<'_>) -> Result<Self, Unplannable> {
        let known = &request.profile.points;
        let allowed = |set: &SetPoint| request.allowed.is_none_or(|cap| set.limit <= cap || set.limit.same_as(cap));
        let (mut points, mut places) = (Vec::new(), Vec::new());
        for (place, p) in known.iter().enumerate() {
            let (power, throughput) = (p.power.mean, p.throughput.mean);
            let first = !places.iter().any(|&earlier: &usize| known[earlier].setting == p.setting);
            if p.is_usable() && first && p.setting.iter().all(allowed) {
                points.push(Point { power, throughput });
                places.push(place);
            }
        }
        match (points.is_empty(), request.allowed) {
            (false, _) => Ok(Self { points, places }),
            (true, Some(cap)) => Err(Unplannable::NothingAllowed(cap)),
            (true, None) => Err(Unplannable::NoUsablePoint),
        }
    }

    /// Returns the index of the best point, where `better` compares two.
    fn best(&self, better: impl Fn(&Point, &Point) -> bool) -> usize {
        (1..self.points.len()).fold(0, |best, i| if better(&self.points[i], &self.points[best]) { i } else { best })
    }

    pub(super) fn fastest(&self) -> usize {
        self.best(|a, b| a.throughput > b.throughput || (a.throughput == b.throughput && a.power < b.power))
    }

    fn weakest(&self) -> usize {
        self.best(|a, b| a.power < b.power)
    }

    /// Returns the activity at a point of the problem and its index in the profile. The points after the working ones
    /// are a pause at the lowest limits, and a checkpoint at the fastest point.
    fn activity_at(&self, point: usize) -> (JobActivity, usize) {
        match point.checked_sub(self.points.len()) {
            None => (JobActivity::Training, self.places[point]),
            Some(0) => (JobActivity::Paused, self.places[self.weakest()]),
            Some(_) => (JobActivity::Resuming, self.places[self.fastest()]),
        }
    }
}

/// Work that a plan must do.
pub(super) enum Due {
    /// None; the work is done.
    Done,
    /// None for now; unknown work without a binding constraint.
    NothingNow,
    /// Some work.
    Work(DueWork),
}

pub(super) struct DueWork {
    pub(super) samples: Samples,
    pub(super) latest_end: Option<(DateTime<Utc>, Promise)>,
    /// Duration at full speed for unknown work, which does not end.
    flat_out: Option<Seconds>,
}

pub(super) struct Planner<'a> {
    pub(super) request: &'a Request<'a>,
    pub(super) reference: HullPoint,
    pub(super) choice: UsablePoints,
}

impl<'a> Planner<'a> {
    pub(super) fn new(request: &'a Request<'a>) -> Result<Self, Unplannable> {
        let curve = Curve::from_profile(request.profile).ok_or(Unplannable::NoUsablePoint)?;
        Ok(Self { request, reference: *curve.ceiling(), choice: UsablePoints::of(request)? })
    }

    fn plan(&self) -> Result<Plan, Unplannable> {
        match self.due() {
            Due::Done => Ok(self.finish(&Draft::default(), self.request.now, Verdict::Optimal)),
            Due::NothingNow => self.cheapest_per_slot(),
            Due::Work(due) => self.solve(&due),
        }
    }

    pub(super) fn due(&self) -> Due {
        let Request { objective, progress, window, .. } = *self.request;
        match self.request.work {
            Work::TotalSamples(total) => {
                let samples = total - progress.samples;
                if samples <= self.choice.points[self.choice.fastest()].throughput * NO_TIME {
                    return Due::Done;
                }
                Due::Work(DueWork { samples, latest_end: self.latest_end(), flat_out: None })
            }
            Work::Unknown => {
                let Some(max) = objective.max_slowdown else { return Due::NothingNow };
                let least = self.reference.throughput / (1.0 + self.guarded(max));
                let ahead = progress.samples - least * progress.elapsed;
                let samples = least * window - ahead;
                if samples <= Samples::ZERO {
                    return Due::NothingNow;
                }
                Due::Work(DueWork { samples, latest_end: self.latest_end(), flat_out: Some(window) })
            }
        }
    }

    /// Returns the remaining problem and the end of the forecast.
    pub(super) fn problem(&self, due: &DueWork) -> Result<(Problem, DateTime<Utc>), Unplannable> {
        let now = self.request.now;
        let slowest = self.choice.points.iter().map(|p| p.throughput).fold(self.reference.throughput, |a, b| a.min(b));
        let at_leisure = later(now, (due.samples / slowest).to_delta());
        // A job that may pause may use all available time.
        let enough = if self.request.objective.pausable.is_some() { DateTime::<Utc>::MAX_UTC } else { at_leisure };
        let until = due.latest_end.map_or(at_leisure, |(end, _)| end.min(enough));
        let (slots, known_until) = self.horizon(until.max(later(now, self.flat_out_time(due).to_delta())))?;
        let weighed = self.request.weighed_intensities(&slots);
        let problem = Problem::new(
            slots,
            self.choice.points.clone(),
            due.samples,
            self.request.objective.eta,
            self.request.reference_intensity.max(GramsPerKwh::ZERO),
            self.request.max_power,
            due.latest_end.map(|(end, _)| end),
        )?;
        Ok((problem.minimising(&weighed), known_until))
    }

    fn flat_out_time(&self, due: &DueWork) -> Seconds {
        due.flat_out.unwrap_or(due.samples / self.choice.points[self.choice.fastest()].throughput)
    }

    /// Returns the optimum, or the plan with the least violation.
    fn solve(&self, due: &DueWork) -> Result<Plan, Unplannable> {
        let (problem, known_until) = self.problem(due)?;
        let promise = due.latest_end.map(|(_, promise)| promise);
        Ok(match self.optimum(&problem, due) {
            Ok(Optimum { problem, solution, promise: binding, over_budget, restrained }) => {
                let whole = self.request.progress.samples + due.samples;
                let dwell = shortest_dwell(self.request.dwell, whole, self.request.profile);
                let shares = without_short_parts(solution.shares.clone(), dwell);
                let shares = self.without_surplus(shares, due);
                let slowdown = self.slowdown(self.samples(&shares), time(&shares));
                let context = PlanContext { promise, binding, slowdown, weighing: self.request.weighing(), restrained };
                let reasons = explain(&problem, &solution, &shares, &context);
                let draft = Draft { slots: problem.slots(), shares, reasons };
                let mut plan = self.finish(&draft, known_until, Verdict::Optimal);
                if over_budget {
                    let mut broken = self.broken(plan.ends_at(), slowdown, plan.expected.carbon);
                    broken.retain(|broken| !broken.promise.bounds_time());
                    plan.verdict = if broken.is_empty() { Verdict::Optimal } else { Verdict::OverBudget { broken } };
                }
                plan
            }
            Err(why) => {
                let flat_out = self.flat_out_time(due);
                let shares = fill(problem.slots(), flat_out, self.choice.fastest());
                let reasons = shares.iter().map(|_| vec![Reason::FlatOut { promise }]).collect();
                let draft = Draft { slots: problem.slots(), shares, reasons };
                let mut plan = self.finish(&draft, known_until, Verdict::Optimal);
                let ends_at = later(self.request.now, flat_out.to_delta());
                let slowdown = self.slowdown(plan.expected.samples, flat_out);
                plan.verdict = Verdict::FlatOut { broken: self.broken(ends_at, slowdown, plan.expected.carbon), why };
                plan
            }
        })
    }

    /// Returns the optimum for the objective, with pauses or a budget if it has them.
    fn optimum(&self, problem: &Problem, due: &DueWork) -> Result<Optimum, Infeasible> {
        let budget = self.carbon_left();
        let left = budget.map(|(left, _)| left);
        if let Some(costs) = self.request.objective.pausable {
            let Request { now, activity, .. } = *self.request;
            let checkpoint = self.choice.points[self.choice.fastest()].power;
            let rules = Rules { costs, activity, now, checkpoint, budget: left };
            let Paused { problem: pieces, solution, over_budget, multiplier } = solve_pausing(problem, &rules)?;
            let is_paused = matches!(activity, Some(Activity::PausedSince(_)));
            if left.is_none()
                && !is_paused
                && let Ok(without) = super::dual::solve(problem)
                && !self.pausing_pays((problem, &without), (&pieces, &solution))
            {
                return Ok(self.limit_by_uncertainty(problem, without, due));
            }
            let promise = budget.filter(|_| multiplier > 0.0).map(|(_, promise)| promise);
            return Ok(Optimum { promise, over_budget, ..Optimum::plain(pieces, solution) });
        }
        let Some((left, promise)) = budget else {
            let solution = super::dual::solve(problem)?;
            return Ok(self.limit_by_uncertainty(problem, solution, due));
        };
        match solve_within(problem, left) {
            Ok(within) if within.multiplier > 0.0 => {
                let problem = problem.with_carbon_at(within.multiplier);
                Ok(Optimum { promise: Some(promise), ..Optimum::plain(problem, within.solution) })
            }
            Ok(within) => Ok(self.limit_by_uncertainty(problem, within.solution, due)),
            Err(OverBudget::By(solution)) => {
                let least = Optimum::plain(problem.least_carbon(), solution);
                Ok(Optimum { promise: Some(promise), over_budget: true, ..least })
            }
            Err(OverBudget::Infeasible(why)) => Err(why),
        }
    }

    /// Returns the optimum with its present slot limited by forecast uncertainty.
    fn limit_by_uncertainty(&self, problem: &Problem, solution: Solution, due: &DueWork) -> Optimum {
        match self.restrained(problem, &solution, due) {
            Some(restrained) => Optimum { restrained: true, ..Optimum::plain(problem.clone(), restrained) },
            None => Optimum::plain(problem.clone(), solution),
        }
    }

    /// Plans each slot of the window at its own optimum.
    fn cheapest_per_slot(&self) -> Result<Plan, Unplannable> {
        let Request { objective, reference_intensity, max_power, window, .. } = *self.request;
        let (slots, known_until) = self.horizon(later(self.request.now, window.to_delta()))?;
        let time_cost = (1.0 - objective.eta) * reference_intensity.get() * max_power.get();
        let cheapest = |(slot, weighed): (&PlanSlot, GramsPerKwh)| {
            let carbon = objective.eta * weighed.get();
            let cost = |p: &Point| (carbon * p.power.get() + time_cost) / p.throughput.get();
            // Among equal costs, as on a carbon-free grid, the fastest.
            let better =
                |a: &Point, b: &Point| cost(a) < cost(b) || (cost(a) == cost(b) && a.throughput > b.throughput);
            vec![(self.choice.best(better), slot.slot.duration())]
        };
        let shares = slots.iter().zip(self.request.weighed_intensities(&slots)).map(cheapest).collect();
        let reason = |slot: &PlanSlot| vec![Reason::LeastCostPerSample { intensity: slot.intensity }];
        let reasons = slots.iter().map(reason).collect();
        Ok(self.finish(&Draft { slots: &slots, shares, reasons }, known_until, Verdict::Optimal))
    }

    /// Returns the slots from now to `until` and the end of the forecast. The time after it is one slot with the
    /// forecast's mean, which is equivalent to many equal ones.
    pub(super) fn horizon(&self, until: DateTime<Utc>) -> Result<(Vec<PlanSlot>, DateTime<Utc>), Unplannable> {
        let now = self.request.now;
        let until = until.clamp(later(now, SHORTEST.to_delta()), later(now, FURTHEST.to_delta()));
        let ahead = |s: &PlanSlot| {
            let slot = Slot::new(s.slot.start().max(now), s.slot.end().min(until))?;
            Some(PlanSlot { slot, intensity: s.intensity.max(GramsPerKwh::ZERO) })
        };
        let mut slots: Vec<PlanSlot> = self.request.horizon.iter().filter_map(ahead).collect();
        if let Some(late) = slots.first().map(|s| s.slot.start()).filter(|start| *start > now) {
            return Err(InvalidProblem::NotContiguous(late).into());
        }
        check_horizon(&slots).or_else(|e| if slots.is_empty() { Ok(()) } else { Err(e) })?;
        let mut step = SHORTEST;
        while slots.len() > MOST_SLOTS {
            slots = coarser(&slots, step);
            step = step * 2.0;
        }
        let known_until = slots.last().map_or(now, |s| s.slot.end());
        if let Some(slot) = Slot::new(known_until, until) {
            // The mean includes the past: a mean that drifts over time would change earlier plans.
            let intensity = mean(self.request.horizon).unwrap_or(self.request.reference_intensity);
            let intensity = intensity.max(GramsPerKwh::ZERO);
            slots.push(PlanSlot { slot, intensity });
        }
        check_horizon(&slots)?;
        Ok((slots, known_until))
    }

    /// Returns the work done by time shares.
    fn samples(&self, shares: &[Vec<(usize, Seconds)>]) -> Samples {
        let points = &self.choice.points;
        let part = |(point, seconds): &(usize, Seconds)| points.get(*point).map(|p| p.throughput * *seconds);
        shares.iter().flatten().filter_map(part).sum()
    }

    /// Removes surplus work at the end that lengthened parts cause.
    fn without_surplus(&self, mut shares: Shares, due: &DueWork) -> Shares {
        if self.request.dwell <= SHORTEST || due.flat_out.is_some() {
            return shares;
        }
        let mut surplus = self.samples(&shares) - due.samples;
        while let Some(parts) = shares.last_mut() {
            let Some((point, seconds)) = parts.last_mut() else { break };
            let Some(point) = self.choice.points.get(*point).filter(|_| surplus > Samples::ZERO) else { break };
            let less = seconds.min(surplus / point.throughput);
            surplus -= point.throughput * less;
            if less < *seconds {
                *seconds -= less;
                break;
            }
            parts.pop();
            if parts.is_empty() {
                shares.pop();
            }
        }
        shares
    }

    /// Returns the slowdown over the job's life if it does `samples` in `duration` from now.
    pub(super) fn slowdown(&self, samples: Samples, duration: Seconds) -> f64 {
        let Progress { samples: done, elapsed, .. } = self.request.progress;
        let at_ceiling = (done + samples) / self.reference.throughput;
        if at_ceiling > NO_TIME { (elapsed + duration) / at_ceiling - 1.0 } else { 0.0 }
    }

    /// Converts time shares to segments.
    fn finish(&self, draft: &Draft<'_>, known_until: DateTime<Utc>, verdict: Verdict) -> Plan {
        let mut segments: Vec<Segment> = Vec::new();
        for ((slot, parts), reasons) in draft.slots.iter().zip(&draft.shares).zip(&draft.reasons) {
            for ((span, (point, _)), reason) in spans(&slot.slot, parts).into_iter().zip(parts).zip(reasons) {
                let Some(span) = span else { continue };
                segments.push(self.segment(span, *point, slot.intensity, *reason));
            }
        }
        self.sum_up(segments, draft.slots, time(&draft.shares), known_until, verdict)
    }

    pub(super) fn segment(&self, slot: Slot, point: usize, intensity: GramsPerKwh, reason: Reason) -> Segment {
        let (doing, place) = self.choice.activity_at(point);
        let known = &self.request.profile.points[place];
        let idle = self.request.objective.pausable.map_or(Watts::ZERO, |p| p.idle_power);
        let (power, throughput) = match doing {
            JobActivity::Training => (known.power.mean, known.throughput.mean),
            JobActivity::Paused => (idle, SamplesPerSecond::ZERO),
            JobActivity::Resuming => (known.power.mean, SamplesPerSecond::ZERO),
        };
        Segment { slot, setting: known.setting.clone(), point: place, doing, power, throughput, intensity, reason }
    }

    /// Creates a plan with its expected result from segments.
    pub(super) fn sum_up(
        &self,
        segments: Vec<Segment>,
        slots: &[PlanSlot],
        duration: Seconds,
        known_until: DateTime<Utc>,
        verdict: Verdict,
    ) -> Plan {
        let (now, ends_at) = (self.request.now, segments.last().map_or(self.request.now, |s| s.slot.end()));
        let samples = segments.iter().map(Segment::samples).sum();
        let expected = Expected {
            ends_at,
            samples,
            carbon: segments.iter().map(|s| s.energy() * s.intensity).sum(),
            energy: segments.iter().map(Segment::energy).sum::<Joules>(),
            slowdown: self.slowdown(samples, duration),
            carbon_at_ceiling: carbon(slots, self.reference.power, samples / self.reference.throughput),
        };
        Plan {
            made_at: now,
            samples_done: self.request.progress.samples,
            segments,
            expected,
            verdict,
            extended_from: (ends_at > known_until).then_some(known_until),
            weighing: self.request.weighing(),
            slack: self.slack(),
            forgone_saving: None,
        }
    }

    fn slack(&self) -> Option<(DateTime<Utc>, SamplesPerSecond)> {
        let Due::Work(DueWork { latest_end: Some((end, _)), .. }) = self.due() else { return None };
        Some((end, self.choice.points[self.choice.fastest()].throughput))
    }
}

impl DueWork {
    /// Returns whether the job continues after it.
    pub(super) fn endless(&self) -> bool {
        self.flat_out.is_some()
    }
}

/// A plan without times.
#[derive(Default)]
struct Draft<'a> {
    slots: &'a [PlanSlot],
    shares: Shares,
    reasons: Vec<Vec<Reason>>,
}

/// A solution and the problem it solves, which may include a multiplier for a carbon budget.
struct Optimum {
    problem: Problem,
    solution: Solution,
    /// The budget, if it binds.
    promise: Option<Promise>,
    /// True if even this plan exceeds the budget.
    over_budget: bool,
    /// True if uncertainty moved the present slot towards the constant mix.
    restrained: bool,
}

impl Optimum {
    fn plain(problem: Problem, solution: Solution) -> Self {
        Self { problem, solution, promise: None, over_budget: false, restrained: false }
    }
}
