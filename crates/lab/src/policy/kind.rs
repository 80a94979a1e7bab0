//! The policies: names, decisions, and how a study runs them.

use crate::replay::{Decision, View};

/// The way a study runs a policy.
#[derive(Clone, Copy, Debug)]
pub enum RunMode {
    /// Once for each budget, which it keeps itself.
    WithinBudget(fn(&View<'_>) -> Decision),
    /// The same, and once more without a budget, as its authors meant it.
    WithinBudgetAndFree(fn(&View<'_>) -> Decision),
    /// The policy has no budget, but a knob from 0 to 1: it runs at `own`, and over a sweep of the knob whose frontier of
    /// carbon over time is interpolated at each budget.
    Swept {
        /// Decides with this setting of the knob.
        decide: fn(&View<'_>, f64) -> Decision,
        /// The setting of its authors.
        own: f64,
    },
}

impl RunMode {
    /// Returns the decision within a budget; `None` for a policy without one.
    pub fn within_budget(&self) -> Option<fn(&View<'_>) -> Decision> {
        match self {
            Self::WithinBudget(decide) | Self::WithinBudgetAndFree(decide) => Some(*decide),
            Self::Swept { .. } => None,
        }
    }
}

/// A policy under its name.
#[derive(Clone, Copy, Debug)]
pub struct Policy {
    /// The name that `--policy` takes and rows carry.
    pub name: &'static str,
    /// Its rule, for the help of the command line; ends without a period.
    pub about: &'static str,
    /// The way a study runs it.
    pub mode: RunMode,
    /// True if it has to measure the job first, so that it pays for profiling where a study charges that.
    pub learns: bool,
}
