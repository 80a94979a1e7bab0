//! Which promises are broken, by how much, and which others they clash with.

use chrono::TimeDelta;

use super::general::Relaxer;
use super::iterate::Aim;
use super::model::{End, MISSED, Model};
use super::problem::{Breach, Clash, Constraint, FleetJob, FleetProblem, FleetSchedule};
use crate::units::{GramsCo2e, Samples, Seconds, Watts};

/// Times and watts that are rounding.
const NO_TIME: TimeDelta = TimeDelta::milliseconds(1);
const NO_POWER: Watts = Watts::new(1e-3);

/// What schedules break.
pub(super) fn clashes(
    problem: &FleetProblem,
    model: &Model,
    schedules: &[FleetSchedule],
    ends: &[End],
    relaxer: Relaxer,
    go_on: &dyn Fn() -> bool,
) -> Vec<Clash> {
    let mut found = Vec::new();
    for (job, (j, schedule)) in problem.jobs.iter().zip(schedules).enumerate() {
        // Without the caps, could it be done?
        let held_down = |by: End| model.reach(job, by) >= model.jobs[job].work * (1.0 - MISSED);
        let between = |broken: Constraint, by: End| {
            let caps = problem.caps.iter().any(Option::is_some) && held_down(by);
            if caps { vec![broken, Constraint::Caps] } else { vec![broken] }
        };
        if let Some(late) = j.latest_end.map(|end| schedule.ends_at - end).filter(|late| *late > NO_TIME) {
            let breach = Breach::Late { job, by: Seconds::from_delta(late) };
            found.push(Clash { breach, between: between(Constraint::LatestEnd(job), model.latest(job)) });
        }
        let part = |(place, seconds): &(usize, Seconds)| Some(j.points.get(*place)?.throughput * *seconds);
        let done: Samples = schedule.parts.iter().flatten().filter_map(part).sum();
        let missing = j.work - done;
        if missing > j.work * MISSED {
            let horizon = End { slot: model.last(), seconds: model.seconds[model.last()], late: false };
            let breach = Breach::Unfinished { job, missing };
            found.push(Clash { breach, between: between(Constraint::Horizon, horizon) });
        }
    }
    for (t, slot) in problem.slots.iter().enumerate() {
        if let Some(by) = problem.caps[t].map(|cap| peak(problem, schedules, t) - cap).filter(|by| *by > NO_POWER) {
            let breach = Breach::Cap { slot: slot.slot, by };
            found.push(Clash { breach, between: vec![Constraint::Caps] });
        }
    }
    let over = |carbon: GramsCo2e, budget: Option<GramsCo2e>| {
        budget.map(|b| carbon - b).filter(|by| by.get() > 10.0 * MISSED * carbon.get().max(1e-3))
    };
    let own = problem.jobs.iter().zip(schedules).enumerate();
    let own = own.filter_map(|(job, (j, s))| {
        let by = over(s.carbon, j.carbon_budget)?;
        Some((Breach::Budget { job, by }, Constraint::Budget(job)))
    });
    let grams = |t: usize| -> GramsCo2e {
        let of_job = |(j, s): (&FleetJob, &FleetSchedule)| -> GramsCo2e {
            let parts = s.parts.get(t).map_or(&[][..], Vec::as_slice).iter();
            let joules = |(place, seconds): &(usize, Seconds)| Some(j.points.get(*place)?.power * *seconds);
            parts.filter_map(joules).map(|joules| joules * problem.slots[t].intensity).sum()
        };
        problem.jobs.iter().zip(schedules).map(of_job).sum()
    };
    let budgets = problem.carbon_budgets.points().iter().zip(problem.within_budgets(grams)).enumerate();
    let shared = budgets.filter_map(|(budget, ((_, most), grams))| {
        let by = over(grams, Some(*most))?;
        Some((Breach::SharedBudget { budget, by }, Constraint::SharedBudget(budget)))
    });
    for (breach, broken) in own.chain(shared) {
        let between =
            std::iter::once(broken).chain(budget_rivals(problem, model, broken, ends, relaxer, go_on)).collect();
        found.push(Clash { breach, between });
    }
    found
}

/// The most that limits add up to at any instant of a slot, with what ended jobs rest at.
fn peak(problem: &FleetProblem, schedules: &[FleetSchedule], t: usize) -> Watts {
    let mut events: Vec<(f64, f64)> = Vec::new();
    let mut sum = 0.0;
    for (job, schedule) in problem.jobs.iter().zip(schedules) {
        let rest = job.rest().get();
        let mut at = 0.0;
        let mut limit = None;
        for &(point, seconds) in schedule.parts.get(t).map_or(&[][..], Vec::as_slice) {
            let next = job.limit(point).get();
            match limit {
                None => sum += next,
                Some(before) => events.push((at, next - before)),
            }
            limit = Some(next);
            at += seconds.get();
        }
        match limit {
            None => sum += rest,
            Some(before) => events.push((at, rest - before)),
        }
    }
    // Moments closer than a microsecond are one.
    events.sort_by(|a, b| (a.0 * 1e6).round().total_cmp(&(b.0 * 1e6).round()).then(a.1.total_cmp(&b.1)));
    let full = problem.slots[t].slot.duration().get() - 1e-6;
    let changes = events.into_iter().take_while(|(at, _)| *at < full);
    let (_, most) = changes.fold((sum, sum), |(sum, most), (_, change)| (sum + change, (sum + change).max(most)));
    Watts::new(most)
}

/// The promises without one of which a budget could be kept.
fn budget_rivals(
    problem: &FleetProblem,
    model: &Model,
    broken: Constraint,
    ends: &[End],
    relaxer: Relaxer,
    go_on: &dyn Fn() -> bool,
) -> Vec<Constraint> {
    let keeps = |model: &Model, ends: &[End]| {
        let interior = relaxer.solve(model, ends, Aim::Misses, go_on);
        let (over, budget) = match broken {
            Constraint::Budget(job) => (interior.over_budget[job], model.jobs[job].budget),
            Constraint::SharedBudget(budget) => (interior.over_shared[budget], Some(model.budgets[budget])),
            _ => return false,
        };
        interior.solved && over <= 10.0 * MISSED * budget.unwrap_or(0.0).abs().max(1e-3)
    };
    let mut rivals = Vec::new();
    let uncapped = Model { caps: vec![None; model.caps.len()], ..Model::new(problem) };
    if problem.caps.iter().any(Option::is_some) && keeps(&uncapped, ends) {
        rivals.push(Constraint::Caps);
    }
    // Without latest ends each job takes as long as its slowest points need.
    let unhurried: Vec<End> = (0..ends.len()).map(|job| slowest_end(model, job)).collect();
    let mut patient = Model::new(problem);
    patient.jobs.iter_mut().for_each(|job| job.latest = (model.last(), model.seconds[model.last()]));
    if problem.jobs.iter().any(|job| job.latest_end.is_some()) && keeps(&patient, &unhurried) {
        let concerned =
            |job: &usize| matches!(broken, Constraint::SharedBudget(_)) || broken == Constraint::Budget(*job);
        let with_end = (0..ends.len()).filter(|job| problem.jobs[*job].latest_end.is_some());
        rivals.extend(with_end.filter(concerned).map(Constraint::LatestEnd));
    }
    rivals
}

/// Where a job ends if it is always at its slowest point that works.
fn slowest_end(model: &Model, job: usize) -> End {
    let j = &model.jobs[job];
    let slowest = j.rate[..j.points()].iter().filter(|r| **r > 0.0).fold(f64::INFINITY, |a, b| a.min(*b));
    let mut left = j.work / slowest;
    let slot = model.seconds.iter().position(|seconds| {
        left -= seconds;
        left <= 0.0
    });
    let slot = slot.unwrap_or(model.last());
    End { slot, seconds: model.seconds[slot], late: false }
}
