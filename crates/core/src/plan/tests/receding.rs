use chrono::{DateTime, TimeDelta, Utc};
use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;

use super::instances::{Instance, MAX_POWER, REFERENCE, at, horizon, instance};
use crate::domain::{
    Activity, Broken, Estimate, Excess, Objective, OperatingPoint, PowerLimit, Profile, Promise, Work,
};
use crate::plan::{Infeasible, InvalidProblem, Plan, PlanSlot, Progress, Reason, Request, Unplannable};
use crate::plan::{Verdict, WINDOW, plan};
use crate::units::{GramsCo2e, GramsPerKwh, Samples, SamplesPerSecond, Seconds, Watts};

pub(super) fn profile(points: &[(f64, f64)]) -> Profile {
    let point = |(i, &(power, throughput)): (usize, &(f64, f64))| OperatingPoint {
        setting: vec![PowerLimit::from_milliwatts(400_000 - 25_000 * i as u32).into()],
        throughput: Estimate { mean: SamplesPerSecond::new(throughput), relative_error: 0.0 },
        power: Estimate { mean: Watts::new(power), relative_error: 0.0 },
        measured: Seconds::new(10.0),
    };
    Profile { points: points.iter().enumerate().map(point).collect() }
}

/// Owned data of a planning [`Request`].
#[derive(Clone, Debug)]
pub(super) struct Job {
    pub(super) now: DateTime<Utc>,
    pub(super) profile: Profile,
    pub(super) horizon: Vec<PlanSlot>,
    pub(super) objective: Objective,
    pub(super) work: Work,
    pub(super) progress: Progress,
    pub(super) allowed: Option<PowerLimit>,
    pub(super) dwell: Seconds,
    pub(super) activity: Option<Activity>,
}

impl Job {
    pub(super) fn request(&self) -> Request<'_> {
        Request {
            now: self.now,
            profile: &self.profile,
            horizon: &self.horizon,
            objective: &self.objective,
            work: self.work,
            progress: self.progress,
            max_power: MAX_POWER,
            reference_intensity: REFERENCE,
            prices: None,
            window: WINDOW,
            allowed: self.allowed,
            dwell: self.dwell,
            activity: self.activity,
            errors: None,
        }
    }

    pub(super) fn plan(&self) -> Plan {
        plan(&self.request()).expect("plannable")
    }

    /// Follows a plan until `t` and adds the start, end and point of each segment to the log.
    pub(super) fn follow(
        &mut self,
        plan: &Plan,
        t: DateTime<Utc>,
        log: &mut Vec<(DateTime<Utc>, DateTime<Utc>, usize)>,
    ) {
        for segment in &plan.segments {
            let (from, to) = (segment.slot.start(), segment.slot.end().min(t));
            if from < to {
                let time = Seconds::from_delta(to - from);
                self.progress.samples += segment.throughput * time;
                self.progress.elapsed += time;
                log.push((from, to, segment.point));
            }
        }
        self.now = t;
    }
}

/// Returns a job of three hours on an A100-like GPU with three limits, with a forecast of four hours.
pub(super) fn training() -> Job {
    Job {
        now: at(0.0),
        profile: profile(&[(300.0, 100.0), (200.0, 90.0), (100.0, 60.0)]),
        horizon: horizon(0.0, &[(3600.0, 300.0), (3600.0, 600.0), (3600.0, 400.0), (3600.0, 500.0)]),
        objective: Objective { max_slowdown: Some(0.1), ..Objective::UNBOUND },
        work: Work::TotalSamples(Samples::new(1_080_000.0)),
        progress: Progress::default(),
        allowed: None,
        dwell: Seconds::ZERO,
        activity: None,
    }
}

pub(super) fn job() -> impl Strategy<Value = Job> {
    let slowdown = prop::option::of(prop_oneof![Just(0.0), Just(0.03), 0.0..0.5f64]);
    let deadline = prop::option::of(0.3..2.0f64);
    let error = prop_oneof![3 => Just(0.0), 1 => 0.0..0.02f64];
    (instance(24, 6), slowdown, deadline, error).prop_map(|(mut instance, max_slowdown, deadline, reserve)| {
        instance.latest_end = None;
        instance.load = instance.load.min(0.9);
        let Instance { slots, points, eta, .. } = &instance;
        let at_ceiling = instance.work() / points[0].1;
        let deadline = deadline.map(|part| at(1800.0 + (part * at_ceiling).ceil()));
        Job {
            now: at(1800.0),
            profile: profile(points),
            horizon: horizon(1800.0, slots),
            objective: Objective { eta: *eta, max_slowdown, deadline, ..Objective::UNBOUND },
            work: Work::TotalSamples(Samples::new(instance.work())),
            progress: Progress { reserve, ..Progress::default() },
            allowed: None,
            dwell: Seconds::ZERO,
            activity: None,
        }
    })
}

/// Returns the delay after the deadline; `None` if no deadline is missed.
pub(super) fn misses_deadline_by(verdict: &Verdict) -> Option<Seconds> {
    verdict.broken().iter().find_map(|broken| if let Excess::Time(by) = broken.by { Some(by) } else { None })
}

/// Returns the excess over the maximum slowdown; `None` if it is kept.
fn exceeds_slowdown_by(verdict: &Verdict) -> Option<f64> {
    verdict.broken().iter().find_map(|broken| if let Excess::Slowdown(by) = broken.by { Some(by) } else { None })
}

#[test]
fn work_of_millennia_breaks_no_promise() {
    for total in [1e9, 1e13, 1e14, 1e15] {
        let job = Job { work: Work::TotalSamples(Samples::new(total)), ..training() };
        let plan = job.plan();
        assert!(plan.verdict.broken().is_empty(), "{total}: {:?}", plan.verdict);
        assert!((0.0..=0.1 + 1e-6).contains(&plan.expected.slowdown), "{total}: {:?}", plan.expected);
        let reason = plan.segments[0].reason.to_string();
        assert!(!reason.contains("no slower plan reliably keeps"), "{total}: {reason}");
    }
}

#[test]
fn a_single_measured_limit_is_not_called_the_only_useful_one() {
    let mut job = training();
    job.profile.points.truncate(1);
    let reason = |job: &Job| job.plan().segments[0].reason.to_string();
    let why = "Only 400 W is measured so far: measuring other limits would cost more time than the job allows";
    assert_eq!(reason(&job), why);
    job.objective = Objective::UNBOUND;
    assert_eq!(reason(&job), "Only 400 W is measured so far");
    // Here another limit is measured, and it is slower and draws more power.
    job.profile = profile(&[(300.0, 100.0), (310.0, 90.0)]);
    assert!(reason(&job).starts_with("The only useful limit"), "{}", reason(&job));
}

fn assert_well_formed(job: &Job, plan: &Plan) -> TestCaseResult {
    let mut from = job.now;
    for segment in &plan.segments {
        prop_assert_eq!(segment.slot.start(), from);
        from = segment.slot.end();
        let point = &job.profile.points[segment.point];
        prop_assert_eq!(&segment.setting, &point.setting);
        prop_assert_eq!((segment.power, segment.throughput), (point.power.mean, point.throughput.mean));
        prop_assert_eq!(plan.segment_at(segment.slot.start()), Some(segment));
        prop_assert!(!segment.reason.to_string().is_empty());
    }
    prop_assert_eq!(plan.ends_at(), from);
    prop_assert_eq!(plan.segment_at(from), None);
    for pair in plan.segments.windows(2) {
        let same_slot =
            job.horizon.iter().any(|s| s.slot.contains(pair[0].slot.start()) && pair[1].slot.end() <= s.slot.end());
        if same_slot {
            prop_assert!(pair[0].throughput > pair[1].throughput, "faster first");
            let second = Seconds::new(1.0 - 1e-5);
            prop_assert!(pair.iter().all(|s| s.slot.duration() >= second), "too short to switch for");
        }
    }
    let done = plan.segments.iter().map(|s| s.samples()).sum::<Samples>();
    let total = job.progress.samples + done;
    prop_assert!((plan.expected_samples_at(plan.ends_at()) - total).abs() <= total * 1e-12);
    prop_assert!(
        (plan.expected.samples - done).abs()
            <= total * 1e-9
                + plan.expected.samples * 1e-9
                + SamplesPerSecond::new(1000.0) * Seconds::new(1e-3 * plan.segments.len() as f64)
    );
    Ok(())
}

proptest! {
    #[test]
    fn plans_meet_their_constraints_or_report_violations(job in job()) {
        let plan = job.plan();
        assert_well_formed(&job, &plan)?;
        let Work::TotalSamples(total) = job.work else { unreachable!() };
        let fastest = job.profile.points.iter().map(|p| p.throughput.mean).fold(SamplesPerSecond::ZERO, |a, b| a.max(b));
        let missing = total - plan.expected.samples;
        prop_assert!(missing <= total * 1e-9 + fastest * Seconds::new(2e-3), "misses {missing}");
        let late = job.objective.deadline.map(|at| Seconds::from_delta(plan.ends_at() - at));
        let above = job.objective.max_slowdown.map(|max| plan.expected.slowdown - max);
        match plan.verdict {
            Verdict::Optimal => {
                prop_assert!(late.is_none_or(|late| late <= Seconds::ZERO));
                prop_assert!(above.is_none_or(|above| above <= 1e-4), "too slow by {above:?}");
            }
            Verdict::OverBudget { .. } | Verdict::SharedLimits { .. } => prop_assert!(false, "there is nothing else to keep"),
            Verdict::FullSpeed { .. } => {
                prop_assert!(plan.segments.iter().all(|s| s.throughput == fastest));
                let (missed, exceeded) = (misses_deadline_by(&plan.verdict), exceeds_slowdown_by(&plan.verdict));
                prop_assert_eq!(missed.is_some(), late.is_some_and(|late| late > Seconds::new(1e-3)));
                prop_assert_eq!(exceeded.is_some(), above.is_some_and(|above| above > 1e-6));
            }
        }
    }

    #[test]
    fn an_unchanging_forecast_repeats_the_plan(
        mut job in job(), mut moments in prop::collection::vec(0.0..1.0f64, 1..6),
    ) {
        let once = job.plan();
        let length = Seconds::from_delta(once.ends_at() - once.made_at);
        moments.sort_by(f64::total_cmp);
        let (mut log, mut current) = (Vec::new(), once.clone());
        for moment in moments {
            let t = once.made_at + (length * moment).to_delta();
            if t > job.now && t < current.ends_at() {
                job.follow(&current, t, &mut log);
                current = job.plan();
            }
        }
        job.follow(&current, current.ends_at(), &mut log);
        // The job spent its time as in the first plan, except for seconds when limits were switched.
        let mut differs = Seconds::ZERO;
        for segment in &once.segments {
            let same = log.iter().filter(|(_, _, point)| *point == segment.point).map(|(from, to, _)| {
                Seconds::from_delta(*to.min(&segment.slot.end()) - *from.max(&segment.slot.start())).max(Seconds::ZERO)
            });
            differs += segment.slot.duration() - same.sum();
        }
        prop_assert!(differs <= Seconds::new(10.0), "{differs} of {length}");
        prop_assert!((current.ends_at() - once.ends_at()).abs() <= TimeDelta::seconds(10));
    }

    #[test]
    fn reasons_are_true(job in job()) {
        let plan = job.plan();
        let fastest = plan.segments.iter().map(|s| s.throughput).fold(SamplesPerSecond::ZERO, |a, b| a.max(b));
        for segment in &plan.segments {
            let clean = |a: GramsPerKwh, b: GramsPerKwh| a.get() <= b.get() * (1.0 + 1e-12);
            let margin = match segment.reason {
                Reason::Faster { intensity, mean, margin, .. } => {
                    let slower = plan.segments.iter().any(|s| s.throughput < segment.throughput);
                    prop_assert!(clean(intensity, mean) && slower);
                    margin
                }
                Reason::Slower { intensity, mean, margin, .. } => {
                    prop_assert!(clean(mean, intensity) && segment.throughput < fastest);
                    margin
                }
                Reason::Steady { margin, .. } => margin,
                Reason::NoSlack { .. } => {
                    prop_assert!(plan.segments.iter().all(|s| s.throughput == fastest));
                    continue;
                }
                Reason::FullSpeed { .. } => {
                    prop_assert_ne!(&plan.verdict, &Verdict::Optimal);
                    continue;
                }
                _ => continue,
            };
            // At the plan's price of a sample, neither a slower nor a faster limit would be better.
            let rounding = 1e-9 * margin.price;
            prop_assert!(margin.slower.is_none_or(|saved| saved <= margin.price + rounding), "{margin:?}");
            prop_assert!(margin.faster.is_none_or(|cost| cost >= margin.price - rounding), "{margin:?}");
        }
    }

    #[test]
    fn no_magnitude_panics(
        mut job in job(), work in -9i32..16, rate in -6i32..9, elapsed in -3i32..12, done in -3i32..16,
        slowdown in prop::option::of(-1.0..1e6f64), known in any::<bool>(),
    ) {
        job.work = if known { Work::TotalSamples(Samples::new(10f64.powi(work))) } else { Work::Unknown };
        job.profile.points.iter_mut().for_each(|p| p.throughput.mean = p.throughput.mean * 10f64.powi(rate));
        job.progress.elapsed = Seconds::new(10f64.powi(elapsed));
        job.progress.samples = Samples::new(10f64.powi(done));
        job.objective.max_slowdown = slowdown;
        let plan = job.plan();
        prop_assert!(plan.segments.iter().all(|s| s.slot.start() < s.slot.end()));
        prop_assert!(plan.expected.carbon.get().is_finite() && plan.expected.slowdown.is_finite());
        plan.segments.iter().for_each(|s| assert!(!s.reason.to_string().is_empty()));
    }
}

#[test]
fn a_latest_end_just_passed_leaves_no_time_for_any_work() {
    let mut job = training();
    // 0.9 samples at 10⁹ samples/s, due 0.8 ms ago: both times are below the time resolution of 1 ms.
    job.work = Work::TotalSamples(Samples::new(1.0));
    job.profile.points.iter_mut().for_each(|p| p.throughput.mean = p.throughput.mean * 1e7);
    job.progress.elapsed = Seconds::new(1e-3);
    job.progress.samples = Samples::new(0.1);
    let fastest = job.profile.points.iter().map(|p| p.throughput.mean.get()).fold(0.0, f64::max);
    job.objective.max_slowdown = Some(2.2e-4 * fastest - 1.0);
    let plan = job.plan();
    assert!(matches!(plan.verdict, Verdict::FullSpeed { why: Infeasible::NotEnoughTime { .. }, .. }), "{plan:?}");
    assert!(plan.expected.carbon.get().is_finite() && plan.expected.slowdown.is_finite(), "{plan:?}");
}

/// Formats a plan for reading.
fn rendered(plan: &Plan) -> String {
    let segment = |s: &crate::plan::Segment| {
        let (from, to) = (s.slot.start().format("%T"), s.slot.end().format("%T"));
        format!("{from}-{to} {} {}\n", s.setting[0], s.reason)
    };
    let Plan { expected: e, verdict, .. } = plan;
    let sum =
        format!("{:.1} of {:.1}, slowdown {:.2} %, {verdict:?}", e.carbon, e.carbon_at_ceiling, e.slowdown * 100.0);
    plan.segments.iter().map(segment).collect::<String>() + &sum
}

#[test]
fn a_plan_is_readable() {
    let mut job = training();
    insta::assert_snapshot!(rendered(&job.plan()), @r"
    00:00:00-00:18:00 400 W Two limits in turn at 300 g/kWh: by the plan, the faster one for 30 % of the time
    00:18:00-01:00:00 375 W Two limits in turn at 300 g/kWh: by the plan, the faster one for 30 % of the time
    01:00:00-02:00:00 375 W Running slower: 600 g/kWh now, 439 g/kWh on average until the job ends
    02:00:00-03:00:00 375 W Best speed at 400 g/kWh: neither a slower nor a faster limit costs less
    03:00:00-03:18:00 375 W Running slower: 500 g/kWh now, 439 g/kWh on average until the job ends
    299.0 gCO2e of 390.0 gCO2e, slowdown 10.00 %, Optimal
    ");
    job.horizon = horizon(0.0, &[(3600.0, 580.0), (3600.0, 580.0), (3600.0, 580.0), (3600.0, 580.0)]);
    insta::assert_snapshot!(rendered(&job.plan()), @r"
    00:00:00-00:18:00 400 W Constant forecast of 580 g/kWh: 10.0 % slower throughout, as slow as the 10.0 % slowdown budget allows
    00:18:00-01:00:00 375 W Constant forecast of 580 g/kWh: 10.0 % slower throughout, as slow as the 10.0 % slowdown budget allows
    01:00:00-02:00:00 375 W Constant forecast of 580 g/kWh: 10.0 % slower throughout, as slow as the 10.0 % slowdown budget allows
    02:00:00-03:00:00 375 W Constant forecast of 580 g/kWh: 10.0 % slower throughout, as slow as the 10.0 % slowdown budget allows
    03:00:00-03:18:00 375 W Constant forecast of 580 g/kWh: 10.0 % slower throughout, as slow as the 10.0 % slowdown budget allows
    400.2 gCO2e of 522.0 gCO2e, slowdown 10.00 %, Optimal
    ");
    job.objective.max_slowdown = Some(0.0);
    insta::assert_snapshot!(rendered(&job.plan()), @r"
    00:00:00-01:00:00 400 W Running at full speed: only the fastest limit keeps the 0.0 % slowdown budget
    01:00:00-02:00:00 400 W Running at full speed: only the fastest limit keeps the 0.0 % slowdown budget
    02:00:00-03:00:00 400 W Running at full speed: only the fastest limit keeps the 0.0 % slowdown budget
    522.0 gCO2e of 522.0 gCO2e, slowdown 0.00 %, Optimal
    ");
    job.progress.elapsed = Seconds::new(600.0);
    job.objective.deadline = Some(at(9000.0));
    insta::assert_snapshot!(rendered(&job.plan()), @r"
    00:00:00-01:00:00 400 W Running at full speed: no slower plan reliably keeps the deadline 1970-01-01T02:30:00Z
    01:00:00-02:00:00 400 W Running at full speed: no slower plan reliably keeps the deadline 1970-01-01T02:30:00Z
    02:00:00-03:00:00 400 W Running at full speed: no slower plan reliably keeps the deadline 1970-01-01T02:30:00Z
    522.0 gCO2e of 522.0 gCO2e, slowdown 5.56 %, FullSpeed { broken: [Broken { promise: Deadline(1970-01-01T02:30:00Z), by: Time(Seconds(1800.0)) }, Broken { promise: Slowdown(0.0), by: Slowdown(0.05555555555555558) }], why: NotEnoughTime { missing: Samples(180000.0), late_by: Seconds(1800.0) } }
    ");
}

#[test]
fn the_budget_holds_over_the_jobs_life() {
    // 3 h of work at the ceiling, 10 % allowed; the first third took 8 % longer and left less slack for the rest.
    let mut job = training();
    job.progress = Progress { samples: Samples::new(360_000.0), elapsed: Seconds::new(3888.0), ..Progress::default() };
    let plan = job.plan();
    assert!((plan.expected.slowdown - 0.1).abs() < 1e-6, "{}", plan.expected.slowdown);
    assert_eq!(plan.ends_at(), at(3.3 * 3600.0 - 3888.0));
}

#[test]
fn an_uncertain_reference_leaves_a_reserve() {
    let mut job = training();
    job.progress.reserve = 0.02;
    assert!((job.plan().expected.slowdown - 0.08).abs() < 1e-6);
    job.progress.reserve = 0.25;
    let plan = job.plan();
    assert_eq!((plan.verdict, plan.expected.slowdown), (Verdict::Optimal, 0.0));
    // The lost time uses up the reserve, but the maximum slowdown itself is kept.
    job.progress.elapsed = Seconds::new(600.0);
    let Verdict::FullSpeed { broken, why } = job.plan().verdict else { panic!("{:?}", job.plan().verdict) };
    assert_eq!(broken, []);
    assert!(matches!(why, Infeasible::NotEnoughTime { .. }));
}

#[test]
fn full_speed_reports_its_violations() {
    let mut job = training();
    job.objective.deadline = Some(at(9000.0));
    job.progress.elapsed = Seconds::new(2160.0); // 20 % of the job's time at the ceiling
    let plan = job.plan();
    let Verdict::FullSpeed { broken, why } = &plan.verdict else { panic!("feasible") };
    let [late, slower] = broken[..] else { panic!("{broken:?}") };
    assert_eq!(late, Broken { promise: Promise::Deadline(at(9000.0)), by: Excess::Time(Seconds::new(1800.0)) });
    assert!((slower.by.get() - 0.1).abs() < 1e-9);
    assert!(matches!(why, Infeasible::NotEnoughTime { .. }));
    assert!(plan.segments.iter().all(|s| s.point == 0));
    assert_eq!(plan.segments[0].reason, Reason::FullSpeed { promise: Some(Promise::Deadline(at(9000.0))) });
}

#[test]
fn a_cap_removes_limits_but_not_the_reference() {
    let mut job = training();
    job.allowed = Some(PowerLimit::from_milliwatts(375_000));
    let plan = job.plan();
    assert!(plan.segments.iter().all(|s| s.point == 1), "only 90 samples/s are left to keep 10 %: none is fast enough");
    assert!(matches!(plan.verdict, Verdict::FullSpeed { .. }), "{:?}", plan.verdict);
    let above = exceeds_slowdown_by(&plan.verdict).expect("exceeds");
    assert!((above - (1.0 / 0.9 - 1.1)).abs() < 1e-6);
    let cap = PowerLimit::from_milliwatts(100_000);
    job.allowed = Some(cap);
    assert_eq!(plan_error(&job), Unplannable::NothingAllowed(cap));
}

fn plan_error(job: &Job) -> Unplannable {
    plan(&job.request()).expect_err("unplannable")
}

#[test]
fn done_work_needs_no_plan() {
    let mut job = training();
    job.progress.samples = Samples::new(1_080_001.0);
    job.progress.elapsed = Seconds::new(10_800.0);
    let plan = job.plan();
    assert!(plan.segments.is_empty());
    assert_eq!(plan.verdict, Verdict::Optimal);
    assert_eq!((plan.ends_at(), plan.expected.carbon), (job.now, GramsCo2e::ZERO));
    assert_eq!(plan.expected_samples_at(at(1e6)), job.progress.samples);
}

#[test]
fn a_short_forecast_is_extended_with_its_mean() {
    let mut job = training();
    job.horizon.truncate(2);
    let plan = job.plan();
    assert_eq!(plan.extended_from, Some(at(7200.0)));
    let last = plan.segments.last().expect("segments");
    assert_eq!(last.intensity, GramsPerKwh::new(450.0));
    assert_eq!(training().plan().extended_from, None);
    job.horizon.clear();
    assert_eq!(job.plan().segments[0].intensity, REFERENCE);
}

#[test]
fn invalid_horizons_are_rejected_and_past_slots_are_not() {
    let mut job = training();
    job.now = at(5000.0);
    assert_eq!(job.plan().segments[0].slot.start(), job.now);
    job.now = at(-1.0);
    assert_eq!(plan_error(&job), Unplannable::Invalid(InvalidProblem::NotContiguous(at(0.0))));
    job.now = at(0.0);
    job.horizon.remove(1);
    assert_eq!(plan_error(&job), Unplannable::Invalid(InvalidProblem::NotContiguous(at(3600.0))));
    job.profile = Profile::default();
    assert_eq!(plan_error(&job), Unplannable::NoUsablePoint);
}

#[test]
fn unknown_work_keeps_its_speed_over_the_window() {
    let mut job = training();
    job.work = Work::Unknown;
    job.horizon = horizon(0.0, &[(43_200.0, 300.0), (43_200.0, 600.0)]);
    let plan = job.plan();
    assert!((plan.expected.slowdown - 0.1).abs() < 1e-6);
    assert_eq!(plan.ends_at(), at(86_400.0));
    assert!(plan.segments[0].throughput > plan.segments[plan.segments.len() - 1].throughput);
    // An hour lost is recovered within the window.
    job.progress = Progress { elapsed: Seconds::new(3600.0), ..Progress::default() };
    assert!((job.plan().expected.slowdown - 0.1).abs() < 1e-6);
    // A lost day can't be recovered within the window.
    job.progress.elapsed = Seconds::new(86_400.0);
    let Verdict::FullSpeed { broken, .. } = job.plan().verdict else { panic!("feasible") };
    assert!(matches!(broken[..], [Broken { by: Excess::Slowdown(_), .. }]), "{broken:?}");
}

#[test]
fn unknown_work_without_a_budget_takes_each_slots_optimum() {
    let mut job = training();
    job.work = Work::Unknown;
    job.objective = Objective { eta: 0.5, ..Objective::UNBOUND };
    job.horizon = horizon(0.0, &[(43_200.0, 0.0), (43_200.0, 5000.0)]);
    let plan = job.plan();
    // Each slot takes the point with the least (0.5·c·p + 0.5·350·400) / r: without carbon (c = 0) only time counts, at
    // 5000 g/kWh mostly energy.
    assert_eq!(plan.segments.iter().map(|s| s.point).collect::<Vec<_>>(), [0, 2]);
    assert_eq!(plan.segments[0].reason, Reason::LeastCostPerSample { intensity: GramsPerKwh::ZERO });
    assert_eq!(plan.verdict, Verdict::Optimal);
}
