//! Best power limit for a batch size.

use super::Knob;
use crate::domain::{OperatingPoint, PowerLimit};
use crate::units::Seconds;

/// Returns the limit with the least cost per sample among those measured without a clock limit. Only for GPUs of one
/// model: several models have no common limit.
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
    use crate::units::{SamplesPerSecond, Watts};

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
