//! How plans are made and how steadily they are followed.

use serde::{Deserialize, Serialize};

use super::fleet::Solver;
use super::risk::Risk;
use super::slots::SlotPolicy;
use crate::units::{Seconds, Watts};

/// Settings of the planner.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Which value of a forecast's interval is planned with.
    pub risk: Risk,
    /// A new plan replaces the old one only if it costs less by this part.
    pub better_by: f64,
    /// The shortest time between two changes of a job's limits.
    pub dwell_s: Seconds,
    /// The most that a job's limits change within a minute; absent: any change at once.
    pub ramp_w_per_min: Option<Watts>,
    /// Slots of a forecast shorter than this are averaged.
    pub shortest_slot_s: Seconds,
    /// How far ahead slots stay as fine as the forecast.
    pub near_s: Seconds,
    /// Slots beyond that which are shorter than this are averaged.
    pub far_slot_s: Seconds,
    /// Solver of the plans of jobs that share a cap or a carbon budget.
    pub solver: Solver,
}

impl Default for Settings {
    fn default() -> Self {
        let SlotPolicy { shortest, near, far } = SlotPolicy::default();
        Self {
            risk: Risk::Expected,
            better_by: 0.0005,
            dwell_s: Seconds::new(1200.0),
            ramp_w_per_min: None,
            shortest_slot_s: shortest,
            near_s: near,
            far_slot_s: far,
            solver: Solver::default(),
        }
    }
}

impl Settings {
    /// How fine slots are.
    pub fn slots(&self) -> SlotPolicy {
        SlotPolicy { shortest: self.shortest_slot_s, near: self.near_s, far: self.far_slot_s }
    }

    /// Checks what the types cannot; the answer names the key and what would be right.
    ///
    /// # Errors
    /// For the first value out of range.
    pub fn check(&self) -> Result<(), String> {
        if !(0.0..=0.1).contains(&self.better_by) {
            return Err(format!("better_by = {} must be within 0 to 0.1: 0.001 is 0.1 %", self.better_by));
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
