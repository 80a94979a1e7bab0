//! Optimum of each job without regard to shared constraints, and the check whether all optima together satisfy these
//! constraints.

use super::problem::{FleetJob, FleetProblem};
use crate::plan::job::{PlanSlot, Point, Problem, solve};
use crate::units::{GramsCo2e, SamplesPerSecond, Seconds, Watts};

/// Returns one job's optimum without shared constraints: for each slot its parts, the faster first, each with the
/// point's index and the seconds at the point. `None` if there is no feasible plan, or if the job may pause or has a
/// carbon budget.
pub(super) fn alone(problem: &FleetProblem, job: &FleetJob) -> Option<Vec<Vec<(usize, Seconds)>>> {
    let may_pause = !job.pauses.is_empty() || job.points.iter().any(|p| p.throughput == SamplesPerSecond::ZERO);
    if job.carbon_budget.is_some() || may_pause {
        return None;
    }
    let intensity = |t: usize| job.weighed.as_ref().map_or(problem.slots[t].intensity, |w| w[t]);
    let slots = problem.slots.iter().enumerate().map(|(t, s)| PlanSlot { slot: s.slot, intensity: intensity(t) });
    let points = job.points.iter().map(|p| Point { power: p.power, throughput: p.throughput });
    let (slots, points) = (slots.collect(), points.collect());
    let (eta, reference) = (job.eta, job.reference_intensity);
    let problem = Problem::new(slots, points, job.work, eta, reference, job.max_power, job.latest_end).ok()?;
    Some(solve(&problem).ok()?.shares)
}

/// Returns whether the jobs' own optima satisfy the shared constraints.
pub(super) fn uncoupled(problem: &FleetProblem, shares: &[Vec<Vec<(usize, Seconds)>>]) -> bool {
    let rests: Vec<Watts> = problem.jobs.iter().map(|job| job.rest()).collect();
    let highest = |job: usize, t: usize| {
        let parts = shares[job].get(t).map_or(&[][..], Vec::as_slice);
        parts.iter().map(|part| problem.jobs[job].points[part.0].limit).fold(rests[job], Watts::max)
    };
    let capped = |t: usize, cap: Watts| (0..shares.len()).map(|job| highest(job, t)).sum::<Watts>() <= cap;
    let caps_hold = problem.caps.iter().enumerate().all(|(t, cap)| cap.is_none_or(|cap| capped(t, cap)));
    let grams = |t: usize| -> GramsCo2e {
        let of_job = |(job, shares): (&FleetJob, &Vec<Vec<(usize, Seconds)>>)| -> GramsCo2e {
            let parts = shares.get(t).map_or(&[][..], Vec::as_slice).iter();
            parts.map(|(point, seconds)| job.points[*point].power * *seconds * problem.slots[t].intensity).sum()
        };
        problem.jobs.iter().zip(shares).map(of_job).sum()
    };
    let budgets = problem.carbon_budgets.points().iter();
    caps_hold && budgets.zip(problem.within_budgets(grams)).all(|((_, budget), grams)| grams <= *budget)
}
