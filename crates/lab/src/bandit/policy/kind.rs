//! The policies: names and choices.

use crate::bandit::job::Job;
use crate::bandit::run::{EndedRun, Setting};
use crate::traces::Epoch;
use wattune_core::bandit::{self, Choice, Cost, Generator, PolicyName, Spec, Trial};

/// The settings that all policies share.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Knobs {
    /// Weight of energy against time: 0 is time alone, 1 energy alone.
    pub eta: f64,
    /// Stops runs that cost so many times the cheapest; `None` never stops one.
    pub beta: Option<f64>,
    /// The number of newest runs that count for a batch size; 0 for all. For zeus alone.
    pub window: u32,
}

/// The reason why a recurring job cannot be simulated.
#[expect(missing_docs, reason = "the messages explain the fields")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SimulationError {
    /// No batch size reaches the target.
    #[error("no batch size reaches the target within {max_epochs} epochs; lower the target or allow more")]
    Hopeless { max_epochs: u32 },
    /// The first recurrence did not reach its target.
    #[error(
        "the first run, with batch size {batch_size}, did not reach the target (seed {seed}); the default batch size \
         must: choose another, more epochs, or another target"
    )]
    DefaultFails { batch_size: u64, seed: u64 },
}

/// The state of the daemon's policies in a simulation.
pub struct Learner {
    /// The job as these policies see it.
    pub(super) spec: Spec,
    pub(super) generator: Generator,
    pub(super) trials: Vec<Trial>,
    /// The limit of each profiled arm.
    pub(super) limits: Vec<Option<usize>>,
}

impl Learner {
    pub(super) fn new(job: &Job, knobs: &Knobs, policy: PolicyName, seed: u64) -> Self {
        let spec = Spec {
            batch_sizes: job.arms.iter().map(|arm| arm.batch_size).collect(),
            default_batch_size: job.arms[job.default].batch_size,
            max_epochs: job.max_epochs,
            knob: job.knob(knobs.eta),
            beta: knobs.beta,
            window: knobs.window,
            policy,
        };
        Self { spec, generator: Generator::new(seed), trials: Vec::new(), limits: vec![None; job.arms.len()] }
    }

    /// Returns the daemon's choice; `None` with nothing left to choose from.
    pub(super) fn next(&mut self) -> Option<Choice> {
        bandit::next(&self.spec, &self.trials, &mut self.generator).ok()
    }

    /// Returns the arm of the best batch size so far.
    pub(super) fn favourite(&self, job: &Job) -> usize {
        job.arm_of(bandit::favourite(&self.spec, &self.trials)).unwrap_or(job.default)
    }

    /// Returns the cost of an epoch.
    pub(super) fn epoch_cost(&self, epoch: &Epoch) -> Cost {
        self.spec.knob.cost(epoch.energy(), epoch.time)
    }
}

/// The choices of a policy for one job.
pub trait Chooser {
    /// Chooses the setting of run `number`. `in_flight`: other runs have not ended yet.
    fn choose(&mut self, job: &Job, number: u32, in_flight: bool) -> Setting;

    /// Returns the epochs after which a run is stopped at the latest. `epoch` is one of the run's.
    fn patience(&self, job: &Job, _setting: &Setting, _epoch: &Epoch) -> u32 {
        job.max_epochs
    }

    /// Learns from a run that has ended. `spent` counts for the bound if it reached its target: where runs do not overlap,
    /// the cost of all tries of the recurrence.
    fn observe(&mut self, _job: &Job, _ended: &EndedRun, _spent: Cost) {}

    /// Returns the state of a policy that learns as the daemon does.
    fn learner(&mut self) -> Option<&mut Learner> {
        None
    }

    /// Continues with other traces; profiles are void on a new GPU.
    fn switched(&mut self, job: &Job, new_gpu: bool) {
        let Some(learner) = self.learner() else { return };
        learner.spec.max_epochs = job.max_epochs;
        learner.spec.knob.max_power = job.max_power;
        if new_gpu {
            learner.limits.fill(None);
        }
    }

    /// Returns the best batch size and limit so far, as indices.
    fn favourite(&self, job: &Job) -> (usize, usize);
}

type Start = fn(&Job, &Knobs, u64) -> Result<Box<dyn Chooser>, SimulationError>;

/// A policy under its name.
#[derive(Clone, Copy, Debug)]
pub struct Policy {
    /// The name that `--policy` takes and rows carry.
    pub name: &'static str,
    /// Its rule, for the help of the command line; ends without a period.
    pub about: &'static str,
    /// Starts with a seed.
    pub start: Start,
    /// True if the very first run has to reach the target, as in the published algorithm.
    pub first_must_reach: bool,
}
