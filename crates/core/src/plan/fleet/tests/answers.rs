use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;

use super::instances::{at, fleet, job, problem};
use crate::domain::{Slot, TimeSeries};
use crate::plan::fleet::{Breach, FleetProblem, FleetSolution, Solver, solve_fleet};
use crate::units::{GramsCo2e, Seconds, Watts};

/// Returns the maximum sum of limits at any instant of a slot, evaluated in the middle between adjacent changes.
fn peak(problem: &FleetProblem, solution: &FleetSolution, t: usize) -> f64 {
    let seconds = problem.slots[t].slot.duration().get();
    let empty = Vec::new();
    let parts = |job: usize| solution.schedules[job].parts.get(t).unwrap_or(&empty);
    let mut moments = vec![0.0, seconds];
    for job in 0..problem.jobs.len() {
        let mut end = 0.0;
        moments.extend(parts(job).iter().map(|(_, s)| {
            end += s.get();
            end
        }));
    }
    moments.sort_by(f64::total_cmp);
    let limit = |job: usize, moment: f64| {
        let j = &problem.jobs[job];
        let mut end = 0.0;
        for (point, s) in parts(job) {
            end += s.get();
            if moment < end {
                return j.points[*point].limit.get();
            }
        }
        j.points.iter().fold(j.at_rest.get(), |a, p| a.min(p.limit.get()))
    };
    // Changes less than a microsecond apart count as one.
    let middles = moments.windows(2).filter(|m| m[1] - m[0] > 1e-6).map(|m| (m[0] + m[1]) / 2.0);
    middles.map(|m| (0..problem.jobs.len()).map(|job| limit(job, m)).sum()).fold(0.0, f64::max)
}

/// Checks that caps hold at every instant, slots are filled in order, work is done, and ends and budgets are kept, or
/// that `breaches` names what is violated and by how much.
pub(super) fn assert_honest(problem: &FleetProblem, solution: &FleetSolution) -> TestCaseResult {
    let breaches = &solution.breaches;
    for (t, slot) in problem.slots.iter().enumerate() {
        let said = breaches.iter().find_map(|b| match b {
            Breach::Cap { slot: of, by } if *of == slot.slot => Some(by.get()),
            _ => None,
        });
        let over = problem.caps[t].map_or(0.0, |cap| peak(problem, solution, t) - cap.get());
        prop_assert!(over <= said.unwrap_or(0.0) + 2e-3, "slot {t} is {over} W over its cap, said {said:?}");
        if said.is_some() {
            let least: f64 =
                problem.jobs.iter().map(|j| j.points.iter().fold(f64::INFINITY, |a, p| a.min(p.limit.get()))).sum();
            prop_assert!(problem.caps[t].is_some_and(|cap| cap.get() < least), "the lowest limits fit in slot {t}");
        }
    }
    for (place, (j, s)) in problem.jobs.iter().zip(&solution.schedules).enumerate() {
        for (t, parts) in s.parts.iter().enumerate() {
            let used: f64 = parts.iter().map(|p| p.1.get()).sum();
            let full = problem.slots[t].slot.duration().get();
            prop_assert!(parts.iter().all(|p| p.1 > Seconds::ZERO));
            let last = t + 1 == s.parts.len();
            prop_assert!(
                used <= full * (1.0 + 1e-9) && (last || used >= full * (1.0 - 1e-7)),
                "slot {t}: {used} of {full}"
            );
            prop_assert!(parts.windows(2).all(|p| p[0].0 != p[1].0), "a change that is none");
        }
        let done: f64 = s.parts.iter().flatten().map(|(l, t)| j.points[*l].throughput.get() * t.get()).sum();
        let missing = breaches.iter().find_map(|b| match b {
            Breach::Unfinished { job, missing } if *job == place => Some(missing.get()),
            _ => None,
        });
        let short = j.work.get() - done;
        prop_assert!(
            (short - missing.unwrap_or(0.0)).abs() <= 1e-6 * j.work.get(),
            "job {place} misses {short}, said {missing:?}"
        );
        let late = breaches.iter().find_map(|b| match b {
            Breach::Late { job, by } if *job == place => Some(by.get()),
            _ => None,
        });
        let really = j.latest_end.map_or(0.0, |end| Seconds::from_delta(s.ends_at - end).get());
        prop_assert!(really <= late.unwrap_or(0.0) + 2e-3, "job {place} is {really} s late, said {late:?}");
        let over = breaches.iter().find_map(|b| match b {
            Breach::Budget { job, by } if *job == place => Some(by.get()),
            _ => None,
        });
        let really = j.carbon_budget.map_or(0.0, |budget| (s.carbon - budget).get());
        prop_assert!(
            really <= over.unwrap_or(0.0) + 1e-2 * s.carbon.get(),
            "job {place} is {really} g over, said {over:?}"
        );
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn promises_are_kept_or_named(problem in fleet(5, 12, 7)) {
        let solution = solve_fleet(&problem, Solver::default(), &|| true);
        assert_honest(&problem, &solution)?;
    }

    #[test]
    fn stopping_early_keeps_the_caps(problem in fleet(4, 8, 5), after in 0usize..30) {
        let asked = std::cell::Cell::new(0);
        let solution = solve_fleet(&problem, Solver::default(), &|| {
            asked.set(asked.get() + 1);
            asked.get() <= after
        });
        for (t, cap) in problem.caps.iter().enumerate() {
            let least: f64 = problem.jobs.iter().map(|j| j.points.iter().fold(f64::INFINITY, |a, p| a.min(p.limit.get()))).sum();
            let over = cap.map_or(0.0, |cap| peak(&problem, &solution, t) - cap.get().max(least));
            prop_assert!(over <= 2e-3, "slot {t} is {over} W over its cap");
        }
    }
}

const CURVE: [(f64, f64, f64); 3] = [(300.0, 290.0, 100.0), (200.0, 195.0, 80.0), (100.0, 98.0, 40.0)];

#[test]
fn two_jobs_take_turns_within_a_slot() {
    // Both jobs have to be at 300 W for half of the slot, and the cap allows only one of them at a time.
    let two = [(300.0, 290.0, 100.0), (100.0, 98.0, 40.0)];
    let jobs = vec![job(&two, 70.0 * 3600.0, Some(3600.0)), job(&two, 70.0 * 3600.0, Some(3600.0))];
    let problem = problem(&[(3600.0, 400.0)], Some(400.0), jobs);
    let solution = solve_fleet(&problem, Solver::default(), &|| true);
    assert_eq!(solution.breaches, []);
    assert!(solution.schedules.iter().all(|s| s.parts[0].len() == 2));
    assert!(peak(&problem, &solution, 0) <= 400.0);
}

#[test]
fn what_cannot_be_arranged_is_late_and_said_so() {
    // Three jobs at 100 W for one half of the slot and at 300 W for the other need 600 W on average, but 700 W while
    // two of them are at 300 W.
    let two = [(300.0, 290.0, 100.0), (100.0, 98.0, 40.0)];
    let jobs = vec![job(&two, 70.0 * 3600.0, Some(3600.0)); 3];
    let problem = problem(&[(3600.0, 400.0), (36_000.0, 400.0)], Some(600.0), jobs);
    let solution = solve_fleet(&problem, Solver::default(), &|| true);
    assert!((0..2).all(|t| peak(&problem, &solution, t) <= 600.0));
    let late = solution.breaches.iter().filter(|breach| matches!(breach, Breach::Late { .. })).count();
    assert!(late >= 1, "{:?}", solution.breaches);
}

#[test]
fn the_lowest_priority_bends_first() {
    for favoured in 0..2 {
        let mut jobs = vec![job(&CURVE, 90.0 * 7200.0, Some(7200.0)), job(&CURVE, 90.0 * 7200.0, Some(7200.0))];
        jobs[favoured].priority = 5;
        let problem = problem(&[(3600.0, 400.0), (3600.0, 200.0), (36_000.0, 300.0)], Some(400.0), jobs);
        let solution = solve_fleet(&problem, Solver::default(), &|| true);
        let late: Vec<usize> = solution
            .breaches
            .iter()
            .map(|breach| match breach {
                Breach::Late { job, .. } => *job,
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(late, [1 - favoured]);
        assert_eq!(solution.schedules[favoured].ends_at, at(7200.0));
    }
}

#[test]
fn a_deadline_that_cannot_be_kept_under_a_cap_is_missed_by_little() {
    let problem =
        problem(&[(3600.0, 400.0), (3600.0, 400.0)], Some(250.0), vec![job(&CURVE, 150.0 * 3600.0, Some(3600.0))]);
    let solution = solve_fleet(&problem, Solver::default(), &|| true);
    let [breach] = solution.breaches[..] else { panic!("{:?}", solution.breaches) };
    let Breach::Late { job: 0, by } = breach else { panic!("{breach:?}") };
    // Under the cap the job does at least 80 samples/s (200 W) and at most 90 samples/s (250 W on average).
    assert!((3600.0 * 60.0 / 90.0..=3600.0 * 70.0 / 80.0).contains(&by.get()), "{by}");
}

#[test]
fn a_cap_below_the_lowest_limits_is_broken_by_no_more_than_these() {
    let problem = problem(
        &[(3600.0, 400.0)],
        Some(150.0),
        vec![job(&CURVE, 40.0 * 3600.0, None), job(&CURVE, 40.0 * 3600.0, None)],
    );
    let solution = solve_fleet(&problem, Solver::default(), &|| true);
    let [breach] = solution.breaches[..] else { panic!("{:?}", solution.breaches) };
    assert_eq!(breach, Breach::Cap { slot: problem.slots[0].slot, by: Watts::new(50.0) });
}

#[test]
fn budgets_bend_before_ends_and_say_by_how_much() {
    let slots = [(3600.0, 400.0), (3600.0, 400.0), (3600.0, 400.0)];
    let mut hurried = job(&CURVE, 80.0 * 3600.0, Some(3600.0));
    hurried.carbon_budget = Some(GramsCo2e::new(20.0));
    let tight = problem(&slots, None, vec![hurried.clone()]);
    let solution = solve_fleet(&tight, Solver::default(), &|| true);
    let [breach] = solution.breaches[..] else { panic!("{:?}", solution.breaches) };
    let Breach::Budget { job: 0, by } = breach else { panic!("{breach:?}") };
    assert!((by.get() - (195.0 * 400.0 / 1000.0 - 20.0)).abs() < 0.1, "{by}");
    hurried.carbon_budget = Some(GramsCo2e::new(79.0));
    let enough = problem(&slots, None, vec![hurried]);
    assert_eq!(solve_fleet(&enough, Solver::default(), &|| true).breaches, []);
}

#[test]
fn a_shared_budget_moves_carbon_to_where_it_costs_least() {
    let slots = [(3600.0, 500.0), (3600.0, 100.0)];
    let time_only = |work: f64| {
        let mut job = job(&CURVE, work, Some(7200.0));
        job.eta = 0.0;
        job
    };
    let free = problem(&slots, None, vec![time_only(3.6e5), time_only(3.6e5)]);
    let fast = solve_fleet(&free, Solver::default(), &|| true);
    let carbon: GramsCo2e = fast.schedules.iter().map(|s| s.carbon).sum();
    let mut shared = free.clone();
    let always = Slot::new(at(0.0), at(1e9)).expect("not empty");
    shared.carbon_budgets = TimeSeries::from_points(vec![(always, carbon * 0.8)]).0;
    let solution = solve_fleet(&shared, Solver::default(), &|| true);
    assert_eq!(solution.breaches, []);
    let kept: GramsCo2e = solution.schedules.iter().map(|s| s.carbon).sum();
    assert!(kept <= carbon * 0.801, "{kept} of {carbon}");
    assert!(solution.cost > fast.cost);
}
