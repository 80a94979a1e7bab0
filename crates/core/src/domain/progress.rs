//! Sources of a job's progress reports.

use serde::{Deserialize, Serialize};

/// Source of a job's progress reports: the part of the software that counts the work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProgressSource {
    /// Lines that the job prints, such as `step 120/5000`.
    LogLine,
    /// A hook that counts the steps of a PyTorch optimizer.
    OptimizerHook,
    /// A Keras callback.
    Keras,
    /// A Lightning callback.
    Lightning,
    /// Status posts of the Hugging Face `Trainer`.
    TrainerStatus,
    /// The Python package `wattune`, which the job's own code calls.
    PythonClient,
    /// Requests to the HTTP API that state no source.
    #[default]
    Http,
}

impl ProgressSource {
    /// All sources, from the least to the most explicit one. `wattune run` follows the most explicit source of a job.
    pub const ALL: [Self; 7] = [
        Self::LogLine,
        Self::OptimizerHook,
        Self::Keras,
        Self::Lightning,
        Self::TrainerStatus,
        Self::PythonClient,
        Self::Http,
    ];
}
