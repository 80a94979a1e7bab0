//! The same pure core driven by traces: the whole daemon with a clock that moves when told to and simulated boards
//! ([`World`]), and single jobs replayed under policies ([`replay`], [`policy`], [`study`]).

pub mod bandit;
mod files;
mod grid;
mod pauses;
pub mod policy;
pub mod replay;
pub mod study;
mod traces;
mod training;
mod world;

pub use files::{GridError, IssueTime, gpu_name, grid_name, read_grid};
pub use grid::{SyntheticGrid, TraceProvider};
pub use pauses::Pauses;
pub use traces::{TraceError, Workload, power_curve};
pub use training::{Training, Truth};
pub use world::{Outcome, Plot, Scenario, World, WorldError};
