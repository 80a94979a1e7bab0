//! Savings of jobs that change while they run, or whose maximum usable limit does: against the truth that simulated GPUs
//! know.

use std::path::PathBuf;
use std::sync::Arc;

use chrono::{DateTime, TimeDelta, Utc};

use super::{SyntheticGrid, TraceProvider};
use crate::clock::{Clock, ManualClock};
use crate::controller::view::SavingView;
use crate::controller::{
    Caller, Controller, GpuRef, NewJob, NewOffers, NewStart, Parts, Phase, ProgressReport, Settings, StartBy, Wanted,
};
use crate::gpu::handle::Sampling;
use crate::gpu::simulated::{LoadCurve, Physics, SimulatedGpu};
use crate::providers::{Feed, FeedOptions, Provider};
use wattune_core::domain::{
    DemandResponse, EventId, JobId, JobName, Level, LimitRange, Objective, PowerLimit, SignalKind, SignalScope, Slot,
    Work, Zone,
};
use wattune_core::ledger::entry::Entry;
use wattune_core::ledger::savings_entries::Counterfactual;
use wattune_core::time::Monotonic;
use wattune_core::units::{Joules, Samples, SamplesPerSecond, Seconds, Watts};

const fn w(watts: u32) -> PowerLimit {
    PowerLimit::from_milliwatts(watts * 1000)
}

const RANGE: LimitRange = LimitRange { min: w(100), max: w(300), default: w(240) };

/// A job on one GPU whose original limit is 240 W.
struct Scene {
    clock: Arc<ManualClock>,
    feed: Feed,
    gpu: SimulatedGpu,
    controller: Controller,
    job: JobId,
    state: PathBuf,
    /// Energy that the job's work so far would take at the original limit, and at the maximum limit.
    at_references: [Joules; 2],
    load: LoadCurve,
}

fn new_job(work: Samples, objective: Objective, offers: NewOffers) -> NewJob {
    NewJob {
        name: JobName::new("changes").expect("a name"),
        gpus: vec![GpuRef::Index(0)],
        batch_size: None,
        work: Work::TotalSamples(work),
        objective,
        lease: Some(Seconds::new(600.0)),
        control: true,
        priority: 0,
        tags: Default::default(),
        processes: None,
        replaces: None,
        offers,
        by: Caller::Local,
        user: None,
    }
}

impl Scene {
    async fn start(state: PathBuf, hours: f64, objective: Objective) -> Self {
        let new = new_job(Samples::new(400.0 * 3600.0 * hours), objective, NewOffers::default());
        let mut scene = Self::with(state, new).await;
        scene.step().await;
        // A job's work counts from its first report on.
        scene.at_references = Default::default();
        scene
    }

    async fn with(state: PathBuf, new: NewJob) -> Self {
        let start: DateTime<Utc> = "2026-06-01T00:00:00Z".parse().expect("a time");
        let clock = Arc::new(ManualClock::at(start));
        let (expected, actual) = SyntheticGrid { seed: 7 }.generate(start, Seconds::new(2.0 * 86_400.0));
        let zone = Zone::new("synthetic").expect("a zone");
        let kind = (SignalKind::Average, SignalScope::Unspecified);
        let grid: Arc<dyn Provider> = Arc::new(TraceProvider::new("synthetic", zone, kind, expected, actual));
        let mut feed = Feed::start(vec![vec![grid]], FeedOptions::default(), clock.now()).await;
        feed.poll_due(clock.now()).await;
        let (idle, settling) = (Watts::new(25.0), Seconds::new(0.5));
        let physics = Physics { range: RANGE, original_limit: w(240), idle, settling, noise: 0.002, seed: 5 };
        let gpu = SimulatedGpu::new(physics, clock.clone());
        let load = Self::load(1.0);
        gpu.run(Some(load.clone()));
        let mut controller = Self::daemon(&state, &clock, &gpu, &feed).await;
        let job = JobId::new(controller.register(new).await.expect("registered").job_id).expect("an id");
        Self { clock, feed, gpu, controller, job, state, at_references: Default::default(), load }
    }

    async fn daemon(state: &std::path::Path, clock: &Arc<ManualClock>, gpu: &SimulatedGpu, feed: &Feed) -> Controller {
        let settings = Settings { solve_limit_s: Seconds::new(600.0), ..Settings::default() };
        let device = Box::new(gpu.device(0, "A40"));
        let parts =
            Parts { settings, ..Parts::new(state, clock.clone(), vec![device], Sampling::OnRequest, feed.subscribe()) };
        let mut controller = Controller::start(parts).await.expect("starts");
        controller.tick().await;
        controller
    }

    /// A load of this speed, relative to the first one. Its draw at each limit is that of the others.
    fn load(speed: f64) -> LoadCurve {
        LoadCurve::saturating(&RANGE, Watts::new(295.0), Watts::new(70.0), SamplesPerSecond::new(400.0 * speed))
    }

    /// From now on the job trains at this speed.
    fn change(&mut self, speed: f64) {
        self.load = Self::load(speed);
        self.gpu.run(Some(self.load.clone()));
    }

    /// The daemon is killed, and the next one continues.
    async fn restart(&mut self) {
        self.controller = Self::daemon(&self.state, &self.clock, &self.gpu, &self.feed).await;
    }

    /// The job trains for a time without a report.
    fn pass(&mut self, span: Seconds) {
        let before = self.gpu.work_done();
        self.clock.advance(span);
        let work = self.gpu.work_done() - before;
        for (energy, limit) in self.at_references.iter_mut().zip([240.0, 300.0]) {
            let at = self.load.at(Watts::new(limit));
            *energy += at.power * (work / at.throughput);
        }
    }

    /// One second of training, and a report.
    async fn step(&mut self) {
        self.pass(Seconds::new(1.0));
        self.feed.poll_due(self.clock.now()).await;
        let at = self.clock.monotonic().since(Monotonic::default());
        let report = ProgressReport::new(self.gpu.work_done(), Some(at));
        self.controller.progress(&self.job, report).await.expect("taken");
        self.controller.tick().await;
    }

    /// The job pauses by itself, and reports nothing.
    async fn pause(&mut self, seconds: u32) {
        self.gpu.run(None);
        for _ in 0..seconds {
            self.clock.advance(Seconds::new(1.0));
            self.controller.tick().await;
        }
        self.gpu.run(Some(self.load.clone()));
    }

    async fn train(&mut self, seconds: u32) {
        for _ in 0..seconds {
            self.step().await;
        }
    }

    fn phase(&self) -> Option<Phase> {
        self.controller.jobs()[0].phase
    }

    /// Time passes without a report, but the job's processes run.
    async fn wait(&mut self, seconds: u32) {
        for _ in 0..seconds / 10 {
            self.pass(Seconds::new(10.0));
            self.feed.poll_due(self.clock.now()).await;
            self.controller.renew_lease(&self.job).await.expect("open");
            self.controller.tick().await;
        }
    }

    async fn until(&mut self, what: &str, is_so: impl Fn(&Self) -> bool) {
        for _ in 0..7200 {
            if is_so(self) {
                return;
            }
            self.step().await;
        }
        panic!("{what} did not happen within two hours: {:?}", self.controller.jobs());
    }

    async fn references(&self) -> Vec<Counterfactual> {
        let entries = self.controller.store().entries_of("counterfactual", &self.job).await.expect("readable");
        let of = |entry| match entry {
            Entry::Counterfactual(reference) => *reference,
            other => panic!("{other:?}"),
        };
        entries.into_iter().map(of).collect()
    }

    /// The saving against the original limit, and that against the maximum.
    async fn savings(&mut self) -> [SavingView; 2] {
        let savings = self.controller.account_of(&self.job).await.expect("a job").savings;
        [savings.against_original, savings.against_max]
    }
}

fn slower_by(part: f64) -> Objective {
    Objective::slower_by(part).expect("in range")
}

fn reason(saving: &SavingView) -> &str {
    match saving {
        SavingView::Unknown(unknown) => &unknown.unknown,
        SavingView::Known(known) => panic!("{known:?}"),
    }
}

/// Asserts that the energy at each reference differs from the truth by less than the fraction `within`. A single saving is
/// that against the maximum limit.
fn assert_true(scene: &Scene, savings: &[SavingView], within: f64) {
    for (saving, truth) in savings.iter().rev().zip(scene.at_references.iter().rev()) {
        let SavingView::Known(saving) = saving else { panic!("{}", reason(saving)) };
        let off = saving.energy_at_reference_j / truth.get() - 1.0;
        assert!(off.abs() < within, "{off}: {saving:?}");
    }
}

#[tokio::test]
async fn savings_are_unknown_while_more_than_a_hundredth_of_the_work_precedes_a_change() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut scene = Scene::start(dir.path().into(), 8.0, slower_by(0.1)).await;
    scene.train(50).await;
    scene.change(0.7);
    scene.until("the first plan", |scene| scene.phase() == Some(Phase::Planned)).await;
    scene.restart().await;
    scene.train(60).await;
    let references = scene.references().await;
    let [first] = references.as_slice() else { panic!("{references:?}") };
    let other = first.other_work.expect("recorded").samples;
    // The job completed 20,000 samples before it changed; some of the next sweep may be included.
    assert!((18_000.0..24_000.0).contains(&other.get()) && first.fits_from() == Some(other), "{other}");
    for saving in scene.savings().await {
        assert!(reason(&saving).contains("changed before its first plan"), "{}", reason(&saving));
    }
    while scene.gpu.work_done() < other * 100.0 {
        scene.step().await;
    }
    scene.train(60).await;
    let savings = scene.savings().await;
    // A hundredth of the work took seven tenths of the time that its conversion gives; the interval allows for that.
    assert_true(&scene, &savings, 0.004);
    let SavingView::Known(saving) = &savings[0] else { panic!("known above") };
    let interval = saving.carbon_reduction_pct;
    assert!(interval.high - interval.low > 1.0, "{interval:?}");
}

#[tokio::test]
async fn a_job_that_changes_is_compared_with_two_references_though_its_daemon_restarts() {
    // Killed as soon as it measures again, with no measurement yet, and with a few.
    for measures in [0, 60] {
        let dir = tempfile::tempdir().expect("a directory");
        let mut scene = Scene::start(dir.path().into(), 8.0, slower_by(0.1)).await;
        scene.train(2000).await;
        scene.change(0.7);
        let changed_at = scene.gpu.work_done();
        let measures_again = |scene: &Scene| scene.controller.jobs()[0].reason.starts_with("measuring throughput");
        scene.until("the new profile", measures_again).await;
        scene.train(measures).await;
        scene.restart().await;
        scene.step().await;
        assert_eq!(scene.phase(), Some(Phase::Profiling), "after {measures} s");
        for saving in scene.savings().await {
            assert!(reason(&saving).contains("is being profiled again"), "{}", reason(&saving));
        }
        scene.until("the next plan", |scene| scene.phase() == Some(Phase::Planned)).await;
        scene.train(300).await;
        scene.restart().await;
        scene.train(300).await;
        let references = scene.references().await;
        let [_, second] = references.as_slice() else { panic!("{references:?}") };
        assert!((second.samples / changed_at - 1.0).abs() < 0.02, "{} {changed_at}", second.samples);
        let savings = scene.savings().await;
        assert_true(&scene, &savings, 0.001);
    }
}

#[tokio::test]
async fn work_below_a_temporary_cap_is_compared_with_the_maximum() {
    // The cap ends while the daemon runs, and while none does.
    for ends_without_daemon in [false, true] {
        let dir = tempfile::tempdir().expect("a directory");
        let mut scene = Scene::start(dir.path().into(), 8.0, slower_by(0.05)).await;
        let from = scene.clock.utc();
        let event = DemandResponse {
            id: EventId::new("cap").expect("an id"),
            slot: Slot::new(from, from + TimeDelta::minutes(75)).expect("some time"),
            target: Level::Watts(Watts::new(150.0)),
            notice: None,
            ramp: Seconds::ZERO,
            rebound: None,
        };
        scene.controller.announce(event, Caller::Local).await.expect("announced");
        // It lasts longer than a sweep waits, so that the job is profiled up to the cap, and trains there most of the time.
        scene.train(75 * 60 - 10).await;
        assert!(scene.gpu.limit() <= w(150));
        if ends_without_daemon {
            scene.pass(Seconds::new(20.0));
            scene.restart().await;
        }
        scene.train(600).await;
        scene.restart().await;
        scene.train(60).await;
        let savings = scene.savings().await;
        // Whether the job paused while no daemon ran is not known.
        assert_true(&scene, &savings[1..], 0.002);
    }
}

#[tokio::test]
async fn time_lost_below_a_temporary_cap_is_counted_from_the_limit_that_it_leaves() {
    let dir = tempfile::tempdir().expect("a directory");
    let (hours, cap) = (4.0, Watts::new(150.0));
    let mut scene = Scene::start(dir.path().into(), hours, slower_by(0.03)).await;
    // The cap begins before all limits are measured, so that the job is measured up to the cap, and ends long before the
    // job does.
    let begins = scene.clock.utc() + TimeDelta::seconds(100);
    let slot = Slot::new(begins, begins + TimeDelta::hours(2)).expect("some time");
    let event = DemandResponse {
        id: EventId::new("cap").expect("an id"),
        slot,
        target: Level::Watts(cap),
        notice: None,
        ramp: Seconds::ZERO,
        rebound: None,
    };
    scene.controller.announce(event, Caller::Local).await.expect("announced");
    // Limits go down for the cap before it begins.
    let down_from = begins - TimeDelta::seconds(64);
    let (total, mut at_ceilings, mut took) = (Samples::new(400.0 * 3600.0 * hours), Seconds::ZERO, Seconds::ZERO);
    let mut slowed = [false; 2];
    while scene.gpu.work_done() < total {
        let (before, at) = (scene.gpu.work_done(), scene.clock.utc());
        scene.step().await;
        let is_capped = (down_from..slot.end()).contains(&at);
        let ceiling = if is_capped { cap } else { RANGE.max.watts() };
        at_ceilings += (scene.gpu.work_done() - before) / scene.load.at(ceiling).throughput;
        took += Seconds::from_delta(scene.clock.utc() - at);
        slowed[usize::from(is_capped)] |= scene.gpu.limit() < PowerLimit::from_watts(ceiling);
    }
    assert_eq!(slowed, [true; 2], "without and with the cap");
    let slowdown = took / at_ceilings - 1.0;
    assert!((0.029..=0.031).contains(&slowdown), "{slowdown:.4}");
    let counted = scene.controller.jobs()[0].slowdown.expect("known");
    assert!((counted - slowdown).abs() < 5e-4, "{counted:.4} for {slowdown:.4}");
}

#[tokio::test]
async fn a_job_with_pauses_of_its_own_keeps_its_deadline() {
    let dir = tempfile::tempdir().expect("a directory");
    let deadline: DateTime<Utc> = "2026-06-01T04:00:00Z".parse().expect("a time");
    let objective = Objective { deadline: Some(deadline), ..Objective::UNBOUND };
    let mut scene = Scene::start(dir.path().into(), 3.0, objective).await;
    let total = Samples::new(400.0 * 3600.0 * 3.0);
    let (mut until_pause, mut lowest) = (total / 6.0, RANGE.max);
    // Three hours of work at the maximum limit, with six minutes of pause after each half hour of work.
    while scene.gpu.work_done() < total {
        if scene.gpu.work_done() >= until_pause {
            scene.pause(360).await;
            until_pause += total / 6.0;
        }
        scene.step().await;
        lowest = lowest.min(scene.gpu.limit());
    }
    let early = Seconds::from_delta(deadline - scene.clock.utc());
    assert!((0.0..900.0).contains(&early.get()), "{early} before its deadline");
    assert!(lowest < RANGE.max, "it was slowed");
}

#[tokio::test]
async fn a_job_that_reports_seldom_does_not_count_as_standing_still() {
    let dir = tempfile::tempdir().expect("a directory");
    let deadline: DateTime<Utc> = "2026-06-01T04:06:00Z".parse().expect("a time");
    let objective = Objective { deadline: Some(deadline), ..Objective::UNBOUND };
    let mut scene = Scene::start(dir.path().into(), 4.0, objective).await;
    scene.train(900).await;
    assert_eq!(scene.phase(), Some(Phase::Planned));
    // Reports that are twice as far apart as the lease is long.
    for interval in 0..9 {
        scene.wait(1200).await;
        let job = &scene.controller.jobs()[0];
        assert!(interval < 3 || job.warnings.is_empty(), "{interval}: {:?}", job.warnings);
        scene.step().await;
    }
}

#[tokio::test]
async fn a_held_job_waits_for_its_minimum_gain_in_each_decision() {
    for (min_gain, expected) in [(0.01, Wanted::Hold), (0.9, Wanted::Run)] {
        let dir = tempfile::tempdir().expect("a directory");
        let start = NewStart {
            by: StartBy::Within(Seconds::new(12.0 * 3600.0)),
            duration: Some(Seconds::new(7200.0)),
            power: Some(Watts::new(250.0)),
            min_gain: Some(min_gain),
            max_loss_probability: None,
            idle_power: Watts::ZERO,
        };
        let offers = NewOffers { start: Some(start), ..NewOffers::default() };
        let mut scene = Scene::with(dir.path().into(), new_job(Samples::new(1e6), Objective::UNBOUND, offers)).await;
        let mut decisions = 0;
        for _ in 0..60 {
            scene.wait(30).await;
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            let job = &scene.controller.jobs()[0];
            if job.start.is_some() {
                decisions += 1;
                assert_eq!(job.wanted, Some(expected), "{}", job.reason);
            }
        }
        assert!(decisions > 30, "{decisions}");
        // The next daemon knows whether it waits.
        let stored = scene.controller.store().job(&scene.job).await.expect("readable").expect("stored");
        assert_eq!(stored.progress.presence.waits_for_window, expected == Wanted::Hold);
    }
}
