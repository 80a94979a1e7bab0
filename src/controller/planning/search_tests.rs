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

/// Returns the planner's input for a job with two operating points, at power limits of 300 W and 200 W.
fn input(name: &str) -> PlanInput {
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
        out_of_band_cap: None,
        priority: 0,
        before: None,
        better_by: 0.0,
        limits: vec![Watts::new(300.0), Watts::new(200.0)],
        at_rest: Watts::new(100.0),
    }
}

fn batch(alone: &[&str], joint: &[&str], cap: f64) -> PlanBatch {
    let inputs = |names: &[&str]| names.iter().map(|name| input(name)).collect();
    let span = Slot::new(now(), now() + TimeDelta::days(30)).expect("a month");
    let cap = TimeSeries::from_points(vec![(span, Watts::new(cap))]).0;
    PlanBatch { alone: inputs(alone), joint: inputs(joint), cap, ..PlanBatch::default() }
}

fn panics(job: &PlanInput) -> Result<Plan, Unplannable> {
    assert!(!job.id.as_str().starts_with("bad"), "attempt to divide by zero");
    job.plan()
}

/// Returns first the jobs with a plan, and second the jobs whose planning panicked.
fn outcomes(solved: &Solved) -> (Vec<&str>, Vec<&str>) {
    let of = |panicked: bool| {
        let is = move |made: &Result<Plan, NoPlan>| match made {
            Ok(_) => !panicked,
            Err(NoPlan::Panicked(why)) => panicked && why.contains("divide by zero"),
            Err(NoPlan::Unplannable(_)) => false,
        };
        solved.plans.iter().filter(|(_, made)| is(made)).map(|(id, _)| id.as_str()).collect()
    };
    (of(false), of(true))
}

#[test]
fn planning_that_panics_fails_its_job_alone() {
    let planning = Planning { alone: &panics, joint: &|_, _| unreachable!("nothing is shared") };
    let solved = batch(&["a", "bad", "c"], &[], 0.0).solve_by(&planning);
    assert_eq!(outcomes(&solved), (vec!["a", "c"], vec!["bad"]));
}

#[test]
fn a_job_that_spoils_joint_planning_is_left_out_with_what_its_gpus_may_draw() {
    let joint = |jobs: &[&PlanInput], shared: &Shared<'_>| {
        for job in jobs {
            let _ = panics(job);
        }
        joint_plan(jobs, shared, Solver::default(), &|| true)
    };
    let planning = Planning { alone: &panics, joint: &joint };
    let solved = batch(&[], &["a", "bad", "c"], 800.0).solve_by(&planning);
    assert_eq!(outcomes(&solved), (vec!["a", "c"], vec!["bad"]));
    // 500 W are left for two jobs, so at most one of them can have 300 W.
    let at = |name: &str| solved.plans[&id(name)].as_ref().expect("a plan").segments[0].setting[0].limit.watts();
    assert!(at("a") + at("c") <= Watts::new(500.0), "{} and {}", at("a"), at("c"));

    // The planning of a job may also panic only if other jobs are planned with it.
    let joint = |jobs: &[&PlanInput], shared: &Shared<'_>| {
        let spoilt = jobs.iter().any(|job| job.id.as_str() == "c");
        assert!(!spoilt, "attempt to divide by zero");
        joint_plan(jobs, shared, Solver::default(), &|| true)
    };
    let planning = Planning { alone: &|job| job.plan(), joint: &joint };
    let solved = batch(&["d"], &["a", "b", "c"], 800.0).solve_by(&planning);
    assert_eq!(outcomes(&solved), (vec!["a", "b", "d"], vec!["c"]));
    assert_eq!(solved.joint_failure, None);
}

#[test]
fn without_a_culprit_all_are_planned_alone() {
    let planning = Planning { alone: &|job| job.plan(), joint: &|_, _| panic!("attempt to divide by zero") };
    let solved = batch(&[], &["a", "b", "c"], 700.0).solve_by(&planning);
    assert_eq!(outcomes(&solved), (vec!["a", "b", "c"], vec![]));
    assert!(solved.joint_failure.is_some_and(|why| why.contains("divide by zero")));
}
