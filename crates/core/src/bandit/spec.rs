//! What a recurring job is, and how its batch sizes are to be chosen.

use serde::{Deserialize, Serialize};

use super::Knob;

/// Who chooses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PolicyName {
    /// [`super::zeus`].
    Zeus,
    /// [`super::wattune`].
    #[default]
    Wattune,
}

/// A recurring job. [`Spec::checked`] makes one that can be relied on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spec {
    /// The batch sizes to choose from: distinct, ascending.
    pub batch_sizes: Vec<u64>,
    /// What its first run takes; one of them.
    pub default_batch_size: u64,
    /// A run that has not reached its target by then is given up.
    pub max_epochs: u32,
    /// What a run costs.
    pub knob: Knob,
    /// A run is given up when it costs more than this multiple of the cheapest one that reached its target; above 1,
    /// up to [`Self::LARGEST_BETA`]. Without it runs are only given up after `max_epochs`.
    pub beta: Option<f64>,
    /// How many of its newest runs count for a batch size; 0 for all. Policy zeus alone looks at it.
    pub window: u32,
    /// Who chooses.
    pub policy: PolicyName,
}

/// Why a job cannot be one that recurs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} {why}")]
pub struct InvalidSpec {
    /// The field, as users write it.
    pub field: &'static str,
    /// What is wrong, and what would be right.
    pub why: String,
}

impl Spec {
    /// The most batch sizes that a job may have.
    pub const MOST_BATCH_SIZES: usize = 100;
    /// The largest `beta`: whoever wants more wants none.
    pub const LARGEST_BETA: f64 = 1e6;

    /// The same with its batch sizes in order.
    ///
    /// # Errors
    /// Says which field is wrong, and what would be right.
    pub fn checked(mut self) -> Result<Self, InvalidSpec> {
        let invalid = |field, why| Err(InvalidSpec { field, why });
        self.batch_sizes.sort_unstable();
        if self.batch_sizes.is_empty() || self.batch_sizes.len() > Self::MOST_BATCH_SIZES {
            let why = format!("has {} entries; give from 1 to {}", self.batch_sizes.len(), Self::MOST_BATCH_SIZES);
            return invalid("batch_sizes", why);
        }
        if self.batch_sizes[0] == 0 {
            return invalid("batch_sizes", "contains 0; a batch has at least one sample".into());
        }
        if let Some(twice) = self.batch_sizes.windows(2).find(|pair| pair[0] == pair[1]) {
            return invalid("batch_sizes", format!("names {} twice; give each once", twice[0]));
        }
        if !self.batch_sizes.contains(&self.default_batch_size) {
            let why = format!("is {}, which is not among batch_sizes", self.default_batch_size);
            return invalid("default_batch_size", why);
        }
        if self.max_epochs == 0 {
            return invalid("max_epochs", "is 0; a run needs at least one epoch".into());
        }
        if !(0.0..=1.0).contains(&self.knob.eta) {
            return invalid(
                "eta",
                format!("is {}; give a number from 0 (time alone) to 1 (energy alone)", self.knob.eta),
            );
        }
        if !(self.knob.max_power.get() > 0.0 && self.knob.max_power.get() <= 1e9) {
            return invalid("max_power_w", format!("is {}; give watts above 0", self.knob.max_power.get()));
        }
        if let Some(beta) = self.beta
            && !(beta > 1.0 && beta <= Self::LARGEST_BETA)
        {
            let most = Self::LARGEST_BETA;
            let why = format!("is {beta}; give a number above 1 and up to {most}, or null to never stop a run early");
            return invalid("beta", why);
        }
        Ok(self)
    }

    /// Where a batch size stands among those of the job.
    pub fn place(&self, batch_size: u64) -> Option<usize> {
        self.batch_sizes.binary_search(&batch_size).ok()
    }
}
