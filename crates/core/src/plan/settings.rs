//! Settings of the planner.

use serde::{Deserialize, Serialize};

use super::fleet::Solver;
use super::risk::Risk;
use crate::units::{Seconds, Watts};

/// Settings of the planner.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Value of the carbon-intensity forecast to plan with: the expected value or a quantile.
    pub risk: Risk,
    /// Minimum relative cost reduction for which a new plan replaces the current one; 0.001 is 0.1 %.
    pub better_by: f64,
    /// Minimum time between two changes of a job's power limits.
    pub dwell_s: Seconds,
    /// Maximum change of each GPU's power limit per minute; unlimited if absent.
    pub ramp_w_per_min: Option<Watts>,
    /// Minimum length of the plan's slots (time steps): shorter slots of the forecast are averaged to this length.
    pub shortest_slot_s: Seconds,
    /// Time from now within which slots are averaged to `shortest_slot_s` only; later slots are averaged to
    /// `far_slot_s`.
    pub near_s: Seconds,
    /// Minimum length of the plan's slots beyond `near_s`: shorter slots of the forecast are averaged to this length.
    pub far_slot_s: Seconds,
    /// Solver for the joint plans of jobs that share a power cap or a carbon budget.
    pub solver: Solver,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            risk: Risk::Expected,
            better_by: 0.0005,
            dwell_s: Seconds::new(1200.0),
            ramp_w_per_min: None,
            shortest_slot_s: Seconds::new(1800.0),
            near_s: Seconds::new(172_800.0),
            far_slot_s: Seconds::new(10_800.0),
            solver: Solver::default(),
        }
    }
}

impl Settings {
    /// Checks that all values are in range. The error names the key and its valid range.
    ///
    /// # Errors
    /// For the first value out of range.
    pub fn check(&self) -> Result<(), String> {
        if !(0.0..=0.1).contains(&self.better_by) {
            return Err(format!("better_by = {} must be from 0 to 0.1: 0.001 is 0.1 %", self.better_by));
        }
        self.dwell_s.check("dwell_s", 0.0, 86_400.0)?;
        if let Some(ramp) = self.ramp_w_per_min.filter(|ramp| *ramp < Watts::new(1.0)) {
            return Err(format!("ramp_w_per_min = {} must be at least 1 W per minute", ramp.get()));
        }
        self.shortest_slot_s.check("shortest_slot_s", 1.0, 86_400.0)?;
        self.near_s.check("near_s", 3600.0, 30.0 * 86_400.0)?;
        self.far_slot_s.check("far_slot_s", self.shortest_slot_s.get(), 86_400.0)
    }
}
