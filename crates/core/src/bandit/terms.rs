//! Terms of a recurring job's trials.

use serde::{Deserialize, Serialize};

use super::{InvalidSpec, Spec};
use crate::units::{GramsPerKwh, Seconds};

/// Condition under which a run is complete.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Target {
    /// Target value of the metric.
    pub metric: f64,
    /// True if a higher metric is better, false if a lower one is.
    pub higher_is_better: bool,
}

impl Target {
    /// Returns true if a metric reaches the target. An absent metric and NaN do not.
    pub fn is_reached(&self, metric: Option<f64>) -> bool {
        metric.is_some_and(|m| if self.higher_is_better { m >= self.metric } else { m <= self.metric })
    }
}

/// Quantity to minimise beside time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reward {
    /// Energy.
    #[default]
    Energy,
    /// Carbon at one intensity for all runs, so that a week with a high intensity does not distort the comparison.
    Carbon {
        /// Intensity.
        reference: GramsPerKwh,
    },
}

/// GPUs of each run, all of one model, which identify the profiles of its batch sizes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Boards {
    /// Model as named by NVML.
    pub model: String,
    /// Number of GPUs.
    pub count: u32,
}

/// A recurring job as specified by its owner; [`Terms::checked`] returns a valid one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Terms {
    /// Data for the policy.
    pub spec: Spec,
    /// Condition under which a run is complete.
    pub target: Target,
    /// Time after its last report at which a run counts as lost.
    pub lease: Seconds,
    /// Quantity to minimise beside time.
    pub reward: Reward,
    /// GPUs, if specified.
    pub boards: Option<Boards>,
    /// Seed of the generator, for reproducible choices.
    pub seed: Option<u64>,
}

impl Terms {
    /// Maximum lease: a week.
    pub const LONGEST_LEASE: Seconds = Seconds::new(604_800.0);

    /// Validates the terms.
    ///
    /// # Errors
    ///
    /// Returns the invalid field and the valid values.
    pub fn checked(mut self) -> Result<Self, InvalidSpec> {
        self.spec = self.spec.checked()?;
        let invalid = |field, why| Err(InvalidSpec { field, why });
        if !self.target.metric.is_finite() {
            return invalid("target_metric", "is not a finite number".into());
        }
        if !(1.0..=Self::LONGEST_LEASE.get()).contains(&self.lease.get()) {
            let given = self.lease.get();
            let meant = if given > 604_800.0 { "; was it given in milliseconds?" } else { "" };
            return invalid("lease_s", format!("is {given}; it must be within 1 to 604800 seconds{meant}"));
        }
        if let Reward::Carbon { reference } = self.reward
            && !(reference.get() > 0.0 && reference.get() <= 1e5)
        {
            let why = format!("is {}; give grams of CO2 equivalent per kWh, above 0", reference.get());
            return invalid("reference_g_per_kwh", why);
        }
        if let Some(boards) = &self.boards {
            if boards.model.is_empty() || boards.model.chars().count() > 128 {
                return invalid("gpu_model", "must be a text of 1 to 128 characters, as GET /v1/gpus has it".into());
            }
            if !(1..=1024).contains(&boards.count) {
                return invalid("number_of_gpus", format!("is {}; it must be within 1 to 1024", boards.count));
            }
        }
        Ok(self)
    }
}
