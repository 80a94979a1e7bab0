use chrono::TimeDelta;

use super::*;
use wattune_core::domain::{Estimate, OperatingPoint, Slot};
use wattune_core::units::{Samples, SamplesPerSecond};

fn now() -> DateTime<Utc> {
    DateTime::UNIX_EPOCH
}

fn id(name: &str) -> JobId {
    JobId::new(name).expect("an id")
}

/// A job on a board of 300 or 200 W.
fn brief(name: &str) -> PlanInput {
    let point = |(watts, rate): (f64, f64)| OperatingPoint {
        setting: vec![PowerLimit::from_watts(Watts::new(watts)).into()],
        throughput: Estimate { mean: SamplesPerSecond::new(rate), relative_error: 0.0 },
        power: Estimate { mean: Watts::new(watts), relative_error: 0.0 },
        measured: Seconds::new(10.0),
    };
    let hours = |hour| {
        let from = now() + TimeDelta::hours(hour);
        let slot = Slot::new(from, from + TimeDelta::hours(1)).expect("an hour");
        PlanSlot { slot, intensity: GramsPerKwh::new(300.0) }
    };
    PlanInput {
        id: id(name),
        now: now(),
        profile: Profile { points: [(300.0, 100.0), (200.0, 90.0)].map(point).into() },
        horizon: (0..24).map(hours).collect(),
        objective: Objective::DEFAULT,
        work: Work::TotalSamples(Samples::new(1e6)),
        progress: Progress::default(),
        max_power: Watts::new(300.0),
        reference_intensity: GramsPerKwh::new(300.0),
        prices: None,
        dwell: Seconds::ZERO,
        activity: None,
        errors: Arc::default(),
        window: Seconds::new(86_400.0),
        allowed: None,
        priority: 0,
        before: None,
        better_by: 0.0,
        limits: vec![Watts::new(300.0), Watts::new(200.0)],
        at_rest: Watts::new(100.0),
    }
}

fn order(alone: &[&str], together: &[&str], cap: f64) -> PlanBatch {
    let briefs = |names: &[&str]| names.iter().map(|name| brief(name)).collect();
    let span = Slot::new(now(), now() + TimeDelta::days(30)).expect("a month");
    let cap = TimeSeries::from_points(vec![(span, Watts::new(cap))]).0;
    PlanBatch { alone: briefs(alone), together: briefs(together), cap, ..PlanBatch::default() }
}

fn dies(brief: &PlanInput) -> Result<Plan, Unplannable> {
    assert!(!brief.id.as_str().starts_with("bad"), "attempt to divide by zero");
    brief.plan()
}

/// Who has a plan, and who has none because planning it died.
fn told(solved: &Solved) -> (Vec<&str>, Vec<&str>) {
    let of = |died: bool| {
        let is = move |made: &Result<Plan, NoPlan>| match made {
            Ok(_) => !died,
            Err(NoPlan::Died(why)) => died && why.contains("divide by zero"),
            Err(NoPlan::Unplannable(_)) => false,
        };
        solved.plans.iter().filter(|(_, made)| is(made)).map(|(id, _)| id.as_str()).collect()
    };
    (of(false), of(true))
}

#[test]
fn planning_that_dies_fails_its_job_alone() {
    let rules = Rules { alone: &dies, together: &|_, _| unreachable!("nothing is shared") };
    let solved = order(&["a", "bad", "c"], &[], 0.0).carry_out_by(&rules);
    assert_eq!(told(&solved), (vec!["a", "c"], vec!["bad"]));
}

#[test]
fn who_spoils_planning_together_is_left_out_of_it_and_what_its_boards_may_take_with_it() {
    let together = |briefs: &[&PlanInput], shared: &Shared<'_>| {
        for brief in briefs {
            let _ = dies(brief);
        }
        plans_together(briefs, shared, Solver::default(), &|| true)
    };
    let rules = Rules { alone: &dies, together: &together };
    let solved = order(&[], &["a", "bad", "c"], 800.0).carry_out_by(&rules);
    assert_eq!(told(&solved), (vec!["a", "c"], vec!["bad"]));
    // 500 W are left for two: one at 300 W at the most.
    let at = |name: &str| solved.plans[&id(name)].as_ref().expect("a plan").segments[0].setting[0].limit.watts();
    assert!(at("a") + at("c") <= Watts::new(500.0), "{} and {}", at("a"), at("c"));

    // And one that dies only beside others.
    let together = |briefs: &[&PlanInput], shared: &Shared<'_>| {
        let spoilt = briefs.iter().any(|brief| brief.id.as_str() == "c");
        assert!(!spoilt, "attempt to divide by zero");
        plans_together(briefs, shared, Solver::default(), &|| true)
    };
    let rules = Rules { alone: &|brief| brief.plan(), together: &together };
    let solved = order(&["d"], &["a", "b", "c"], 800.0).carry_out_by(&rules);
    assert_eq!(told(&solved), (vec!["a", "b", "d"], vec!["c"]));
    assert_eq!(solved.apart, None);
}

#[test]
fn where_nobody_can_be_named_all_are_planned_each_alone() {
    let rules = Rules { alone: &|brief| brief.plan(), together: &|_, _| panic!("attempt to divide by zero") };
    let solved = order(&[], &["a", "b", "c"], 700.0).carry_out_by(&rules);
    assert_eq!(told(&solved), (vec!["a", "b", "c"], vec![]));
    assert!(solved.apart.is_some_and(|why| why.contains("divide by zero")));
}
