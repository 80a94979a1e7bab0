//! Cost of a run as a single number, and the power limit with the least cost.

use serde::{Deserialize, Serialize};

use crate::domain::{OperatingPoint, PowerLimit};
use crate::units::{Joules, Seconds, Watts, scales, sums};

/// Cost of a run in joules, which policies minimise: a weighted sum of the energy and of the time × the maximum power
/// ([`Knob`]). A reward is a negative cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Cost(f64);

impl Cost {
    /// Zero cost.
    pub const ZERO: Self = Self(0.0);
    /// Infinite cost.
    pub const INFINITE: Self = Self(f64::INFINITY);
    /// Upper bound of a trial's cost. Valid costs are far below it: 10 times the largest maximum power over the longest
    /// time is 1e19 J, and the charge for a failure multiplies a cost by at most 1e8.
    pub const MOST: Self = Self(1e30);

    /// Creates a cost from joules.
    pub const fn new(joules: f64) -> Self {
        Self(joules)
    }

    /// Returns the cost in joules.
    pub const fn get(self) -> f64 {
        self.0
    }

    /// Returns the smaller cost.
    #[must_use]
    pub fn min(self, other: Self) -> Self {
        Self(self.0.min(other.0))
    }
}

sums!(Cost);
scales!(Cost);

/// Weights of energy and time in a cost.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Knob {
    /// Weight η of energy, from 0 (only time counts) to 1 (only energy counts); time has the weight 1 − η.
    pub eta: f64,
    /// P_max: maximum power of all GPUs of a run together, which converts time to joules.
    pub max_power: Watts,
}

impl Knob {
    /// Returns the cost η·E + (1−η)·P_max·T of the energy E and the time T (Zeus, equation 2).
    ///
    /// Jobs that minimise carbon ([`super::Reward::Carbon`]) have the same cost: carbon at one constant intensity
    /// orders runs as energy does, and a week with a high intensity does not distort the comparison.
    pub fn cost(&self, energy: Joules, time: Seconds) -> Cost {
        self.cost_of(energy.get(), time.get())
    }

    /// Returns the cost of an energy in joules and a time in seconds, which need not be finite.
    pub(super) fn cost_of(&self, energy: f64, time: f64) -> Cost {
        Cost(self.eta * energy + (1.0 - self.eta) * self.max_power.get() * time)
    }
}

/// Returns the power limit with the least cost per sample, among the points that were measured without a clock limit on
/// GPUs of a single model; `None` if there is no such point. Points of several GPU models are skipped, because they
/// have one limit for each model.
pub fn best_limit(points: &[OperatingPoint], knob: &Knob) -> Option<PowerLimit> {
    let second = Seconds::new(1.0);
    let cost = |p: &OperatingPoint| knob.cost(p.power.mean * second, second).get() / p.throughput.mean.get();
    let plain = |p: &OperatingPoint| match p.setting.as_slice() {
        [only] if only.clock.is_none() => Some((cost(p), only.limit)),
        _ => None,
    };
    points.iter().filter_map(plain).min_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, limit)| limit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::Estimate;
    use crate::units::SamplesPerSecond;

    #[test]
    fn the_best_limit_follows_the_knob() {
        let point = |limit: u32, throughput, power| OperatingPoint {
            setting: vec![PowerLimit::from_milliwatts(limit * 1000).into()],
            throughput: Estimate { mean: SamplesPerSecond::new(throughput), relative_error: 0.0 },
            power: Estimate { mean: Watts::new(power), relative_error: 0.0 },
            measured: Seconds::new(1.0),
        };
        let points = [point(300, 100.0, 290.0), point(200, 90.0, 200.0), point(100, 40.0, 100.0)];
        let best = |eta| best_limit(&points, &Knob { eta, max_power: Watts::new(300.0) }).map(|l| l.watts().get());
        assert_eq!(best(0.0), Some(300.0), "the fastest");
        assert_eq!(best(0.5), Some(200.0));
        assert_eq!(best(1.0), Some(200.0), "the least energy for a sample, not the least power");
        assert_eq!(best_limit(&[], &Knob { eta: 1.0, max_power: Watts::new(300.0) }), None);
    }
}
