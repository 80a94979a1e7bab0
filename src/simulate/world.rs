//! A small world: boards, jobs and a grid on a clock that moves step by step, with the real daemon in its middle.
//!
//! Each step moves the clock, lets the jobs report as clients would, ticks the controller, and answers whoever asks
//! over HTTP. The outcome depends on the seed alone, not on the speed of the machine.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use chrono::{DateTime, TimeDelta, Utc};

use super::grid::TraceProvider;
use super::pauses::Pauses;
use super::training::Training;
use crate::clock::{Clock, ManualClock};
use crate::controller::view::SavingsView;
use crate::controller::{
    BudgetSettings, CapSettings, ControlError, Controller, GpuRef, NewJob, Parts, Phase, ProgressReport, RankBoard,
    Requests, Settings, StartError,
};
use crate::cpu::simulated::{FIRST_PID, SimulatedNode};
use crate::cpu::watch::{CpuHandle, Pace};
use crate::gpu::GpuDevice;
use crate::gpu::simulated::{LoadCurve, Physics, SimulatedBoard};
use crate::gpu::thread::Sampling;
use crate::providers::{CarbonSettings, Feed, FeedOptions, Provider};
use crate::simulate::Truth;
use wattune_core::domain::{CarbonSeries, Claim, JobId, JobName, LimitRange, Objective, PowerLimit, Work};
use wattune_core::ledger::Comparison;
use wattune_core::profile::Settings as ProfileSettings;
use wattune_core::units::{Seconds, Watts};

/// Time between two reports of a job while it is profiled.
const FINE: Seconds = Seconds::new(1.0);
/// And otherwise.
const COARSE: Seconds = Seconds::new(10.0);
/// Plans are awaited, however long they take on this machine: a simulation's outcome must not depend on its speed.
const PATIENT: Seconds = Seconds::new(86_400.0);
/// Time between two looks at whether the grid has told what came.
const PAUSE: Seconds = Seconds::new(900.0);
/// It is not waited for any longer.
const PATIENCE: TimeDelta = TimeDelta::hours(6);
/// The last step of a job is not made shorter than this.
const FINEST: Seconds = Seconds::new(0.05);

/// A job to simulate.
#[derive(Clone, Debug)]
pub struct Plot {
    /// Its name.
    pub name: String,
    /// How many boards it takes.
    pub boards: u32,
    /// What it does on each.
    pub curve: LoadCurve,
    /// How long it takes at the ceiling.
    pub at_ceiling: Seconds,
    /// What it may cost.
    pub objective: Objective,
    /// The default limit of its boards, at which they are found; their largest if absent.
    pub found: Option<Watts>,
    /// Its own pauses, if it makes any.
    pub pauses: Option<Pauses>,
}

/// What to simulate.
pub struct Scenario {
    /// The jobs; each gets boards of its own.
    pub jobs: Vec<Plot>,
    /// The model's name of all boards.
    pub model: String,
    /// The grid as the daemon sees it.
    pub grid: TraceProvider,
    /// The grid as it is.
    pub actual: CarbonSeries,
    /// When it begins.
    pub start: DateTime<Utc>,
    /// Relative noise of each power reading and each progress reading.
    pub noise: f64,
    /// Seed of that noise.
    pub seed: u64,
}

/// How a job came out, by the boards' truth.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Its name.
    pub name: String,
    /// Its objective.
    pub objective: Objective,
    /// What really happened.
    pub truth: Truth,
    /// Against the ceiling; none while the job is unfinished or the grid unknown.
    pub against_ceiling: Option<Comparison>,
    /// Against the limit at which its boards were found.
    pub against_found: Option<Comparison>,
    /// What the daemon says that it saved, once it has ended.
    pub reported: Option<SavingsView>,
}

/// Why a world cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum WorldError {
    /// The daemon in it does not start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The daemon in it refuses a job.
    #[error("the daemon refused job {name}")]
    Refused {
        /// The job.
        name: String,
        /// Why.
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
    ///
    /// # Errors
    /// If the daemon does not start there, or refuses a job.
    pub async fn build(scenario: Scenario, state_dir: &Path, requests: Requests) -> Result<Self, WorldError> {
        let clock = Arc::new(ManualClock::at(scenario.start));
        let settings = Settings {
            tick_s: COARSE,
            // Nobody goes on from a simulated daemon that was killed.
            checkpoint_s: Seconds::new(f64::MAX),
            default_lease_s: Seconds::new(600.0),
            solve_limit_s: PATIENT,
            ..Settings::default()
        };
        let grid: Arc<dyn Provider> = Arc::new(scenario.grid);
        let mut feed = Feed::start(vec![vec![grid]], FeedOptions::default(), clock.now()).await;
        feed.poll_due(clock.now()).await;
        let (mut devices, mut jobs, mut plots, mut every_board) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for (number, plot) in (0u64..).zip(scenario.jobs) {
            let seed = scenario.seed.wrapping_mul(1_000_003).wrapping_add(number * 101);
            let mut boards = Vec::new();
            for _ in 0..plot.boards {
                let index = u32::try_from(devices.len()).unwrap_or(u32::MAX);
                let physics = physics(&plot, scenario.noise, seed.wrapping_add(u64::from(index)));
                let mut board = SimulatedBoard::new(physics, clock.clone());
                if let Some(clocks) = plot.curve.clocks() {
                    board = board.with_clocks(clocks);
                }
                devices.push(Box::new(board.device(index, &scenario.model)) as Box<dyn GpuDevice>);
                every_board.push(board.clone());
                boards.push((index, board));
            }
            let (indexes, boards): (Vec<u32>, Vec<SimulatedBoard>) = boards.into_iter().unzip();
            let (curve, name) = (plot.curve.clone(), plot.name.clone());
            let training = Training::new(name, boards, curve, plot.at_ceiling, scenario.noise, seed);
            jobs.push((training.pausing(plot.pauses.as_ref()), plot.objective));
            plots.push((indexes, plot));
        }
        let node = SimulatedNode::new(every_board, clock.clone());
        let parts = Parts {
            settings,
            profiling: ProfileSettings::default(),
            planning: wattune_core::plan::Settings::default(),
            carbon: CarbonSettings::default(),
            cap: CapSettings::default(),
            carbon_budget: BudgetSettings::default(),
            books: Default::default(),
            state_dir,
            clock: clock.clone(),
            devices,
            sampling: Sampling::OnRequest,
            cpu: Some(CpuHandle::start(Box::new(node), clock.clone(), Pace::OnRequest)),
            signal: feed.subscribe(),
            ranks: RankBoard::default(),
            price: None,
            problems: vec!["this is a simulation: no hardware is measured or set".into()],
        };
        let mut controller = Controller::start(parts).await?;
        controller.tick().await;
        for ((training, _), (indexes, plot)) in jobs.iter_mut().zip(plots) {
            let refused = |source| WorldError::Refused { name: plot.name.clone(), source };
            let name = JobName::new(&plot.name);
            let name = name.map_err(|e| refused(ControlError::Conflict(e.to_string())))?;
            let new = NewJob {
                name,
                claim: Some(Claim::Pids(indexes.iter().map(|index| FIRST_PID + index).collect())),
                gpus: indexes.into_iter().map(GpuRef::Index).collect(),
                batch_size: None,
                work: Work::TotalSamples(training.total),
                objective: plot.objective,
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

    /// Whether all jobs are done.
    pub fn is_done(&self) -> bool {
        self.jobs.iter().all(|(job, _)| job.is_done())
    }

    /// Moves on by one step: fine while something is measured, coarse otherwise, and just to the end of a job.
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

    /// Lets time pass without work until the grid has told what came while the jobs ran, and asks again what they saved.
    /// No longer than `PATIENCE`: a recorded grid may end before.
    pub async fn settle(&mut self) {
        let until = self.clock.utc() + PATIENCE;
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
                    Err(error) => tracing::error!(job.id = %id, "the daemon does not tell what a job used: {error}"),
                }
            }
            if !open || self.clock.utc() >= until {
                return;
            }
            self.clock.advance(PAUSE);
            self.feed.poll_due(self.clock.now()).await;
            self.controller.tick().await;
            self.answer().await;
        }
    }

    /// Answers those who ask over HTTP.
    pub async fn answer(&mut self) {
        while let Some(asked) = self.requests.waiting() {
            asked.answer(&mut self.controller).await;
        }
    }

    /// Each running job tells how far it is; one that is done says goodbye.
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

    /// The daemon in it.
    pub fn controller(&self) -> &Controller {
        &self.controller
    }

    /// The jobs' clients.
    pub fn jobs(&self) -> impl Iterator<Item = &Training> {
        self.jobs.iter().map(|(job, _)| job)
    }

    /// The world's present.
    pub fn now(&self) -> DateTime<Utc> {
        self.clock.utc()
    }

    /// How the jobs came out.
    pub fn outcomes(&self) -> Vec<Outcome> {
        let outcome = |(job, objective): &(Training, Objective)| Outcome {
            name: job.name.clone(),
            objective: *objective,
            truth: job.truth(),
            against_ceiling: job.against_ceiling(&self.actual).filter(|_| job.is_done()),
            against_found: job.against_found(&self.actual).filter(|_| job.is_done()),
            reported: self.reported.get(&job.name).cloned(),
        };
        self.jobs.iter().map(outcome).collect()
    }

    /// Shuts the daemon down as a signal would.
    pub async fn end(self) {
        self.controller.shut_down().await;
    }
}

/// A board that takes the limits of the curve and is found at its default. For a job that is given over clocks, limits
/// go far above what it draws.
fn physics(Plot { curve, found, .. }: &Plot, noise: f64, seed: u64) -> Physics {
    let limit = |w: Watts| PowerLimit::from_watts(w);
    let lowest = curve.points().first().map_or(Watts::ZERO, |p| p.limit);
    let highest = curve.points().last().map_or(Watts::ZERO, |p| p.limit);
    let (min, max) = match curve.clocks() {
        Some(_) => (limit(highest * 0.5), limit(highest * 2.0)),
        None => (limit(lowest), limit(highest)),
    };
    let default = found.map_or(max, |found| limit(found).clamp(min, max));
    Physics {
        range: LimitRange { min, max, default },
        found: default,
        idle: Watts::new(25.0),
        settling: Seconds::new(0.5),
        noise,
        seed,
    }
}

#[cfg(test)]
#[path = "world_tests.rs"]
mod tests;
