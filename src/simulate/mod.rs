//! The same daemon driven by traces, a clock that moves when told to, and simulated boards.

mod grid;
mod traces;
mod training;
mod world;

pub use grid::{SyntheticGrid, TraceProvider};
pub use traces::{TraceError, Workload, power_curve};
pub use training::{Training, Truth};
pub use world::{Outcome, Plot, Scenario, World, WorldError};
