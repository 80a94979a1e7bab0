//! Description of a policy that chooses power limits: its name, its decision function, and how a study runs it.

use crate::replay::{Decision, View};

/// Way in which a study runs a policy. A budget is the extra time that a job may take.
#[derive(Clone, Copy, Debug)]
pub enum RunMode {
    /// Once for each budget, which the policy itself keeps.
    WithinBudget(fn(&View<'_>) -> Decision),
    /// Once for each budget, which the policy itself keeps, and once without a budget, as the policy's authors meant
    /// it.
    WithinBudgetAndFree(fn(&View<'_>) -> Decision),
    /// For a policy that cannot keep a budget, but has a parameter (knob) from 0 to 1: once with the knob's value
    /// `own`, and once with each of many values. The result for a budget is interpolated on the frontier of these runs
    /// (carbon over time).
    Swept {
        /// Decides with the given value of the knob.
        decide: fn(&View<'_>, f64) -> Decision,
        /// Value of the knob that the policy's authors chose.
        authors_value: f64,
    },
}

impl RunMode {
    /// Returns the policy's decision function if the policy itself keeps a budget; else `None`.
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
    /// Name of the policy, for `--policy` and in rows of results.
    pub name: &'static str,
    /// Rule of the policy, for the command-line help; ends without a period.
    pub about: &'static str,
    /// Way in which a study runs the policy.
    pub mode: RunMode,
    /// True if the policy must first measure the job's profile, so that a study charges it for profiling.
    pub learns: bool,
}
