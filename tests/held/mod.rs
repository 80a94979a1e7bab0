//! Jobs that offer to be held, suspended or paused, on a clock and a grid that the test moves.

mod books;
mod key;
mod pausing;
mod restarts;
mod start;
mod suspend;

use std::path::Path;
use std::sync::{Arc, Mutex};

use chrono::{DateTime, TimeDelta, Utc};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use wattune::clock::{Clock, ManualClock};
use wattune::controller::view::{JobView, ProgressView};
use wattune::controller::{
    Controller, NewJob, NewOffers, NewStart, Parts, Phase, ProgressReport, Settings as ControlSettings, StartBy,
};
use wattune::gpu::handle::Sampling;
use wattune::gpu::simulated::{LoadCurve, Physics, SimulatedGpu};
use wattune::providers::{Answer, Feed, FeedOptions, Provider, ProviderError};
use wattune_core::domain::{
    CarbonSeries, Forecast, Intensity, JobId, LimitRange, Origin, PowerLimit, SignalKind, SignalScope, Slot, Zone,
};
use wattune_core::time::Monotonic;
use wattune_core::units::{GramsPerKwh, Samples, SamplesPerSecond, Seconds, Watts};

use crate::support;

/// Throughput of the simulated training at the maximum limit.
const RATE: f64 = 400.0;

fn begin() -> DateTime<Utc> {
    "2025-06-01T04:00:00Z".parse().expect("a moment")
}

fn hour(h: i64) -> DateTime<Utc> {
    begin() + TimeDelta::hours(h)
}

/// Forecast and actual intensity of each hour, counted from `begin`; or no answer at all.
#[derive(Clone)]
struct Grid(Arc<Mutex<Option<ValueOfHour>>>);

type ValueOfHour = fn(i64) -> f64;

impl Grid {
    fn new(value: fn(i64) -> f64) -> Self {
        Self(Arc::new(Mutex::new(Some(value))))
    }

    fn set(&self, value: Option<fn(i64) -> f64>) {
        *self.0.lock().expect("unpoisoned") = value;
    }
}

impl Provider for Grid {
    fn source(&self) -> &'static str {
        "grid"
    }

    fn zone(&self) -> Zone {
        Zone::new("DE").expect("a zone")
    }

    fn cadence(&self) -> Seconds {
        Seconds::new(600.0)
    }

    fn fetch(&self, now: DateTime<Utc>) -> BoxFuture<'_, Result<Answer, ProviderError>> {
        let Some(value) = *self.0.lock().expect("unpoisoned") else {
            return std::future::ready(Err(ProviderError::NoKey { what: "gone".into() })).boxed();
        };
        let series = |from: i64, to: i64, origin: Origin| {
            let point = |h: i64| {
                let value = GramsPerKwh::new(value(h));
                (Slot::new(hour(h), hour(h + 1)).expect("an hour"), Intensity { value, origin })
            };
            CarbonSeries::from_points((from..to).map(point).collect()).0
        };
        let passed = (now - begin()).num_hours();
        let forecast = Forecast {
            zone: self.zone(),
            source: self.source().to_owned(),
            kind: SignalKind::Average,
            scope: SignalScope::Lifecycle,
            issued_at: now,
            retrieved_at: now,
            provenance: Default::default(),
            expected: series(-14 * 24, passed + 48, Origin::Forecast),
            actual: series(-14 * 24, passed, Origin::Measured),
        };
        std::future::ready(Ok(forecast.into())).boxed()
    }
}

/// A daemon on two simulated GPUs.
struct World {
    clock: Arc<ManualClock>,
    grid: Grid,
    feed: Feed,
    controller: Box<Controller>,
    gpus: Vec<SimulatedGpu>,
    curve: LoadCurve,
    state: tempfile::TempDir,
}

async fn controller(clock: &Arc<ManualClock>, feed: &Feed, gpus: &[SimulatedGpu], state: &Path) -> Box<Controller> {
    let parts = Parts {
        settings: ControlSettings { tick_s: Seconds::new(10.0), ..ControlSettings::default() },
        ..Parts::new(
            state,
            clock.clone(),
            (0..).zip(gpus).map(|(index, gpu)| Box::new(gpu.device(index, "Long")) as _).collect(),
            Sampling::OnRequest,
            feed.subscribe(),
        )
    };
    let mut controller = Box::new(Controller::start(parts).await.expect("starts"));
    controller.tick().await;
    controller
}

impl World {
    async fn start(value: fn(i64) -> f64) -> Self {
        let clock = Arc::new(ManualClock::at(begin()));
        let grid = Grid::new(value);
        let mut feed = Feed::start(vec![vec![Arc::new(grid.clone())]], FeedOptions::default(), clock.now()).await;
        feed.poll_due(clock.now()).await;
        let watts = |w: u32| PowerLimit::from_milliwatts(w * 1000);
        let range = LimitRange { min: watts(100), max: watts(300), default: watts(300) };
        let (original_limit, idle, settling) = (range.max, Watts::new(25.0), Seconds::new(0.5));
        let physics = |seed| Physics { range, original_limit, idle, settling, noise: 0.0, seed };
        let gpus: Vec<_> = (1..=2).map(|seed| SimulatedGpu::new(physics(seed), clock.clone())).collect();
        let curve = LoadCurve::saturating(&range, Watts::new(280.0), Watts::new(70.0), SamplesPerSecond::new(RATE));
        let state = tempfile::tempdir().expect("a directory");
        let controller = controller(&clock, &feed, &gpus, state.path()).await;
        Self { clock, grid, feed, controller, gpus, curve, state }
    }

    /// Ends the daemon in an orderly way and starts the next one.
    async fn restart(self) -> Self {
        let Self { clock, grid, feed, controller: old, gpus, curve, state } = self;
        old.shut_down().await;
        let controller = controller(&clock, &feed, &gpus, state.path()).await;
        Self { clock, grid, feed, controller, gpus, curve, state }
    }

    /// Drops the daemon as a kill does, and starts the next one.
    async fn kill(self) -> Self {
        let Self { clock, grid, feed, controller: old, gpus, curve, state } = self;
        drop(old);
        let controller = controller(&clock, &feed, &gpus, state.path()).await;
        Self { clock, grid, feed, controller, gpus, curve, state }
    }

    async fn pass(&mut self, span: f64) {
        self.clock.advance(Seconds::new(span));
        self.feed.poll_due(self.clock.now()).await;
        // On the heap: else each call adds the tick's state to the test's stack frame.
        Box::pin(self.controller.tick()).await;
    }

    async fn register(&mut self, new: NewJob) -> JobId {
        let view = self.controller.register(new).await.expect("registered");
        JobId::new(view.job_id).expect("an id")
    }

    async fn view(&self, id: &JobId) -> JobView {
        self.controller.job(id).await.expect("known")
    }

    async fn lease(&mut self, id: &JobId) -> ProgressView {
        self.controller.renew_lease(id).await.expect("renewed")
    }

    /// Reports the work that the GPU has done.
    async fn report(&mut self, id: &JobId, gpu: usize) -> ProgressView {
        let at = self.clock.monotonic().since(Monotonic::default());
        let report = ProgressReport::new(self.gpus[gpu].work_done(), Some(at));
        self.controller.progress(id, report).await.expect("taken")
    }

    fn train(&self, gpu: usize, runs: bool) {
        self.gpus[gpu].run(runs.then(|| self.curve.clone()));
    }

    fn gpu(&self, index: u32) -> wattune::controller::view::GpuView {
        self.controller.gpu(&wattune::controller::GpuRef::Index(index)).expect("there")
    }

    /// Passes time with reports until the job is in this phase: a second at a time while it is profiled.
    async fn train_until(&mut self, id: &JobId, gpu: usize, phase: Phase) -> ProgressView {
        for _ in 0..20_000 {
            let view = self.view(id).await;
            let profiling = matches!(view.phase, Some(Phase::Waiting | Phase::Profiling));
            self.pass(if profiling { 1.0 } else { 60.0 }).await;
            let reported = self.report(id, gpu).await;
            if reported.phase == phase {
                return reported;
            }
        }
        panic!("never {phase:?}: {:#?}", self.view(id).await)
    }

    /// Ends the daemon, and checks the ledger's hash chain with everything that it holds.
    async fn verify(self) {
        self.report_of(&["verify"]).await.done();
    }

    /// Ends the daemon, and returns what `wattune report` prints with these arguments.
    async fn report_of(self, arguments: &[&str]) -> support::Ended {
        let Self { controller, state, .. } = self;
        controller.shut_down().await;
        let mut command = support::wattune(&[&["report"], arguments].concat());
        command.arg("--state-dir").arg(state.path());
        tokio::task::spawn_blocking(move || support::Ended::of(&mut command)).await.expect("ran")
    }
}

fn within(hours: f64) -> Option<NewStart> {
    Some(NewStart {
        by: StartBy::Within(Seconds::new(hours * 3600.0)),
        duration: Some(Seconds::new(3600.0)),
        power: Some(Watts::new(280.0)),
        min_gain: None,
        max_loss_probability: None,
        idle_power: Watts::ZERO,
    })
}

/// A job of an hour on the first GPU that waits for its start for as long as this.
fn held(name: &str, hours: f64) -> NewJob {
    let offers = NewOffers { start: within(hours), ..NewOffers::default() };
    NewJob { offers, lease: Some(Seconds::new(900.0)), ..support::job(name, 0.03) }
}

/// Clean from ten to four in the afternoon.
fn sunny(h: i64) -> f64 {
    if (10..16).contains(&(h + 4).rem_euclid(24)) { 200.0 } else { 500.0 }
}

fn samples(hours: f64) -> Samples {
    Samples::new(RATE * hours * 3600.0)
}
