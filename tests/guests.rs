//! Many jobs on one GPU that are only recorded: what they cost grows with their number and no faster, and there is a most.

use std::sync::Arc;

use chrono::{DateTime, Utc};
use wattune::clock::{Clock as _, ManualClock};
use wattune::controller::{Caller, ControlError, Controller, GpuRef, NewJob, Parts, ProgressReport, Settings};
use wattune::gpu::GpuDevice;
use wattune::gpu::handle::Sampling;
use wattune::gpu::simulated::{LoadCurve, Physics, SimulatedGpu};
use wattune::providers::FeedState;
use wattune::store::Store;
use wattune_core::domain::{JobId, JobName, LimitRange, PowerLimit, ProfileKey, Slot};
use wattune_core::ledger::Share;
use wattune_core::ledger::verify::Verifier;
use wattune_core::time::Monotonic;
use wattune_core::units::{Samples, SamplesPerSecond, Seconds, Watts};

use crate::support;

struct Node {
    clock: Arc<ManualClock>,
    gpu: SimulatedGpu,
    controller: Controller,
    jobs: Vec<JobId>,
    feed: tokio::sync::watch::Sender<FeedState>,
    state: tempfile::TempDir,
}

fn begin() -> DateTime<Utc> {
    "2026-11-21T12:00:00Z".parse().expect("a time")
}

impl Node {
    async fn start(settings: Settings) -> Self {
        let clock = Arc::new(ManualClock::at(begin()));
        let mw = PowerLimit::from_milliwatts;
        let range = LimitRange { min: mw(100_000), max: mw(350_000), default: mw(320_000) };
        let (idle, settling) = (Watts::new(25.0), Seconds::new(0.1));
        let physics = Physics { range, original_limit: mw(280_000), idle, settling, noise: 0.0, seed: 1 };
        let gpu = SimulatedGpu::new(physics, clock.clone());
        let load = LoadCurve::saturating(&range, Watts::new(300.0), Watts::new(70.0), SamplesPerSecond::new(400.0));
        gpu.run(Some(load));
        let state = tempfile::tempdir().expect("a directory");
        let (feed, _) = tokio::sync::watch::channel(FeedState::starting(Vec::new(), begin()));
        let controller = Self::controller(settings, &clock, &gpu, &feed, &state).await;
        Self { clock, gpu, controller, jobs: Vec::new(), feed, state }
    }

    async fn controller(
        settings: Settings,
        clock: &Arc<ManualClock>,
        gpu: &SimulatedGpu,
        feed: &tokio::sync::watch::Sender<FeedState>,
        state: &tempfile::TempDir,
    ) -> Controller {
        let parts = Parts {
            settings,
            ..Parts::new(
                state.path(),
                clock.clone(),
                vec![Box::new(gpu.device(0, "Guests")) as Box<dyn GpuDevice>],
                Sampling::OnRequest,
                feed.subscribe(),
            )
        };
        Controller::start(parts).await.expect("starts")
    }

    /// Another daemon takes over.
    async fn restart(self) -> Self {
        let Self { clock, gpu, controller, jobs, feed, state } = self;
        controller.shut_down().await;
        let controller = Self::controller(Settings::default(), &clock, &gpu, &feed, &state).await;
        Self { clock, gpu, controller, jobs, feed, state }
    }

    /// The first job trains so long at 200 samples a second, from where it is.
    async fn train(&mut self, seconds: std::ops::Range<u32>) {
        for second in seconds {
            self.clock.advance(Seconds::new(1.0));
            let at = self.clock.monotonic().since(Monotonic::default());
            let report = ProgressReport::new(Samples::new(200.0 * f64::from(second)), Some(at));
            self.controller.progress(&self.jobs[0].clone(), report).await.expect("it runs");
            self.controller.tick().await;
        }
    }

    async fn has_profile(&self, job: usize) -> bool {
        let name = JobName::new(format!("guest-{job}")).expect("a name");
        let key = ProfileKey { name, batch_size: None, gpus: vec![("Guests (simulated)".into(), 1)] };
        self.store().profile(&key).await.expect("read").is_some()
    }

    async fn register(&mut self, control: bool) -> Result<(), ControlError> {
        let job = NewJob {
            gpus: vec![GpuRef::Index(0)],
            control,
            lease: Some(Seconds::new(86_400.0)),
            ..support::job(&format!("guest-{}", self.jobs.len()), 0.03)
        };
        let view = self.controller.register(job).await?;
        self.jobs.push(JobId::new(view.job_id).expect("an id"));
        Ok(())
    }

    /// So many come, a hundred a second.
    async fn fill(&mut self, guests: usize) {
        for guest in 0..guests {
            self.clock.advance(Seconds::new(0.01));
            self.register(false).await.expect("there is room");
            if guest % 100 == 99 {
                self.controller.tick().await;
            }
        }
    }

    async fn live(&mut self, seconds: u32) {
        for _ in 0..seconds / 5 {
            self.clock.advance(Seconds::new(5.0));
            self.controller.tick().await;
        }
    }

    fn store(&self) -> Store {
        self.controller.store()
    }

    /// Energy by share of all that is recorded, and how many rows that is.
    async fn recorded(&self) -> (u64, usize) {
        let span = Slot::new(begin(), self.clock.utc() + chrono::TimeDelta::hours(1)).expect("some time");
        let page = self.store().ledger_page(&span, None, 1_000_000).await.expect("read");
        (page.rows.iter().map(|row| row.interval.energy.get()).sum(), page.rows.len())
    }
}

#[tokio::test]
async fn what_guests_cost_grows_with_their_number_and_no_faster() {
    let mut rows = Vec::new();
    for guests in [60, 120, 240] {
        let mut node = Node::start(Settings::default()).await;
        node.controller.tick().await;
        node.fill(guests).await;
        let (_, coming) = node.recorded().await;
        assert!(coming <= 20 * guests, "{coming} rows for {guests} that came");
        node.live(600).await;
        let (energy, found) = node.recorded().await;
        // Eight a second at the most, and one for each where the ledger end.
        assert!(found <= 8 * 610 + 20 * guests, "{found} rows of {guests} guests in ten minutes");
        assert!(energy > 100_000 * 500, "of 300 W in ten minutes {energy} mJ are recorded");
        // Each has its part, and nothing before it came.
        let share = |id: &JobId| Share::Job(id.clone());
        for id in [&node.jobs[0], &node.jobs[guests - 1]] {
            let own = node.store().intervals_of(id).await.expect("read");
            assert!(!own.is_empty() && own.iter().all(|row| row.share == share(id)), "{id}: {own:?}");
        }
        let registered = begin() + chrono::TimeDelta::milliseconds(10 * guests as i64);
        let last = node.store().intervals_of(&node.jobs[guests - 1]).await.expect("read");
        assert!(last.iter().all(|row| row.slot.start() >= registered), "{:?} came {registered}", last.first());
        // They go.
        for id in node.jobs.clone() {
            node.clock.advance(Seconds::new(0.01));
            node.controller.end(&id, Caller::Local).await.expect("ends");
        }
        node.live(120).await;
        let (_, after) = node.recorded().await;
        assert!(after - found <= 20 * guests, "{} rows for {guests} that went", after - found);
        let verified = node.store().verify(Verifier::default()).await.expect("read");
        assert!(verified.is_ok(), "{verified:?}");
        rows.push(found);
        node.controller.shut_down().await;
    }
    assert!(rows[2] < 5 * rows[0], "{rows:?}");
}

#[tokio::test]
async fn few_guests_are_recorded_to_the_moment() {
    let mut node = Node::start(Settings::default()).await;
    node.controller.tick().await;
    for _ in 0..3 {
        node.register(false).await.expect("there is room");
        node.clock.advance(Seconds::new(2.0));
        node.controller.tick().await;
    }
    let (_, rows) = node.recorded().await;
    assert!(rows > 2, "a row at least for each time in which others held it: {rows}");
    node.controller.shut_down().await;
}

#[tokio::test]
async fn guests_that_share_a_gpu_leave_no_profile_behind() {
    for guests in [1, 2] {
        let mut node = Node::start(Settings::default()).await;
        node.controller.tick().await;
        for _ in 0..guests {
            node.register(false).await.expect("there is room");
        }
        for second in 0..300 {
            node.clock.advance(Seconds::new(1.0));
            for id in node.jobs.clone() {
                let at = node.clock.monotonic().since(Monotonic::default());
                let report = ProgressReport::new(Samples::new(200.0 * f64::from(second)), Some(at));
                node.controller.progress(&id, report).await.expect("it runs");
            }
            node.controller.tick().await;
        }
        for id in node.jobs.clone() {
            node.controller.end(&id, Caller::Local).await.expect("ends");
            node.controller.tick().await;
        }
        for job in 0..guests {
            assert_eq!(node.has_profile(job).await, guests == 1, "guest {job} of {guests}");
        }
        node.controller.shut_down().await;
    }
}

#[tokio::test]
async fn a_guest_that_shared_a_gpu_for_a_moment_leaves_no_profile_behind_nor_does_it_after_a_restart() {
    for (is_shared, restarts) in [(false, true), (true, false), (true, true)] {
        let mut node = Node::start(Settings::default()).await;
        node.controller.tick().await;
        node.register(false).await.expect("there is room");
        if is_shared {
            // It has gone again before anything is stored.
            node.register(false).await.expect("there is room");
            node.controller.end(&node.jobs[1].clone(), Caller::Local).await.expect("ends");
        }
        node.controller.tick().await;
        if restarts {
            node = node.restart().await;
        }
        node.train(0..300).await;
        node.controller.end(&node.jobs[0].clone(), Caller::Local).await.expect("ends");
        assert_eq!(node.has_profile(0).await, !is_shared, "shared: {is_shared}, a restart: {restarts}");
        node.controller.shut_down().await;
    }
}

#[tokio::test]
async fn open_jobs_have_a_most_in_all_and_on_each_gpu() {
    for (settings, key) in [
        (Settings { most_jobs: 3, ..Settings::default() }, "control.most_jobs = 3"),
        (Settings { most_jobs_per_gpu: 3, ..Settings::default() }, "control.most_jobs_per_gpu = 3"),
    ] {
        let mut node = Node::start(settings).await;
        node.controller.tick().await;
        for control in [true, false, false] {
            node.register(control).await.expect("there is room");
        }
        let refused = node.register(false).await.expect_err("one too many");
        assert!(matches!(&refused, ControlError::TooMany(why) if why.contains(key)), "{refused}");
        let first = node.jobs[1].clone();
        node.controller.end(&first, Caller::Local).await.expect("ends");
        node.register(false).await.expect("there is room again");
        // Who is there goes on.
        let at = node.clock.monotonic().since(Monotonic::default());
        let report = ProgressReport::new(Samples::new(1.0), Some(at));
        node.controller.progress(&node.jobs[0].clone(), report).await.expect("it runs");
        node.controller.shut_down().await;
    }
    assert_eq!((Settings::default().most_jobs, Settings::default().most_jobs_per_gpu), (1000, 1000));
}
