//! What a recurring job's trials are held to.

use serde::{Deserialize, Serialize};

use super::{InvalidSpec, Spec};
use crate::units::{GramsPerKwh, Seconds};

/// When a run is at its target.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Target {
    /// The metric that is to be reached.
    pub metric: f64,
    /// Whether more than that is better; if not, less is.
    pub higher_is_better: bool,
}

impl Target {
    /// Whether a metric is there. None is not, nor is what is no number.
    pub fn is_reached(&self, metric: Option<f64>) -> bool {
        metric.is_some_and(|m| if self.higher_is_better { m >= self.metric } else { m <= self.metric })
    }
}

/// What counts beside time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reward {
    /// Energy.
    #[default]
    Energy,
    /// Carbon, at an intensity that is the same for all runs: a dirty week does not look like a bad batch size.
    Carbon {
        /// That intensity.
        reference: GramsPerKwh,
    },
}

/// The boards of each run, all of one model: whose profiles its batch sizes have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Boards {
    /// As NVML names it.
    pub model: String,
    /// How many.
    pub count: u32,
}

/// A recurring job as its owner wants it. [`Terms::checked`] makes one that can be relied on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Terms {
    /// What a policy knows of it.
    pub spec: Spec,
    /// When a run is done.
    pub target: Target,
    /// How long after its last word a run is taken for dead.
    pub lease: Seconds,
    /// What counts beside time.
    pub reward: Reward,
    /// The boards, if it says.
    pub boards: Option<Boards>,
    /// What the generator starts from, if it is to be the same again.
    pub seed: Option<u64>,
}

impl Terms {
    /// The longest lease: a week.
    pub const LONGEST_LEASE: Seconds = Seconds::new(604_800.0);

    /// The same, in order.
    ///
    /// # Errors
    /// Says which field is wrong, and what would be right.
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
