//! Description of a policy that chooses batch sizes, and the trait that such policies implement.

use crate::bandit::job::Job;
use crate::bandit::run::{EndedRun, Setting};
use crate::traces::Epoch;
use wattune_core::bandit::{self, Choice, Cost, Generator, PolicyName, Spec, Trial};

/// Settings that all policies get.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Knobs {
    /// Weight of energy against time in costs: 0 if only time counts, 1 if only energy counts.
    pub eta: f64,
    /// Cost at which a run is stopped: with the policy zeus, a multiple of the cost of the cheapest run that reached the
    /// target, with wattune, of the expected cost of the best batch size; `None` if no run is stopped.
    pub beta: Option<f64>,
    /// Number of newest runs of a batch size that cost estimates use; 0 for all. Only the policy zeus uses it.
    pub window: u32,
}

/// Reason why a recurring job cannot be simulated.
#[expect(missing_docs, reason = "the messages explain the fields")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SimulationError {
    /// No batch size reaches the target within the maximum number of epochs.
    #[error("no batch size reaches the target within {max_epochs} epochs; lower the target or allow more")]
    Hopeless { max_epochs: u32 },
    /// No run of the first recurrence reached the target.
    #[error(
        "the first run, with batch size {batch_size}, did not reach the target (seed {seed}); the default batch size \
         must: choose another, more epochs, or another target"
    )]
    DefaultFails { batch_size: u64, seed: u64 },
}

/// State of a simulated policy that chooses batch sizes as one of the daemon's policies does.
pub struct Learner {
    /// Specification of the job, as the daemon's policies need it.
    pub(super) spec: Spec,
    pub(super) generator: Generator,
    pub(super) trials: Vec<Trial>,
    /// Index of each arm's best power limit; `None` for arms that were not profiled yet.
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
            zeus: None,
        };
        Self { spec, generator: Generator::new(seed), trials: Vec::new(), limits: vec![None; job.arms.len()] }
    }

    /// Returns the choice that the daemon would make; `None` if no batch size is left to choose from.
    pub(super) fn next(&mut self) -> Option<Choice> {
        bandit::next(&self.spec, &self.trials, &mut self.generator).ok()
    }

    /// Returns the index of the arm whose batch size is the best so far.
    pub(super) fn favourite(&self, job: &Job) -> usize {
        job.arm_of(bandit::favourite(&self.spec, &self.trials)).unwrap_or(job.default)
    }

    /// Returns the cost of a measured epoch.
    pub(super) fn epoch_cost(&self, epoch: &Epoch) -> Cost {
        self.spec.knob.cost(epoch.energy(), epoch.time)
    }
}

/// A policy that chooses batch sizes and power limits of the runs of one job.
pub trait Chooser {
    /// Chooses batch size and power limit of the run with this `number`; `in_flight` is true if other runs have not
    /// ended yet.
    fn choose(&mut self, job: &Job, number: u32, in_flight: bool) -> Setting;

    /// Returns the number of epochs after which a run is stopped, if it has not reached its target. `epoch` is the
    /// measured epoch that was drawn for the run.
    fn patience(&self, job: &Job, _setting: &Setting, _epoch: &Epoch) -> u32 {
        job.max_epochs
    }

    /// Learns from a run that has ended. If the run reached its target, `spent` is the cost from which later runs' cost
    /// limit follows: if runs overlap, the cost of this run, else of all runs of the recurrence.
    fn observe(&mut self, _job: &Job, _ended: &EndedRun, _spent: Cost) {}

    /// Returns the learner if this policy learns as one of the daemon's does; `None` otherwise.
    fn learner(&mut self) -> Option<&mut Learner> {
        None
    }

    /// Continues with other traces, those of `job`. If they are of a new GPU, the best power limits are learned anew.
    fn switched(&mut self, job: &Job, new_gpu: bool) {
        let Some(learner) = self.learner() else { return };
        learner.spec.max_epochs = job.max_epochs;
        learner.spec.knob.max_power = job.max_power;
        if new_gpu {
            learner.limits.fill(None);
        }
    }

    /// Returns the best batch size (first, as index of an arm) and its best power limit (second, as index of a level)
    /// so far.
    fn favourite(&self, job: &Job) -> (usize, usize);
}

type Start = fn(&Job, &Knobs, u64) -> Result<Box<dyn Chooser>, SimulationError>;

/// Description of a policy: its name, and how it starts.
#[derive(Clone, Copy, Debug)]
pub struct Policy {
    /// Name of the policy, for `--policy` and in rows of results.
    pub name: &'static str,
    /// Rule of the policy, for the command-line help; ends without a period.
    pub about: &'static str,
    /// Starts the policy for a job, with settings and with the seed of the policy's random generator.
    pub start: Start,
    /// True if the very first run of a job must reach the target, as in the published algorithm.
    pub first_must_reach: bool,
}
