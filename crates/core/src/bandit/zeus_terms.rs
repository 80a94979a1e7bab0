//! Terms of a job that a Zeus client registered.

use super::{GpuSet, InvalidSpec, Knob, PolicyName, Reward, Spec, Target, Terms, ZeusSpec};
use crate::units::{Seconds, Watts};

impl ZeusSpec {
    /// Checks the specification and returns the terms of a job whose trials have this `lease` (longest time between
    /// two reports).
    ///
    /// # Errors
    /// The first field with a value that no registration can have.
    pub fn terms(self, lease: Seconds) -> Result<Terms, InvalidSpec> {
        let invalid = |field, why: &str| Err(InvalidSpec { field, why: why.to_owned() });
        let floats = [self.max_power, self.eta_knob, self.target_metric, self.mab_prior_mean, self.mab_prior_precision];
        if floats.iter().chain(&self.beta_knob).any(|f| !f.is_finite()) {
            return invalid("zeus", "has a value that is not a finite number");
        }
        if self.max_power <= 0.0 || !(0.0..=1.0).contains(&self.eta_knob) || self.beta_knob.is_some_and(|b| b <= 0.0) {
            return invalid("zeus", "has max_power or beta_knob of 0 or below, or eta_knob outside of 0 to 1");
        }
        if self.max_epochs < 1 || self.num_pruning_rounds < 0 || self.mab_num_explorations < 0 {
            return invalid("zeus", "has a negative count, or max_epochs below 1");
        }
        if self.mab_seed.is_some_and(|seed| seed < 0) {
            return invalid("zeus", "has a negative mab_seed");
        }
        if !self.batch_sizes.is_sorted_by(|a, b| a < b) || !self.batch_sizes.contains(&self.default_batch_size) {
            return invalid("zeus", "has batch_sizes that are not ascending, or lack default_batch_size");
        }
        let Some(default_batch_size) = u64::try_from(self.default_batch_size).ok().filter(|b| *b > 0) else {
            return invalid("zeus", "has a default_batch_size below 1");
        };
        let count = u32::try_from(self.number_of_gpus).ok().filter(|count| (1..=1024).contains(count));
        let is_known = !self.gpu_model.is_empty() && self.gpu_model.chars().count() <= 128;
        let gpus = count.filter(|_| is_known).map(|count| GpuSet { model: self.gpu_model.clone(), count });
        let spec = Spec {
            batch_sizes: self.batch_sizes.iter().filter_map(|b| u64::try_from(*b).ok()).filter(|b| *b > 0).collect(),
            default_batch_size,
            max_epochs: u32::try_from(self.max_epochs).unwrap_or(u32::MAX),
            knob: Knob { eta: self.eta_knob, max_power: Watts::new(self.max_power) },
            beta: self.beta_knob,
            window: u32::try_from(self.window()).unwrap_or(u32::MAX),
            policy: PolicyName::Zeus,
            zeus: None,
        };
        let target = Target { metric: self.target_metric, higher_is_better: self.higher_is_better_metric };
        let seed = self.mab_seed.map(i64::unsigned_abs);
        let spec = Spec { zeus: Some(Box::new(self)), ..spec };
        Ok(Terms { spec, target, lease, reward: Reward::Energy, gpus, seed })
    }
}
