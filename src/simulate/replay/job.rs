//! A job as a power trace describes it.

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, StandardNormal};

use crate::gpu::simulated::LoadCurve;
use crate::simulate::Workload;
use wattune_core::domain::{Estimate, OperatingPoint, PowerLimit, Profile};
use wattune_core::profile::Curve;
use wattune_core::units::{Samples, Seconds, Watts};

/// A training run on one board.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    /// The board, as its trace's file is called.
    pub gpu: String,
    /// What is trained.
    pub workload: Workload,
    /// What it does at each limit, exactly; the largest limit first.
    pub profile: Profile,
    /// The same as a curve.
    pub curve: Curve,
    /// What there is to do, W: what the largest limit does in the job's length.
    pub work: Samples,
    /// P_max: the largest limit.
    pub max_power: Watts,
}

impl Job {
    /// A job that takes `at_max` at the largest limit of `load`.
    pub fn new(gpu: String, workload: Workload, load: &LoadCurve, at_max: Seconds) -> Self {
        let point = |p: &crate::gpu::simulated::CurvePoint| OperatingPoint {
            setting: vec![PowerLimit::from_watts(p.limit).into()],
            throughput: Estimate { mean: p.throughput, relative_error: 0.0 },
            power: Estimate { mean: p.power, relative_error: 0.0 },
            measured: Seconds::ZERO,
        };
        let profile = Profile { points: load.points().iter().rev().map(point).collect() };
        let curve = Curve::from_profile(&profile).expect("a load curve has a point with throughput and power");
        let work = curve.ceiling().throughput * at_max;
        let max_power = load.points().last().map_or(Watts::ZERO, |p| p.limit);
        Self { gpu, workload, profile, curve, work, max_power }
    }

    /// How long it takes at the largest limit.
    pub fn time_at_max(&self) -> Seconds {
        self.work / self.curve.ceiling().throughput
    }

    /// The limit of a point.
    pub fn limit(&self, point: usize) -> Watts {
        self.profile.points[point].setting.first().map_or(Watts::ZERO, |set| set.limit.watts())
    }

    /// The profile as a measurement with this relative standard error of each throughput and power would have it.
    pub fn measured(&self, error: f64, seed: u64) -> Profile {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut factor = || {
            let normal: f64 = StandardNormal.sample(&mut rng);
            (1.0 + error * normal).max(0.1)
        };
        let mut profile = self.profile.clone();
        for point in &mut profile.points {
            point.throughput = Estimate { mean: point.throughput.mean * factor(), relative_error: error };
            point.power = Estimate { mean: point.power.mean * factor(), relative_error: error };
        }
        profile
    }
}
