//! A job that is defined by a power trace.

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, StandardNormal};

use crate::traces::Workload;
use wattune_core::domain::{Estimate, Profile};
use wattune_core::plan::Unplannable;
use wattune_core::profile::Curve;
use wattune_core::units::{Samples, Seconds, Watts};

/// A training job on one GPU.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    /// Name of the job's GPU, as in the file name of the power trace.
    pub gpu: String,
    /// Training of the job: data set, network and batch size.
    pub workload: Workload,
    /// True profile of the job (throughput and power at each limit), with the largest limit first.
    pub profile: Profile,
    /// The true profile as a curve of throughput over power.
    pub curve: Curve,
    /// All the job's work (W): the samples that the job completes at the largest limit in its nominal duration.
    pub work: Samples,
    /// Largest power limit of the profile (P_max).
    pub max_power: Watts,
}

impl Job {
    /// Returns a job that takes the time `at_max` at the largest limit of the profile.
    pub fn new(gpu: String, workload: Workload, profile: Profile, at_max: Seconds) -> Result<Self, Unplannable> {
        let curve = Curve::from_profile(&profile).ok_or(Unplannable::NoUsablePoint)?;
        let work = curve.ceiling().throughput * at_max;
        let max_power = limit(&profile, 0);
        Ok(Self { gpu, workload, profile, curve, work, max_power })
    }

    /// Returns the job's duration at the largest power limit.
    pub fn time_at_max(&self) -> Seconds {
        self.work / self.curve.ceiling().throughput
    }

    /// Returns the power limit of the profile's point with the index `point`.
    pub fn limit(&self, point: usize) -> Watts {
        limit(&self.profile, point)
    }

    /// Returns the profile as a measurement would find it: with random errors, drawn with `seed`. `error` is the
    /// relative standard error of each throughput and power.
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

fn limit(profile: &Profile, point: usize) -> Watts {
    profile.points[point].setting.first().map_or(Watts::ZERO, |set| set.limit.watts())
}
