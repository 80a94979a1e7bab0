//! Receding horizon: plans a job's remaining work again and again from its state and a forecast. Only the present of
//! each plan is applied (`planning.md` §4).
//!
//! Planning is repeated on each relevant change. The slowdown budget covers the job's whole life, (1+ε)·N/r(l_max) of
//! active time, so time lost early is recovered later. Because r(l_max), the throughput at the maximum usable limit, is
//! an estimate, plans use the maximum slowdown ε less a reserve ([`crate::profile::reserve`]).

use chrono::{DateTime, Utc};

use super::budget::{OverBudget, solve_within};
use super::dual;
use super::pausing::{Paused, Rules, solve_pausing, solve_resuming};
use super::planner::{Due, DueWork, Planner};
use super::problem::{Infeasible, PlanSlot, Point, Problem, Solution};
use super::shares::{SHORTEST, Shares, carbon, fill, shortest_dwell, spans, time, without_short_parts};
use crate::domain::{Activity, Objective, Promise};
use crate::plan::reason::{PlanContext, Reason, explain};
use crate::plan::request::{PastEmissions, Progress, Request, Unplannable};
use crate::plan::schedule::{Plan, Segment, Verdict};
use crate::time::later;
use crate::units::{GramsCo2e, GramsPerKwh, Joules, Samples, Seconds};

/// Plans the rest of a job, or the next window of a job whose total work is unknown. In a slot with two settings the
/// faster comes first; each part lasts at least a second unless it is the only one in its slot.
///
/// If the time constraints cannot be met, the job runs at full speed, after a restart if it is paused; if only the
/// carbon budget cannot be met, the plan of least carbon that meets the time constraints is used. [`Verdict`] lists the
/// broken promises. If the total work is unknown, the work of the window is `window · r(l_max)/(1+ε)` less the samples
/// that the job is ahead. Without a maximum slowdown ε, or if the job is ahead by a whole window, each slot takes the
/// limit l with the least cost per sample, (η·c_t·p(l)+(1−η)·c_ref·P_max)/r(l).
///
/// # Errors
/// If the profile has no usable and allowed point, or the horizon or the objective is invalid.
pub fn plan(request: &Request<'_>) -> Result<Plan, Unplannable> {
    Planner::new(request)?.plan()
}

impl Planner<'_> {
    fn plan(&self) -> Result<Plan, Unplannable> {
        match self.due() {
            Due::Done => Ok(self.finish(&Draft::default(), self.request.now, Verdict::Optimal)),
            _ if self.request.progress.restart_left > Seconds::ZERO => self.plan_after_restart(),
            Due::NothingNow => self.cheapest_per_slot(),
            Due::Work(due) => self.solve(&due),
        }
    }

    /// Plans a job that is restarting: it trains from the expected end of its restart on.
    fn plan_after_restart(&self) -> Result<Plan, Unplannable> {
        let Request { now, window, progress, .. } = *self.request;
        let restart = progress.restart_left.max(SHORTEST);
        let trains_from = later(now, restart.to_delta());
        let (slots, _) = self.horizon(trains_from)?;
        let resuming = |s: &PlanSlot| self.segment(s.slot, self.checkpoint_point(), s.intensity, Reason::Resuming);
        let restarting: Vec<Segment> = slots.iter().map(resuming).collect();
        let energy: Joules = restarting.iter().map(Segment::energy).sum();
        let emitted: GramsCo2e = restarting.iter().map(|s| s.energy() * s.intensity).sum();
        let progress = Progress {
            elapsed: progress.elapsed + restart,
            carbon: progress.carbon + emitted,
            restart_left: Seconds::ZERO,
            past_emissions: progress.past_emissions.map(|past| PastEmissions { carbon: past.carbon + emitted, ..past }),
            ..progress
        };
        let window = (window - restart).max(Seconds::ZERO);
        let mut plan = plan(&Request { now: trains_from, window, progress, ..*self.request })?;
        let (slots, _) = self.horizon(plan.ends_at())?;
        let at_ceiling = plan.expected.samples / self.reference.throughput;
        plan.made_at = now;
        plan.expected.energy += energy;
        plan.expected.carbon += emitted;
        plan.expected.carbon_at_ceiling = carbon(&slots, self.reference.power, at_ceiling);
        plan.segments.splice(0..0, restarting);
        Ok(plan)
    }

    /// Returns the optimal plan; if no plan keeps all promises, the plan of least carbon, or the plan at full speed.
    fn solve(&self, due: &DueWork) -> Result<Plan, Unplannable> {
        let (problem, known_until) = self.problem(due)?;
        let promise = due.latest_end.map(|(_, promise)| promise);
        let Some(optimum) = self.optimum(&problem, due).transpose() else {
            let objective = Objective { pausable: None, ..*self.request.objective };
            return plan(&Request { objective: &objective, ..*self.request });
        };
        Ok(match optimum {
            Ok(Optimum { problem, solution, promise: binding, over_budget, restrained }) => {
                let whole = self.request.progress.samples + due.samples;
                let dwell = shortest_dwell(self.request.dwell, whole, self.request.profile);
                let shares = without_short_parts(solution.shares.clone(), dwell);
                let shares = self.without_surplus(shares, due);
                let slowdown = self.slowdown(self.samples(&shares), time(&shares));
                let only_measured = self.only_measured();
                let weighing = self.request.weighing();
                let context = PlanContext { promise, binding, slowdown, weighing, restrained, only_measured };
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
                let (restart, full_speed) = (self.restart(), self.full_speed_time(due));
                let fastest = self.choice.fastest();
                let shares = fill(problem.slots(), &[(self.checkpoint_point(), restart), (fastest, full_speed)]);
                let ends_at = later(self.request.now, (restart + full_speed).to_delta());
                let fits = problem.slots().last().is_some_and(|last| last.slot.end() >= ends_at);
                let promise = promise.filter(|_| fits);
                let reason = |(point, _): &(usize, Seconds)| match *point == fastest {
                    true => Reason::FullSpeed { promise },
                    false => Reason::Resuming,
                };
                let reasons = shares.iter().map(|parts| parts.iter().map(reason).collect()).collect();
                let draft = Draft { slots: problem.slots(), shares, reasons };
                let mut plan = self.finish(&draft, known_until, Verdict::Optimal);
                // The plan's segments end with the horizon, but the work may continue after it.
                let samples = self.choice.points[fastest].throughput * full_speed;
                let slowdown = self.slowdown(samples, restart + full_speed);
                plan.expected.slowdown = slowdown;
                plan.verdict = Verdict::FullSpeed { broken: self.broken(ends_at, slowdown, plan.expected.carbon), why };
                plan
            }
        })
    }

    /// Returns the optimum for the job's objective, with the job's pauses and its carbon budget, if any. `None` if
    /// the job may pause but the cheapest plan has no pause, or none that pays. The job is then to be planned as one that
    /// may not pause, whose shorter horizon has other errors.
    fn optimum(&self, problem: &Problem, due: &DueWork) -> Result<Option<Optimum>, Infeasible> {
        let budget = self.budget_left();
        let left = budget.map(|(left, _)| left);
        if let Some(costs) = self.request.objective.pausable {
            let Request { now, activity, .. } = *self.request;
            let checkpoint = self.choice.points[self.choice.fastest()].power;
            let rules = Rules { costs, activity, now, checkpoint, budget: left };
            let Paused { problem: pieces, solution, over_budget, multiplier } = solve_pausing(problem, &rules)?;
            let with = (&pieces, &solution);
            let has_pause = solution.shares.iter().flatten().any(|(point, _)| *point >= self.choice.points.len());
            match activity {
                _ if left.is_some() => {}
                Some(Activity::PausedSince(_)) => {
                    if let Ok(resumed) = solve_resuming(problem, &rules)
                        && !self.staying_paused_pays((&resumed.problem, &resumed.solution), with)
                    {
                        return Ok(Some(Optimum::plain(resumed.problem, resumed.solution)));
                    }
                }
                _ if !has_pause => return Ok(None),
                _ => {
                    if let Ok(without) = dual::solve(problem)
                        && !self.pausing_pays((problem, &without), with)
                    {
                        return Ok(None);
                    }
                }
            }
            let promise = budget.filter(|_| multiplier > 0.0).map(|(_, promise)| promise);
            return Ok(Some(Optimum { promise, over_budget, ..Optimum::plain(pieces, solution) }));
        }
        let Some((left, promise)) = budget else {
            let solution = dual::solve(problem)?;
            return Ok(Some(self.limit_by_uncertainty(problem, solution, due)));
        };
        Ok(Some(match solve_within(problem, left) {
            Ok(within) if within.multiplier > 0.0 => {
                let problem = problem.with_budget_at(within.multiplier);
                Optimum { promise: Some(promise), ..Optimum::plain(problem, within.solution) }
            }
            Ok(within) => self.limit_by_uncertainty(problem, within.solution, due),
            Err(OverBudget::By(solution)) => {
                let least = Optimum::plain(problem.least_counted(), solution);
                Optimum { promise: Some(promise), over_budget: true, ..least }
            }
            Err(OverBudget::Infeasible(why)) => return Err(why),
        }))
    }

    /// Returns the solution with its present slot changed if the forecast is too uncertain to follow.
    fn limit_by_uncertainty(&self, problem: &Problem, solution: Solution, due: &DueWork) -> Optimum {
        match self.restrained(problem, &solution, due) {
            Some(restrained) => Optimum { restrained: true, ..Optimum::plain(problem.clone(), restrained) },
            None => Optimum::plain(problem.clone(), solution),
        }
    }

    /// Plans each slot of the planning window at the slot's point of least cost per sample.
    fn cheapest_per_slot(&self) -> Result<Plan, Unplannable> {
        let Request { objective, reference_intensity, max_power, window, .. } = *self.request;
        let (slots, known_until) = self.horizon(later(self.request.now, window.to_delta()))?;
        let time_cost = (1.0 - objective.eta) * reference_intensity.get() * max_power.get();
        let cheapest = |(slot, weighed): (&PlanSlot, GramsPerKwh)| {
            let carbon = objective.eta * weighed.get();
            let cost = |p: &Point| (carbon * p.power.get() + time_cost) / p.throughput.get();
            // Among equal costs, as with zero carbon intensity, the fastest point is best.
            let better =
                |a: &Point, b: &Point| cost(a) < cost(b) || (cost(a) == cost(b) && a.throughput > b.throughput);
            vec![(self.choice.best(better), slot.slot.duration())]
        };
        let shares = slots.iter().zip(self.request.weighed_intensities(&slots)).map(cheapest).collect();
        let reason = |slot: &PlanSlot| vec![Reason::LeastCostPerSample { intensity: slot.intensity }];
        let reasons = slots.iter().map(reason).collect();
        Ok(self.finish(&Draft { slots: &slots, shares, reasons }, known_until, Verdict::Optimal))
    }

    /// Returns the reason of all segments if the job's profile has only one setting; else `None`.
    fn only_measured(&self) -> Option<Reason> {
        let [point] = self.request.profile.points.as_slice() else { return None };
        let limit = point.setting.iter().map(|set| set.limit).max()?;
        Some(Reason::OnlyMeasured { limit, lacks_time: self.request.objective.bounds_time() })
    }

    /// Returns the samples that are done in time shares (for each slot, the points used and the time at each).
    fn samples(&self, shares: &[Vec<(usize, Seconds)>]) -> Samples {
        let points = &self.choice.points;
        let part = |(point, seconds): &(usize, Seconds)| points.get(*point).map(|p| p.throughput * *seconds);
        shares.iter().flatten().filter_map(part).sum()
    }

    /// Shortens the plan at its end by the surplus work that comes from lengthening parts that were too short.
    fn without_surplus(&self, mut shares: Shares, due: &DueWork) -> Shares {
        if due.window.is_some() {
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

    /// Creates the plan of a draft: converts its time shares to segments.
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
}

/// A plan before its time shares are converted to segments.
#[derive(Default)]
struct Draft<'a> {
    slots: &'a [PlanSlot],
    shares: Shares,
    reasons: Vec<Vec<Reason>>,
}

/// A solution with the problem that it solves. If a carbon budget binds, the problem's cost of carbon contains the
/// budget's shadow price.
struct Optimum {
    problem: Problem,
    solution: Solution,
    /// The promise that sets the carbon budget, if the budget binds; else `None`.
    promise: Option<Promise>,
    /// True if even this plan exceeds the carbon budget.
    over_budget: bool,
    /// True if forecast uncertainty changed the present slot.
    restrained: bool,
}

impl Optimum {
    fn plain(problem: Problem, solution: Solution) -> Self {
        Self { problem, solution, promise: None, over_budget: false, restrained: false }
    }
}
