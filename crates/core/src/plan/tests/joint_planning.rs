use std::collections::BTreeSet;

use chrono::{DateTime, TimeDelta, Utc};
use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;

use super::instances::{at, horizon};
use super::receding::{Job, job, misses_deadline_by, profile, training};
use crate::domain::{Broken, Excess, Objective, Pausing, Slot, TimeSeries, Work};
use crate::plan::{
    JobActivity, JointPlan, Member, Reason, Shared, SharedViolation, Solver, Verdict, keep_jointly_if_nearly_as_good,
    plan, plan_jointly,
};
use crate::units::{GramsCo2e, Samples, Seconds, Watts};

/// Returns the limits of [`profile`]'s points for a job on one GPU.
fn limits(job: &Job) -> Vec<Watts> {
    (0..job.profile.points.len()).map(|i| Watts::new(400.0 - 25.0 * i as f64)).collect()
}

/// Returns a cap given by steps: first the time in seconds from which on a step applies, second its cap in watts.
fn cap(steps: &[(f64, f64)]) -> TimeSeries<Watts> {
    let ends = steps.iter().skip(1).map(|step| step.0).chain([1e9]);
    let span =
        |(step, end): (&(f64, f64), f64)| (Slot::new(at(step.0), at(end)).expect("not empty"), Watts::new(step.1));
    TimeSeries::from_points(steps.iter().zip(ends).map(span).collect()).0
}

fn joint_plan(jobs: &[(Job, i32)], at_rest: f64, cap: &TimeSeries<Watts>, budget: Option<f64>) -> JointPlan {
    let limits: Vec<Vec<Watts>> = jobs.iter().map(|(job, _)| limits(job)).collect();
    let member = |((job, priority), limits): (&'_ (Job, i32), &'_ Vec<Watts>)| (job.clone(), *priority, limits.clone());
    let owned: Vec<_> = jobs.iter().zip(&limits).map(member).collect();
    let members: Vec<Member<'_>> = owned
        .iter()
        .map(|(job, priority, limits)| Member {
            request: job.request(),
            priority: *priority,
            limits,
            at_rest: Watts::new(at_rest),
        })
        .collect();
    let always = |grams| (Slot::new(at(0.0), at(1e9)).expect("not empty"), GramsCo2e::new(grams));
    let budget = budget.map(|grams| TimeSeries::from_points(vec![always(grams)]).0);
    plan_jointly(&members, &Shared { cap, carbon_budget: budget.as_ref() }, Solver::default(), &|| true)
}

/// Returns the maximum excess of the sum of the plans' limits over the cap, W; negative if the sum is always below.
fn excess(jobs: &[(Job, i32)], made: &JointPlan, at_rest: f64, cap: &TimeSeries<Watts>) -> f64 {
    let plans: Vec<_> = made.plans.iter().flatten().collect();
    let mut moments: BTreeSet<DateTime<Utc>> = plans.iter().flat_map(|p| &p.segments).map(|s| s.slot.start()).collect();
    moments.extend(plans.iter().map(|p| p.ends_at()));
    moments.extend(cap.points().iter().map(|(slot, _)| slot.start()).filter(|t| *t >= jobs[0].0.now));
    let sum = |t: DateTime<Utc>| -> f64 {
        let of = |((job, _), plan): (&(Job, i32), &&crate::plan::Plan)| {
            plan.segment_at(t).map_or(at_rest, |s| limits(job)[s.point].get())
        };
        jobs.iter().zip(&plans).map(of).sum()
    };
    moments.into_iter().filter_map(|t| Some(sum(t) - cap.at(t)?.1.get())).fold(f64::NEG_INFINITY, f64::max)
}

fn assert_contiguous(job: &Job, made: &crate::plan::Plan) -> TestCaseResult {
    let mut from = job.now;
    for segment in &made.segments {
        prop_assert_eq!(segment.slot.start(), from);
        from = segment.slot.end();
        prop_assert_eq!(&segment.setting, &job.profile.points[segment.point].setting);
        prop_assert!(!segment.reason.to_string().is_empty());
    }
    prop_assert_eq!(made.ends_at(), from);
    Ok(())
}

/// Generates jobs that are planned at the same time with the same forecast, each with its priority.
fn jobs() -> impl Strategy<Value = Vec<(Job, i32)>> {
    prop::collection::vec((job(), 0i32..3, any::<bool>()), 1..4).prop_map(|jobs| {
        let horizon = jobs[0].0.horizon.clone();
        let one = |(job, priority, endless): (Job, i32, bool)| {
            let mut job = Job { horizon: horizon.clone(), ..job };
            if endless {
                (job.work, job.objective.deadline) = (Work::Unknown, None);
            }
            (job, priority)
        };
        jobs.into_iter().map(one).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn without_a_cap_each_job_is_planned_alone(jobs in jobs()) {
        let made = joint_plan(&jobs, 100.0, &TimeSeries::default(), None);
        prop_assert_eq!((made.gap, made.broken.len()), (0.0, 0));
        for ((job, _), made) in jobs.iter().zip(&made.plans) {
            prop_assert_eq!(made, &plan(&job.request()));
        }
        let wide = joint_plan(&jobs, 100.0, &cap(&[(0.0, 400.0 * jobs.len() as f64)]), Some(1e12));
        prop_assert_eq!(made.plans, wide.plans);
    }

    #[test]
    fn limits_never_exceed_the_cap(
        jobs in jobs(), parts in prop::collection::vec((0.0..40_000.0f64, 0.3..1.0f64), 1..4), at_rest in 0.0..200.0f64,
    ) {
        let mut steps: Vec<_> = parts.iter().map(|(t, part)| (*t, part * 400.0 * jobs.len() as f64)).collect();
        steps.sort_by(|a, b| a.0.total_cmp(&b.0));
        steps.dedup_by(|a, b| a.0 - b.0 < 1.0);
        let cap = cap(&steps);
        let made = joint_plan(&jobs, at_rest, &cap, None);
        let over = excess(&jobs, &made, at_rest, &cap);
        let reported = made.broken.iter().find_map(|b| match b {
            SharedViolation::Cap { by, .. } => Some(by.get()),
            SharedViolation::SharedBudget { .. } => None,
        });
        prop_assert!(over <= reported.unwrap_or(0.0) + 2e-3, "{over} W over the cap, reported {reported:?}");
        for ((job, _), plan) in jobs.iter().zip(made.plans.iter().flatten()) {
            assert_contiguous(job, plan)?;
            if let Work::TotalSamples(total) = job.work {
                let missing = total - plan.expected.samples;
                prop_assert!(missing <= total * 1e-6, "misses {missing}");
            }
            let late = job.objective.deadline.map(|end| Seconds::from_delta(plan.ends_at() - end));
            let late = late.filter(|late| *late > Seconds::new(2e-3) && job.work != Work::Unknown);
            let slower = job.objective.max_slowdown.is_some_and(|max| plan.expected.slowdown > max + 1e-5);
            match plan.verdict {
                Verdict::Optimal | Verdict::OverBudget { .. } => prop_assert!(late.is_none() && !slower),
                Verdict::FullSpeed { .. } | Verdict::SharedLimits { .. } => {
                    prop_assert_eq!(misses_deadline_by(&plan.verdict).is_some(), late.is_some());
                }
            }
        }
    }
}

/// Returns two equal jobs, each with 3.3 hours of work at the highest limit and a maximum slowdown of 10 %.
fn two() -> Vec<(Job, i32)> {
    let mut job = training();
    job.profile = profile(&[(400.0, 110.0), (375.0, 108.0), (350.0, 104.0), (325.0, 99.0), (300.0, 93.0)]);
    job.horizon = horizon(0.0, &[(3600.0, 300.0), (3600.0, 600.0), (3600.0, 400.0), (3600.0, 500.0)]);
    job.work = Work::TotalSamples(Samples::new(1_296_000.0));
    job.objective = Objective { max_slowdown: Some(0.1), ..Objective::UNBOUND };
    vec![(job.clone(), 0), (job, 0)]
}

#[test]
fn a_binding_cap_is_the_reason() {
    let free = joint_plan(&two(), 0.0, &TimeSeries::default(), None);
    let cap = cap(&[(0.0, 650.0), (3600.0, 1000.0)]);
    let made = joint_plan(&two(), 0.0, &cap, None);
    assert_eq!(made.broken, []);
    assert!(excess(&two(), &free, 0.0, &cap) > 0.0, "it would not bind");
    assert!(excess(&two(), &made, 0.0, &cap) <= 0.0);
    let plans: Vec<_> = made.plans.iter().map(|p| p.as_ref().expect("planned")).collect();
    assert!(plans.iter().all(|plan| plan.verdict == Verdict::Optimal));
    let reasons: Vec<String> = plans[0].segments.iter().map(|s| s.reason.to_string()).collect();
    assert!(reasons[0].starts_with("Limited by the node's cap at 300 g/kWh: each additional kilowatt-hour"));
    assert!(plans.iter().all(|p| matches!(p.segments.last().expect("some").reason, Reason::WithinSharedLimits { .. })));
    let carbon = |t: &JointPlan| t.plans.iter().flatten().map(|p| p.expected.carbon).sum::<GramsCo2e>();
    assert!(carbon(&made) >= carbon(&free));
    assert!(made.gap < 0.01, "{}", made.gap);
}

#[test]
fn lower_priority_is_limited_more() {
    for favoured in 0..2 {
        let mut jobs = two();
        jobs[favoured].1 = 1;
        let made = joint_plan(&jobs, 0.0, &cap(&[(0.0, 650.0)]), None);
        let plans: Vec<_> = made.plans.iter().map(|p| p.as_ref().expect("planned")).collect();
        assert_eq!(plans[favoured].verdict, Verdict::Optimal);
        let Verdict::SharedLimits { broken } = &plans[1 - favoured].verdict else {
            panic!("{:?}", plans[1 - favoured].verdict)
        };
        let [Broken { by: Excess::Slowdown(by), .. }] = broken[..] else { panic!("{broken:?}") };
        assert!(by > 0.01 && plans[1 - favoured].ends_at() > plans[favoured].ends_at(), "{by}");
    }
}

#[test]
fn a_cap_below_all_limits_is_exceeded_as_little_as_possible() {
    let made = joint_plan(&two(), 0.0, &cap(&[(0.0, 500.0)]), None);
    let [SharedViolation::Cap { by, during }] = made.broken[..] else { panic!("{:?}", made.broken) };
    assert!((by.get() - 100.0).abs() < 1e-6 && during > Seconds::ZERO, "{by}");
}

#[test]
fn a_shared_budget_is_met_or_reported() {
    let mut jobs = two();
    jobs.iter_mut().for_each(|(job, _)| job.objective.eta = 0.2);
    let carbon = |t: &JointPlan| t.plans.iter().flatten().map(|p| p.expected.carbon.get()).sum::<f64>();
    let free = carbon(&joint_plan(&jobs, 0.0, &TimeSeries::default(), None));
    let kept = joint_plan(&jobs, 0.0, &TimeSeries::default(), Some(free * 0.98));
    assert_eq!(kept.broken, []);
    assert!(carbon(&kept) <= free * 0.9801);
    let broken = joint_plan(&jobs, 0.0, &TimeSeries::default(), Some(free * 0.5));
    let [SharedViolation::SharedBudget { by, .. }] = broken.broken[..] else { panic!("{:?}", broken.broken) };
    assert!((by.get() - (carbon(&broken) - free * 0.5)).abs() < 1e-6);
    assert!(broken.plans.iter().flatten().all(|plan| plan.verdict == Verdict::Optimal), "budgets yield first");
}

#[test]
fn a_job_that_pauses_alone_pauses_at_the_lowest_limit() {
    let mut jobs = two();
    let pausing = Pausing {
        idle_power: Watts::new(30.0),
        min_run: Seconds::new(600.0),
        min_pause: Seconds::new(600.0),
        checkpoint: Seconds::new(60.0),
    };
    jobs[0].0.horizon = horizon(0.0, &[(3600.0, 900.0), (36_000.0, 100.0)]);
    jobs[1].0.horizon = jobs[0].0.horizon.clone();
    jobs[0].0.objective = Objective { max_slowdown: Some(1.0), pausable: Some(pausing), ..Objective::UNBOUND };
    assert!(jobs[0].0.plan().segments.iter().any(|s| s.activity == JobActivity::Paused), "it would not pause");
    let cap = cap(&[(0.0, 660.0)]);
    let made = joint_plan(&jobs, 0.0, &cap, None);
    assert_eq!(made.broken, []);
    assert!(excess(&jobs, &made, 0.0, &cap) <= 0.0);
    let plan = made.plans[0].as_ref().expect("planned");
    let paused: Vec<_> = plan.segments.iter().filter(|s| s.activity == JobActivity::Paused).collect();
    assert!(!paused.is_empty() && paused.iter().all(|s| s.point == 4 && s.power == Watts::new(30.0)));
    assert!(plan.segments.iter().any(|s| s.activity == JobActivity::Resuming));
}

/// Plans `jobs` under a cap, keeping the plans `before` if they are nearly as good.
fn replanned(jobs: &[(Job, i32)], before: &JointPlan, cap: &TimeSeries<Watts>, better_by: f64) -> JointPlan {
    let limits = limits(&jobs[0].0);
    let members = members(jobs, &limits);
    let shared = Shared { cap, carbon_budget: None };
    let before: Vec<_> = before.plans.iter().map(|plan| plan.as_ref().ok()).collect();
    keep_jointly_if_nearly_as_good(
        &before,
        plan_jointly(&members, &shared, Solver::default(), &|| true),
        &members,
        &shared,
        better_by,
    )
}

/// Returns members for jobs whose profiles have the same limits.
fn members<'a>(jobs: &'a [(Job, i32)], limits: &'a [Watts]) -> Vec<Member<'a>> {
    let member = |(job, priority): &'a (Job, i32)| Member {
        request: job.request(),
        priority: *priority,
        limits,
        at_rest: Watts::ZERO,
    };
    jobs.iter().map(member).collect()
}

#[test]
fn joint_plans_are_kept_until_others_are_clearly_better_or_the_cap_falls() {
    let jobs = two();
    let wide = cap(&[(0.0, 700.0)]);
    let before = joint_plan(&jobs, 0.0, &wide, None);
    let held = |s: &crate::plan::Segment| matches!(s.reason, Reason::LimitedByCap { .. });
    assert!(before.plans.iter().flatten().flat_map(|p| &p.segments).any(held), "the cap does not bind");
    assert!(before.plans.iter().flatten().all(|p| p.verdict == Verdict::Optimal));
    let at_limits = |made: &JointPlan| -> Vec<Vec<_>> {
        let plans = made.plans.iter().flatten();
        plans.map(|p| p.segments.iter().map(|s| (s.slot.start(), s.point)).collect()).collect()
    };
    let seen = |intensities: [f64; 4]| -> Vec<(Job, i32)> {
        let horizon = horizon(0.0, &intensities.map(|c| (3600.0, c)));
        jobs.iter().map(|(job, priority)| (Job { horizon: horizon.clone(), ..job.clone() }, *priority)).collect()
    };
    // A little noise in the forecast: the cleanest hour stays the cleanest.
    let noisy = seen([300.2, 599.5, 400.4, 499.8]);
    let kept = replanned(&noisy, &before, &wide, 0.01);
    assert!(kept.plans.iter().flatten().all(|p| p.forgone_saving.is_some()), "not kept");
    assert_eq!((at_limits(&kept), &kept.broken[..]), (at_limits(&before), &[][..]));
    assert!(excess(&noisy, &kept, 0.0, &wide) <= 0.0);
    // A very different forecast.
    let turned = seen([600.0, 300.0, 500.0, 400.0]);
    let new = replanned(&turned, &before, &wide, 0.01);
    assert!(new.plans.iter().flatten().all(|p| p.forgone_saving.is_none()), "kept");
    assert!(at_limits(&new) != at_limits(&before));
    // A lower cap, which the previous plans would violate.
    let narrow = cap(&[(0.0, 665.0)]);
    let lower = replanned(&noisy, &before, &narrow, 0.1);
    assert!(lower.plans.iter().flatten().all(|p| p.forgone_saving.is_none()), "kept");
    assert!(excess(&noisy, &lower, 0.0, &narrow) <= 0.0);
}

#[test]
fn each_span_has_its_own_budget() {
    let mut jobs = two();
    jobs.iter_mut().for_each(|(job, _)| job.objective.eta = 0.2);
    let budgets = |parts: [Option<f64>; 2]| {
        let span = |(i, grams): (usize, f64)| {
            let from = 7200.0 * i as f64;
            (Slot::new(at(from), at(from + 7200.0)).expect("not empty"), GramsCo2e::new(grams))
        };
        let given = parts.into_iter().enumerate().filter_map(|(i, grams)| Some((i, grams?)));
        TimeSeries::from_points(given.map(span).collect()).0
    };
    let limits = limits(&jobs[0].0);
    let members = members(&jobs, &limits);
    let made = |parts| {
        let budgets = budgets(parts);
        let shared = Shared { cap: &TimeSeries::default(), carbon_budget: Some(&budgets) };
        plan_jointly(&members, &shared, Solver::default(), &|| true)
    };
    let within = |made: &JointPlan, i: usize| -> f64 {
        let from = 7200.0 * i as f64;
        let span = Slot::new(at(from), at(from + 7200.0)).expect("not empty");
        made.plans.iter().flatten().map(|p| p.carbon_within(&span).get()).sum()
    };
    let free = made([None, None]);
    let (first, second) = (within(&free, 0), within(&free, 1));
    for parts in [[Some(0.97), None], [None, Some(0.97)], [Some(0.97), Some(1.5)]] {
        let bent = made([parts[0].map(|p| p * first), parts[1].map(|p| p * second)]);
        assert_eq!(bent.broken, [], "{parts:?}");
        for (i, (part, all)) in parts.into_iter().zip([first, second]).enumerate() {
            assert!(part.is_none_or(|part| within(&bent, i) <= part * all * 1.0001), "{parts:?}: {i}");
        }
        let text = bent
            .plans
            .iter()
            .flatten()
            .flat_map(|p| &p.segments)
            .any(|s| matches!(s.reason, Reason::LimitedByBudget { kept: true, .. }));
        assert!(text, "{parts:?}");
    }
}

#[test]
fn an_interrupted_search_keeps_the_cap() {
    let jobs = two();
    let limits = limits(&jobs[0].0);
    let cap = cap(&[(0.0, 650.0)]);
    let shared = Shared { cap: &cap, carbon_budget: None };
    let made = plan_jointly(&members(&jobs, &limits), &shared, Solver::default(), &|| false);
    assert!(!made.finished);
    assert!(excess(&jobs, &made, 0.0, &cap) <= 0.0);
    assert!(made.plans.iter().flatten().all(|p| p.ends_at() - p.made_at > TimeDelta::hours(1)));
}
