//! Policies that choose batch sizes and power limits of recurring jobs, one to a file.
//!
//! A policy is a [`Chooser`]. To add one, write a file like the ones here with a constant `POLICY`, and add this
//! constant to [`POLICIES`]. Then `--policy` accepts the policy's name, and the help shows it.

mod fixed;
mod grid;
mod kind;
mod wattune;
mod zeus;

pub use kind::{Chooser, Knobs, Learner, Policy, SimulationError};

/// All policies for recurring jobs.
pub const POLICIES: &[Policy] = &[
    // The order is that of the tables of results.
    fixed::DEFAULT,
    grid::POLICY,
    zeus::POLICY,
    wattune::POLICY,
    fixed::ORACLE,
];

/// Returns the policy with this name; the error lists the names that exist.
pub fn named(name: &str) -> Result<Policy, String> {
    let known = || POLICIES.iter().map(|p| p.name).collect::<Vec<_>>().join(", ");
    let policy = POLICIES.iter().find(|p| p.name == name);
    policy.copied().ok_or_else(|| format!("no policy {name:?}; there are {}", known()))
}
