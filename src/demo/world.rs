//! A small world: GPUs, jobs and a grid on a clock that moves step by step, and the real daemon.
//!
//! Each step moves the clock, lets the jobs report as clients would, ticks the controller, and answers requests over HTTP.
//! The outcome depends on the seed alone, not on the speed of the machine.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use chrono::{DateTime, TimeDelta, Utc};

use super::grid::TraceProvider;
use super::pauses::Pauses;
use super::training::{Training, Truth};
use crate::clock::{Clock, ManualClock};
use crate::controller::view::SavingsView;
use crate::controller::{
    BudgetSettings, CapSettings, ControlError, Controller, GpuRef, NewJob, Parts, Phase, ProgressReport, Requests,
    Settings, SharedRanks, StartError,
};
use crate::cpu::simulated::{FIRST_PID, SimulatedNode};
use crate::cpu::watch::CpuHandle;
use crate::gpu::GpuDevice;
use crate::gpu::simulated::{LoadCurve, Physics, SimulatedGpu};
use crate::gpu::thread::Sampling;
use crate::providers::{CarbonSettings, Feed, FeedOptions, Provider};
use wattune_core::domain::{CarbonSeries, JobId, JobName, LimitRange, Objective, PowerLimit, ProcessSelector, Work};
use wattune_core::ledger::Comparison;
use wattune_core::profile::Settings as ProfileSettings;
use wattune_core::units::{Seconds, Watts};

/// Time between two reports of a job while it is profiled.
const FINE: Seconds = Seconds::new(1.0);
/// Time between two reports otherwise.
const COARSE: Seconds = Seconds::new(10.0);
/// The time limit of a plan: an outcome must not depend on the speed of the machine.
const SOLVE_LIMIT: Seconds = Seconds::new(86_400.0);
/// Time between two polls for actual values.
const POLL: Seconds = Seconds::new(900.0);
/// The longest wait for actual values.
const LONGEST_WAIT: TimeDelta = TimeDelta::hours(6);
/// The shortest step, at the end of a job.
const FINEST: Seconds = Seconds::new(0.05);

/// A job to simulate.
#[derive(Clone, Debug)]
pub struct SimulatedJob {
    /// Its name.
    pub name: String,
    /// The number of its GPUs.
    pub gpus: u32,
    /// Its throughput and power on each.
    pub curve: LoadCurve,
    /// Its duration at the largest limit.
    pub at_max: Seconds,
    /// Its objective.
    pub objective: Objective,
    /// The default limit of its GPUs, which is their original limit; the largest if absent.
    pub original_limit: Option<Watts>,
    /// Its pauses, if it makes any.
    pub pauses: Option<Pauses>,
}

/// The contents of a world.
pub struct Scenario {
    /// The jobs; each gets GPUs of its own.
    pub jobs: Vec<SimulatedJob>,
    /// The model of all GPUs.
    pub model: String,
    /// The source of the daemon's carbon signal.
    pub grid: TraceProvider,
    /// The actual intensities.
    pub actual: CarbonSeries,
    /// The start.
    pub start: DateTime<Utc>,
    /// Relative noise of each power reading and each progress reading.
    pub noise: f64,
    /// Seed of that noise.
    pub seed: u64,
}

/// The outcome of a job: simulator ground truth, and the daemon's report.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Its name.
    pub name: String,
    /// Its objective.
    pub objective: Objective,
    /// The ground truth.
    pub truth: Truth,
    /// The comparison with the largest limit; `None` while the job is unfinished or an intensity unknown.
    pub against_ceiling: Option<Comparison>,
    /// The comparison with the original limit.
    pub against_original: Option<Comparison>,
    /// The savings that the daemon reports, once it has ended.
    pub reported: Option<SavingsView>,
}

/// The reason why a world cannot be built.
#[expect(missing_docs, reason = "the messages explain the fields")]
#[derive(Debug, thiserror::Error)]
pub enum WorldError {
    /// The daemon in it does not start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The daemon in it refuses a job.
    #[error("the daemon refused job {name}")]
    Refused {
        name: String,
        #[source]
        source: ControlError,
    },
}

/// The world.
pub struct World {
    clock: Arc<ManualClock>,
    controller: Controller,
    requests: Requests,
    feed: Feed,
    jobs: Vec<(Training, Objective)>,
    reported: BTreeMap<String, SavingsView>,
    actual: CarbonSeries,
}

impl World {
    /// Builds it, with the daemon's state in `state_dir`, and registers the jobs.
    pub async fn build(scenario: Scenario, state_dir: &Path, requests: Requests) -> Result<Self, WorldError> {
        let clock = Arc::new(ManualClock::at(scenario.start));
        let settings = Settings {
            tick_s: COARSE,
            // A simulated daemon is never resumed after a kill.
            checkpoint_s: Seconds::new(f64::MAX),
            default_lease_s: Seconds::new(600.0),
            solve_limit_s: SOLVE_LIMIT,
            ..Settings::default()
        };
        let grid: Arc<dyn Provider> = Arc::new(scenario.grid);
        let mut feed = Feed::start(vec![vec![grid]], FeedOptions::default(), clock.now()).await;
        feed.poll_due(clock.now()).await;
        let (mut devices, mut jobs, mut registrations, mut every_gpu) =
            (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for (number, job) in (0u64..).zip(scenario.jobs) {
            let seed = scenario.seed.wrapping_mul(1_000_003).wrapping_add(number * 101);
            let mut gpus = Vec::new();
            for _ in 0..job.gpus {
                let index = u32::try_from(devices.len()).unwrap_or(u32::MAX);
                let physics = physics(&job, scenario.noise, seed.wrapping_add(u64::from(index)));
                let mut gpu = SimulatedGpu::new(physics, clock.clone());
                if let Some(clocks) = job.curve.clocks() {
                    gpu = gpu.with_clocks(clocks);
                }
                devices.push(Box::new(gpu.device(index, &scenario.model)) as Box<dyn GpuDevice>);
                every_gpu.push(gpu.clone());
                gpus.push((index, gpu));
            }
            let (indexes, gpus): (Vec<u32>, Vec<SimulatedGpu>) = gpus.into_iter().unzip();
            let (curve, name) = (job.curve.clone(), job.name.clone());
            let training = Training::new(name, gpus, curve, job.at_max, scenario.noise, seed);
            jobs.push((training.pausing(job.pauses.as_ref()), job.objective));
            registrations.push((indexes, job));
        }
        let node = SimulatedNode::new(every_gpu, clock.clone());
        let parts = Parts {
            settings,
            profiling: ProfileSettings::default(),
            planning: wattune_core::plan::Settings::default(),
            carbon: CarbonSettings::default(),
            cap: CapSettings::default(),
            carbon_budget: BudgetSettings::default(),
            ledger: Default::default(),
            state_dir,
            clock: clock.clone(),
            devices,
            sampling: Sampling::OnRequest,
            cpu: Some(CpuHandle::start(Box::new(node), clock.clone(), Sampling::OnRequest)),
            signal: feed.subscribe(),
            ranks: SharedRanks::default(),
            price: None,
            problems: vec!["this is a simulation: no hardware is measured or set".into()],
        };
        let mut controller = Controller::start(parts).await?;
        controller.tick().await;
        for ((training, _), (indexes, job)) in jobs.iter_mut().zip(registrations) {
            let refused = |source| WorldError::Refused { name: job.name.clone(), source };
            let name = JobName::new(&job.name);
            let name = name.map_err(|e| refused(ControlError::Conflict(e.to_string())))?;
            let new = NewJob {
                name,
                processes: Some(ProcessSelector::Pids(indexes.iter().map(|index| FIRST_PID + index).collect())),
                gpus: indexes.into_iter().map(GpuRef::Index).collect(),
                batch_size: None,
                work: Work::TotalSamples(training.total),
                objective: job.objective,
                lease: None,
                control: true,
                priority: 0,
                tags: BTreeMap::new(),
            };
            let registered = controller.register(new).await.map_err(refused)?;
            training.id = JobId::new(registered.job_id).ok();
            training.start(scenario.start);
        }
        let mut world =
            Self { clock, controller, requests, feed, jobs, reported: BTreeMap::new(), actual: scenario.actual };
        world.report().await;
        world.controller.tick().await;
        Ok(world)
    }

    /// Returns true if all jobs are done.
    pub fn is_done(&self) -> bool {
        self.jobs.iter().all(|(job, _)| job.is_done())
    }

    /// Advances by one step: fine while a job is profiled, coarse otherwise, and exactly to the end of a job.
    pub async fn step(&mut self) {
        let running = self.jobs.iter().filter(|(job, _)| !job.is_done());
        let soonest = running.map(|(job, _)| job.time_left()).reduce(Seconds::min).unwrap_or(COARSE);
        let measuring = self.controller.jobs().iter().any(|j| j.phase == Some(Phase::Profiling));
        let span = if measuring { FINE } else { COARSE }.min(soonest.max(FINEST));
        self.clock.advance(span);
        let now = self.clock.utc();
        self.feed.poll_due(self.clock.now()).await;
        for (job, _) in &mut self.jobs {
            job.step(now, span, &self.actual);
        }
        self.report().await;
        self.controller.tick().await;
        self.answer().await;
    }

    /// Advances without work until the actual intensities of the jobs' time are known, and asks for their savings again. No
    /// longer than `LONGEST_WAIT`: a recorded grid may end before.
    pub async fn settle(&mut self) {
        let until = self.clock.utc() + LONGEST_WAIT;
        let ids: Vec<(String, JobId)> =
            self.jobs.iter().filter_map(|(job, _)| Some((job.name.clone(), job.ended.clone()?))).collect();
        loop {
            let mut open = false;
            for (name, id) in &ids {
                match self.controller.account_of(id).await {
                    Ok(account) => {
                        open |= account.savings.is_provisional();
                        self.reported.insert(name.clone(), account.savings);
                    }
                    Err(error) => tracing::error!(job.id = %id, "no account of a job: {error}"),
                }
            }
            if !open || self.clock.utc() >= until {
                return;
            }
            self.clock.advance(POLL);
            self.feed.poll_due(self.clock.now()).await;
            self.controller.tick().await;
            self.answer().await;
        }
    }

    /// Answers requests over HTTP.
    pub async fn answer(&mut self) {
        while let Some(request) = self.requests.waiting() {
            request.answer(&mut self.controller).await;
        }
    }

    /// Sends the progress of each running job, and ends those that are done.
    async fn report(&mut self) {
        let at = self.clock.monotonic().since(wattune_core::time::Monotonic::default());
        for (job, _) in &mut self.jobs {
            let Some(id) = job.id.clone().filter(|_| !job.is_silent()) else { continue };
            let report = ProgressReport { samples: job.done, at: Some(at) };
            if let Err(error) = self.controller.progress(&id, report).await {
                tracing::error!(job.id = %id, "the daemon refused a report: {error}");
            }
            if job.is_done() {
                match self.controller.end(&id).await {
                    Ok(account) => {
                        self.reported.insert(job.name.clone(), account.savings);
                    }
                    Err(error) => tracing::error!(job.id = %id, "the daemon could not end a job: {error}"),
                }
                job.ended = job.id.take();
            }
        }
    }

    /// Returns the daemon in it.
    pub fn controller(&self) -> &Controller {
        &self.controller
    }

    /// Returns the jobs' clients.
    pub fn jobs(&self) -> impl Iterator<Item = &Training> {
        self.jobs.iter().map(|(job, _)| job)
    }

    /// Returns the world's present.
    pub fn now(&self) -> DateTime<Utc> {
        self.clock.utc()
    }

    /// Returns the outcomes of the jobs.
    pub fn outcomes(&self) -> Vec<Outcome> {
        let outcome = |(job, objective): &(Training, Objective)| Outcome {
            name: job.name.clone(),
            objective: *objective,
            truth: job.truth(),
            against_ceiling: job.against_ceiling(&self.actual).filter(|_| job.is_done()),
            against_original: job.against_original(&self.actual).filter(|_| job.is_done()),
            reported: self.reported.get(&job.name).cloned(),
        };
        self.jobs.iter().map(outcome).collect()
    }

    /// Shuts the daemon down as a signal would.
    pub async fn end(self) {
        self.controller.shut_down().await;
    }
}

/// A GPU with the limits of the curve, at its default. For a job that is given over clocks, limits go far above its
/// power.
fn physics(SimulatedJob { curve, original_limit, .. }: &SimulatedJob, noise: f64, seed: u64) -> Physics {
    let limit = |w: Watts| PowerLimit::from_watts(w);
    let lowest = curve.points().first().map_or(Watts::ZERO, |p| p.limit);
    let highest = curve.points().last().map_or(Watts::ZERO, |p| p.limit);
    let (min, max) = match curve.clocks() {
        Some(_) => (limit(highest * 0.5), limit(highest * 2.0)),
        None => (limit(lowest), limit(highest)),
    };
    let default = original_limit.map_or(max, |original| limit(original).clamp(min, max));
    Physics {
        range: LimitRange { min, max, default },
        original_limit: default,
        idle: Watts::new(25.0),
        settling: Seconds::new(0.5),
        noise,
        seed,
    }
}

#[cfg(test)]
#[path = "world_tests.rs"]
mod tests;
