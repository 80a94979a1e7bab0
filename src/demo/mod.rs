//! The daemon on simulated GPUs with a clock that advances on command: for `wattune demo`, and for tests and benches
//! that need the simulator's ground truth.

mod grid;
mod pauses;
mod training;
mod world;

pub use grid::{SyntheticGrid, TraceProvider};
pub use pauses::Pauses;
pub use training::{Training, Truth};
pub use world::{Outcome, Scenario, SimulatedJob, World, WorldError};

#[cfg(test)]
mod changes_tests;
