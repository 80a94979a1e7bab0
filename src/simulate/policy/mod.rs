//! What may decide about limits: small pure functions, one to a file.
//!
//! A policy is a function from a [`View`] (the present, the job, what is known of the grid) to a [`Decision`]: steps
//! from now on, after which it is asked again. To add one, write `pub(super) fn decide(view: &View<'_>) -> Decision`
//! in a file of its own beside these, and give it a line in [`POLICIES`]:
//!
//! ```text
//! Policy { name: "mine", about: "what it does", runs: Runs::Within(mine::decide), learns: true },
//! ```
//!
//! It can then be asked for with `--policy mine`, and is compared with the others.

mod carbon_zeus;
mod clairvoyant;
mod max;
mod static_mix;
mod wattune;
mod zeus;

pub use carbon_zeus::sweep;
pub(crate) use wattune::{request, steps};

use super::replay::{Decision, View};

/// How a policy is run.
#[derive(Clone, Copy, Debug)]
pub enum Runs {
    /// Once for each budget, which it keeps itself.
    Within(fn(&View<'_>) -> Decision),
    /// The same, and once more without a budget, as its authors meant it.
    WithinAndFree(fn(&View<'_>) -> Decision),
    /// It knows no budget, but a knob from 0 to 1: it is run at `own`, and over a sweep of the knob whose frontier of
    /// carbon over time is interpolated at each budget.
    Swept {
        /// Decides with this setting of the knob.
        decide: fn(&View<'_>, f64) -> Decision,
        /// The setting of its authors.
        own: f64,
    },
}

/// A policy under its name.
#[derive(Clone, Copy, Debug)]
pub struct Policy {
    /// As `--policy` takes it and rows carry it.
    pub name: &'static str,
    /// In a line.
    pub about: &'static str,
    /// How it is run.
    pub runs: Runs,
    /// Whether it has to measure the job first, so that a sweep is charged to it where one is.
    pub learns: bool,
}

/// All of them, in the order of tables.
pub const POLICIES: [Policy; 6] = [
    Policy { name: "max", about: "the largest limit, always", runs: Runs::Within(max::decide), learns: false },
    Policy {
        name: "static",
        about: "the constant mix of two limits of least energy within the budget",
        runs: Runs::Within(static_mix::decide),
        learns: false,
    },
    Policy {
        name: "zeus",
        about: "the one limit of least energy-time cost, of those within the budget",
        runs: Runs::WithinAndFree(zeus::decide),
        learns: true,
    },
    Policy {
        name: "carbon-zeus",
        about: "every half hour the limit of least carbon-time cost at the forecast",
        runs: Runs::Swept { decide: carbon_zeus::decide, own: carbon_zeus::OWN_ETA },
        learns: true,
    },
    Policy {
        name: "wattune",
        about: "the plan of the daemon, made anew for each slot",
        runs: Runs::Within(wattune::decide),
        learns: true,
    },
    Policy {
        name: "clairvoyant",
        about: "the same plan made once, with what came: the bound",
        runs: Runs::Within(clairvoyant::decide),
        learns: false,
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
