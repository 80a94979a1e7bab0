//! Measured throughput and power of a job at each operating point.

use serde::{Deserialize, Serialize};

use super::{JobName, SetPoint};
use crate::units::{SamplesPerSecond, Seconds, Watts};

/// A measured mean with its error.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Estimate<Q> {
    /// The mean.
    pub mean: Q,
    /// Relative standard error of the mean: 0.003 is 0.3 %.
    pub relative_error: f64,
}

/// Throughput and power of a job at one setting of its GPUs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OperatingPoint {
    /// Set points, one per group of equal GPUs in the order of [`ProfileKey::GPUs`]. Usually one.
    pub setting: Vec<SetPoint>,
    /// Samples per second of the whole job.
    pub throughput: Estimate<SamplesPerSecond>,
    /// Average power of all GPUs of the job.
    pub power: Estimate<Watts>,
    /// Measuring time; zero for an inferred point.
    pub measured: Seconds,
}

/// Minimum throughput of a usable point. Slower jobs stand still.
const SLOWEST: SamplesPerSecond = SamplesPerSecond::new(1e-9);

impl OperatingPoint {
    /// Returns whether the point is usable; a stalled measurement is not.
    pub fn is_usable(&self) -> bool {
        self.power.mean > Watts::ZERO && self.throughput.mean >= SLOWEST
    }
}

/// Key of a profile. A recurring job starts with the profile of its earlier runs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ProfileKey {
    /// Name that recurring runs share.
    pub name: JobName,
    /// Samples per step, if known.
    pub batch_size: Option<u64>,
    /// GPU models with their number, by model name.
    #[serde(rename = "boards")]
    pub gpus: Vec<(String, u32)>,
}

/// The throughput–power curve of a job on its GPUs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Profile {
    /// Operating points; the first one is the ceiling, the reference of every slowdown.
    pub points: Vec<OperatingPoint>,
}

impl Profile {
    /// Returns the ceiling's point: r(l_max) of `planning.md` §1.
    pub fn ceiling(&self) -> Option<&OperatingPoint> {
        self.points.first()
    }

    /// Returns the point at a setting.
    pub fn at(&self, setting: &[SetPoint]) -> Option<&OperatingPoint> {
        self.points.iter().find(|p| p.setting == setting)
    }
}
