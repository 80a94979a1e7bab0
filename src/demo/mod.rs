//! The daemon on simulated GPUs, with a clock that it moves itself: for `wattune demo`, and for tests and benches that need
//! the ground truth.

mod grid;
mod pauses;
mod training;
mod world;

pub use grid::{SyntheticGrid, TraceProvider};
pub use pauses::Pauses;
pub use training::{Training, Truth};
pub use world::{Outcome, Scenario, SimulatedJob, World, WorldError};
