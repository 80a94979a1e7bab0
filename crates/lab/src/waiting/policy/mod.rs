//! The policies that choose when a job starts, one to a file.

mod cats;
mod clairvoyant;
mod cleanest_hour;
mod now;
mod quantile;
mod two_oclock;
mod when;

use super::kind::StartPolicy;

/// All policies.
pub const START_POLICIES: [StartPolicy; 7] = [
    now::POLICY,
    when::POLICY,
    clairvoyant::POLICY,
    cats::POLICY,
    cleanest_hour::POLICY,
    two_oclock::POLICY,
    quantile::POLICY,
];

/// Returns the policy with a name.
///
/// # Errors
/// If there is none; the error lists all names.
pub fn start_policy(name: &str) -> Result<StartPolicy, String> {
    let known = || START_POLICIES.map(|p| p.name).join(", ");
    let policy = START_POLICIES.iter().find(|p| p.name == name);
    policy.copied().ok_or_else(|| format!("no policy {name:?} chooses starts; there are {}", known()))
}
