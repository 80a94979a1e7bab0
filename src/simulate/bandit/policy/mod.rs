//! What may choose batch sizes and limits: small files, one to a policy.
//!
//! A policy [`Chooses`]. To add one, write it in a file of its own beside these, and give it a line in [`POLICIES`].

mod fixed;
mod grid;
mod wattune;
mod zeus;

use super::{Done, Epoch, Job, SimulationError};
use wattune_core::bandit::{Cost, PolicyName, Spec};
use wattune_core::units::{Joules, Seconds};

/// What all policies are told beforehand.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Knobs {
    /// From 0, time alone, to 1, energy alone.
    pub eta: f64,
    /// Runs may cost so many times the cheapest before they are stopped; `None` never stops one.
    pub beta: Option<f64>,
    /// How many of its newest runs count for a batch size; 0 for all. For zeus alone.
    pub window: u32,
}

/// What a run runs with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Setting {
    /// The place of its batch size among the job's arms.
    pub arm: usize,
    /// The place of its limit among the arm's.
    pub level: usize,
    /// What its first epoch takes where it looks for its limit.
    pub profiling: Option<(Joules, Seconds)>,
}

/// A policy at work on one job.
pub trait Chooses {
    /// What run `number` takes. `in_flight`: other runs have not ended yet.
    fn choose(&mut self, job: &Job, number: u32, in_flight: bool) -> Setting;

    /// After how many epochs it is given up at the latest. `epoch` is one of the run's.
    fn patience(&self, job: &Job, _setting: &Setting, _epoch: &Epoch) -> u32 {
        job.max_epochs
    }

    /// A run has ended. `spent` is what counts for the bound if it reached its target: where runs do not overlap, the
    /// cost of all tries of the recurrence.
    fn observe(&mut self, _job: &Job, _done: &Done, _spent: Cost) {}

    /// The traces were switched; on a new board profiles say nothing any more.
    fn switched(&mut self, _job: &Job, _new_board: bool) {}

    /// Batch size and limit that it holds for the best, as places.
    fn favourite(&self, job: &Job) -> (usize, usize);
}

type Begins = fn(&Job, &Knobs, u64) -> Result<Box<dyn Chooses>, SimulationError>;

/// A policy under its name.
#[derive(Clone, Copy, Debug)]
pub struct Policy {
    /// As `--policy` takes it and rows carry it.
    pub name: &'static str,
    /// In a line.
    pub about: &'static str,
    /// Begins with a seed.
    pub begins: Begins,
    /// Whether the very first run has to reach the target, as in the published algorithm.
    pub first_must_reach: bool,
}

/// All of them, in the order of tables.
pub const POLICIES: [Policy; 5] = [
    Policy {
        name: "default",
        about: "the default batch size at the largest limit, always",
        begins: fixed::default,
        first_must_reach: false,
    },
    Policy {
        name: "grid",
        about: "every batch size at every limit once, then the cheapest",
        begins: grid::begin,
        first_must_reach: false,
    },
    Policy {
        name: "zeus",
        about: "pruning, then Gaussian Thompson sampling",
        begins: zeus::begin,
        first_must_reach: true,
    },
    Policy {
        name: "wattune",
        about: "one belief about all batch sizes; explores where it may pay",
        begins: wattune::begin,
        first_must_reach: false,
    },
    Policy {
        name: "oracle",
        about: "the best batch size and limit, known beforehand",
        begins: fixed::oracle,
        first_must_reach: false,
    },
];

/// The policy of this name.
///
/// # Errors
/// Names those there are.
pub fn named(name: &str) -> Result<Policy, String> {
    let known = || POLICIES.iter().map(|p| p.name).collect::<Vec<_>>().join(", ");
    POLICIES.into_iter().find(|p| p.name == name).ok_or_else(|| format!("no policy {name:?}; there are {}", known()))
}

/// The job as the policies of the daemon know it.
fn spec(job: &Job, knobs: &Knobs, policy: PolicyName) -> Spec {
    Spec {
        batch_sizes: job.arms.iter().map(|arm| arm.batch_size).collect(),
        default_batch_size: job.arms[job.default].batch_size,
        max_epochs: job.max_epochs,
        knob: job.knob(knobs.eta),
        beta: knobs.beta,
        window: knobs.window,
        policy,
    }
}
