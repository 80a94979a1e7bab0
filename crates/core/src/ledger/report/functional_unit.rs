//! The functional unit of SCI (ISO/IEC 21031).

use crate::units::Samples;

/// An epoch has so many samples at least.
pub const LEAST_PER_EPOCH: f64 = 1.0;

/// The R of SCI (ISO/IEC 21031): what emissions are counted per.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FunctionalUnit {
    /// A training run, from its registration to its end.
    Run,
    /// An epoch of so many samples; of a job's label `samples_per_epoch` where no number is given.
    Epoch(Option<Samples>),
    /// A million samples.
    MillionSamples,
}

impl FunctionalUnit {
    /// `run`, `epoch` or `1e6-samples`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Run => "run",
            Self::Epoch(_) => "epoch",
            Self::MillionSamples => "1e6-samples",
        }
    }
}
