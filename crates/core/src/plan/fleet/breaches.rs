//! Detection of the constraints that schedules violate, with the amount by which each is exceeded.

use chrono::TimeDelta;

use super::model::MISSED;
use super::problem::{Breach, FleetJob, FleetProblem, FleetSchedule};
use crate::units::{GramsCo2e, Samples, Seconds, Watts};

/// Delay after the latest end that counts as rounding; [`NO_POWER`] is the excess over a cap that does.
const NO_TIME: TimeDelta = TimeDelta::milliseconds(1);
pub(super) const NO_POWER: Watts = Watts::new(1e-3);

/// Returns the constraints that the schedules violate.
pub(super) fn breaches(problem: &FleetProblem, schedules: &[FleetSchedule]) -> Vec<Breach> {
    let mut found = Vec::new();
    for (job, (j, schedule)) in problem.jobs.iter().zip(schedules).enumerate() {
        if let Some(late) = j.latest_end.map(|end| schedule.ends_at - end).filter(|late| *late > NO_TIME) {
            found.push(Breach::Late { job, by: Seconds::from_delta(late) });
        }
        let part = |(place, seconds): &(usize, Seconds)| Some(j.points.get(*place)?.throughput * *seconds);
        let done: Samples = schedule.parts.iter().flatten().filter_map(part).sum();
        let missing = j.work - done;
        if missing > j.work * MISSED {
            found.push(Breach::Unfinished { job, missing });
        }
    }
    for (t, slot) in problem.slots.iter().enumerate() {
        if let Some(by) = problem.caps[t].map(|cap| peak(problem, schedules, t) - cap).filter(|by| *by > NO_POWER) {
            found.push(Breach::Cap { slot: slot.slot, by });
        }
    }
    let over = |carbon: GramsCo2e, budget: GramsCo2e| {
        Some(carbon - budget).filter(|by| by.get() > 10.0 * MISSED * carbon.get().max(1e-3))
    };
    for (job, (j, s)) in problem.jobs.iter().zip(schedules).enumerate() {
        found.extend(j.carbon_budget.and_then(|budget| over(s.carbon, budget)).map(|by| Breach::Budget { job, by }));
    }
    let grams = |t: usize| -> GramsCo2e {
        let of_job = |(j, s): (&FleetJob, &FleetSchedule)| -> GramsCo2e {
            let parts = s.parts.get(t).map_or(&[][..], Vec::as_slice).iter();
            let joules = |(place, seconds): &(usize, Seconds)| Some(j.points.get(*place)?.power * *seconds);
            parts.filter_map(joules).map(|joules| joules * problem.slots[t].intensity).sum()
        };
        problem.jobs.iter().zip(schedules).map(of_job).sum()
    };
    let budgets = problem.carbon_budgets.points().iter().zip(problem.within_budgets(grams)).enumerate();
    for (budget, ((_, most), grams)) in budgets {
        found.extend(over(grams, *most).map(|by| Breach::SharedBudget { budget, by }));
    }
    found
}

/// Returns the maximum sum of limits within a slot, including the resting limits of ended jobs.
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
    // Changes within a microsecond count as simultaneous; then decreases come first.
    events.sort_by(|a, b| (a.0 * 1e6).round().total_cmp(&(b.0 * 1e6).round()).then(a.1.total_cmp(&b.1)));
    let full = problem.slots[t].slot.duration().get() - 1e-6;
    let changes = events.into_iter().take_while(|(at, _)| *at < full);
    let (_, most) = changes.fold((sum, sum), |(sum, most), (_, change)| (sum + change, (sum + change).max(most)));
    Watts::new(most)
}
