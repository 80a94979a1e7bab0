//! A node's cap under random events, jobs, wishes by hand and writes that fail: the real controller, simulated GPUs, and
//! a clock that moves second by second.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use chrono::{DateTime, TimeDelta, Utc};
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use wattune::clock::{Clock, ManualClock};
use wattune::controller::{
    Caller, CapSettings, Controller, GpuRef, NewEvent, NewJob, Parts, Phase, ProgressReport, Settings,
};
use wattune::gpu::handle::Sampling;
use wattune::gpu::simulated::{LoadCurve, Physics, SimulatedGpu};
use wattune::gpu::{Capabilities, Depth, GpuDevice, GpuError, Reading};
use wattune::providers::FeedState;
use wattune_core::domain::{ClockLimit, DemandResponse, EventId, GpuIdentity, JobId, LimitRange, PowerLimit, Work};
use wattune_core::time::Monotonic;
use wattune_core::units::{Samples, SamplesPerSecond, Seconds, Watts};

use crate::support;

const BOARDS: u32 = 4;
const FOUND_MW: u32 = 280_000;
const MIN_MW: u32 = 100_000;

/// What was written to the GPUs, in order, and which writes are to fail.
#[derive(Default)]
struct Log {
    limits: BTreeMap<u32, u32>,
    /// After each write of a limit: whether it was a raise, and the sum in milliwatts.
    sums: Vec<(bool, u32)>,
    fail: Vec<bool>,
    writes: usize,
    failed: bool,
}

/// A GPU that tells what it is told.
struct Watched {
    device: Box<dyn GpuDevice>,
    log: Arc<Mutex<Log>>,
}

impl GpuDevice for Watched {
    fn identity(&self) -> &GpuIdentity {
        self.device.identity()
    }

    fn capabilities(&self) -> &Capabilities {
        self.device.capabilities()
    }

    fn read(&mut self, depth: Depth, now: Monotonic) -> Result<Reading, GpuError> {
        self.device.read(depth, now)
    }

    fn set_power_limit(&mut self, limit: PowerLimit) -> Result<(), GpuError> {
        let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        let number = log.writes;
        log.writes += 1;
        if !log.fail.is_empty() && log.fail[number % log.fail.len()] {
            log.failed = true;
            return Err(GpuError::Driver { call: "set", message: "no luck".into() });
        }
        self.device.set_power_limit(limit)?;
        let index = self.device.identity().index;
        let before = log.limits.insert(index, limit.milliwatts()).unwrap_or(FOUND_MW);
        let sum = log.limits.values().sum();
        log.sums.push((limit.milliwatts() > before, sum));
        Ok(())
    }

    fn set_persistence(&mut self, on: bool) -> Result<(), GpuError> {
        self.device.set_persistence(on)
    }

    fn lock_clocks(&mut self, upper: ClockLimit) -> Result<(), GpuError> {
        self.device.lock_clocks(upper)
    }

    fn reset_clocks(&mut self) -> Result<(), GpuError> {
        self.device.reset_clocks()
    }

    fn reopen(&mut self) -> Result<(), GpuError> {
        self.device.reopen()
    }
}

/// Something that happens at a second.
#[derive(Clone, Debug)]
enum Happens {
    Announce { id: u8, starts_in: i64, lasts: i64, target_w: f64, ramp_s: f64, rebound: bool },
    Withdraw { id: u8 },
    Override { gpu: u32, watts: f64, ttl_s: f64 },
    Release { gpu: u32 },
    Register { gpu: u32, priority: i32, slowdown: f64 },
    End,
}

fn happens() -> impl Strategy<Value = Happens> {
    let gpu = || 0..BOARDS;
    prop_oneof![
        3 => (0u8..4, -5i64..60, 1i64..40, 400.0..1100.0, 0.0..20.0, any::<bool>()).prop_map(
            |(id, starts_in, lasts, target_w, ramp_s, rebound)| Happens::Announce {
                id, starts_in, lasts, target_w, ramp_s, rebound
            }
        ),
        1 => (0u8..4).prop_map(|id| Happens::Withdraw { id }),
        2 => (gpu(), 100.0..280.0, 1.0..60.0).prop_map(|(gpu, watts, ttl_s)| Happens::Override { gpu, watts, ttl_s }),
        1 => gpu().prop_map(|gpu| Happens::Release { gpu }),
        3 => (gpu(), -2i32..3, 0.0..0.1).prop_map(|(gpu, priority, slowdown)| Happens::Register {
            gpu, priority, slowdown
        }),
        1 => Just(Happens::End),
    ]
}

struct Node {
    clock: Arc<ManualClock>,
    controller: Controller,
    gpus: Vec<SimulatedGpu>,
    log: Arc<Mutex<Log>>,
    jobs: Vec<(JobId, u32, Samples)>,
    _feed: tokio::sync::watch::Sender<FeedState>,
    _state: tempfile::TempDir,
}

fn begin() -> DateTime<Utc> {
    "2026-11-21T12:00:00Z".parse().expect("a time")
}

impl Node {
    async fn start(constant_w: Option<f64>, fail: Vec<bool>, patience: f64) -> Self {
        let clock = Arc::new(ManualClock::at(begin()));
        let mw = PowerLimit::from_milliwatts;
        let range = LimitRange { min: mw(MIN_MW), max: mw(350_000), default: mw(320_000) };
        let limits = (0..BOARDS).map(|b| (b, FOUND_MW)).collect();
        let log = Arc::new(Mutex::new(Log { limits, fail, ..Log::default() }));
        let (mut devices, mut gpus) = (Vec::new(), Vec::new());
        for index in 0..BOARDS {
            let (idle, settling) = (Watts::new(25.0), Seconds::new(0.1));
            let seed = u64::from(index);
            let physics = Physics { range, original_limit: mw(FOUND_MW), idle, settling, noise: 0.0, seed };
            let gpu = SimulatedGpu::new(physics, clock.clone());
            gpu.run(Some(LoadCurve::saturating(
                &range,
                Watts::new(300.0),
                Watts::new(70.0),
                SamplesPerSecond::new(400.0),
            )));
            let device: Box<dyn GpuDevice> = Box::new(gpu.device(index, "Random"));
            devices.push(Box::new(Watched { device, log: log.clone() }) as Box<dyn GpuDevice>);
            gpus.push(gpu);
        }
        let state = tempfile::tempdir().expect("a directory");
        let (feed, signal) = tokio::sync::watch::channel(FeedState::starting(Vec::new(), begin()));
        let profiling = wattune_core::profile::Settings {
            step_w: Watts::new(60.0),
            settle_s: Seconds::new(0.5),
            standard_error: 0.05,
            ..wattune_core::profile::Settings::default()
        };
        let parts = Parts {
            settings: Settings { solve_limit_s: Seconds::new(patience), ..Settings::default() },
            profiling,
            planning: wattune_core::plan::Settings {
                shortest_slot_s: Seconds::new(5.0),
                dwell_s: Seconds::ZERO,
                ..wattune_core::plan::Settings::default()
            },
            cap: CapSettings { limit_w: constant_w, ..CapSettings::default() },
            ..Parts::new(state.path(), clock.clone(), devices, Sampling::OnRequest, signal)
        };
        let controller = Controller::start(parts).await.expect("starts");
        Self { clock, controller, gpus, log, jobs: Vec::new(), _feed: feed, _state: state }
    }

    async fn carry_out(&mut self, what: &Happens) {
        let now = self.clock.utc();
        let id = |id: &u8| EventId::new(format!("dr-{id}")).expect("an id");
        // What is refused changes nothing.
        match what {
            Happens::Announce { id: event, starts_in, lasts, target_w, ramp_s, rebound } => {
                let start = now + TimeDelta::seconds(*starts_in);
                let new = NewEvent {
                    id: id(event).to_string(),
                    start,
                    end: start + TimeDelta::seconds(*lasts),
                    target_w: Some(*target_w),
                    target_pct: None,
                    notice_s: None,
                    ramp_s: Some(*ramp_s),
                    rebound_w: rebound.then_some(900.0),
                    rebound_pct: None,
                    rebound_s: rebound.then_some(15.0),
                };
                let event = DemandResponse::try_from(new).expect("right");
                drop(self.controller.announce(event, Caller::Local).await);
            }
            Happens::Withdraw { id: event } => drop(self.controller.withdraw(&id(event), Caller::Local).await),
            Happens::Override { gpu, watts, ttl_s } => {
                let (limit, ttl) = (Watts::new(watts.round()), Seconds::new(*ttl_s));
                drop(self.controller.set_override(&GpuRef::Index(*gpu), limit, ttl, Caller::Local).await);
            }
            Happens::Release { gpu } => {
                drop(self.controller.release_override(&GpuRef::Index(*gpu), Caller::Local).await);
            }
            Happens::Register { gpu, priority, slowdown } => {
                let job = NewJob {
                    gpus: vec![GpuRef::Index(*gpu)],
                    work: Work::TotalSamples(Samples::new(1e6)),
                    lease: Some(Seconds::new(3600.0)),
                    priority: *priority,
                    ..support::job(&format!("job-{gpu}"), *slowdown)
                };
                if let Ok(view) = self.controller.register(job).await {
                    let done = self.gpus[*gpu as usize].work_done();
                    self.jobs.push((JobId::new(view.job_id).expect("an id"), *gpu, done));
                }
            }
            Happens::End => {
                if let Some((job, ..)) = self.jobs.pop() {
                    self.controller.end(&job, Caller::Local).await.expect("it runs");
                }
            }
        }
    }

    /// The cap, and the least that the limits can add up to, in milliwatts.
    fn cap_mw(&self) -> Option<(u32, u32)> {
        let view = self.controller.status().cap?;
        let mw = |watts: f64| Watts::new(watts).to_milliwatts();
        Some((mw(view.limit_w?), mw(view.lowest_sum_w)))
    }

    /// Checks what was written since the last look.
    fn check(&self, what: &str) -> Result<(), TestCaseError> {
        let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        let cap = self.cap_mw();
        for (raised, sum) in std::mem::take(&mut log.sums) {
            if let Some((cap, _)) = cap.filter(|_| raised) {
                prop_assert!(sum <= cap, "{what} at {}: raised to {sum} mW under {cap} mW", self.clock.utc());
            }
        }
        Ok(())
    }

    fn check_sum(&self, reached: bool) -> Result<bool, TestCaseError> {
        let log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        let sum: u32 = log.limits.values().sum();
        let Some((cap, lowest)) = self.cap_mw() else { return Ok(true) };
        let keeps = sum <= cap.max(lowest);
        prop_assert!(keeps || !reached || log.failed, "{sum} mW under {cap} mW at {}", self.clock.utc());
        Ok(keeps)
    }

    async fn second(&mut self) {
        self.report().await;
        self.controller.tick().await;
    }

    /// Registers a job on the first GPU, and trains until it is planned.
    async fn planned(&mut self, slowdown: f64) -> JobId {
        self.controller.tick().await;
        self.carry_out(&Happens::Register { gpu: 0, priority: 0, slowdown }).await;
        for _ in 0..1000 {
            self.second().await;
            if self.controller.jobs()[0].phase == Some(Phase::Planned) {
                return self.jobs[0].0.clone();
            }
        }
        panic!("never planned: {:#?}", self.controller.jobs());
    }

    /// Announces an event of an hour without a ramp, and returns its start.
    async fn announce(&mut self, starts_in: i64, target_w: f64, notice_s: Option<f64>) -> DateTime<Utc> {
        let start = self.clock.utc() + TimeDelta::seconds(starts_in);
        let new = NewEvent {
            id: "sudden".to_owned(),
            start,
            end: start + TimeDelta::hours(1),
            target_w: Some(target_w),
            target_pct: None,
            notice_s,
            ramp_s: None,
            rebound_w: None,
            rebound_pct: None,
            rebound_s: None,
        };
        let event = DemandResponse::try_from(new).expect("right");
        self.controller.announce(event, Caller::Local).await.expect("accepted");
        start
    }

    /// A second later, each job tells how far it is.
    async fn report(&mut self) {
        self.clock.advance(Seconds::new(1.0));
        let at = self.clock.monotonic().since(Monotonic::default());
        for (job, gpu, before) in self.jobs.clone() {
            let samples = self.gpus[gpu as usize].work_done() - before;
            self.controller.progress(&job, ProgressReport::new(samples, Some(at))).await.expect("it runs");
        }
    }
}

async fn live(
    constant_w: Option<f64>,
    story: &[(usize, Happens)],
    fail: Vec<bool>,
    patience: f64,
) -> Result<(), TestCaseError> {
    let mut node = Node::start(constant_w, fail, patience).await;
    node.controller.tick().await;
    node.second().await;
    node.check("the start")?;
    let mut reached = node.check_sum(false)?;
    for second in 0..100 {
        for (_, what) in story.iter().filter(|(at, _)| *at == second) {
            let before = node.cap_mw();
            node.carry_out(what).await;
            node.check(&format!("{what:?}"))?;
            // What comes without notice is kept as soon as its lowerings have been written.
            reached &= node.cap_mw() == before || !matches!(what, Happens::Announce { .. });
        }
        node.second().await;
        node.check("a tick")?;
        // An event that begins sooner than limits can follow is met within a tick.
        let soon = story.iter().any(|(at, what)| {
            matches!(what, Happens::Announce { starts_in, ramp_s, .. } if *at + 1 >= second && *at <= second
                && (*starts_in as f64) < ramp_s + 6.0)
        });
        reached = node.check_sum(reached && !soon)?;
    }
    let cap = node.cap_mw();
    let log = node.log.clone();
    node.controller.shut_down().await;
    let log = log.lock().unwrap_or_else(PoisonError::into_inner);
    let sum: u32 = log.limits.values().sum();
    if let Some((cap, lowest)) = cap.filter(|_| !log.failed) {
        prop_assert!(sum <= cap.max(lowest), "{sum} mW under {cap} mW at the end");
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, max_shrink_iters: 60, ..ProptestConfig::default() })]

    #[test]
    fn no_story_breaks_the_cap(
        constant in prop::option::of(500.0..1200.0),
        story in prop::collection::vec((0usize..90, happens()), 1..16),
        fail in prop_oneof![2 => Just(Vec::new()), 1 => prop::collection::vec(any::<bool>(), 7)],
        patience in prop_oneof![Just(0.0), Just(60.0)],
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(live(constant, &story, fail, patience))?;
    }
}

#[tokio::test]
async fn a_ceiling_out_of_reach_is_not_waited_for_and_late_plans_come() {
    // Three other GPUs keep 100 W each. No search ends within no time at all.
    let mut node = Node::start(Some(500.0), Vec::new(), 0.0).await;
    node.controller.tick().await;
    node.carry_out(&Happens::Register { gpu: 0, priority: 0, slowdown: 0.1 }).await;
    let job = node.jobs[0].0.clone();
    let mut late = false;
    for _ in 0..200 {
        node.report().await;
        late |= node.controller.status().planning.late_s.is_some();
        node.controller.tick().await;
        tokio::time::sleep(std::time::Duration::from_millis(2)).await;
    }
    let profile = node.controller.profile_of(&job).await.expect("it runs");
    let limits: Vec<f64> = profile.points.iter().map(|p| p.power_limits_w[0]).collect();
    assert_eq!(limits, [200.0, 140.0]);
    let plan = node.controller.plan_of(&job).expect("it runs");
    assert!(late && plan.made_at.is_some() && plan.applied, "{plan:?}");
    assert!(plan.segments.iter().all(|s| s.power_limits_w[0] <= 200.0));
    node.check("the end").expect("under the cap");
}

#[tokio::test]
async fn limits_are_down_when_an_event_without_notice_begins() {
    let mut node = Node::start(None, Vec::new(), 0.0).await;
    node.controller.tick().await;
    let start = node.announce(20, 600.0, Some(0.0)).await;
    // The lead is 5 s.
    while node.clock.utc() < start - TimeDelta::seconds(8) {
        node.second().await;
    }
    let sum = |node: &Node| {
        let log = node.log.lock().unwrap_or_else(PoisonError::into_inner);
        log.limits.values().sum::<u32>()
    };
    assert_eq!(sum(&node), BOARDS * FOUND_MW, "too soon");
    while node.clock.utc() < start - TimeDelta::seconds(1) {
        node.second().await;
    }
    assert!(sum(&node) <= 600_000, "{} mW when the event begins", sum(&node));
    node.controller.shut_down().await;
}

#[tokio::test]
async fn the_status_knows_an_event_without_notice_once_limits_are_lowered_for_it() {
    let mut node = Node::start(None, Vec::new(), 60.0).await;
    let job = node.planned(0.1).await;
    let start = node.announce(200, 420.0, Some(0.0)).await;
    while node.clock.utc() < start - TimeDelta::seconds(100) {
        node.second().await;
    }
    assert_eq!(node.controller.status().cap, None);
    // The lead is a little more than the minute that a search for plans may take.
    while node.clock.utc() < start - TimeDelta::seconds(10) {
        node.second().await;
    }
    let cap = node.controller.status().cap.expect("known");
    assert_eq!((cap.limit_w, cap.source, cap.next_change, cap.next_limit_w), (None, None, Some(start), Some(420.0)));
    assert!(cap.limits_sum_w <= 420.0, "{}", cap.limits_sum_w);
    // The three other GPUs have 100 W each.
    let reason = node.controller.job(&job).await.expect("it runs").reason;
    let from = start.format("%FT%TZ");
    let expected =
        format!("limited to 120 W ahead of the node's cap of 420 W from {from} on (demand-response event sudden)");
    assert!(reason.contains(&expected), "{reason}");
    node.controller.shut_down().await;
}

#[tokio::test]
async fn the_end_of_a_plan_above_the_cap_is_unknown() {
    let mut node = Node::start(None, Vec::new(), 60.0).await;
    // A job that may lose no time is measured at its maximum limit alone.
    let job = node.planned(0.0).await;
    assert!(node.controller.job(&job).await.expect("it runs").expected_end.is_some());
    let plan = node.controller.plan_of(&job).expect("it runs");
    assert!(plan.expected_end.is_some() && plan.expected_slowdown.is_some(), "{plan:#?}");
    node.announce(600, 400.0, None).await;
    for _ in 0..10 {
        node.second().await;
    }
    let plan = node.controller.plan_of(&job).expect("it runs");
    assert!(plan.segments.iter().all(|segment| segment.power_limits_w == [280.0]), "{plan:#?}");
    assert!(plan.warnings.iter().any(|warning| warning.contains("exceed the node's cap")), "{plan:#?}");
    assert_eq!((plan.expected_end, plan.expected_slowdown), (None, None));
    assert_eq!(node.controller.job(&job).await.expect("it runs").expected_end, None);
    node.controller.withdraw(&EventId::new("sudden").expect("an id"), Caller::Local).await.expect("announced");
    node.second().await;
    assert!(node.controller.plan_of(&job).expect("it runs").expected_end.is_some());
    node.controller.shut_down().await;
}
