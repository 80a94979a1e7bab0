//! Policies that choose power limits of a job: small pure functions, one to a file.
//!
//! A policy is a function from a [`View`](crate::replay::View) (the present time, the job, the known part of the grid)
//! to a [`Decision`](crate::replay::Decision): steps from now on, after which the policy decides again. To add a
//! policy, write a file like the ones here with a constant `POLICY`, and add this constant to [`POLICIES`]. Then
//! `--policy` accepts the policy's name, the help shows it, and studies compare it with the others.

mod carbon_zeus;
mod clairvoyant;
mod kind;
mod max;
mod static_mix;
mod suspend;
mod wattune;
mod zeus;

pub use kind::{Policy, RunMode};

/// All policies that choose power limits.
pub const POLICIES: &[Policy] = &[
    // The order is that of the tables of results.
    max::POLICY,
    static_mix::POLICY,
    zeus::POLICY,
    carbon_zeus::POLICY,
    suspend::POLICY,
    wattune::POLICY,
    clairvoyant::POLICY,
];

/// Returns the policy with this name; the error lists the names that exist.
pub fn named(name: &str) -> Result<Policy, String> {
    let known = || POLICIES.iter().map(|p| p.name).collect::<Vec<_>>().join(", ");
    let policy = POLICIES.iter().find(|p| p.name == name);
    policy.copied().ok_or_else(|| format!("no policy {name:?}; there are {}", known()))
}
