//! Property tests of planning with any request that passes validation, alone and jointly.

use chrono::{DateTime, TimeDelta, Utc};
use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;

use super::instances::at;
use super::receding::{Job, profile, training};
use crate::domain::{Activity, Objective, Origin, Pausing, PowerLimit, Quoted, Slot, TimeSeries, Work};
use crate::forecast::ErrorPaths;
use crate::plan::{AppliedSetPoint, Infeasible, JobActivity, SwitchingLimits};
use crate::plan::{
    FirstPlan, Member, PastEmissions, Plan, PlanSlot, Prices, Progress, Request, Shared, Solver, Unplannable, Verdict,
    keep_if_nearly_as_good, keep_jointly_if_nearly_as_good, next_set_point, plan, plan_jointly,
};
use crate::units::{GramsCo2e, GramsPerKwh, PricePerMwh, Samples, Seconds, Watts};

/// Owned data of a planning [`Request`] with arbitrary valid values.
#[derive(Clone, Debug)]
struct Wild {
    job: Job,
    max_power: Watts,
    reference: GramsPerKwh,
    window: Seconds,
    prices: Option<Vec<f64>>,
    errors: Vec<Vec<f64>>,
    priority: i32,
    at_rest: Watts,
}

impl Wild {
    fn known_prices(&self) -> TimeSeries<Quoted<PricePerMwh>> {
        let start = self.job.now - TimeDelta::hours(1);
        let point = |(hour, price): (i32, &f64)| {
            let from = start + TimeDelta::hours(i64::from(hour));
            let slot = Slot::new(from, from + TimeDelta::hours(1)).expect("an hour");
            (slot, Quoted { value: PricePerMwh::new(*price), origin: Origin::Forecast })
        };
        TimeSeries::from_points((0..).zip(self.prices.iter().flatten()).map(point).collect()).0
    }

    fn paths(&self) -> ErrorPaths {
        ErrorPaths::of(self.job.now - TimeDelta::minutes(10), self.errors.iter().cloned())
    }

    fn limits(&self) -> Vec<Watts> {
        self.job.profile.points.iter().map(|p| p.setting[0].limit.watts()).collect()
    }

    /// Calls `take` with the request that the data make up.
    fn with<T>(&self, take: impl FnOnce(&Request<'_>) -> T) -> T {
        let (known_prices, errors) = (self.known_prices(), self.paths());
        let prices = self.prices.as_ref().map(|prices| {
            let mean = prices.iter().sum::<f64>() / (prices.len() as f64).max(1.0);
            Prices { known_prices: &known_prices, reference: PricePerMwh::new(mean) }
        });
        let request = Request {
            max_power: self.max_power,
            reference_intensity: self.reference,
            window: self.window,
            prices,
            errors: Some(&errors),
            ..self.job.request()
        };
        take(&request)
    }
}

fn edge(values: &'static [f64], within: std::ops::Range<f64>) -> impl Strategy<Value = f64> {
    prop_oneof![prop::sample::select(values), within]
}

fn objective() -> impl Strategy<Value = (Objective, Option<f64>)> {
    let slowdown = prop::option::of(edge(&[0.0, 5e-324, 1e-12, 0.03, 10.0], 0.0..1.0));
    // Seconds from now.
    let deadline =
        prop::option::of(edge(&[-6.3e10, -1e9, -1e-6, 0.0, 1e-6, 2e-6, 1e-3, 0.5, 1.0, 3600.0, 2.5e11], -1e5..1e6));
    let budget = prop::option::of(edge(&[0.001, 1.0, 1e3, 1e300], 0.001..1e6));
    let pausing = (
        edge(&[0.0, 1e5, 5e-324], 0.0..500.0),
        edge(&[0.0, 86_400.0, 5e-324, 1e-7], 0.0..7200.0),
        edge(&[0.0, 86_400.0, 5e-324, 1e-7], 0.0..7200.0),
        edge(&[0.0, 86_400.0, 5e-324, 1e-7], 0.0..1800.0),
    );
    let pausing = prop::option::of(pausing.prop_map(|(idle, run, pause, checkpoint)| Pausing {
        idle_power: Watts::new(idle),
        min_run: Seconds::new(run),
        min_pause: Seconds::new(pause),
        checkpoint: Seconds::new(checkpoint),
    }));
    let eta = prop::option::of(edge(&[0.0, 1.0, 5e-324], 0.0..1.0));
    (eta, slowdown, deadline, budget, edge(&[0.0, 1.0], 0.0..1.0), pausing).prop_filter_map(
        "the door refuses it",
        |(eta, max_slowdown, deadline, budget, price_weight, pausable)| {
            let asked = Objective {
                max_slowdown,
                // Placeholder, because the deadline is relative to the time of planning, which is not known here.
                deadline: deadline.map(|_| DateTime::UNIX_EPOCH),
                carbon_budget: budget.map(GramsCo2e::new),
                price_weight,
                pausable,
                ..Objective::UNBOUND
            };
            Some((Objective::new(eta, asked).ok()?, deadline))
        },
    )
}

fn points() -> impl Strategy<Value = Vec<(f64, f64)>> {
    let point = (edge(&[0.0, 1e-3, 1e5], 20.0..700.0), edge(&[0.0, 5e-324, 1e-9, 1.0, 1e12], 0.1..5000.0));
    let usual = (1usize..7, 1e-3..1e5f64).prop_map(|(n, rate)| {
        (0..n).map(|i| (300.0 - 30.0 * i as f64, rate * (1.0 - 0.08 * i as f64))).collect::<Vec<_>>()
    });
    prop_oneof![1 => prop::collection::vec(point, 0..7), 3 => usual]
}

fn slots() -> impl Strategy<Value = Vec<(f64, f64)>> {
    let length = prop_oneof![4 => Just(3600.0), 1 => Just(1e-6), 1 => Just(1e-3), 1 => Just(1.0), 1 => Just(1e7), 2 => 1.0..7200.0];
    prop::collection::vec((length, edge(&[0.0, -50.0, 5e-324, 1e4], 0.0..900.0)), 0..20)
}

fn progress() -> impl Strategy<Value = Progress> {
    let past = prop::option::of((edge(&[0.0, 1e4], 0.0..900.0), edge(&[-1e3, 0.0, 1e9], 0.0..1e4)));
    (
        edge(&[0.0, 5e-324, 1.0, 1e15], 0.0..1e9),
        edge(&[0.0, -100.0, 1e10], 0.0..1e6),
        edge(&[0.0, -1e10, 1e10], -1e5..1e5),
        edge(&[0.0, 1.0], 0.0..0.05),
        edge(&[0.0, -1.0, 1e15], 0.0..1e5),
        edge(&[0.0, 1e5], 0.0..500.0),
        edge(&[0.0, -1.0, 1e-7, 86_400.0], 0.0..7200.0),
        edge(&[0.0, 1e12], 0.0..1e5),
        (edge(&[0.0, 1e10], 0.0..1e6), edge(&[0.0, 1e10], 0.0..1e6)),
        past,
    )
        .prop_map(|(samples, elapsed, excess, reserve, pauses, power, restart, carbon, first, past)| Progress {
            samples: Samples::new(samples),
            elapsed: Seconds::new(elapsed),
            excess_before: Seconds::new(excess),
            reserve,
            pauses_ahead: Seconds::new(pauses),
            pause_power: Watts::new(power),
            restart_left: Seconds::new(restart),
            carbon: GramsCo2e::new(carbon),
            first_plan: FirstPlan { elapsed: Seconds::new(first.0), reference_time: Seconds::new(first.1) },
            past_emissions: past.map(|(intensity, carbon)| PastEmissions {
                intensity: GramsPerKwh::new(intensity),
                carbon: GramsCo2e::new(carbon),
            }),
        })
}

fn wild() -> impl Strategy<Value = Wild> {
    let work = prop_oneof![
        1 => Just(None),
        5 => edge(&[5e-324, 1e-300, 1e-9, 1.0, 1e9, 1e15], 1.0..1e8).prop_map(Some),
    ];
    let activity = prop_oneof![
        2 => Just(None),
        1 => (any::<bool>(), edge(&[-1e6, 0.0, 1e5], -7200.0..0.0)).prop_map(Some),
    ];
    let job = (
        objective(),
        points(),
        (slots(), edge(&[0.0, -1e-6, -1800.0, -1e6, 1.0], -3600.0..0.0)),
        work,
        progress(),
        activity,
    );
    let around = (
        edge(&[0.0, 1e6], 100.0..2000.0),
        edge(&[0.0, -5.0, 1e4], 0.0..900.0),
        edge(&[60.0, 1e6, 86_400.0], 60.0..1e5),
        edge(&[0.0, 1.0, 1200.0, 86_400.0], 0.0..7200.0),
        prop::option::of(150u32..450),
        prop::option::of(prop::collection::vec(edge(&[0.0, -500.0, 1e6], -50.0..300.0), 0..30)),
        prop_oneof![Just(Vec::new()), prop::collection::vec(prop::collection::vec(-300.0..300.0f64, 0..48), 5..9)],
        (-1000i32..=1000, edge(&[0.0, 1e4], 0.0..300.0)),
    );
    (job, around).prop_map(|(((objective, deadline), points, (slots, start), work, progress, activity), around)| {
        let (max_power, reference, window, dwell, allowed, prices, errors, (priority, at_rest)) = around;
        let now = at(1.7e9);
        let work = work.map_or(Work::Unknown, |total| Work::TotalSamples(Samples::new(total)));
        let after = |seconds: f64| now + Seconds::new(seconds).to_delta();
        let known = work != Work::Unknown;
        let objective = Objective {
            // Validation rejects a deadline or a carbon budget without known work.
            deadline: deadline.filter(|_| known).map(after),
            carbon_budget: objective.carbon_budget.filter(|_| known),
            ..objective
        };
        let activity = activity.map(|(running, since)| match running {
            true => Activity::RunningSince(after(since)),
            false => Activity::PausedSince(after(since)),
        });
        let job = Job {
            now,
            profile: profile(&points),
            horizon: if slots.is_empty() { Vec::new() } else { horizon_from(now, start, &slots) },
            objective,
            work,
            progress,
            allowed: allowed.map(|watts| PowerLimit::from_milliwatts(watts * 1000)),
            dwell: Seconds::new(dwell),
            activity,
        };
        Wild {
            job,
            max_power: Watts::new(max_power),
            reference: GramsPerKwh::new(reference),
            window: Seconds::new(window),
            prices,
            errors,
            priority,
            at_rest: Watts::new(at_rest),
        }
    })
}

/// Returns contiguous slots, each given by its duration in seconds and its intensity; the first starts `start` seconds
/// after now.
fn horizon_from(now: DateTime<Utc>, start: f64, slots: &[(f64, f64)]) -> Vec<PlanSlot> {
    let mut from = now + Seconds::new(start).to_delta();
    let one = |(seconds, intensity): &(f64, f64)| {
        let slot = Slot::new(from, from + Seconds::new(*seconds).to_delta()).expect("a microsecond at the least");
        from = slot.end();
        PlanSlot { slot, intensity: GramsPerKwh::new(*intensity) }
    };
    slots.iter().map(one).collect()
}

fn figures(verdict: &Verdict) -> Vec<f64> {
    let mut figures: Vec<f64> = verdict.broken().iter().map(|broken| broken.by.get()).collect();
    if let Verdict::FullSpeed { why, .. } = verdict {
        figures.extend(match why {
            Infeasible::NotEnoughTime { missing, late_by } => [missing.get(), late_by.get()],
            Infeasible::HorizonTooShort { missing, short_by } => [missing.get(), short_by.get()],
        });
    }
    figures
}

/// Checks that all figures are finite, segments are contiguous from the present on, and settings are allowed.
fn assert_sound(wild: &Wild, made: &Result<Plan, Unplannable>) -> TestCaseResult {
    let Ok(made) = made else { return Ok(()) };
    let job = &wild.job;
    let expected = made.expected;
    let mut all = vec![
        expected.samples.get(),
        expected.carbon.get(),
        expected.energy.get(),
        expected.slowdown,
        expected.carbon_at_ceiling.get(),
        made.samples_done.get(),
        made.forgone_saving.unwrap_or_default(),
        made.slack.map_or(0.0, |(_, fastest)| fastest.get()),
        made.expected_samples_at(job.now + TimeDelta::hours(1)).get(),
    ];
    all.extend(figures(&made.verdict));
    let mut from = job.now;
    for segment in &made.segments {
        prop_assert_eq!(segment.slot.start(), from);
        from = segment.slot.end();
        all.extend([segment.power.get(), segment.throughput.get(), segment.intensity.get()]);
        let words = segment.reason.to_string();
        prop_assert!(!words.is_empty() && !words.contains("NaN") && !words.contains("inf"), "{}", words);
        prop_assert_eq!(&segment.setting, &job.profile.points[segment.point].setting);
        let within = |limit: PowerLimit| job.allowed.is_none_or(|cap| limit <= cap || limit.same_as(cap));
        prop_assert!(segment.setting.iter().all(|set| within(set.limit)), "{:?} above {:?}", segment, job.allowed);
    }
    prop_assert!(all.iter().all(|figure| figure.is_finite()), "{:?}", made);
    Ok(())
}

/// Returns a cap from five minutes before now on, given by steps: first the duration in seconds, second the cap in
/// watts.
fn cap(now: DateTime<Utc>, steps: &[(i64, f64)]) -> TimeSeries<Watts> {
    let mut from = now - TimeDelta::minutes(5);
    let mut points = Vec::new();
    for (seconds, watts) in steps {
        let to = from + TimeDelta::seconds(*seconds);
        points.extend(Slot::new(from, to).map(|slot| (slot, Watts::new(*watts))));
        from = to;
    }
    TimeSeries::from_points(points).0
}

#[test]
fn a_pausable_job_is_planned_despite_a_past_deadline_or_tiny_work() {
    let mut job = training();
    job.objective.pausable = Some(Pausing::default_for(1));
    for (total, deadline, max_slowdown) in [
        (1e9, Some(at(-3600.0)), None),
        (1e9, Some(at(0.0)), None),
        (1e9, Some(at(10.0)), None),
        (1e9, Some(at(-3600.0)), Some(0.03)),
        (1.0, None, Some(0.03)),
        (1e-9, None, Some(0.03)),
        (5e-324, None, Some(0.03)),
        (5e-324, Some(at(3600.0)), None),
    ] {
        job.work = Work::TotalSamples(Samples::new(total));
        job.objective.deadline = deadline;
        job.objective.max_slowdown = max_slowdown;
        for activity in [None, Some(Activity::RunningSince(at(-10.0))), Some(Activity::PausedSince(at(-10.0)))] {
            job.activity = activity;
            let made = job.plan();
            let late = deadline.is_some() && total > 1.0;
            // A paused job with work for a hundredth of a second is late only because loading its checkpoint takes
            // time.
            let resumes = activity == Some(Activity::PausedSince(at(-10.0))) && total == 1.0;
            let is_late = matches!(made.verdict, Verdict::FullSpeed { .. });
            assert!(total < 1.0 || is_late == (late || resumes), "{total}: {made:?}");
            assert!(made.segments.iter().all(|s| s.point == 0 || !late), "{total}: {made:?}");
            // A paused job loads its checkpoint even for work that takes no time.
            let loads = activity == Some(Activity::PausedSince(at(-10.0))) && total > 1e-10;
            assert_eq!(made.segments.iter().any(|s| s.activity == JobActivity::Resuming), loads, "{total}: {made:?}");
            assert_eq!(made.segments.is_empty(), total < 1.0 && !loads, "{total}: {made:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases(600)))]

    #[test]
    fn any_valid_request_is_planned_soundly(wild in wild(), later in edge(&[0.0, 1e-6, 1.0, 3600.0, 1e6], 0.0..7200.0)) {
        let made = wild.with(plan);
        assert_sound(&wild, &made)?;
        let Ok(made) = made else { return Ok(()) };
        // Plans again later, and may keep the previous plan.
        let mut next = wild.clone();
        next.job.now += Seconds::new(later).to_delta();
        next.job.progress.samples = made.expected_samples_at(next.job.now);
        let again = next.with(|request| plan(request).map(|new| keep_if_nearly_as_good(&made, new, request, 0.0005)));
        assert_sound(&next, &again)?;
        let pace = SwitchingLimits { dwell: wild.job.dwell, ramp_per_min: None };
        let mut applied: Option<AppliedSetPoint> = None;
        for seconds in [0.0, 1.0, later, 2.0 * later] {
            let now = wild.job.now + Seconds::new(seconds).to_delta();
            applied = next_set_point(applied.as_ref(), &made, &wild.job.profile, made.expected_samples_at(now), now, &pace);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases(200)))]

    #[test]
    fn any_valid_requests_are_planned_soundly_jointly(
        wilds in prop::collection::vec(wild(), 1..4),
        steps in prop::collection::vec((edge(&[1.0, 300.0, 301.0], 1.0..1e5), edge(&[0.0, 1e5], 50.0..900.0)), 0..4),
        budget in prop::option::of(edge(&[-100.0, 0.0, 1e12], 0.0..1e5)),
    ) {
        let now = wilds[0].job.now;
        let steps: Vec<(i64, f64)> = steps.iter().map(|(seconds, watts)| (*seconds as i64, *watts)).collect();
        let cap = cap(now, &steps);
        let span = Slot::new(now - TimeDelta::hours(1), now + TimeDelta::hours(5)).expect("six hours");
        let budget = budget.map(|grams| TimeSeries::from_points(vec![(span, GramsCo2e::new(grams))]).0);
        let shared = Shared { cap: &cap, carbon_budget: budget.as_ref() };
        let prices: Vec<_> = wilds.iter().map(Wild::known_prices).collect();
        let errors: Vec<_> = wilds.iter().map(Wild::paths).collect();
        let limits: Vec<_> = wilds.iter().map(Wild::limits).collect();
        let members: Vec<Member<'_>> = wilds.iter().enumerate().map(|(i, wild)| {
            let prices = wild.prices.as_ref().map(|_| Prices { known_prices: &prices[i], reference: PricePerMwh::new(40.0) });
            let request = Request {
                max_power: wild.max_power,
                reference_intensity: wild.reference,
                window: wild.window,
                prices,
                errors: Some(&errors[i]),
                ..wild.job.request()
            };
            Member { request, priority: wild.priority, limits: &limits[i], at_rest: wild.at_rest }
        }).collect();
        let asked = std::cell::Cell::new(0);
        let go_on = || { asked.set(asked.get() + 1); asked.get() < 200 };
        let made = plan_jointly(&members, &shared, Solver::default(), &go_on);
        prop_assert!(made.gap.is_finite());
        for (wild, made) in wilds.iter().zip(&made.plans) {
            assert_sound(wild, made)?;
        }
        let before: Vec<Option<Plan>> = made.plans.iter().map(|made| made.as_ref().ok().cloned()).collect();
        let before: Vec<Option<&Plan>> = before.iter().map(Option::as_ref).collect();
        let again = keep_jointly_if_nearly_as_good(&before, made, &members, &shared, 0.0005);
        for (wild, made) in wilds.iter().zip(&again.plans) {
            assert_sound(wild, made)?;
        }
    }
}

/// Returns the number of test cases: `usual`, unless an environment variable sets another one.
fn cases(usual: u32) -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(usual)
}
