use std::cell::Cell;

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use super::instances::{fleet, job, problem};
use super::oracles::{Ends, Unsolved, all_ends, instantaneous, relaxed};
use crate::plan::fleet::breaches::NO_POWER;
use crate::plan::fleet::ends::price;
use crate::plan::fleet::interior::MOST_ITERATIONS;
use crate::plan::fleet::iterate::{Aim, Method};
use crate::plan::fleet::model::{End, Model};
use crate::plan::fleet::prune::undominated;
use crate::plan::fleet::{FleetProblem, FleetSolution, Solver, solve_fleet};
use crate::units::{GramsCo2e, Watts};

fn solved(problem: &FleetProblem) -> FleetSolution {
    solve_fleet(problem, Solver::default(), &|| true)
}

/// Returns the same problem without the points that another point of the job dominates.
fn pruned(problem: &FleetProblem) -> FleetProblem {
    let mut pruned = problem.clone();
    for job in &mut pruned.jobs {
        job.at_rest = job.points.iter().map(|p| p.limit).fold(job.at_rest, Watts::min);
        job.points = undominated(&job.points).into_iter().map(|i| job.points[i]).collect();
    }
    pruned
}

/// Returns the same problem with caps that are higher by the excess that a plan need not report as a breach.
fn loosened(problem: &FleetProblem) -> FleetProblem {
    let mut loosened = problem.clone();
    loosened.caps.iter_mut().flatten().for_each(|cap| *cap += NO_POWER);
    loosened
}

/// Returns the maximum possible cost, which scales the tolerance for rounding where the optimal cost is zero.
fn highest_cost(model: &Model) -> f64 {
    let slots = 0..model.seconds.len();
    model.jobs.iter().flat_map(|j| slots.clone().map(|t| j.max_second_cost(t) * model.seconds[t])).sum()
}

/// Returns the least cost that an oracle finds with any ends; `None` if no plan is feasible. Fails if the oracle fails
/// for some choice of ends, since that choice might be the best one.
fn optimum(problem: &FleetProblem, oracle: Oracle) -> Result<Option<f64>, Unsolved> {
    let all: Result<Vec<_>, _> = all_ends(problem).iter().map(|ends| oracle(problem, ends)).collect();
    Ok(all?.into_iter().flatten().reduce(f64::min))
}

type Oracle = fn(&FleetProblem, Ends<'_>) -> Result<Option<f64>, Unsolved>;

/// Maximum number of unsolved relaxations among the 256 of a test: rounding keeps the interior-point method from
/// solving about one in 18,000.
const UNSOLVED: u32 = 2;

#[test]
fn a_general_solver_agrees_with_the_relaxation() {
    let unsolved = Cell::new(0);
    let mut runner = TestRunner::new(ProptestConfig::with_cases(256));
    let outcome = runner.run(&fleet(4, 10, 6), |problem| {
        let model = Model::new(&problem);
        let ends: Vec<End> = (0..model.jobs.len()).map(|job| model.latest(job)).collect();
        let as_given: Vec<(usize, f64)> = ends.iter().map(|end| (end.slot, end.seconds)).collect();
        let aim = Aim::Cost { work: 1e4, budget: 1e4, ranked: false };
        let interior = Method::new(&model, &ends, aim).run(MOST_ITERATIONS, &|| true);
        let missed = interior.missing.iter().chain(&interior.surplus).chain(&interior.over_budget).any(|m| *m > 1e-7);
        let below = (0..model.seconds.len()).any(|t| model.caps[t] < model.cap(t, &ends));
        let Ok(oracle) = relaxed(&problem, &as_given) else { return Ok(()) };
        // A negative price of work means that doing more than the work would cost less, which the oracle allows and the
        // relaxation does not.
        let wasted = interior.prices.work.iter().any(|price| *price < 0.0);
        unsolved.set(unsolved.get() + u32::from(!interior.solved));
        let over = interior.over_shared.iter().any(|over| *over > 1e-7);
        if !interior.solved || missed || below || wasted || over {
            return Ok(());
        }
        let bound = price(&model, &interior.prices, &ends).bound_here;
        let oracle = oracle.expect("what misses nothing is feasible");
        let close = 1e-6 * oracle.abs() + 1e-8 * highest_cost(&model) + 1e-9;
        prop_assert!((bound - oracle).abs() <= close, "{bound} is not {oracle}");
        Ok(())
    });
    outcome.unwrap_or_else(|error| panic!("{error}"));
    assert!(unsolved.get() <= UNSOLVED, "{} of 256 without an answer", unsolved.get());
}

proptest! {
    #![proptest_config(ProptestConfig { max_global_rejects: 100_000, ..ProptestConfig::with_cases(256) })]

    #[test]
    fn no_end_and_no_combination_is_cheaper_than_the_bound(problem in fleet(2, 4, 4)) {
        let solution = solved(&problem);
        let model = Model::new(&problem);
        let close = |x: f64| 1e-6 * x.abs() + 1e-8 * highest_cost(&model) + 1e-9;
        let Ok(best) = optimum(&problem, relaxed) else { return Ok(()) };
        if !solution.breaches.is_empty() {
            return Ok(());
        }
        let (cost, bound) = (solution.cost.get(), solution.bound.get());
        let Some(best) = best else {
            let infeasible = optimum(&loosened(&problem), relaxed).is_ok_and(|cost| cost.is_none());
            prop_assert!(!infeasible, "a plan without breaches is infeasible by more than rounding");
            return Ok(());
        };
        prop_assert!(bound <= best + close(best), "the bound {bound} is above the optimum {best}");
        prop_assert!(bound <= cost + close(cost), "the bound {bound} is above the cost {cost}");
        if let Ok(Some(exact)) = optimum(&problem, instantaneous) {
            // The tolerance covers rounding of times: parts of a slot that are shorter than a second are lengthened to
            // a second.
            prop_assert!(cost >= exact * (1.0 - 1e-3) - close(exact), "{cost} is cheaper than the optimum {exact}");
        }
    }

    #[test]
    fn points_that_are_pruned_change_nothing(problem in fleet(2, 3, 8)) {
        let pruned = pruned(&problem);
        if let (Ok(Some(all)), Ok(few)) = (optimum(&problem, relaxed), optimum(&pruned, relaxed)) {
            let few = few.expect("pruning keeps what is feasible");
            let close = 1e-6 * all.abs() + 1e-8 * highest_cost(&Model::new(&problem));
            prop_assert!((all - few).abs() <= close, "{few} is not {all}");
        }
    }

    #[test]
    fn a_lower_cap_never_costs_less(problem in fleet(3, 6, 5), part in 0.5..1.0f64) {
        let mut lower = problem.clone();
        lower.caps.iter_mut().flatten().for_each(|cap| *cap = *cap * part);
        let (high, low) = (solved(&problem), solved(&lower));
        if high.breaches.is_empty() && low.breaches.is_empty() {
            let (high, low) = (high.bound.get(), low.cost.get());
            prop_assert!(high <= low + 1e-6 * low.abs() + 1e-9, "{low} under the lower cap, at least {high} under the higher");
        }
    }
}

/// The first slot is too short for both jobs; a full second slot would do more than their work at the mean of the points
/// that its higher cap allows, but not under the cap. The jobs must end there, not late.
#[test]
fn an_end_between_one_too_early_and_one_too_late_is_found() {
    let mut capped = job(&[(50.0, 310.0, 725.0), (150.0, 90.0, 100.0)], 1.41e6, Some(5462.0));
    capped.carbon_budget = Some(GramsCo2e::ZERO);
    let mut problem = problem(&[(1800.0, 0.0); 4], Some(120.0), vec![capped.clone(), capped]);
    (problem.caps[1], problem.caps[3]) = (Some(Watts::new(156.0)), None);
    for solver in [Solver::Structured, Solver::Lp] {
        let solution = solve_fleet(&problem, solver, &|| true);
        assert_eq!((solution.breaches.len(), solution.cost), (0, GramsCo2e::ZERO));
        assert!(solution.bound.get().abs() < 1e-6, "nothing is emitted, so the bound {:?} is too high", solution.bound);
    }
}

/// Jobs whose shared constraints do not bind are each planned as if alone.
#[test]
fn without_a_cap_that_binds_each_job_is_alone() {
    let curve = [(300.0, 290.0, 100.0), (200.0, 195.0, 90.0), (100.0, 98.0, 60.0)];
    let slots = [(3600.0, 300.0), (3600.0, 600.0), (3600.0, 400.0), (3600.0, 500.0)];
    let jobs = vec![job(&curve, 1.1e6, Some(13_000.0)), job(&curve, 0.7e6, None)];
    let free = solved(&problem(&slots, None, jobs.clone()));
    let wide = solved(&problem(&slots, Some(600.0), jobs.clone()));
    assert_eq!(free, wide);
    assert_eq!((free.cost, free.relaxed), (free.bound, free.bound));
    let alone: Vec<_> = jobs.into_iter().map(|j| solved(&problem(&slots, None, vec![j]))).collect();
    assert_eq!(free.schedules, alone.into_iter().flat_map(|s| s.schedules).collect::<Vec<_>>());
}

/// Checks how much plans cost above the optimum with caps at every instant, over many small problems with coarse
/// limits, which are the worst case for converting averages to limits.
#[test]
fn instants_cost_little_on_average() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let (mut sum, mut count, mut kept, mut could) = (0.0, 0, 0, 0);
    for _ in 0..300 {
        let problem = fleet(2, 4, 4).new_tree(&mut runner).expect("a fleet").current();
        let exact = optimum(&problem, instantaneous);
        let Some(exact) = exact.ok().flatten().filter(|e| *e > 1.0) else { continue };
        let solution = solved(&problem);
        could += 1;
        if solution.breaches.is_empty() {
            kept += 1;
            sum += solution.cost.get() / exact - 1.0;
            count += 1;
        }
    }
    let mean = sum / f64::from(count);
    assert!(count > 80, "only {count} fleets to look at");
    assert!(mean < 0.03 && f64::from(kept) > 0.85 * f64::from(could), "mean loss {mean}, kept {kept} of {could}");
}

/// Checks that converting averages to limits costs little if limits are as close together as those of GPUs.
#[test]
fn instants_cost_almost_nothing_where_limits_are_fine() {
    let slots: Vec<(f64, f64)> =
        (0..48).map(|t| (1800.0, 400.0 + 150.0 * (f64::from(t) / 48.0 * std::f64::consts::TAU).sin())).collect();
    let curve = |saturated: f64, pace: f64| -> Vec<(f64, f64, f64)> {
        let point = |i: i32| {
            let limit = 100.0 + 6.0 * f64::from(i);
            (limit, 0.97 * limit.min(saturated), pace * (limit.min(saturated) / saturated).powf(0.45))
        };
        (0..50).map(point).collect()
    };
    let jobs = (0..6).map(|j| job(&curve(220.0 + 30.0 * f64::from(j), 100.0), 100.0 * 86_400.0 / 1.08, Some(86_400.0)));
    let problem = problem(&slots, Some(6.0 * 265.0), jobs.collect());
    let solution = solved(&problem);
    assert_eq!(solution.breaches, []);
    assert!(solution.cap_prices.iter().filter(|price| **price > 0.0).count() > 5, "the cap binds");
    let loss = solution.cost / solution.bound - 1.0;
    assert!(loss < 2e-3, "{loss}");
}
