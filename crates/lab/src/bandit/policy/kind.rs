//! The kind of a policy that chooses batch sizes: its name, and its choices.

use crate::bandit::job::Job;
use crate::bandit::run::{EndedRun, Setting};
use crate::traces::Epoch;
use wattune_core::bandit::{self, Choice, Cost, Generator, PolicyName, Spec, Trial};

/// Settings of all policies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Knobs {
    /// Weight of energy against time: 0 is only time, 1 only energy.
    pub eta: f64,
    /// A run is stopped when it costs this many times the cheapest one; `None` never stops a run.
    pub beta: Option<f64>,
    /// Number of newest runs of a batch size that count; 0 for all. Only for the policy zeus.
    pub window: u32,
}

/// Reason why a recurring job cannot be simulated.
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

/// State, in a simulation, of a policy that the daemon has too.
pub struct Learner {
    /// Specification of the job for the daemon's policies.
    pub(super) spec: Spec,
    pub(super) generator: Generator,
    pub(super) trials: Vec<Trial>,
    /// Index of the power limit of each arm; `None` before the arm is profiled.
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

    /// Returns the choice that the daemon would make; `None` if there is nothing left to choose from.
    pub(super) fn next(&mut self) -> Option<Choice> {
        bandit::next(&self.spec, &self.trials, &mut self.generator).ok()
    }

    /// Returns the index of the arm with the best batch size so far.
    pub(super) fn favourite(&self, job: &Job) -> usize {
        job.arm_of(bandit::favourite(&self.spec, &self.trials)).unwrap_or(job.default)
    }

    /// Returns the cost of a measured epoch.
    pub(super) fn epoch_cost(&self, epoch: &Epoch) -> Cost {
        self.spec.knob.cost(epoch.energy(), epoch.time)
    }
}

/// A policy that chooses batch sizes and limits for one job.
pub trait Chooser {
    /// Chooses batch size and limit of run `number`; `in_flight` is true if other runs have not ended yet.
    fn choose(&mut self, job: &Job, number: u32, in_flight: bool) -> Setting;

    /// Returns the number of epochs after which a run is stopped at the latest. `epoch` is a measured epoch of the run.
    fn patience(&self, job: &Job, _setting: &Setting, _epoch: &Epoch) -> u32 {
        job.max_epochs
    }

    /// Learns from a run that has ended. `spent` is the cost that counts for the bound on later runs if the run reached
    /// its target: if runs do not overlap, the cost of all tries of the recurrence.
    fn observe(&mut self, _job: &Job, _ended: &EndedRun, _spent: Cost) {}

    /// Returns the state of a policy that learns as the daemon does; `None` for other policies.
    fn learner(&mut self) -> Option<&mut Learner> {
        None
    }

    /// Continues with other traces. On a new GPU, profiles are no longer valid.
    fn switched(&mut self, job: &Job, new_gpu: bool) {
        let Some(learner) = self.learner() else { return };
        learner.spec.max_epochs = job.max_epochs;
        learner.spec.knob.max_power = job.max_power;
        if new_gpu {
            learner.limits.fill(None);
        }
    }

    /// Returns the best batch size and power limit so far, as indices of arm and level.
    fn favourite(&self, job: &Job) -> (usize, usize);
}

type Start = fn(&Job, &Knobs, u64) -> Result<Box<dyn Chooser>, SimulationError>;

/// A named policy.
#[derive(Clone, Copy, Debug)]
pub struct Policy {
    /// Name of the policy for `--policy` and in rows.
    pub name: &'static str,
    /// Rule of the policy, for the command-line help; ends without a period.
    pub about: &'static str,
    /// Starts the policy for a job, with its settings and a seed.
    pub start: Start,
    /// True if the very first run must reach the target, as in the published algorithm.
    pub first_must_reach: bool,
}
