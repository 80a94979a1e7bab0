//! Specification of a recurring job: its batch sizes, the policy that chooses among them, and the terms of its trials.

use serde::{Deserialize, Serialize};

use super::{Knob, ZeusSpec};
use crate::units::{GramsPerKwh, Seconds};

/// Policy that chooses batch sizes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PolicyName {
    /// Zeus's published policy ([`super::zeus`]).
    Zeus,
    /// wattune's policy with less exploration ([`super::wattune`]).
    #[default]
    Wattune,
}

/// Input of the policies for a recurring job. [`Spec::checked`] validates it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spec {
    /// Batch sizes to choose from: distinct, ascending.
    pub batch_sizes: Vec<u64>,
    /// Batch size of the first run; one of `batch_sizes`.
    pub default_batch_size: u64,
    /// Maximum number of epochs of a run.
    pub max_epochs: u32,
    /// Weights of energy and time in the cost of a run.
    pub knob: Knob,
    /// β, the cost limit of a run: a run is stopped when it costs more than `beta` times the cheapest run that reached
    /// its target. Above 1, up to [`Self::LARGEST_BETA`]; `None` if runs stop only at `max_epochs`.
    pub beta: Option<f64>,
    /// Number of newest runs of each batch size that cost estimates use; 0 for all. Only the policy `zeus` uses
    /// `window`.
    pub window: u32,
    /// Policy that chooses batch sizes.
    pub policy: PolicyName,
    /// Specification of the Zeus client that registered the job, with the settings of the policy `zeus`; `None` for
    /// other jobs, which have that policy's defaults.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zeus: Option<Box<ZeusSpec>>,
}

/// Error in a specification.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} {why}")]
pub struct InvalidSpec {
    /// Name of the wrong field in the API.
    pub field: &'static str,
    /// Given value, and the values that would be valid.
    pub why: String,
}

impl Spec {
    /// Maximum number of batch sizes.
    pub const MOST_BATCH_SIZES: usize = 100;
    /// Maximum `beta`: larger values would practically never stop a run.
    pub const LARGEST_BETA: f64 = 1e6;

    /// Validates the specification and sorts its batch sizes.
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
            return invalid("batch_sizes", format!("contains {} twice; list each batch size once", twice[0]));
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

    /// Returns the index of a batch size in `batch_sizes`; `None` if it is not in the list.
    pub fn place(&self, batch_size: u64) -> Option<usize> {
        self.batch_sizes.binary_search(&batch_size).ok()
    }
}

/// Target metric at which a run is complete.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Target {
    /// Target value of the metric.
    pub metric: f64,
    /// True if a higher metric is better, false if a lower one is.
    pub higher_is_better: bool,
}

impl Target {
    /// Returns true if a metric reaches the target. An absent metric or NaN does not.
    pub fn is_reached(&self, metric: Option<f64>) -> bool {
        metric.is_some_and(|m| if self.higher_is_better { m >= self.metric } else { m <= self.metric })
    }
}

/// Quantity that policies minimise together with time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reward {
    /// The policy minimises the energy of the GPUs.
    #[default]
    Energy,
    /// The policy minimises carbon, computed from energy with one intensity for all runs, so that a week with a high
    /// intensity does not distort the comparison of runs.
    Carbon {
        /// Carbon intensity that converts the energy of every run to carbon.
        reference: GramsPerKwh,
    },
}

/// GPUs of each run, all of one GPU model. Model and number select the stored power profiles of the job's batch sizes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuSet {
    /// GPU model as named by NVML.
    pub model: String,
    /// Number of GPUs of each run.
    pub count: u32,
}

/// Recurring job as the job's owner specified it. [`Terms::checked`] validates it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Terms {
    /// Batch sizes, cost weights and policy.
    pub spec: Spec,
    /// Target at which a run is complete.
    pub target: Target,
    /// Longest time between two reports of a trial; after a longer silence the trial counts as lost.
    pub lease: Seconds,
    /// Quantity that policies minimise beside time.
    pub reward: Reward,
    /// GPUs of each run; `None` if the owner did not specify them.
    #[serde(rename = "boards")]
    pub gpus: Option<GpuSet>,
    /// Seed of the random generator, for reproducible choices; `None` for a random seed.
    pub seed: Option<u64>,
}

impl Terms {
    /// Maximum lease: a week.
    pub const LONGEST_LEASE: Seconds = Seconds::new(604_800.0);

    /// Validates the terms and their [`Spec`].
    pub fn checked(mut self) -> Result<Self, InvalidSpec> {
        self.spec = self.spec.checked()?;
        let invalid = |field, why| Err(InvalidSpec { field, why });
        if !self.target.metric.is_finite() {
            return invalid("target_metric", "is not a finite number".into());
        }
        if !(1.0..=Self::LONGEST_LEASE.get()).contains(&self.lease.get()) {
            let given = self.lease.get();
            let meant = if given > 604_800.0 { "; was it given in milliseconds?" } else { "" };
            return invalid("lease_s", format!("is {given}; it must be from 1 to 604800 seconds{meant}"));
        }
        if let Reward::Carbon { reference } = self.reward
            && !(reference.get() > 0.0 && reference.get() <= 1e5)
        {
            let why = format!("is {}; give grams of CO2 equivalent per kWh, above 0", reference.get());
            return invalid("reference_g_per_kwh", why);
        }
        if let Some(gpus) = &self.gpus {
            if gpus.model.is_empty() || gpus.model.chars().count() > 128 {
                return invalid(
                    "gpu_model",
                    "must be a text of 1 to 128 characters, as GET /v1/gpus reports it".into(),
                );
            }
            if !(1..=1024).contains(&gpus.count) {
                return invalid("number_of_gpus", format!("is {}; it must be from 1 to 1024", gpus.count));
            }
        }
        Ok(self)
    }
}
