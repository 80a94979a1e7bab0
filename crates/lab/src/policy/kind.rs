//! The kind of a policy: its name, its decision, and how a study runs it.

use crate::replay::{Decision, View};

/// The way a study runs a policy.
#[derive(Clone, Copy, Debug)]
pub enum RunMode {
    /// Once for each budget of extra time, which the policy itself keeps.
    WithinBudget(fn(&View<'_>) -> Decision),
    /// Once for each budget, which the policy keeps, and once without a budget, as the policy's authors meant it.
    WithinBudgetAndFree(fn(&View<'_>) -> Decision),
    /// For a policy without a budget, but with a parameter (knob) from 0 to 1: once with `own`, and once with each of
    /// many values, whose frontier of carbon over time is interpolated at each budget.
    Swept {
        /// Decides with the given value of the knob.
        decide: fn(&View<'_>, f64) -> Decision,
        /// The authors' value of the knob.
        own: f64,
    },
}

impl RunMode {
    /// Returns the policy's decision within a budget; `None` for a policy without a budget.
    pub fn within_budget(&self) -> Option<fn(&View<'_>) -> Decision> {
        match self {
            Self::WithinBudget(decide) | Self::WithinBudgetAndFree(decide) => Some(*decide),
            Self::Swept { .. } => None,
        }
    }
}

/// A named policy.
#[derive(Clone, Copy, Debug)]
pub struct Policy {
    /// Name of the policy for `--policy` and in rows.
    pub name: &'static str,
    /// Rule of the policy, for the command-line help; ends without a period.
    pub about: &'static str,
    /// Way in which a study runs the policy.
    pub mode: RunMode,
    /// True if the policy must measure the job first, so that a study charges it for profiling.
    pub learns: bool,
}
