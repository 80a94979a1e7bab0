use proptest::prelude::*;

use super::instances::{REFERENCE, at, instance};
use super::oracles::within_budget_by_interior_point;
use super::receding::training;
use crate::domain::{Broken, Excess, Objective, Promise};
use crate::plan::job::budget::{OverBudget, solve_within};
use crate::plan::{Reason, Verdict, solve};
use crate::units::{GramsCo2e, Seconds, Watts};

proptest! {
    #[test]
    fn an_interior_point_solver_agrees(instance in instance(6, 5), tightness in 0.02..0.98f64) {
        let problem = instance.problem();
        let (Ok(cheapest), Ok(least)) = (solve(&problem), solve(&problem.least_counted())) else { return Ok(()) };
        let span = (cheapest.carbon - least.carbon).get();
        prop_assume!(span > 1e-3 * cheapest.carbon.get());
        let budget = least.carbon.get() + tightness * span;
        let within = solve_within(&problem, GramsCo2e::new(budget)).expect("feasible");
        prop_assert!(within.solution.carbon.get() <= budget * (1.0 + 1e-8));
        prop_assert!(within.multiplier > 0.0);
        let work: f64 = within.solution.shares.iter().flatten()
            .map(|(point, seconds)| problem.points()[*point].throughput.get() * seconds.get()).sum();
        prop_assert!((work - problem.work().get()).abs() <= 1e-8 * problem.work().get() + 1e-3 * instance.fastest());
        prop_assert!(within.solution.shares.iter().all(|parts| parts.len() <= 2));
        let oracle = within_budget_by_interior_point(&instance, budget).expect("feasible");
        let (cost, scale) = (within.solution.cost.get(), oracle.abs().max(cheapest.carbon.get() * 1e-3));
        prop_assert!((cost - oracle).abs() <= 2e-6 * scale, "{cost} and {oracle}");
    }

    #[test]
    fn an_unattainable_budget_is_exceeded_as_little_as_possible(instance in instance(8, 5), part in 0.1..0.99f64) {
        let problem = instance.problem();
        let Ok(least) = solve(&problem.least_counted()) else { return Ok(()) };
        prop_assume!(least.carbon > GramsCo2e::new(1e-6));
        let Err(OverBudget::By(found)) = solve_within(&problem, least.carbon * part) else {
            return Err(TestCaseError::fail("the budget is below the least carbon"));
        };
        prop_assert!((found.carbon - least.carbon).abs().get() <= 1e-9 * least.carbon.get());
    }
}

#[test]
fn with_a_budget_alone_time_is_minimised() {
    let mut job = training();
    let asked = Objective { carbon_budget: Some(GramsCo2e::new(350.0)), ..Objective::UNBOUND };
    job.objective = Objective::new(None, asked).expect("valid");
    let plan = job.plan();
    assert_eq!(plan.verdict, Verdict::Optimal);
    assert!((plan.expected.carbon.get() - 350.0).abs() < 0.1, "{}", plan.expected.carbon);
    let promise = Promise::CarbonBudget(GramsCo2e::new(350.0));
    // Full speed emits 390 g, running 10 % slower emits 299 g; the budget lies between these.
    assert!(plan.expected.slowdown > 0.0 && plan.expected.slowdown < 0.1);
    job.horizon.iter_mut().for_each(|s| s.intensity = REFERENCE * 1.2);
    let reason = job.plan().segments[0].reason;
    assert!(matches!(reason, Reason::Flat { promise: Some(p), .. } if p == promise), "{reason:?}");
    assert!(reason.to_string().contains("as fast as the carbon budget of 350 g allows"), "{reason}");
    // With a larger budget the job runs at full speed.
    job.objective.carbon_budget = Some(GramsCo2e::new(1000.0));
    assert_eq!(job.plan().ends_at(), at(10_800.0));
}

#[test]
fn the_past_counts_and_the_budget_yields_before_time() {
    let mut job = training();
    job.objective.carbon_budget = Some(GramsCo2e::new(350.0));
    assert_eq!(job.plan().verdict, Verdict::Optimal);
    job.progress.carbon = GramsCo2e::new(100.0);
    let plan = job.plan();
    let Verdict::OverBudget { broken } = plan.verdict else { panic!("{:?}", plan.verdict) };
    let [Broken { by: Excess::Carbon(by), .. }] = broken[..] else { panic!("{broken:?}") };
    // The least carbon within 10 % slowdown is 299 g.
    assert!((by.get() - 49.0).abs() < 0.1, "{by}");
    assert!((plan.expected.slowdown - 0.1).abs() < 1e-6, "the slowdown is kept");
    job.progress.elapsed = Seconds::new(2160.0);
    let Verdict::FullSpeed { broken, .. } = job.plan().verdict else { panic!("{:?}", job.plan().verdict) };
    let [Broken { by: Excess::Slowdown(_), .. }, Broken { by: Excess::Carbon(by), .. }] = broken[..] else {
        panic!("{broken:?}")
    };
    assert!((by.get() - (100.0 + 390.0 - 350.0)).abs() < 0.5, "{by}");
}

#[test]
fn a_budget_leaves_room_for_the_jobs_own_pauses() {
    let mut job = training();
    let budget = |grams| Some(GramsCo2e::new(grams));
    let asked = Objective { carbon_budget: budget(350.0), ..Objective::UNBOUND };
    job.objective = Objective::new(None, asked).expect("valid");
    job.progress.pauses_ahead = Seconds::new(600.0);
    job.progress.pause_power = Watts::new(120.0);
    // At 450 g/kWh, the forecast's mean, the pauses emit 9 g.
    let plan = job.plan();
    assert_eq!(plan.verdict, Verdict::Optimal);
    assert!((plan.expected.carbon.get() - 341.0).abs() < 0.1, "{}", plan.expected.carbon);
    // The least carbon within 10 % slowdown is 299 g.
    job.objective = Objective { max_slowdown: Some(0.1), carbon_budget: budget(305.0), ..Objective::UNBOUND };
    let Verdict::OverBudget { broken } = job.plan().verdict else { panic!("{:?}", job.plan().verdict) };
    let [Broken { by: Excess::Carbon(by), .. }] = broken[..] else { panic!("{broken:?}") };
    assert!((by.get() - 3.0).abs() < 0.1, "{by}");
}
