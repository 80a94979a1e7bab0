//! A job that may pause, on a clock that moves when told to: it waits for noon, over a restart of the daemon.

use std::path::Path;
use std::sync::Arc;

use chrono::{DateTime, TimeDelta, Timelike, Utc};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use wattune::clock::{Clock, ManualClock};
use wattune::controller::view::{JobView, ProgressView};
use wattune::controller::{
    BudgetSettings, CapSettings, ControlError, Controller, NewJob, Parts, Phase, ProgressReport,
    Settings as ControlSettings, SharedRanks,
};
use wattune::gpu::simulated::{LoadCurve, Physics, SimulatedGpu};
use wattune::gpu::thread::Sampling;
use wattune::providers::{Answer, CarbonSettings, Feed, FeedOptions, Provider, ProviderError};
use wattune_core::domain::{
    CarbonSeries, Forecast, Intensity, JobId, LimitRange, Objective, Origin, Pausing, PowerLimit, SignalKind,
    SignalScope, Slot, Work, Zone,
};
use wattune_core::time::Monotonic;
use wattune_core::units::{GramsPerKwh, Samples, SamplesPerSecond, Seconds, Watts};

use crate::support;

fn start() -> DateTime<Utc> {
    "2025-06-01T04:00:00Z".parse().expect("a moment")
}

/// Clean from ten to four.
fn grid(t: DateTime<Utc>) -> f64 {
    if (10..16).contains(&t.hour()) { 100.0 } else { 500.0 }
}

struct Sun;

impl Provider for Sun {
    fn source(&self) -> &'static str {
        "sun"
    }

    fn zone(&self) -> Zone {
        Zone::new("DE").expect("a zone")
    }

    fn cadence(&self) -> Seconds {
        Seconds::new(3600.0)
    }

    fn fetch(&self, now: DateTime<Utc>) -> BoxFuture<'_, Result<Answer, ProviderError>> {
        let series = |from: i64, to: i64, origin: Origin| {
            let point = |h: i64| {
                let from = start() + TimeDelta::hours(h);
                let value = GramsPerKwh::new(grid(from));
                (Slot::new(from, from + TimeDelta::hours(1)).expect("an hour"), Intensity { value, origin })
            };
            CarbonSeries::from_points((from..to).map(point).collect()).0
        };
        let passed = (now - start()).num_hours();
        let forecast = Forecast {
            zone: self.zone(),
            source: self.source().to_owned(),
            kind: SignalKind::Average,
            scope: SignalScope::Lifecycle,
            issued_at: now,
            retrieved_at: now,
            provenance: Default::default(),
            expected: series(-14 * 24, 48, Origin::Forecast),
            actual: series(-14 * 24, passed, Origin::Measured),
        };
        std::future::ready(Ok(forecast.into())).boxed()
    }
}

struct Waiting {
    clock: Arc<ManualClock>,
    feed: Feed,
    controller: Controller,
    gpu: SimulatedGpu,
    curve: LoadCurve,
    job: JobId,
    state: tempfile::TempDir,
}

async fn controller(clock: &Arc<ManualClock>, feed: &Feed, gpu: &SimulatedGpu, state: &Path) -> Controller {
    let parts = Parts {
        settings: ControlSettings { tick_s: Seconds::new(10.0), ..ControlSettings::default() },
        profiling: wattune_core::profile::Settings::default(),
        planning: wattune_core::plan::Settings::default(),
        carbon: CarbonSettings::default(),
        cap: CapSettings::default(),
        carbon_budget: BudgetSettings::default(),
        ledger: Default::default(),
        state_dir: state,
        clock: clock.clone(),
        devices: vec![Box::new(gpu.device(0, "Long"))],
        sampling: Sampling::OnRequest,
        scout: None,
        cpu: None,
        signal: feed.subscribe(),
        ranks: SharedRanks::default(),
        price: None,
        problems: Vec::new(),
    };
    let mut controller = Controller::start(parts).await.expect("starts");
    controller.tick().await;
    controller
}

fn job(objective: Objective, work: Work) -> NewJob {
    NewJob { work, objective, ..support::job("patient", 0.0) }
}

impl Waiting {
    /// Six hours of work at the most, within sixteen.
    async fn start() -> Self {
        let clock = Arc::new(ManualClock::at(start()));
        let feed = Feed::start(vec![vec![Arc::new(Sun)]], FeedOptions::default(), clock.now()).await;
        let watts = |w: u32| PowerLimit::from_milliwatts(w * 1000);
        let range = LimitRange { min: watts(100), max: watts(300), default: watts(300) };
        let (original_limit, idle, settling) = (range.max, Watts::new(25.0), Seconds::new(0.5));
        let gpu =
            SimulatedGpu::new(Physics { range, original_limit, idle, settling, noise: 0.0, seed: 1 }, clock.clone());
        let curve = LoadCurve::saturating(&range, Watts::new(280.0), Watts::new(70.0), SamplesPerSecond::new(400.0));
        gpu.run(Some(curve.clone()));
        let state = tempfile::tempdir().expect("a directory");
        let mut controller = controller(&clock, &feed, &gpu, state.path()).await;
        let objective = Objective {
            deadline: Some(start() + TimeDelta::hours(16)),
            pausable: Some(Pausing { idle_power: Watts::new(25.0), ..Pausing::default_for(1) }),
            ..Objective::UNBOUND
        };
        let work = Work::TotalSamples(Samples::new(400.0 * 5.5 * 3600.0));
        let view = controller.register(job(objective, work)).await.expect("registered");
        let job = JobId::new(view.job_id).expect("an id");
        Self { clock, feed, controller, gpu, curve, job, state }
    }

    /// Time passes; the job does what it is told.
    async fn step(&mut self, span: Seconds) -> ProgressView {
        self.clock.advance(span);
        self.feed.poll_due(self.clock.now()).await;
        self.controller.tick().await;
        let reported = self.report().await;
        let runs = reported.phase != Phase::Paused;
        self.gpu.run(runs.then(|| self.curve.clone()));
        self.controller.tick().await;
        reported
    }

    async fn report(&mut self) -> ProgressView {
        let at = self.clock.monotonic().since(Monotonic::default());
        let report = ProgressReport::new(self.gpu.work_done(), Some(at));
        self.controller.progress(&self.job, report).await.expect("taken")
    }

    /// Until it is told to do this; every second while it is profiled.
    async fn until(&mut self, phase: Phase) -> ProgressView {
        for _ in 0..20_000 {
            let profiling = matches!(self.view().phase, Some(Phase::Waiting | Phase::Profiling));
            let reported = self.step(Seconds::new(if profiling { 1.0 } else { 60.0 })).await;
            if reported.phase == phase {
                return reported;
            }
        }
        panic!("never {phase:?}: {:#?}", self.view())
    }

    fn view(&self) -> JobView {
        self.controller.jobs().remove(0)
    }
}

#[tokio::test]
async fn it_waits_for_noon_and_over_a_restart() {
    let mut waiting = Waiting::start().await;
    let reported = waiting.until(Phase::Paused).await;
    let ten: DateTime<Utc> = "2025-06-01T10:00:00Z".parse().expect("a moment");
    assert_eq!(reported.resume_at, Some(ten), "{reported:#?}");
    assert!(reported.reason.starts_with("Paused: "), "{}", reported.reason);
    assert!(reported.warnings.is_empty(), "{:?}", reported.warnings);
    let profile = waiting.controller.profile_of(&waiting.job).await.expect("a profile");
    let lowest = profile.points.iter().map(|p| p.power_limits_w[0]).fold(f64::INFINITY, f64::min);
    assert_eq!(reported.power_limit_w, Some(lowest));
    let plan = waiting.controller.plan_of(&waiting.job).expect("a plan");
    let doings: Vec<_> = plan.segments.iter().map(|s| s.activity.as_str()).collect();
    assert!(plan.applied && doings.starts_with(&["paused"]) && doings.contains(&"resuming"), "{doings:?}");

    let before = waiting.view();
    for _ in 0..6 {
        let reported = waiting.step(Seconds::new(600.0)).await;
        assert_eq!((reported.phase, reported.resume_at), (Phase::Paused, Some(ten)));
    }
    let after = waiting.view();
    assert_eq!(after.stalled_s, before.stalled_s, "waiting as told is no stall");
    assert!((after.active_s - before.active_s - 3600.0).abs() < 1.0, "{} to {}", before.active_s, after.active_s);
    assert!(after.slowdown > before.slowdown, "it counts");
    let again = waiting.controller.profile_of(&waiting.job).await.expect("a profile");
    assert_eq!(format!("{:?}", again.points), format!("{:?}", profile.points), "nothing is learned from a pause");

    // The next daemon knows that it pauses, and since when.
    let Waiting { clock, feed, controller: old, gpu, curve, job, state } = waiting;
    old.shut_down().await;
    let controller = controller(&clock, &feed, &gpu, state.path()).await;
    let mut waiting = Waiting { clock, feed, controller, gpu, curve, job, state };
    let reported = waiting.step(Seconds::new(60.0)).await;
    assert_eq!((reported.phase, reported.resume_at), (Phase::Paused, Some(ten)), "{reported:#?}");

    let reported = waiting.until(Phase::Planned).await;
    let late = waiting.clock.utc() - ten;
    assert!(reported.resume_at.is_none() && late >= TimeDelta::zero() && late < TimeDelta::minutes(1), "{late}");
    let reported = waiting.until(Phase::Observing).await;
    assert!(reported.reason.contains("All samples are done"), "{}", reported.reason);
    let (now, deadline) = (waiting.clock.utc(), start() + TimeDelta::hours(16));
    assert!(now <= deadline && now > ten + TimeDelta::hours(4), "{now}");
}

#[tokio::test]
async fn work_that_goes_on_all_the_same_counts() {
    let mut waiting = Waiting::start().await;
    waiting.until(Phase::Paused).await;
    let before = waiting.view();
    waiting.gpu.run(Some(waiting.curve.clone()));
    let done = |view: &JobView| view.samples.expect("reported");
    for _ in 0..10 {
        waiting.clock.advance(Seconds::new(60.0));
        waiting.controller.tick().await;
        waiting.report().await;
    }
    let after = waiting.view();
    assert!(done(&after) > done(&before) + 600.0 * 100.0);
    assert!((after.active_s - before.active_s - 600.0).abs() < 1.0);
    let plan = waiting.controller.plan_of(&waiting.job).expect("a plan");
    let planned: f64 = plan.segments.iter().map(|s| s.samples_per_s * (s.end - s.start).as_seconds_f64()).sum();
    let total = 400.0 * 5.5 * 3600.0;
    assert!((planned + done(&after) - total).abs() < 0.02 * total, "{planned} after {}", done(&after));
}

#[tokio::test]
async fn a_price_weight_needs_prices() {
    let mut waiting = Waiting::start().await;
    let asked = Objective { price_weight: 0.5, ..Objective::DEFAULT };
    let refused = waiting.controller.register(job(asked, Work::Unknown)).await.expect_err("refused");
    let ControlError::Invalid(invalid) = refused else { panic!("{refused:?}") };
    assert_eq!(invalid.field, "objective.price_weight");
    assert!(invalid.why.contains("set source in [price]"), "{}", invalid.why);
}
