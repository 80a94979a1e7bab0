//! Policies that choose batch sizes and power limits of recurring jobs, one to a file.
//!
//! A policy is a [`Chooser`]. To add one, write a file with its `POLICY` beside these, and add a line to [`POLICIES`].
//! Then `--policy` accepts its name, and the help shows it.

mod fixed;
mod grid;
mod kind;
mod wattune;
mod zeus;

pub use kind::{Chooser, Knobs, Learner, Policy, SimulationError};

/// All policies for recurring jobs.
pub const POLICIES: &[Policy] = &[
    // In the order of tables of results.
    fixed::DEFAULT,
    grid::POLICY,
    zeus::POLICY,
    wattune::POLICY,
    fixed::ORACLE,
];

/// Returns the policy with this name.
pub fn named(name: &str) -> Result<Policy, String> {
    let known = || POLICIES.iter().map(|p| p.name).collect::<Vec<_>>().join(", ");
    let policy = POLICIES.iter().find(|p| p.name == name);
    policy.copied().ok_or_else(|| format!("no policy {name:?}; there are {}", known()))
}
