//! The policy that always uses the largest power limit: the reference with which all policies are compared.

use super::kind::{Policy, RunMode};
use crate::replay::{Decision, Step, View};

pub(super) const POLICY: Policy =
    Policy { name: "max", about: "always the largest limit", mode: RunMode::WithinBudget(decide), learns: false };

/// Returns training at the first point of the profile, which is that of the largest limit, to the end of the job.
fn decide(_view: &View<'_>) -> Decision {
    Ok(vec![Step::to_the_end(0)])
}
