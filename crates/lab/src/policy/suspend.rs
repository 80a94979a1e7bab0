//! Stops alone: wattune's plans for a job that always runs at the largest limit.

use super::kind::{Policy, RunMode};
use super::wattune;
use crate::replay::{Decision, View};
use wattune_core::domain::Profile;

pub(super) const POLICY: Policy = Policy {
    name: "suspend",
    about: "stops and starts alone, planned as by wattune, at the largest limit; only for jobs that may pause or stop",
    mode: RunMode::WithinBudget(decide),
    learns: false,
};

/// Returns wattune's decision for a profile that has the largest limit alone.
fn decide(view: &View<'_>) -> Decision {
    let profile = Profile { points: view.profile.points.iter().take(1).cloned().collect() };
    wattune::decide(&View { profile: &profile, ..*view })
}
