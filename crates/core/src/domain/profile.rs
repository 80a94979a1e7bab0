//! What was learned about a job: throughput and power at each operating point.

use serde::{Deserialize, Serialize};

use super::{JobName, SetPoint};
use crate::units::{SamplesPerSecond, Seconds, Watts};

/// A measured mean with what is known of its error.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Estimate<Q> {
    /// The mean.
    pub mean: Q,
    /// Standard error of the mean, relative to it: 0.003 is 0.3 %.
    pub relative_error: f64,
}

/// One setting of all the boards of a job, and what the job does at it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OperatingPoint {
    /// One per group of equal boards, in the order of [`ProfileKey::boards`]. Mostly one.
    pub setting: Vec<SetPoint>,
    /// Samples per second of the whole job.
    pub throughput: Estimate<SamplesPerSecond>,
    /// Average power of all the job's boards together.
    pub power: Estimate<Watts>,
    /// For how long it was measured; zero for a point that was inferred from others.
    pub measured: Seconds,
}

/// A slower job stands still: a sample of it takes decades, and times reckoned with it are no times.
const SLOWEST: SamplesPerSecond = SamplesPerSecond::new(1e-9);

impl OperatingPoint {
    /// Whether it says something about its setting: a stalled measurement does not.
    pub fn is_usable(&self) -> bool {
        self.power.mean > Watts::ZERO && self.throughput.mean >= SLOWEST
    }
}

/// Whose profile it is: a recurring job starts with what its earlier runs learned.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ProfileKey {
    /// The recurring name.
    pub name: JobName,
    /// Samples per step, if the job says.
    pub batch_size: Option<u64>,
    /// The boards: each model with how many of it, by model name.
    pub boards: Vec<(String, u32)>,
}

/// The throughput–power curve of a job on its boards.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Profile {
    /// The points; the first one is the ceiling, the reference of every slowdown.
    pub points: Vec<OperatingPoint>,
}

impl Profile {
    /// The ceiling's point: r(l_max) of `planning.md` §1.
    pub fn ceiling(&self) -> Option<&OperatingPoint> {
        self.points.first()
    }

    /// The point at a setting.
    pub fn at(&self, setting: &[SetPoint]) -> Option<&OperatingPoint> {
        self.points.iter().find(|p| p.setting == setting)
    }
}
