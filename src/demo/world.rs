//! A simulated world: GPUs, jobs and a carbon grid on a clock that advances in steps, with the real daemon.
//!
//! Each step advances the clock, lets the jobs report as clients would, ticks the controller, and answers HTTP
//! requests. The outcome depends on the seed alone, not on the speed of the machine.

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
    Caller, ControlError, Controller, GpuRef, NewJob, NewOffers, NewStart, Parts, Phase, ProgressReport, Requests,
    Settings, StartBy, StartError, Wanted,
};
use crate::cpu::simulated::{FIRST_PID, SimulatedNode};
use crate::cpu::watch::CpuHandle;
use crate::gpu::GpuDevice;
use crate::gpu::handle::Sampling;
use crate::gpu::simulated::{LoadCurve, Physics, SimulatedGpu};
use crate::providers::{Feed, FeedOptions, Provider};
use wattune_core::domain::{CarbonSeries, JobId, JobName, LimitRange, Objective, PowerLimit, ProcessSelector, Work};
use wattune_core::ledger::Comparison;
use wattune_core::units::{GramsPerKwh, Seconds, Watts};

/// The longest step, after which each job reports, while a job is profiled (measured at several power limits).
const FINE: Seconds = Seconds::new(1.0);
/// The longest step while no job is profiled.
const COARSE: Seconds = Seconds::new(10.0);
/// The time limit of a planning run, so long that the outcome never depends on the speed of the machine.
const SOLVE_LIMIT: Seconds = Seconds::new(86_400.0);
/// Time between two polls for actual values after the jobs' end.
const POLL: Seconds = Seconds::new(900.0);
/// The longest wait for actual values after the jobs' end.
const LONGEST_WAIT: TimeDelta = TimeDelta::hours(6);
/// The shortest step, at the end of a job.
const FINEST: Seconds = Seconds::new(0.05);

/// A job to simulate, with its workload and objective.
#[derive(Clone, Debug)]
pub struct SimulatedJob {
    /// The job's name.
    pub name: String,
    /// The number of GPUs that the job uses.
    pub gpus: u32,
    /// The job's throughput and power on each GPU.
    pub curve: LoadCurve,
    /// The job's duration at the GPUs' original limit, which is the maximum usable limit unless `original_limit` is
    /// set.
    pub duration_at_original: Seconds,
    /// The job's objective.
    pub objective: Objective,
    /// The default and original limit of the job's GPUs; `None` for the maximum usable limit.
    pub original_limit: Option<Watts>,
    /// The job's pauses, if any.
    pub pauses: Option<Pauses>,
    /// The time for which the job offers to wait for its start; `None` if it starts at once.
    pub within: Option<Seconds>,
}

/// The contents of a simulated world.
pub struct Scenario {
    /// The jobs; each has GPUs of its own.
    pub jobs: Vec<SimulatedJob>,
    /// The GPU model of all GPUs.
    pub model: String,
    /// The source of the daemon's carbon signal.
    pub grid: TraceProvider,
    /// The actual carbon intensities.
    pub actual: CarbonSeries,
    /// The simulated time at which the world starts.
    pub start: DateTime<Utc>,
    /// The relative standard deviation of each power reading and each progress reading.
    pub noise: f64,
    /// The seed of the random deviations of these readings.
    pub seed: u64,
}

/// The outcome of a job: the ground truth, which the simulator knows, and the savings that the daemon reports.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The job's name.
    pub name: String,
    /// The job's objective.
    pub objective: Objective,
    /// The job's ground truth.
    pub truth: Truth,
    /// The comparison with the same work at the maximum usable limit; `None` if the job is unfinished, a carbon
    /// intensity is unknown, or that work has no emissions.
    pub against_ceiling: Option<Comparison>,
    /// The mean carbon intensity of the time that this work takes at the maximum usable limit; `None` if the job has
    /// not started or a carbon intensity is unknown.
    pub intensity_at_ceiling: Option<GramsPerKwh>,
    /// The comparison with the same work at the original limit; `None` if the job is unfinished or a carbon intensity
    /// is unknown.
    pub against_original: Option<Comparison>,
    /// The comparison with the same work at the maximum usable limit, started when the job was registered; `None` for a
    /// job that did not wait.
    pub against_at_once: Option<Comparison>,
    /// The time for which the job waited for its start; `None` for a job that did not wait.
    pub waited: Option<Seconds>,
    /// The savings that the daemon reports; `None` until the job has ended.
    pub reported: Option<SavingsView>,
}

/// The reason why a world cannot be built.
#[expect(missing_docs, reason = "the messages explain the fields")]
#[derive(Debug, thiserror::Error)]
pub enum WorldError {
    /// The world's daemon does not start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The world's daemon refuses a job.
    #[error("the daemon refused job {name}")]
    Refused {
        name: String,
        #[source]
        source: ControlError,
    },
}

/// A running simulated world.
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
    /// Builds the world, with the daemon's state in `state_dir`, and registers the jobs.
    pub async fn build(scenario: Scenario, state_dir: &Path, requests: Requests) -> Result<Self, WorldError> {
        let clock = Arc::new(ManualClock::at(scenario.start));
        let settings = Settings {
            tick_s: COARSE,
            // A simulated daemon is never restarted after a kill, so it needs no checkpoints.
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
            let training = Training::new(name, gpus, curve, job.duration_at_original, scenario.noise, seed);
            jobs.push((training.pausing(job.pauses.as_ref()), job.objective));
            registrations.push((indexes, job));
        }
        let node = SimulatedNode::new(every_gpu, clock.clone());
        let parts = Parts {
            settings,
            cpu: Some(CpuHandle::start(Box::new(node), clock.clone(), Sampling::OnRequest)),
            problems: vec!["this is a simulation: no hardware is measured or set".into()],
            ..Parts::new(state_dir, clock.clone(), devices, Sampling::OnRequest, feed.subscribe())
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
                replaces: None,
                gpus: indexes.into_iter().map(GpuRef::Index).collect(),
                batch_size: None,
                work: Work::TotalSamples(training.total),
                objective: job.objective,
                lease: None,
                control: true,
                priority: 0,
                tags: BTreeMap::new(),
                offers: offers(&job),
                by: Caller::Local,
                user: None,
            };
            let registered = controller.register(new).await.map_err(refused)?;
            training.id = JobId::new(registered.job_id).ok();
            match job.within {
                Some(_) => training.wait(scenario.start),
                None => training.start(scenario.start),
            }
        }
        let mut world =
            Self { clock, controller, requests, feed, jobs, reported: BTreeMap::new(), actual: scenario.actual };
        world.report().await;
        world.controller.tick().await;
        Ok(world)
    }

    /// Returns true if all jobs have done their work.
    pub fn is_done(&self) -> bool {
        self.jobs.iter().all(|(job, _)| job.is_done())
    }

    /// Advances by one step: short while a job is profiled, long otherwise, and never past the end of a job's work.
    pub async fn step(&mut self) {
        let running = self.jobs.iter().filter(|(job, _)| !job.is_done() && !job.is_held());
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

    /// Advances the clock without work until the actual carbon intensities of the time in which the jobs ran are known,
    /// and updates the reported savings. Stops after `LONGEST_WAIT`, since a recorded grid may end before it has all of
    /// them.
    pub async fn wait_for_actuals(&mut self) {
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
                    Err(error) => tracing::error!(job.id = %id, "cannot read a job's account: {error}"),
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

    /// Answers all waiting HTTP requests.
    pub async fn answer(&mut self) {
        while let Some(request) = self.requests.waiting() {
            request.answer(&mut self.controller).await;
        }
    }

    /// Sends the progress of each running job to the daemon, and ends the jobs that are done.
    async fn report(&mut self) {
        let at = self.clock.monotonic().since(wattune_core::time::Monotonic::default());
        for (job, _) in &mut self.jobs {
            let Some(id) = job.id.clone().filter(|_| !job.is_silent()) else { continue };
            if job.is_held() {
                match self.controller.renew_lease(&id).await {
                    Ok(view) if view.wanted == Wanted::Run => {
                        match self.controller.begin(&id, Caller::Local, None).await {
                            Ok(_) => job.start(self.clock.utc()),
                            Err(error) => tracing::error!(job.id = %id, "the daemon could not begin a job: {error}"),
                        }
                    }
                    Ok(_) => {}
                    Err(error) => tracing::error!(job.id = %id, "cannot renew a held job's lease: {error}"),
                }
                continue;
            }
            let report = ProgressReport::new(job.samples_done, Some(at));
            if let Err(error) = self.controller.progress(&id, report).await {
                tracing::error!(job.id = %id, "the daemon refused a report: {error}");
            }
            if job.is_done() {
                match self.controller.end(&id, Caller::Local).await {
                    Ok(account) => {
                        self.reported.insert(job.name.clone(), account.savings);
                    }
                    Err(error) => tracing::error!(job.id = %id, "the daemon could not end a job: {error}"),
                }
                job.ended = job.id.take();
            }
        }
    }

    /// Returns the world's daemon.
    pub fn controller(&self) -> &Controller {
        &self.controller
    }

    /// Returns the simulated jobs.
    pub fn jobs(&self) -> impl Iterator<Item = &Training> {
        self.jobs.iter().map(|(job, _)| job)
    }

    /// Returns the world's current time.
    pub fn now(&self) -> DateTime<Utc> {
        self.clock.utc()
    }

    /// Returns the outcomes of all jobs.
    pub fn outcomes(&self) -> Vec<Outcome> {
        let outcome = |(job, objective): &(Training, Objective)| Outcome {
            name: job.name.clone(),
            objective: *objective,
            truth: job.truth(),
            against_ceiling: job.against_ceiling(&self.actual).filter(|_| job.is_done()),
            intensity_at_ceiling: job.intensity_at_ceiling(&self.actual),
            against_original: job.against_original(&self.actual).filter(|_| job.is_done()),
            against_at_once: job.against_at_once(&self.actual).filter(|_| job.is_done()),
            waited: job.waited(),
            reported: self.reported.get(&job.name).cloned(),
        };
        self.jobs.iter().map(outcome).collect()
    }

    /// Shuts the daemon down, as SIGTERM would.
    pub async fn end(self) {
        self.controller.shut_down().await;
    }
}

/// Returns the freedom that a job offers at its registration.
fn offers(job: &SimulatedJob) -> NewOffers {
    let demand = job.curve.points().last().map_or(Watts::ZERO, |p| job.curve.at(p.limit).power);
    let start = job.within.map(|within| NewStart {
        by: StartBy::Within(within),
        duration: Some(job.duration_at_original),
        power: Some(demand * f64::from(job.gpus)),
        min_gain: None,
        max_loss_probability: None,
        idle_power: Watts::ZERO,
    });
    NewOffers { start, ..NewOffers::default() }
}

/// Returns the physics of a GPU for this job. The range of power limits is that of the job's curve, and the GPU starts
/// at its default limit. For a job whose curve is given by clock, the range extends far above the job's power.
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
