//! Measurements of a job at each setting (power limits and clocks of its GPUs), and the record of them that is stored
//! between runs.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::dips::Dip;
use super::stats::RateStats;
use super::steps::Setting;
use crate::domain::{Estimate, GpuId, OperatingPoint, PowerLimit};
use crate::units::{Joules, Samples, SamplesPerSecond, Seconds, Watts};

/// Minimum duration of a chunk (time between two progress reports) after pauses are removed from it; shorter ones are
/// dropped.
const LEAST_SPAN: Seconds = Seconds::new(1.0);

/// Progress and energy of a job between two of its progress reports, with one setting in force throughout.
#[derive(Clone, Debug)]
pub(super) struct Chunk {
    /// Duration on the client's clock if both reports carry a time, else on the daemon's clock.
    pub(super) span: Seconds,
    pub(super) samples_done: Samples,
    /// Duration of the energy measurement on the daemon's clock.
    pub(super) energy_span: Seconds,
    /// Energy of the job's GPUs, one sum per group of equal GPUs.
    pub(super) energy: Vec<Joules>,
    /// True if no GPU reported, between the two reports, that the GPU's power limit lowers the GPU's clocks.
    pub(super) loose: bool,
    /// True if the chunk contains reports without progress.
    pub(super) waited: bool,
}

impl Chunk {
    pub(super) fn rate(&self) -> f64 {
        self.samples_done.get() / self.span.get()
    }

    /// Removes the time and energy of pauses from the chunk (time between two reports); `None` if less than a second
    /// remains.
    pub(super) fn without(self, paused: Dip) -> Option<Self> {
        if paused.span <= Seconds::ZERO {
            return Some(self);
        }
        let all: Joules = self.energy.iter().copied().sum();
        let part = if all > Joules::ZERO { (1.0 - paused.energy / all).max(0.0) } else { 0.0 };
        let (span, energy_span) = (self.span - paused.span, self.energy_span - paused.span);
        let energy = self.energy.iter().map(|energy| *energy * part).collect();
        (span >= LEAST_SPAN).then_some(Self { span, energy_span, energy, waited: false, ..self })
    }
}

/// Measurements of one setting as sums that can be stored and extended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PointStats {
    /// Measured setting, one set point per group of equal GPUs.
    pub setting: Setting,
    pub(super) throughput: RateStats,
    /// Total power of each group's GPUs.
    pub(super) power: Vec<RateStats>,
    /// Measured seconds in which no GPU's power limit lowered its clocks. Absent in records of older versions.
    #[serde(default, skip_serializing_if = "is_zero")]
    loose_s: f64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_zero(seconds: &f64) -> bool {
    *seconds == 0.0
}

/// Maximum fraction of the measured time in which a limit that has no effect may seem to lower the GPUs' clocks, for
/// example while settings change.
const MOST_SPURIOUS_CAPPING: f64 = 0.05;

impl PointStats {
    pub(super) fn new(setting: Setting) -> Self {
        let power = vec![RateStats::default(); setting.len()];
        Self { setting, throughput: RateStats::default(), power, loose_s: 0.0 }
    }

    pub(super) fn add(&mut self, chunk: &Chunk) {
        self.throughput.add(chunk.span.get(), chunk.samples_done.get());
        if chunk.loose {
            self.loose_s += chunk.span.get();
        }
        if chunk.energy_span > Seconds::ZERO {
            for (stats, energy) in self.power.iter_mut().zip(&chunk.energy) {
                stats.add(chunk.energy_span.get(), energy.get());
            }
        }
    }

    /// Returns true if in at least 95 % of the measured time no GPU's power limit lowered its clocks.
    pub(super) fn is_loose(&self) -> bool {
        self.loose_s > 0.0 && self.loose_s >= self.throughput.seconds() * (1.0 - MOST_SPURIOUS_CAPPING)
    }

    /// Adds another measurement of the same setting.
    pub(super) fn merge(&mut self, other: &Self) {
        self.throughput = self.throughput.merged(&other.throughput);
        self.power = self.power.iter().zip(&other.power).map(|(a, b)| a.merged(b)).collect();
        self.loose_s += other.loose_s;
    }

    /// Returns the measurement with its standard errors; `None` while there are too few chunks (times between two
    /// reports) to estimate these errors. Errors of the power sensors are not included.
    pub(super) fn evidence(&self) -> Option<Evidence> {
        let (throughput_error, mut freedom) = self.throughput.autocorrelated_error()?;
        let (mut watts, mut power_error) = (0.0, 0.0_f64);
        for power in &self.power {
            let (error, of) = power.autocorrelated_error()?;
            (power_error, freedom) = (power_error.max(error), freedom.min(of));
            watts += power.rate()?;
        }
        Some(Evidence {
            throughput: SamplesPerSecond::new(self.throughput.rate()?),
            throughput_error,
            power: Watts::new(watts),
            power_error,
            freedom,
        })
    }

    /// Returns the estimated throughput and power; `None` before the first measurement.
    pub(super) fn operating_point(&self) -> Option<OperatingPoint> {
        let unknown = 1.0;
        let watts: Option<Vec<f64>> = self.power.iter().map(RateStats::rate).collect();
        let worst = self.power.iter().map(|p| p.relative_error().unwrap_or(unknown)).fold(0.0, f64::max);
        let throughput = self.throughput.rate().filter(|r| *r > 0.0)?;
        Some(OperatingPoint {
            setting: self.setting.clone(),
            throughput: Estimate {
                mean: SamplesPerSecond::new(throughput),
                relative_error: self.throughput.relative_error().unwrap_or(unknown),
            },
            power: Estimate { mean: Watts::new(watts?.iter().sum()), relative_error: worst },
            measured: Seconds::new(self.throughput.seconds()),
        })
    }
}

/// Throughput and power measured at a setting, with their standard errors.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Evidence {
    /// Samples per second of the whole job.
    pub throughput: SamplesPerSecond,
    /// Relative standard error of the throughput.
    pub throughput_error: f64,
    /// Average power of all GPUs of the job.
    pub power: Watts,
    /// Relative standard error of the power.
    pub power_error: f64,
    /// Degrees of freedom of the standard errors: the lowest among those of the throughput and of each group's power.
    pub freedom: f64,
}

/// Measurements of a job that are stored between runs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Measurements of each setting.
    pub points: Vec<PointStats>,
    /// Ceiling (all GPUs at their maximum usable limits) from which a sweep down through the limits was completed;
    /// `None` before the first complete sweep.
    pub closed_at: Option<Setting>,
    /// Relative change of the throughput at the maximum usable limits from start to end of the sweep, due to warming
    /// up; `None` before the end of a sweep.
    pub thermal_trend: Option<f64>,
    /// GPUs whose sensors measured the points. Empty in records of older versions.
    #[serde(rename = "boards", default, skip_serializing_if = "BTreeSet::is_empty")]
    pub gpus: BTreeSet<GpuId>,
}

impl Record {
    /// Returns the measured operating points.
    pub fn measured(&self) -> Vec<OperatingPoint> {
        self.points.iter().filter_map(PointStats::operating_point).collect()
    }

    /// Returns the power limit with the least energy per sample, among settings with unlocked clocks. `None` before a
    /// complete sweep, and for jobs on unequal GPUs.
    pub fn most_efficient(&self) -> Option<PowerLimit> {
        self.closed_at.as_ref()?;
        let energy = |p: &OperatingPoint| p.power.mean.get() / p.throughput.mean.get();
        let plain = |p: &OperatingPoint| match p.setting.as_slice() {
            [only] if only.clock.is_none() => Some((energy(p), only.limit)),
            _ => None,
        };
        let least = self.measured().iter().filter_map(plain).min_by(|a, b| a.0.total_cmp(&b.0));
        least.map(|(_, limit)| limit)
    }
}
