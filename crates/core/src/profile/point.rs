//! What is known of each setting, and what is kept of it between runs.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::dips::Dip;
use super::ladder::Setting;
use super::stats::RateStats;
use crate::domain::{Estimate, GpuId, OperatingPoint, PowerLimit};
use crate::units::{Joules, Samples, SamplesPerSecond, Seconds, Watts};

/// Less time than this beside a pause is known too badly.
const LEAST_SPAN: Seconds = Seconds::new(1.0);

/// What happened between two progress reports at one settled setting.
#[derive(Clone, Debug)]
pub(super) struct Chunk {
    /// On the client's clock.
    pub(super) span: Seconds,
    pub(super) done: Samples,
    /// Energy has times of its own, on the daemon's clock.
    pub(super) energy_span: Seconds,
    /// One per group.
    pub(super) energy: Vec<Joules>,
    /// Whether no board said that its power limit lowers its clocks.
    pub(super) loose: bool,
    /// Whether reports without progress lie within it.
    pub(super) waited: bool,
}

impl Chunk {
    pub(super) fn rate(&self) -> f64 {
        self.done.get() / self.span.get()
    }

    /// What remains beside pauses; `None` where that is a moment only.
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

/// What is known of one setting, in sums that can be stored and added to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PointStats {
    /// One set point per group.
    pub setting: Setting,
    pub(super) throughput: RateStats,
    /// One per group.
    pub(super) power: Vec<RateStats>,
    /// Seconds in which no power limit was felt. Records of versions that did not look have none.
    #[serde(default, skip_serializing_if = "is_zero")]
    loose_s: f64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_zero(seconds: &f64) -> bool {
    *seconds == 0.0
}

/// A reason may show for a moment when a setting changes; more than this part of the time it is no moment.
const FELT: f64 = 0.05;

impl PointStats {
    pub(super) fn new(setting: Setting) -> Self {
        let power = vec![RateStats::default(); setting.len()];
        Self { setting, throughput: RateStats::default(), power, loose_s: 0.0 }
    }

    pub(super) fn add(&mut self, chunk: &Chunk) {
        self.throughput.add(chunk.span.get(), chunk.done.get());
        if chunk.loose {
            self.loose_s += chunk.span.get();
        }
        if chunk.energy_span > Seconds::ZERO {
            for (stats, energy) in self.power.iter_mut().zip(&chunk.energy) {
                stats.add(chunk.energy_span.get(), energy.get());
            }
        }
    }

    /// Whether no board's power limit was felt.
    pub(super) fn is_loose(&self) -> bool {
        self.loose_s > 0.0 && self.loose_s >= self.throughput.seconds() * (1.0 - FELT)
    }

    /// Takes in what another measurement of the same setting gave.
    pub(super) fn merge(&mut self, other: &Self) {
        self.throughput = self.throughput.merged(&other.throughput);
        self.power = self.power.iter().zip(&other.power).map(|(a, b)| a.merged(b)).collect();
        self.loose_s += other.loose_s;
    }

    /// What was measured, for whoever asks how sure it is; `None` before its error can be told. The boards' sensors are
    /// not part of it.
    pub(super) fn evidence(&self) -> Option<Evidence> {
        let (throughput_error, mut freedom) = self.throughput.lasting_error()?;
        let (mut watts, mut power_error) = (0.0, 0.0_f64);
        for power in &self.power {
            let (error, of) = power.lasting_error()?;
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

    /// What the sums say; `None` before anything is known.
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

/// A measured point with how sure it is.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Evidence {
    /// Samples per second of the whole job.
    pub throughput: SamplesPerSecond,
    /// Its standard error, relative to it.
    pub throughput_error: f64,
    /// Average power of all the job's boards together.
    pub power: Watts,
    /// Its standard error, relative to it.
    pub power_error: f64,
    /// The degrees of freedom that these errors are known with.
    pub freedom: f64,
}

/// What is kept of a profile between runs and restarts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// What was measured, setting by setting.
    pub points: Vec<PointStats>,
    /// The ceiling whose sweep was finished and closed.
    pub closed_at: Option<Setting>,
    /// Throughput at the end of the sweep over throughput at its start, at the ceiling, less 1: what warming up did.
    pub thermal_trend: Option<f64>,
    /// Whose sensors measured it. Records of versions that did not say have none.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub boards: BTreeSet<GpuId>,
}

impl Record {
    /// What was measured, setting by setting.
    pub fn measured(&self) -> Vec<OperatingPoint> {
        self.points.iter().filter_map(PointStats::operating_point).collect()
    }

    /// The limit of least energy for a sample, once all were measured. For boards of one model, with clocks left alone.
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
