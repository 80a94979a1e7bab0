//! A controller with one simulated GPU and a synthetic grid, on a clock that the test sets.

use std::sync::Arc;

use wattune::clock::{Clock as _, ManualClock};
use wattune::controller::{Controller, Parts, Settings};
use wattune::demo::{SyntheticGrid, TraceProvider};
use wattune::gpu::handle::Sampling;
use wattune::gpu::simulated::{LoadCurve, Physics, SimulatedGpu};
use wattune::providers::{Feed, FeedOptions};
use wattune_core::domain::{LimitRange, PowerLimit, SignalKind, SignalScope, Zone};
use wattune_core::units::{SamplesPerSecond, Seconds, Watts};

pub(crate) struct OneGpu {
    pub(crate) gpu: SimulatedGpu,
    clock: Arc<ManualClock>,
    feed: Feed,
    state: tempfile::TempDir,
    settings: Settings,
}

/// Maximum usable limit and original limit of the GPU.
pub(crate) const MAX: Watts = Watts::new(700.0);

fn range() -> LimitRange {
    let limit = PowerLimit::from_watts(MAX);
    LimitRange { min: PowerLimit::from_watts(Watts::new(200.0)), max: limit, default: limit }
}

/// Returns the curve of a job that draws at most `demand` and completes at most `peak`.
pub(crate) fn load(demand: Watts, peak: SamplesPerSecond) -> LoadCurve {
    LoadCurve::saturating(&range(), demand, Watts::new(150.0), peak)
}

impl OneGpu {
    pub(crate) async fn new(settings: Settings) -> Self {
        let clock = Arc::new(ManualClock::at("2026-03-01T10:10:03Z".parse().expect("a time")));
        let physics = Physics {
            range: range(),
            original_limit: range().max,
            idle: Watts::new(75.0),
            settling: Seconds::new(0.3),
            noise: 0.01,
            seed: 1,
        };
        let gpu = SimulatedGpu::new(physics, clock.clone());
        let days = Seconds::new(4.0 * 86_400.0);
        let (expected, actual) = SyntheticGrid { seed: 1 }.generate(clock.now().utc - chrono::TimeDelta::days(2), days);
        let kind = (SignalKind::Average, SignalScope::Unspecified);
        let grid = TraceProvider::new("trace", Zone::new("trace").expect("a zone"), kind, expected, actual);
        let mut feed = Feed::start(vec![vec![Arc::new(grid)]], FeedOptions::default(), clock.now()).await;
        feed.poll_due(clock.now()).await;
        Self { gpu, clock, feed, state: tempfile::tempdir().expect("a directory"), settings }
    }

    /// Starts a controller, which takes up what an earlier one has stored.
    pub(crate) async fn start(&self) -> Controller {
        let devices: Vec<Box<dyn wattune::gpu::GpuDevice>> = vec![Box::new(self.gpu.device(0, "GPU"))];
        let parts = Parts {
            settings: self.settings.clone(),
            ..Parts::new(self.state.path(), self.clock.clone(), devices, Sampling::OnRequest, self.feed.subscribe())
        };
        let mut controller = Controller::start(parts).await.expect("starts");
        controller.tick().await;
        controller
    }

    /// Returns the time on the clock, in seconds.
    pub(crate) fn seconds(&self) -> f64 {
        self.clock.monotonic().since(Default::default()).get()
    }

    pub(crate) async fn pass(&mut self, time: Seconds, controller: &mut Controller) {
        self.clock.advance(time);
        self.feed.poll_due(self.clock.now()).await;
        controller.tick().await;
    }
}
