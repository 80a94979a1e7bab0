//! Functional unit of SCI (ISO/IEC 21031).

use crate::units::Samples;

/// Minimum number of samples in an epoch.
pub const MIN_SAMPLES_PER_EPOCH: f64 = 1.0;

/// Functional unit R of SCI (ISO/IEC 21031), the denominator of the score.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FunctionalUnit {
    /// A training run, from registration to end.
    Run,
    /// An epoch of this many samples, or of the job's label `samples_per_epoch` where absent.
    Epoch(Option<Samples>),
    /// A million samples.
    MillionSamples,
}

impl FunctionalUnit {
    /// Returns `run`, `epoch` or `1e6-samples`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Run => "run",
            Self::Epoch(_) => "epoch",
            Self::MillionSamples => "1e6-samples",
        }
    }
}
