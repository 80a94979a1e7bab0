//! Compares the linear programme with the structured interior-point method: both find the same optimum, and the
//! programme replaces the method where it fails.

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{RngAlgorithm, TestRng, TestRunner};

use super::answers::assert_honest;
use super::instances::{fleet, job, problem};
use super::oracles::{all_ends, relaxed};
use crate::plan::fleet::ends::price;
use crate::plan::fleet::general::Relaxer;
use crate::plan::fleet::interior::Interior;
use crate::plan::fleet::iterate::{Aim, FIRST_FACTOR, Method};
use crate::plan::fleet::model::{End, Model};
use crate::plan::fleet::search::{STIFFEST, solve_by};
use crate::plan::fleet::{FleetProblem, Solver, solve_fleet};

/// Settings that stop the structured method before its first iteration, so that only the linear programme is used.
const STOPPED: Relaxer = Relaxer { solver: Solver::Structured, most_iterations: 0 };
const AIMS: [Aim; 4] = [cost(FIRST_FACTOR, false), cost(1e4, false), cost(FIRST_FACTOR, true), Aim::Misses];
/// Aim with which rounding stops the structured method most often.
const STIFF: Aim = cost(STIFFEST, false);

const fn cost(factor: f64, ranked: bool) -> Aim {
    Aim::Cost { work: factor, budget: factor, ranked }
}

/// Returns the random joint problem (fleet) of a seed.
fn seeded(seed: u64) -> FleetProblem {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let mut runner = TestRunner::new_with_rng(ProptestConfig::default(), rng);
    fleet(4, 10, 6).new_tree(&mut runner).expect("a fleet").current()
}

fn latest_ends(model: &Model) -> Vec<End> {
    (0..model.jobs.len()).map(|job| model.latest(job)).collect()
}

/// Returns the solution of the structured method alone.
fn structured(model: &Model, aim: Aim) -> Interior {
    let method = Method::new(model, &latest_ends(model), aim);
    method.run(Relaxer::new(Solver::Structured).most_iterations, &|| true)
}

/// Returns the solution of the linear programme alone.
fn programme(model: &Model, aim: Aim) -> Interior {
    STOPPED.solve(model, &latest_ends(model), aim, &|| true)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn both_solvers_find_the_same_optimum(problem in fleet(4, 10, 6), aim in prop::sample::select(&AIMS[..])) {
        let model = Model::new(&problem);
        let (structured, programme) = (structured(&model, aim), programme(&model, aim));
        prop_assert!(programme.solved);
        if structured.solved {
            let (one, other) = (structured.objective, programme.objective);
            prop_assert!((one - other).abs() <= 1e-6 * (1.0 + one.abs()), "{one} and {other}");
        }
    }

    #[test]
    fn plans_by_the_programme_keep_or_name_promises(problem in fleet(4, 8, 5)) {
        let by_programme = solve_fleet(&problem, Solver::Lp, &|| true);
        assert_honest(&problem, &by_programme)?;
        let structured = solve_fleet(&problem, Solver::Structured, &|| true);
        if structured.breaches.is_empty() && by_programme.breaches.is_empty() {
            for (bound, cost) in [(structured.bound, by_programme.cost), (by_programme.bound, structured.cost)] {
                let (bound, cost) = (bound.get(), cost.get());
                prop_assert!(bound <= cost + 1e-6 * cost.abs() + 1e-9, "{bound} is above {cost}");
            }
        }
    }
}

#[test]
fn the_programme_finds_the_oracles_optimum() {
    let mut compared = 0;
    for seed in 0..200 {
        let problem = seeded(seed);
        let model = Model::new(&problem);
        let ends = latest_ends(&model);
        let interior = programme(&model, AIMS[1]);
        assert!(interior.solved, "seed {seed}");
        let missed = interior.missing.iter().chain(&interior.surplus).chain(&interior.over_budget);
        let missed = missed.chain(&interior.over_shared).any(|missed| *missed > 1e-7);
        let below = (0..model.seconds.len()).any(|t| model.caps[t] < model.cap(t, &ends));
        if missed || below || interior.prices.work.iter().any(|price| *price < 0.0) {
            continue;
        }
        let as_given: Vec<(usize, f64)> = ends.iter().map(|end| (end.slot, end.seconds)).collect();
        let oracle = relaxed(&problem, &as_given).expect("solved").expect("what misses nothing is feasible");
        let bound = price(&model, &interior.prices, &ends).bound_here;
        assert!((bound - oracle).abs() <= 1e-6 * oracle.abs() + 1e-6, "seed {seed}: {bound} is not {oracle}");
        compared += 1;
    }
    assert!(compared >= 20, "only {compared} fleets to compare");
}

#[test]
fn a_plan_needs_no_structured_method() {
    let curve = [(300.0, 290.0, 100.0), (200.0, 195.0, 80.0), (100.0, 98.0, 40.0)];
    let slots = [(3600.0, 300.0), (3600.0, 600.0), (3600.0, 400.0), (3600.0, 500.0)];
    let jobs = vec![job(&curve, 1.0e6, Some(14_400.0)), job(&curve, 0.9e6, Some(14_400.0))];
    let problem = problem(&slots, Some(430.0), jobs);
    let solution = solve_by(&problem, STOPPED, &|| true);
    assert_eq!(solution.breaches, []);
    let here =
        |ends: &&Vec<(usize, f64)>| ends.iter().zip(&solution.schedules).all(|(end, s)| end.0 + 1 == s.parts.len());
    let ends = all_ends(&problem);
    let oracle = relaxed(&problem, ends.iter().find(here).expect("in time")).expect("solved").expect("feasible");
    let relaxed = solution.relaxed.get();
    assert!((relaxed - oracle).abs() <= 1e-6 * oracle, "{relaxed} is not {oracle}");
    let usual = solve_fleet(&problem, Solver::Structured, &|| true).relaxed.get();
    assert!((relaxed - usual).abs() <= 1e-6 * usual, "{relaxed} is not {usual}");
}

/// Uses problems on which rounding stopped the structured method on x86-64, each with the aim of that relaxation.
#[test]
fn the_programme_stands_in_where_rounding_stops_the_method() {
    let known = [(16_497, AIMS[0]), (85_494, AIMS[0]), (90_279, AIMS[0]), (90_279, AIMS[2])];
    for (seed, aim) in known.into_iter().chain([632, 1_017, 1_086, 3_551].map(|seed| (seed, STIFF))) {
        let model = Model::new(&seeded(seed));
        assert!(programme(&model, aim).solved, "seed {seed}");
        let usual = Relaxer::new(Solver::Structured).solve(&model, &latest_ends(&model), aim, &|| true);
        assert!(usual.solved, "seed {seed}");
    }
}

/// Checks the figures in `general.rs`: the structured method fails on few relaxations; the programme solves all of
/// these and all of the one in twenty of the others that are tried.
#[test]
#[ignore = "takes minutes"]
fn stress() {
    let (mut stopped, mut unsolved) = ([0; 5], Vec::new());
    for seed in 0..100_000 {
        let model = Model::new(&seeded(seed));
        for (place, aim) in AIMS.into_iter().chain([STIFF]).enumerate() {
            let solved = structured(&model, aim).solved;
            stopped[place] += u32::from(!solved);
            if (!solved || seed % 20 == 0) && !programme(&model, aim).solved {
                unsolved.push((seed, aim));
            }
        }
    }
    assert!(unsolved.is_empty(), "the programme stopped on {unsolved:?}");
    assert!(stopped.iter().sum::<u32>() <= 150, "the method stopped on {stopped:?} by aim");
}
