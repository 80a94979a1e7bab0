//! Throughput bounds and training power at each setting, from measurements or assumed from the power limit.

use std::collections::VecDeque;

use super::dips::SUFFICIENT;
use super::progress_interval::ProgressInterval;
use super::steps::{GroupRange, Setting};
use crate::time::Monotonic;
use crate::units::{Joules, SamplesPerSecond, Seconds, Watts};

/// Assumed lower bound of the training power at an unmeasured setting, as a fraction of the limit or of the power at
/// the reference setting (maximum usable limits), whichever is lower. Holds for 1,315 of 1,331 rows of recorded traces;
/// the lowest fraction in these rows is 0.74.
const LEAST_POWER_SHARE: f64 = 0.8;
/// Quantile of all power readings at a setting, including those in pauses, that is taken as the training power.
const UPPER_QUANTILE: f64 = 0.75;
/// Relative deviation from the quantile [`UPPER_QUANTILE`] up to which readings count as training power.
const FLUCTUATION: f64 = 0.1;
/// Minimum number of readings at a setting for estimating the training power from them.
const LEAST_READINGS: usize = 5;
/// Assumed ratio of a GPU's peak power to its mean power.
const PEAK_TO_MEAN: f64 = 1.1;
/// Half width of a measured rate's bounds, in standard errors.
const RATE_ERRORS: f64 = 2.0;

/// Estimated throughput and power at a setting.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SettingEstimate {
    /// Samples per second of the whole job.
    pub throughput: SamplesPerSecond,
    /// Relative standard error of the throughput.
    pub error: f64,
    /// Average power of all GPUs of the job.
    pub power: Watts,
}

/// GPUs of a job, grouped by GPU model.
#[derive(Clone, Debug, Default)]
pub(super) struct GpuGroups {
    /// Number of GPUs in each group.
    gpus: Vec<f64>,
    /// Sum of the maximum usable limits of all GPUs.
    pub(super) ceiling: Watts,
    /// Reference setting: all groups at their maximum usable limits. Only lower settings lose time.
    pub(super) reference: Setting,
}

impl GpuGroups {
    pub(super) fn of(groups: &[GroupRange]) -> Self {
        Self {
            gpus: groups.iter().map(|g| f64::from(g.gpus)).collect(),
            ceiling: groups.iter().map(|g| g.ceiling.watts() * f64::from(g.gpus)).sum(),
            reference: groups.iter().map(|g| g.ceiling.into()).collect(),
        }
    }

    /// Returns the sum of the limits of all GPUs at a setting.
    pub(super) fn limit_of(&self, setting: &Setting) -> Watts {
        setting.iter().zip(&self.gpus).map(|(set, gpus)| set.limit.watts() * *gpus).sum()
    }
}

/// Energy of all GPUs of a job at one setting between two readings.
#[derive(Clone, Debug)]
pub(super) struct EnergyInterval {
    pub(super) from: Monotonic,
    pub(super) to: Monotonic,
    pub(super) setting: Setting,
    pub(super) energy: Joules,
}

impl EnergyInterval {
    pub(super) fn span(&self) -> Seconds {
        self.to.since(self.from)
    }

    pub(super) fn overlap(&self, of: &ProgressInterval) -> Seconds {
        self.to.min(of.to).since(self.from.max(of.from))
    }
}

/// Lower and upper bound of a throughput.
#[derive(Clone, Copy, Debug)]
pub(super) struct RateBounds {
    pub(super) least: SamplesPerSecond,
    pub(super) most: SamplesPerSecond,
}

/// Source of throughput bounds and training power for each setting.
pub(super) struct RateModel<'a> {
    groups: &'a GpuGroups,
    drawn: &'a VecDeque<EnergyInterval>,
    estimate: &'a dyn Fn(&Setting) -> Option<SettingEstimate>,
    reference: Option<SettingEstimate>,
}

impl<'a> RateModel<'a> {
    pub(super) fn new(
        groups: &'a GpuGroups,
        drawn: &'a VecDeque<EnergyInterval>,
        estimate: &'a dyn Fn(&Setting) -> Option<SettingEstimate>,
    ) -> Self {
        Self { groups, drawn, estimate, reference: estimate(&groups.reference) }
    }

    /// Returns the bounds of an interval's mean throughput. `net` is the time spent at each of the interval's settings,
    /// without power dips; it weights the bounds at these settings. `None` if the bounds at one of them are unknown.
    pub(super) fn rates(&self, of: &ProgressInterval, net: &[Seconds]) -> Option<RateBounds> {
        let time: Seconds = net.iter().copied().sum();
        let mut mean = RateBounds { least: SamplesPerSecond::ZERO, most: SamplesPerSecond::ZERO };
        for ((setting, _), part) in of.settings.iter().zip(net) {
            let rates = self.rates_at(setting)?;
            let part = if time > Seconds::ZERO { *part / time } else { 0.0 };
            mean.least += rates.least * part;
            mean.most += rates.most * part;
        }
        (time > Seconds::ZERO && mean.least > SamplesPerSecond::ZERO).then_some(mean)
    }

    /// Returns the bounds of the rate at a setting: the measured rate ± two standard errors, limited to the assumed
    /// bounds, or the assumed bounds alone if the setting is unmeasured. The assumed upper bound is the rate at the
    /// reference setting; the lower one is that rate times the ratio of the setting's limit to the lower of the
    /// reference's limit and peak power (power falls faster than throughput).
    fn rates_at(&self, setting: &Setting) -> Option<RateBounds> {
        let assumed = self.assumed_rates(setting);
        let Some(SettingEstimate { throughput, error, .. }) = self.estimate(setting) else { return assumed };
        let half = throughput * (RATE_ERRORS * error).min(1.0);
        let measured = RateBounds { least: throughput - half, most: throughput + half };
        let within = |of: RateBounds| RateBounds {
            least: measured.least.max(of.least.min(throughput)),
            most: measured.most.min(of.most.max(throughput)),
        };
        Some(assumed.map_or(measured, within))
    }

    fn assumed_rates(&self, setting: &Setting) -> Option<RateBounds> {
        let reference = self.reference.filter(|_| setting.iter().all(|set| set.clock.is_none()))?;
        let limit = self.groups.limit_of(setting);
        let part = (limit / self.groups.ceiling).max(limit / (reference.power * PEAK_TO_MEAN)).min(1.0);
        Some(RateBounds { least: reference.throughput * part, most: reference.throughput })
    }

    pub(super) fn estimate(&self, setting: &Setting) -> Option<SettingEstimate> {
        (self.estimate)(setting)
    }

    /// Returns the mean training power of an interval, weighted by time; `None` if a setting is unmeasured.
    pub(super) fn power(&self, of: &ProgressInterval) -> Option<Watts> {
        let time: Seconds = of.settings.iter().map(|(_, time)| *time).sum();
        let part = |(setting, part): &(Setting, Seconds)| Some((self.estimate)(setting)?.power * (*part / time));
        if of.settings.is_empty() { None } else { of.settings.iter().map(part).sum() }
    }

    /// Returns the training power at each setting that has energy readings; `None` where it cannot be estimated.
    pub(super) fn training_powers(&self) -> Vec<(&'a Setting, Option<Watts>)> {
        let mut powers: Vec<(&Setting, Option<Watts>)> = Vec::new();
        for drawn in self.drawn {
            if powers.iter().all(|(setting, _)| **setting != drawn.setting) {
                powers.push((&drawn.setting, self.training_power(&drawn.setting)));
            }
        }
        powers
    }

    /// Returns the training power at a setting: from measurements, else assumed from the limit, else estimated from the
    /// power readings. `None` if none of these is possible.
    fn training_power(&self, setting: &Setting) -> Option<Watts> {
        let known = (self.estimate)(setting).map(|known| known.power);
        let plain = setting.iter().all(|set| set.clock.is_none());
        let assumed =
            self.reference.filter(|_| plain).map(|r| r.power.min(self.groups.limit_of(setting)) * LEAST_POWER_SHARE);
        known.or(assumed).or_else(|| self.upper_quartile_power(setting))
    }

    /// Returns the mean powers at a setting, each over successive readings that last at least [`SUFFICIENT`] together.
    fn sufficient_readings(&self, setting: &Setting) -> Vec<Watts> {
        let mut powers = Vec::new();
        let (mut span, mut energy, mut end) = (Seconds::ZERO, Joules::ZERO, None);
        for drawn in self.drawn.iter().filter(|d| d.setting == *setting) {
            if end != Some(drawn.from) {
                (span, energy) = (Seconds::ZERO, Joules::ZERO);
            }
            (span, energy, end) = (span + drawn.span(), energy + drawn.energy, Some(drawn.to));
            if span >= SUFFICIENT {
                powers.push(energy / span);
                (span, energy) = (Seconds::ZERO, Joules::ZERO);
            }
        }
        powers
    }

    /// Returns the mean of the power readings near the upper quartile, because lower readings may be pauses; `None` if
    /// there are too few readings.
    fn upper_quartile_power(&self, setting: &Setting) -> Option<Watts> {
        let mut powers: Vec<Watts> = self.sufficient_readings(setting);
        powers.sort_by(Watts::total_cmp);
        let upper =
            *powers.get((powers.len() as f64 * UPPER_QUANTILE) as usize).filter(|_| powers.len() >= LEAST_READINGS)?;
        let (low, high) = (upper * (1.0 - FLUCTUATION), upper * (1.0 + FLUCTUATION));
        let near: Vec<Watts> = powers.into_iter().filter(|power| (low..=high).contains(power)).collect();
        Some(near.iter().copied().sum::<Watts>() / near.len() as f64)
    }
}
