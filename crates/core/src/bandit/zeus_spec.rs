//! Job specification of Zeus's batch size server, as its clients register it.

use serde::{Deserialize, Serialize};

/// Job specification of a Zeus client, with the fields and names of Zeus's protocol. Two registrations are the same
/// job only if all fields are equal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ZeusSpec {
    /// Maximum power of all GPUs of a run together, in watts.
    pub max_power: f64,
    /// Number of GPUs of a run; no computation uses it.
    pub number_of_gpus: i64,
    /// GPU model as the client names it.
    pub gpu_model: String,
    /// Identifier of the job.
    pub job_id: String,
    /// Text with which the identifier begins.
    pub job_id_prefix: String,
    /// Batch sizes, ascending and distinct. The protocol accepts sizes below 1, but no run can have one.
    pub batch_sizes: Vec<i64>,
    /// Batch size of the first run.
    pub default_batch_size: i64,
    /// Weight of energy in the cost of a run, from 0 to 1.
    pub eta_knob: f64,
    /// Cost limit of a run as a multiple of the cheapest run that reached the target; `None` for no limit.
    pub beta_knob: Option<f64>,
    /// Target value of the metric.
    pub target_metric: f64,
    /// True if a higher metric is better.
    pub higher_is_better_metric: bool,
    /// Number of epochs after which a run ends.
    pub max_epochs: i64,
    /// Number of pruning rounds.
    pub num_pruning_rounds: i64,
    /// Number of newest runs of a batch size that its estimate uses; 0 or less for all.
    pub window_size: i64,
    /// Mean of the prior belief about a reward (a negative cost).
    pub mab_prior_mean: f64,
    /// Precision of the prior belief; 0 for a flat prior.
    pub mab_prior_precision: f64,
    /// Number of runs of each batch size before Thompson sampling.
    pub mab_num_explorations: i64,
    /// Seed of the random generator; `None` for a random one.
    pub mab_seed: Option<i64>,
}

impl ZeusSpec {
    /// Returns the window, in runs; 0 for all runs.
    pub(super) fn window(&self) -> usize {
        usize::try_from(self.window_size).unwrap_or(0)
    }

    /// Returns the number of runs of each batch size before Thompson sampling.
    pub(super) fn explorations(&self) -> usize {
        usize::try_from(self.mab_num_explorations).unwrap_or(0)
    }

    /// Returns the largest of the batch sizes below 1; `None` if there is none.
    pub(super) fn impossible(&self) -> Option<i64> {
        self.batch_sizes.iter().copied().rfind(|b| *b < 1)
    }
}
