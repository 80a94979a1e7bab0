//! Throughput and power of a job on one simulated GPU, over limits or over clocks.

use wattune_core::domain::{ClockLimit, ClockRange, Estimate, LimitRange, OperatingPoint, PowerLimit, Profile};
use wattune_core::units::{SamplesPerSecond, Seconds, Watts};

/// Throughput and power of a job on one GPU at one limit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CurvePoint {
    /// The limit in force.
    pub limit: Watts,
    /// The job's throughput.
    pub throughput: SamplesPerSecond,
    /// The GPU's power.
    pub power: Watts,
}

/// Throughput and power of a job on one GPU at one clock, if no limit lowers it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ClockPoint {
    /// The clock.
    pub clock: ClockLimit,
    /// The job's throughput.
    pub throughput: SamplesPerSecond,
    /// The GPU's power.
    pub power: Watts,
}

/// A throughput–power curve over limits: linear between its points, flat beyond them.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadCurve {
    points: Vec<CurvePoint>,
    /// The points over clocks, from the lowest clock up; empty if the job does not respond to them.
    clocks: Vec<ClockPoint>,
}

impl LoadCurve {
    /// Returns the curve of a job on one GPU with this profile; `None` without points.
    pub fn from_profile(profile: &Profile) -> Option<Self> {
        let point = |p: &OperatingPoint| {
            let limit = p.setting.first()?.limit.watts();
            Some(CurvePoint { limit, throughput: p.throughput.mean, power: p.power.mean })
        };
        Self::new(profile.points.iter().rev().filter_map(point).collect())
    }

    /// Returns the true profile of a job that trains on so many GPUs with this curve.
    pub fn profile(&self, gpus: f64) -> Profile {
        let point = |p: &CurvePoint| OperatingPoint {
            setting: vec![PowerLimit::from_watts(p.limit).into()],
            throughput: Estimate { mean: p.throughput * gpus, relative_error: 0.0 },
            power: Estimate { mean: p.power * gpus, relative_error: 0.0 },
            measured: Seconds::ZERO,
        };
        Profile { points: self.points.iter().rev().map(point).collect() }
    }

    /// `None` without points. The order does not matter.
    pub fn new(mut points: Vec<CurvePoint>) -> Option<Self> {
        points.sort_by(|a, b| a.limit.total_cmp(&b.limit));
        (!points.is_empty()).then_some(Self { points, clocks: Vec::new() })
    }

    /// A GPU that computes as fast as its clocks go, with the clocks that a limit affords: throughput saturates as
    /// `1 − e^(−k·share)` in the share of dynamic power, as measured curves roughly do.
    ///
    /// `demand` is the power of the job without a limit, `floor` the power that the GPU needs before it computes at all.
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

    /// A job by its throughput and power at each clock: linear between these points, flat beyond. Power must rise with the clock. A
    /// limit allows the highest clock whose draw is within it: one above all draws changes nothing, which is how
    /// memory-bound work looks. `None` without points.
    pub fn over_clocks(mut clocks: Vec<ClockPoint>) -> Option<Self> {
        clocks.sort_by_key(|p| p.clock);
        let points = clocks.iter().map(Self::affordable).collect();
        (!clocks.is_empty()).then_some(Self { points, clocks })
    }

    /// A job that waits for memory nine tenths of its time at `highest`, and computes in the rest: clocks hardly slow it,
    /// and limits above `demand` change nothing. Of the draw `floor` does not depend on the clock, the rest falls with
    /// its square.
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

    /// Returns the limit that allows a clock and none above it.
    fn affordable(point: &ClockPoint) -> CurvePoint {
        CurvePoint { limit: point.power, throughput: point.throughput, power: point.power }
    }

    /// The clocks of a job that is given over them, in the steps of 15 MHz that GPUs have; `None` for one that is
    /// given over limits.
    pub fn clocks(&self) -> Option<ClockRange> {
        let (low, high) = (self.clocks.first()?.clock.megahertz(), self.clocks.last()?.clock.megahertz());
        ClockRange::new((low..=high).rev().step_by(15).map(ClockLimit::from_megahertz).collect())
    }

    /// Returns the points, by limit.
    pub fn points(&self) -> &[CurvePoint] {
        &self.points
    }

    /// Throughput and power at a limit.
    pub fn at(&self, limit: Watts) -> CurvePoint {
        let (a, b, share) = between(&self.points, |p| p.limit.get(), limit.get());
        CurvePoint {
            limit,
            throughput: a.throughput + (b.throughput - a.throughput) * share,
            power: a.power + (b.power - a.power) * share,
        }
    }

    /// Throughput and power at a limit with the clocks locked to `lock`. A job that is given over limits alone does not
    /// respond to a lock.
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

    /// Returns the clock that the GPU runs at; `None` for a job that is given over limits alone.
    pub(super) fn clock(&self, power: Watts) -> Option<u32> {
        if self.clocks.is_empty() {
            return None;
        }
        let (a, b, share) = between(&self.clocks, |p| p.power.get(), power.get());
        let (a, b) = (f64::from(a.clock.megahertz()), f64::from(b.clock.megahertz()));
        Some((a + (b - a) * share).round() as u32)
    }
}

/// Returns the points around `x` and how far it is from the first to the second; at the ends one point twice.
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
