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

/// Number of standard errors by which the measured throughput of a lower setting must exceed that of the highest
/// setting to show that the highest setting was measured too slow.
const FASTER: f64 = 2.0;

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

    /// Returns r(l_max) of `planning.md` §1, to which slowdowns are relative: the throughput at the maximum usable limit
    /// or, if a lower limit was measured as faster by more than two standard errors, that limit's throughput less two
    /// standard errors, because in truth no lower limit is faster. `None` if it was not measured, or is zero.
    pub fn reference(&self) -> Option<SamplesPerSecond> {
        let least = |p: &OperatingPoint| p.throughput.mean * (1.0 - FASTER * p.throughput.relative_error).max(0.0);
        let rate = self.points.iter().map(least).fold(self.ceiling()?.throughput.mean, SamplesPerSecond::max);
        (rate > SamplesPerSecond::ZERO).then_some(rate)
    }

    /// Replaces the throughput at the maximum usable limit by [`Self::reference`], so that plans and the account of the
    /// slowdown use the same reference.
    #[must_use]
    pub fn with_reference(mut self) -> Self {
        if let (Some(reference), Some(ceiling)) = (self.reference(), self.points.first_mut()) {
            ceiling.throughput.mean = reference;
        }
        self
    }

    /// Returns the point at a setting; `None` if the profile has none there.
    pub fn at(&self, setting: &[SetPoint]) -> Option<&OperatingPoint> {
        self.points.iter().find(|p| p.setting == setting)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::PowerLimit;

    fn profile(points: &[(f64, f64, f64)]) -> Profile {
        let point = |(limit, rate, relative_error): &(f64, f64, f64)| OperatingPoint {
            setting: vec![PowerLimit::from_watts(Watts::new(*limit)).into()],
            throughput: Estimate { mean: SamplesPerSecond::new(*rate), relative_error: *relative_error },
            power: Estimate { mean: Watts::new(*limit), relative_error: 0.01 },
            measured: Seconds::new(10.0),
        };
        Profile { points: points.iter().map(point).collect() }
    }

    #[test]
    fn the_reference_is_the_ceiling_unless_a_lower_setting_is_clearly_faster() {
        let reference = |points: &[(f64, f64, f64)]| profile(points).reference().map(SamplesPerSecond::get);
        assert_eq!(reference(&[]), None);
        assert_eq!(reference(&[(300.0, 0.0, 0.0)]), None);
        assert_eq!(reference(&[(300.0, 100.0, 0.01), (250.0, 101.0, 0.01)]), Some(100.0));
        assert_eq!(reference(&[(300.0, 100.0, 0.01), (250.0, 110.0, 0.01), (200.0, 106.0, 0.0)]), Some(110.0 * 0.98));
    }

    #[test]
    fn a_plan_counts_the_slowdown_from_the_reference() {
        let measured = profile(&[(300.0, 100.0, 0.01), (250.0, 110.0, 0.01)]);
        let planned = measured.clone().with_reference();
        assert_eq!(planned.ceiling().map(|p| p.throughput.mean), measured.reference());
        assert_eq!((planned.reference(), &planned.points[1]), (measured.reference(), &measured.points[1]));
        let usual = profile(&[(300.0, 100.0, 0.01), (250.0, 98.0, 0.01)]);
        assert_eq!(usual.clone().with_reference(), usual);
    }
}
