use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;

use super::instances::{Instance, MAX_POWER, REFERENCE, at, horizon, instance, points};
use super::linear::{LinearError, solve_linear};
use super::oracles::{by_brute_force, by_interior_point};
use crate::plan::job::Hulls;
use crate::plan::{Infeasible, InvalidProblem, Problem, Solution, solve};
use crate::units::{GramsPerKwh, Samples, Seconds, Watts};

/// Returns the maximum possible cost, which scales the tolerance for rounding where the optimal cost is zero.
fn maximum_cost(problem: &Problem) -> f64 {
    let seconds: f64 = problem.slots().iter().map(|s| s.slot.duration().get()).sum();
    let second = |slot| (0..problem.points().len()).map(|p| problem.second_cost(slot, p)).fold(0.0, f64::max);
    (0..problem.slots().len()).map(second).fold(0.0, f64::max) * seconds
}

fn assert_close(problem: &Problem, a: f64, b: f64, relative: f64) -> TestCaseResult {
    let allowed = relative * a.abs().max(b.abs()) + 1e-9 * maximum_cost(problem);
    prop_assert!((a - b).abs() <= allowed, "{a} and {b} differ by {:e}", (a - b) / b);
    Ok(())
}

/// Checks that a solution does the work, keeps the latest end, and fills all slots before its last one.
fn assert_meets_its_constraints(problem: &Problem, solution: &Solution) -> TestCaseResult {
    let last = solution.shares.len() - 1;
    let mut work = 0.0;
    for (t, (slot, parts)) in problem.slots().iter().zip(&solution.shares).enumerate() {
        let used: f64 = parts.iter().map(|p| p.1.get()).sum();
        let (length, usable) = (slot.slot.duration().get(), problem.usable(slot).get());
        prop_assert!(parts.iter().all(|p| p.1 > Seconds::ZERO));
        prop_assert!(used <= usable * (1.0 + 1e-9), "slot {t} is overfull: {used} of {usable}");
        prop_assert!(t == last || used >= length * (1.0 - 1e-9), "slot {t} is not full: {used} of {length}");
        work += parts.iter().map(|p| problem.points()[p.0].throughput.get() * p.1.get()).sum::<f64>();
    }
    let missing = (work - problem.work().get()).abs();
    prop_assert!(missing <= 1e-9 * problem.work().get() + 1e-3 * problem.fastest().get(), "work misses by {missing}");
    if let Some(end) = problem.latest_end() {
        prop_assert!(solution.ends_at <= end);
    }
    Ok(())
}

proptest! {
    #[test]
    fn the_linear_programme_agrees(instance in instance(12, 6)) {
        let problem = instance.problem();
        match (solve(&problem), solve_linear(&problem)) {
            (Ok(dual), Ok(linear)) => {
                assert_meets_its_constraints(&problem, &dual)?;
                assert_close(&problem, dual.cost.get(), linear.cost.get(), 1e-6)?;
            }
            (Err(dual), Err(linear)) => prop_assert_eq!(LinearError::Infeasible(dual), linear),
            (dual, linear) => prop_assert!(false, "{dual:?} and {linear:?}"),
        }
    }

    #[test]
    fn an_interior_point_solver_agrees(instance in instance(8, 6)) {
        let problem = instance.problem();
        if let Ok(dual) = solve(&problem) {
            let oracle = by_interior_point(&instance).expect("feasible");
            assert_close(&problem, dual.cost.get(), oracle, 1e-6)?;
        }
    }

    #[test]
    fn brute_force_finds_nothing_better(instance in instance(4, 4)) {
        // At a load of exactly 1, brute force fails by rounding.
        prop_assume!(instance.load != 1.0);
        let problem = instance.problem();
        match (solve(&problem), by_brute_force(&instance)) {
            (Ok(dual), Some(brute)) => assert_close(&problem, dual.cost.get(), brute, 1e-9)?,
            (dual, brute) => prop_assert!(dual.is_err() && brute.is_none(), "{dual:?} and {brute:?}"),
        }
    }

    #[test]
    fn full_slots_use_the_hull_and_one_slot_uses_two_limits(instance in instance(12, 6)) {
        let problem = instance.problem();
        let Ok(solution) = solve(&problem) else { return Ok(()) };
        let hulls = Hulls::of(&problem);
        let hull = hulls.running();
        for parts in &solution.shares {
            prop_assert!(parts.len() <= 2);
            prop_assert!(parts.iter().all(|part| hull.contains(&part.0)));
        }
        prop_assert!(solution.shares.iter().filter(|parts| parts.len() == 2).count() <= 1);
    }

    #[test]
    fn dirtier_slots_never_get_more_power(instance in instance(12, 6)) {
        let problem = instance.problem();
        let Ok(solution) = solve(&problem) else { return Ok(()) };
        let power = |parts: &Vec<(usize, Seconds)>| {
            let energy: f64 = parts.iter().map(|p| problem.points()[p.0].power.get() * p.1.get()).sum();
            energy / parts.iter().map(|p| p.1.get()).sum::<f64>()
        };
        let full = solution.shares.len() - 1;
        for (a, clean) in problem.slots()[..full].iter().zip(&solution.shares) {
            for (b, dirty) in problem.slots()[..full].iter().zip(&solution.shares) {
                if a.intensity < b.intensity && instance.eta > 0.0 {
                    prop_assert!(power(dirty) <= power(clean) * (1.0 + 1e-9));
                }
            }
        }
    }

    #[test]
    fn more_time_is_never_dirtier(mut instance in instance(12, 6), part in 0.1..1.0f64, more in 1.0..3.0f64) {
        instance.eta = 1.0;
        let work = instance.work();
        let mut carbon = |part: f64| {
            instance.latest_end = Some(part);
            instance.load *= work / instance.work();
            solve(&instance.problem()).ok().map(|solution| solution.carbon.get())
        };
        if let Some(tight) = carbon(part) {
            let wide = carbon(part * more).expect("feasible with less time");
            prop_assert!(wide <= tight * (1.0 + 1e-9), "{wide} > {tight}");
        }
    }

    #[test]
    fn a_larger_eta_is_never_dirtier(mut instance in instance(12, 6), eta in 0.0..0.9f64, more in 0.1..1.0f64) {
        let mut carbon = |eta: f64| {
            instance.eta = eta.min(1.0);
            let problem = instance.problem();
            solve(&problem).ok().map(|solution| (solution.carbon.get(), 1e-8 * maximum_cost(&problem)))
        };
        if let (Some((less, rounding)), Some((greater, _))) = (carbon(eta), carbon(eta + more)) {
            prop_assert!(greater <= less * (1.0 + 1e-9) + rounding, "{greater} > {less}");
        }
    }

    #[test]
    fn on_a_constant_grid_the_cost_is_zeuss(mut instance in instance(12, 6)) {
        instance.slots.iter_mut().for_each(|slot| slot.1 = REFERENCE.get());
        let problem = instance.problem();
        let Ok(solution) = solve(&problem) else { return Ok(()) };
        let time = Seconds::from_delta(solution.ends_at - problem.slots()[0].slot.start());
        let zeus = solution.energy * instance.eta + MAX_POWER * time * (1.0 - instance.eta);
        let cost = zeus * REFERENCE;
        prop_assert!((solution.cost - cost).abs().get() <= 1e-6 * cost.get());
        if instance.latest_end.is_none() && instance.load < 0.5 {
            // Without constraints, the job runs at the point of least Zeus cost per sample, if there is time for it.
            let per_sample = |p: &(f64, f64)| {
                (instance.eta * p.0 + (1.0 - instance.eta) * MAX_POWER.get()) / p.1 * REFERENCE.get() / 3.6e6
            };
            let cheapest = instance.points.iter().min_by(|a, b| per_sample(a).total_cmp(&per_sample(b)));
            let cheapest = cheapest.expect("points");
            if instance.work() <= cheapest.1 * instance.seconds() {
                let expected = per_sample(cheapest) * instance.work();
                prop_assert!((solution.cost.get() - expected).abs() <= 1e-9 * expected);
            }
        }
    }

    #[test]
    fn one_slot_is_the_carbon_aware_zeus_choice(mut instance in instance(1, 6), load in 0.001..1.0f64) {
        // The rule of Carbon-Aware Zeus, argmin (eta·p·c + (1 − eta)·P_max·c_ref) / r; here the time allows any point.
        let c = instance.slots[0].1;
        let cost = |p: &(f64, f64)| {
            (instance.eta * p.0 * c + (1.0 - instance.eta) * MAX_POWER.get() * REFERENCE.get()) / p.1
        };
        let slowest = instance.points.iter().fold(f64::INFINITY, |slowest, p| p.1.min(slowest));
        instance.latest_end = None;
        instance.load = load * slowest / instance.fastest();
        let problem = instance.problem();
        let solution = solve(&problem).expect("fits at any point");
        prop_assert_eq!(solution.shares.len(), 1);
        prop_assert_eq!(solution.shares[0].len(), 1);
        let least = instance.points.iter().map(cost).fold(f64::INFINITY, f64::min);
        let chosen = cost(&instance.points[solution.shares[0][0].0]);
        prop_assert!(chosen <= least * (1.0 + 1e-12));
    }

    #[test]
    fn units_do_not_matter(instance in instance(6, 5), rate in -9i32..12, power in -6i32..9) {
        // Solves the same problem in other units: work in tokens or epochs, power of a rack or a microcontroller.
        let problem = instance.problem();
        let Ok(solution) = solve(&problem) else { return Ok(()) };
        let (rate, power) = (10f64.powi(rate), 10f64.powi(power));
        let points: Vec<_> = instance.points.iter().map(|p| (p.0 * power, p.1 * rate)).collect();
        let scaled = Problem::new(problem.slots().to_vec(), super::instances::points(&points),
            problem.work() * rate, instance.eta, REFERENCE, MAX_POWER * power, problem.latest_end()).expect("valid");
        let other = solve(&scaled).expect("feasible too");
        assert_meets_its_constraints(&scaled, &other)?;
        assert_close(&problem, other.cost.get() / power, solution.cost.get(), 1e-9)?;
    }
}

fn plain() -> Instance {
    Instance {
        slots: vec![(3600.0, 300.0), (3600.0, 600.0)],
        points: vec![(300.0, 100.0), (200.0, 80.0), (100.0, 50.0)],
        eta: 1.0,
        load: 0.5,
        latest_end: None,
    }
}

#[test]
fn work_is_done_in_clean_slots() {
    let mut instance = plain();
    instance.latest_end = Some(1.0);
    instance.load = 0.75; // 540,000 samples: 150 samples/s over two slots
    let solution = solve(&instance.problem()).expect("feasible");
    let hour = Seconds::new(3600.0);
    assert_eq!(solution.shares, [vec![(0, hour)], vec![(2, hour)]]);
    assert_eq!((solution.carbon.get(), solution.energy.get()), (90.0 + 60.0, 400.0 * 3600.0));
}

#[test]
fn on_a_flat_grid_the_faster_part_comes_first() {
    let mut instance = plain();
    instance.slots = vec![(3600.0, 300.0); 4];
    instance.latest_end = Some(1.0);
    instance.load = 0.9;
    let solution = solve(&instance.problem()).expect("feasible");
    let hour = Seconds::new(3600.0);
    assert_eq!(solution.shares, [vec![(0, hour)], vec![(0, hour)], vec![(1, hour)], vec![(1, hour)]]);
}

#[test]
fn infeasible_reports_by_how_much() {
    let mut instance = plain();
    instance.latest_end = Some(0.5);
    instance.load = 1.1;
    let Err(Infeasible::NotEnoughTime { missing, late_by }) = solve(&instance.problem()) else { panic!("feasible") };
    assert!((missing.get() - 36_000.0).abs() < 1e-6 && (late_by.get() - 360.0).abs() < 1e-9);
    instance.latest_end = None;
    let Err(Infeasible::HorizonTooShort { missing, short_by }) = solve(&instance.problem()) else { panic!("feasible") };
    assert!((missing.get() - 72_000.0).abs() < 1e-6 && (short_by.get() - 720.0).abs() < 1e-9);
    let text = solve(&instance.problem()).expect_err("too long").to_string();
    assert_eq!(
        text,
        "even at full speed 72000 samples are not done when the planning horizon ends; they take another 720 s"
    );
}

#[test]
fn a_latest_end_that_has_passed_is_infeasible() {
    let instance = plain();
    let posed = |latest_end| {
        let work = Samples::new(1e12);
        Problem::new(
            horizon(0.0, &instance.slots),
            points(&instance.points),
            work,
            1.0,
            REFERENCE,
            MAX_POWER,
            latest_end,
        )
    };
    let problem = posed(Some(at(-60.0))).expect("valid");
    let late_by = Seconds::new(1e10 + 60.0);
    assert_eq!(solve(&problem), Err(Infeasible::NotEnoughTime { missing: Samples::new(1e12), late_by }));
    let far = posed(Some(chrono::DateTime::<chrono::Utc>::MAX_UTC)).expect("valid");
    assert!(matches!(solve(&far), Err(Infeasible::HorizonTooShort { .. })));
}

#[test]
fn invalid_input_is_rejected() {
    let slots = horizon(0.0, &[(3600.0, 300.0), (3600.0, 300.0)]);
    let usable = points(&[(300.0, 100.0)]);
    let pose = |slots: &[_], points: &[_], work, eta| {
        Problem::new(slots.to_vec(), points.to_vec(), Samples::new(work), eta, REFERENCE, MAX_POWER, None).map(|_| ())
    };
    assert_eq!(pose(&[], &usable, 1.0, 1.0), Err(InvalidProblem::NoSlots));
    assert_eq!(pose(&[slots[1], slots[0]], &usable, 1.0, 1.0), Err(InvalidProblem::NotContiguous(at(7200.0))));
    assert_eq!(pose(&slots, &[], 1.0, 1.0), Err(InvalidProblem::NoPoints));
    assert_eq!(pose(&slots, &points(&[(300.0, 0.0)]), 1.0, 1.0), Err(InvalidProblem::UnusablePoint(0)));
    assert_eq!(pose(&slots, &usable, 0.0, 1.0), Err(InvalidProblem::NoWork(Samples::ZERO)));
    assert_eq!(pose(&slots, &usable, 1.0, 1.5), Err(InvalidProblem::BadWeights));
    assert_eq!(pose(&slots, &usable, 1.0, f64::NAN), Err(InvalidProblem::BadWeights));
    let negative = horizon(0.0, &[(3600.0, -1.0)]);
    assert_eq!(pose(&negative, &usable, 1.0, 1.0), Err(InvalidProblem::NegativeIntensity(negative[0].slot)));
    let power = (GramsPerKwh::ZERO, Watts::ZERO);
    assert!(Problem::new(slots, usable, Samples::new(1.0), 0.0, power.0, power.1, None).is_ok());
}
