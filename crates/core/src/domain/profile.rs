//! Measured throughput and power of a job at each setting of its GPUs.

use serde::{Deserialize, Serialize};

use super::{JobName, SetPoint};
use crate::units::{SamplesPerSecond, Seconds, Watts};

/// A measured mean with its standard error.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Estimate<Q> {
    /// Measured mean.
    pub mean: Q,
    /// Relative standard error of the mean: 0.003 is 0.3 %.
    pub relative_error: f64,
}

/// Throughput and power of a job at one setting of its GPUs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OperatingPoint {
    /// Set points, one per group of equal GPUs in the order of [`ProfileKey::gpus`]. Usually there is one group.
    pub setting: Vec<SetPoint>,
    /// Throughput of the whole job.
    pub throughput: Estimate<SamplesPerSecond>,
    /// Average power of all GPUs of the job together.
    pub power: Estimate<Watts>,
    /// Time over which the point was measured; zero for a point that was inferred from others.
    pub measured: Seconds,
}

/// Minimum throughput of a usable point. A slower job counts as stalled.
const SLOWEST: SamplesPerSecond = SamplesPerSecond::new(1e-9);

impl OperatingPoint {
    /// Returns true if the point is usable for planning; a measurement of a stalled job is not.
    pub fn is_usable(&self) -> bool {
        self.power.mean > Watts::ZERO && self.throughput.mean >= SLOWEST
    }
}

/// Key by which profiles are stored, so that a recurring job starts with the profile of its earlier runs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ProfileKey {
    /// Job name, which recurring runs share.
    pub name: JobName,
    /// Samples per step, if known.
    pub batch_size: Option<u64>,
    /// GPU models with the number of GPUs of each, ordered by the name of the GPU model.
    #[serde(rename = "boards")]
    pub gpus: Vec<(String, u32)>,
}

/// Throughput–power curve of a job on its GPUs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Profile {
    /// Operating points. The first one is at the maximum usable limit, which every slowdown refers to.
    pub points: Vec<OperatingPoint>,
}

impl Profile {
    /// Returns the point at the maximum usable limit, with the throughput r(l_max) of `planning.md` §1.
    pub fn ceiling(&self) -> Option<&OperatingPoint> {
        self.points.first()
    }

    /// Returns the point at a setting; `None` if the profile has none there.
    pub fn at(&self, setting: &[SetPoint]) -> Option<&OperatingPoint> {
        self.points.iter().find(|p| p.setting == setting)
    }
}
