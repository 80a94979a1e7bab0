//! Throughput and power of a job on one simulated GPU, by power limit or by clock.

use wattune_core::domain::{ClockLimit, ClockRange, Estimate, LimitRange, OperatingPoint, PowerLimit, Profile};
use wattune_core::units::{SamplesPerSecond, Seconds, Watts};

/// Throughput and power of a job on one GPU at one power limit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CurvePoint {
    /// The power limit in force.
    pub limit: Watts,
    /// The job's throughput.
    pub throughput: SamplesPerSecond,
    /// The GPU's power.
    pub power: Watts,
}

/// Throughput and power of a job on one GPU at one clock that no power limit lowers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ClockPoint {
    /// The clock.
    pub clock: ClockLimit,
    /// The job's throughput.
    pub throughput: SamplesPerSecond,
    /// The GPU's power.
    pub power: Watts,
}

/// A job's throughput and power by power limit: linear between the points, constant beyond them.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadCurve {
    points: Vec<CurvePoint>,
    /// The job's throughput and power by clock, from the lowest clock up; empty if the job does not respond to clock
    /// locks.
    clocks: Vec<ClockPoint>,
}

impl LoadCurve {
    /// Returns the curve of a job on one GPU, from a profile measured on one GPU; `None` if the profile has no points.
    pub fn from_profile(profile: &Profile) -> Option<Self> {
        let point = |p: &OperatingPoint| {
            let limit = p.setting.first()?.limit.watts();
            Some(CurvePoint { limit, throughput: p.throughput.mean, power: p.power.mean })
        };
        Self::new(profile.points.iter().rev().filter_map(point).collect())
    }

    /// Returns the exact profile of a job that trains on this number of GPUs, each of which follows this curve.
    pub fn profile(&self, gpus: f64) -> Profile {
        let point = |p: &CurvePoint| OperatingPoint {
            setting: vec![PowerLimit::from_watts(p.limit).into()],
            throughput: Estimate { mean: p.throughput * gpus, relative_error: 0.0 },
            power: Estimate { mean: p.power * gpus, relative_error: 0.0 },
            measured: Seconds::ZERO,
        };
        Profile { points: self.points.iter().rev().map(point).collect() }
    }

    /// Creates a curve from points in any order; `None` without points.
    pub fn new(mut points: Vec<CurvePoint>) -> Option<Self> {
        points.sort_by(|a, b| a.limit.total_cmp(&b.limit));
        (!points.is_empty()).then_some(Self { points, clocks: Vec::new() })
    }

    /// Creates the curve of a compute-bound job. Its throughput saturates as `1 − e^(−4·share)`, roughly as measured
    /// curves do; `share` is the part of the job's power above `floor` that the power limit allows.
    ///
    /// `demand` is the job's power without a limit; `floor` is the power that the GPU needs before it computes at all.
    pub fn saturating(range: &LimitRange, demand: Watts, floor: Watts, peak: SamplesPerSecond) -> Self {
        let (low, high) = (range.min.watts().get(), range.max.watts().get());
        let full = 1.0 - (-4.0_f64).exp();
        let points = (0..=40).map(|i| {
            let limit = Watts::new(low + (high - low) * f64::from(i) / 40.0);
            let power = limit.min(demand);
            let share = ((power - floor) / (demand - floor)).max(0.02);
            CurvePoint { limit, throughput: peak * ((1.0 - (-4.0 * share).exp()) / full), power }
        });
        Self { points: points.collect(), clocks: Vec::new() }
    }

    /// Creates the curve of a job from its throughput and power at each clock; `None` without points. Power must rise
    /// with the clock. A power limit allows the highest clock whose draw does not exceed it; a limit above all draws
    /// changes nothing, as for memory-bound work.
    pub fn over_clocks(mut clocks: Vec<ClockPoint>) -> Option<Self> {
        clocks.sort_by_key(|p| p.clock);
        let points = clocks.iter().map(Self::affordable).collect();
        (!clocks.is_empty()).then_some(Self { points, clocks })
    }

    /// Creates the curve of a job that waits for memory nine tenths of its time when the GPU runs at the clock
    /// `highest`: lower clocks hardly slow the job, and power limits above `demand`, its draw at that clock, change
    /// nothing. The part `floor` of the draw does not depend on the clock; the rest falls with the clock's square.
    pub fn memory_bound(highest: ClockLimit, demand: Watts, floor: Watts, peak: SamplesPerSecond) -> Self {
        let point = |i: u32| {
            let clock = ClockLimit::from_megahertz(highest.megahertz() * i / 40);
            let part = f64::from(clock.megahertz()) / f64::from(highest.megahertz());
            let power = floor + (demand - floor) * part.powi(2);
            ClockPoint { clock, throughput: peak / (0.9 + 0.1 / part), power }
        };
        let clocks: Vec<ClockPoint> = (5..=40).map(point).collect();
        let points = clocks.iter().map(Self::affordable).collect();
        Self { points, clocks }
    }

    /// Returns the point whose power limit allows this clock and none above it.
    fn affordable(point: &ClockPoint) -> CurvePoint {
        CurvePoint { limit: point.power, throughput: point.throughput, power: point.power }
    }

    /// Returns the clocks from the highest to the lowest point of the curve in steps of 15 MHz, as GPUs have them;
    /// `None` for a curve by power limit only.
    pub fn clocks(&self) -> Option<ClockRange> {
        let (low, high) = (self.clocks.first()?.clock.megahertz(), self.clocks.last()?.clock.megahertz());
        ClockRange::new((low..=high).rev().step_by(15).map(ClockLimit::from_megahertz).collect())
    }

    /// Returns the curve's points, in ascending order of their power limits.
    pub fn points(&self) -> &[CurvePoint] {
        &self.points
    }

    /// Returns throughput and power at a power limit.
    pub fn at(&self, limit: Watts) -> CurvePoint {
        let (a, b, share) = between(&self.points, |p| p.limit.get(), limit.get());
        CurvePoint {
            limit,
            throughput: a.throughput + (b.throughput - a.throughput) * share,
            power: a.power + (b.power - a.power) * share,
        }
    }

    /// Returns throughput and power at a power limit with the clocks locked to `lock`. A lock does not affect a curve
    /// that is given by power limit only.
    pub fn at_lock(&self, limit: Watts, lock: Option<ClockLimit>) -> CurvePoint {
        let unlocked = self.at(limit);
        let (Some(lock), false) = (lock, self.clocks.is_empty()) else { return unlocked };
        let (a, b, share) = between(&self.clocks, |p| f64::from(p.clock.megahertz()), f64::from(lock.megahertz()));
        let power = a.power + (b.power - a.power) * share;
        if power >= unlocked.power {
            return unlocked;
        }
        CurvePoint { limit, throughput: a.throughput + (b.throughput - a.throughput) * share, power }
    }

    /// Returns the clock in MHz at which the GPU draws `power`; `None` for a curve by power limit only.
    pub(super) fn clock(&self, power: Watts) -> Option<u32> {
        if self.clocks.is_empty() {
            return None;
        }
        let (a, b, share) = between(&self.clocks, |p| p.power.get(), power.get());
        let (a, b) = (f64::from(a.clock.megahertz()), f64::from(b.clock.megahertz()));
        Some((a + (b - a) * share).round() as u32)
    }
}

/// Returns the two points around `x` and the position of `x` between them (0 to 1); beyond the ends, one point twice.
fn between<P: Copy>(points: &[P], of: impl Fn(&P) -> f64, x: f64) -> (P, P, f64) {
    let next = points.partition_point(|p| of(p) < x);
    let (a, b) = match (next.checked_sub(1).map(|i| points[i]), points.get(next)) {
        (Some(a), Some(b)) => (a, *b),
        (Some(only), None) | (None, Some(&only)) => (only, only),
        (None, None) => unreachable!("a curve has at least one point"),
    };
    let span = of(&b) - of(&a);
    (a, b, if span > 0.0 { (x - of(&a)) / span } else { 0.0 })
}
