//! Settings of recurring jobs.

use serde::{Deserialize, Serialize};

use wattune_core::bandit::Terms;
use wattune_core::units::Seconds;

/// Settings of recurring jobs, the table `[recurring]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// The time after its last report at which a trial of a Zeus client counts as lost. If the client reports later, the
    /// trial goes on. Applies to jobs that are registered from then on.
    pub zeus_lease_s: Seconds,
}

impl Default for Settings {
    fn default() -> Self {
        Self { zeus_lease_s: Seconds::new(3600.0) }
    }
}

impl Settings {
    /// Checks the values. The error names the key and what would be right.
    ///
    /// # Errors
    /// The first invalid value.
    pub fn check(&self) -> Result<(), String> {
        let (given, longest) = (self.zeus_lease_s.get(), Terms::LONGEST_LEASE.get());
        if !(1.0..=longest).contains(&given) {
            return Err(format!("zeus_lease_s = {given} must be from 1 to {longest} seconds"));
        }
        Ok(())
    }
}
