//! What is known of the settings at which a job was, for judging its stretches: rates, and the power of training.

use std::collections::VecDeque;

use super::ladder::{GroupRange, Setting};
use super::stretch::Stretch;
use crate::time::Monotonic;
use crate::units::{Joules, SamplesPerSecond, Seconds, Watts};

/// Where nothing was measured, training draws at least about this part of its limit, or of what it draws at the reference
/// where that is less: so do 1,315 of 1,331 rows of recorded traces, and all of them 0.74.
const LEAST_PART: f64 = 0.8;
/// This share of readings, those of pauses among them, lie below the power of training.
const UPPER: f64 = 0.75;
/// Power of training fluctuates within this part of it.
const FLUCTUATION: f64 = 0.1;
/// Fewer readings than this show no power of training.
const LEAST_READINGS: usize = 5;
/// Peaks of a GPU's draw over its mean.
const PEAKS: f64 = 1.1;
/// A rate lies within so many of its standard errors.
const WITHIN: f64 = 2.0;

/// A rate and a power that are known of a setting.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Known {
    /// Samples per second of the whole job.
    pub throughput: SamplesPerSecond,
    /// Its standard error, relative to it.
    pub error: f64,
    /// Average power of all its GPUs together.
    pub power: Watts,
}

/// The GPUs of a job, as far as judging its stretches needs them.
#[derive(Clone, Debug, Default)]
pub(super) struct Equipment {
    /// GPUs per group.
    gpus: Vec<f64>,
    /// The sum of the highest limits of all GPUs.
    pub(super) ceiling: Watts,
    /// The setting below which time is lost: each group's highest limit.
    pub(super) reference: Setting,
}

impl Equipment {
    pub(super) fn of(groups: &[GroupRange]) -> Self {
        Self {
            gpus: groups.iter().map(|g| f64::from(g.boards)).collect(),
            ceiling: groups.iter().map(|g| g.ceiling.watts() * f64::from(g.boards)).sum(),
            reference: groups.iter().map(|g| g.ceiling.into()).collect(),
        }
    }

    /// The limits of all GPUs together.
    pub(super) fn limit_of(&self, setting: &Setting) -> Watts {
        setting.iter().zip(&self.gpus).map(|(set, gpus)| set.limit.watts() * *gpus).sum()
    }
}

/// What the GPUs drew at one setting between two readings.
#[derive(Clone, Debug)]
pub(super) struct Drawn {
    pub(super) from: Monotonic,
    pub(super) to: Monotonic,
    pub(super) setting: Setting,
    pub(super) energy: Joules,
}

impl Drawn {
    pub(super) fn span(&self) -> Seconds {
        self.to.since(self.from)
    }

    pub(super) fn overlap(&self, of: &Stretch) -> Seconds {
        self.to.min(of.to).since(self.from.max(of.from))
    }
}

/// Rates between which one lies.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rates {
    pub(super) least: SamplesPerSecond,
    pub(super) most: SamplesPerSecond,
}

/// What a judgement rests on.
pub(super) struct Ground<'a> {
    equipment: &'a Equipment,
    drawn: &'a VecDeque<Drawn>,
    known: &'a dyn Fn(&Setting) -> Option<Known>,
    reference: Option<Known>,
}

impl<'a> Ground<'a> {
    pub(super) fn new(
        equipment: &'a Equipment,
        drawn: &'a VecDeque<Drawn>,
        known: &'a dyn Fn(&Setting) -> Option<Known>,
    ) -> Self {
        Self { equipment, drawn, known, reference: known(&equipment.reference) }
    }

    /// The rates that a stretch may have had, each setting for its part of the `net` time; `None` where nothing bounds them.
    pub(super) fn rates(&self, of: &Stretch, net: &[Seconds]) -> Option<Rates> {
        let time: Seconds = net.iter().copied().sum();
        let mut mean = Rates { least: SamplesPerSecond::ZERO, most: SamplesPerSecond::ZERO };
        for ((setting, _), part) in of.settings.iter().zip(net) {
            let rates = self.rates_at(setting)?;
            let part = if time > Seconds::ZERO { *part / time } else { 0.0 };
            mean.least += rates.least * part;
            mean.most += rates.most * part;
        }
        (time > Seconds::ZERO && mean.least > SamplesPerSecond::ZERO).then_some(mean)
    }

    /// The rate that was measured at a setting, or else those between the reference's and what the limit leaves of it:
    /// power falls faster than throughput.
    fn rates_at(&self, setting: &Setting) -> Option<Rates> {
        let assumed = self.assumed_rates(setting);
        let Some(Known { throughput, error, .. }) = self.known(setting) else { return assumed };
        let half = throughput * (WITHIN * error).min(1.0);
        let measured = Rates { least: throughput - half, most: throughput + half };
        let within = |of: Rates| Rates {
            least: measured.least.max(of.least.min(throughput)),
            most: measured.most.min(of.most.max(throughput)),
        };
        Some(assumed.map_or(measured, within))
    }

    fn assumed_rates(&self, setting: &Setting) -> Option<Rates> {
        let reference = self.reference.filter(|_| setting.iter().all(|set| set.clock.is_none()))?;
        let limit = self.equipment.limit_of(setting);
        let part = (limit / self.equipment.ceiling).max(limit / (reference.power * PEAKS)).min(1.0);
        Some(Rates { least: reference.throughput * part, most: reference.throughput })
    }

    pub(super) fn known(&self, setting: &Setting) -> Option<Known> {
        (self.known)(setting)
    }

    /// Power of training in a stretch, each setting for its part of the time.
    pub(super) fn power(&self, of: &Stretch) -> Option<Watts> {
        let time: Seconds = of.settings.iter().map(|(_, time)| *time).sum();
        let part = |(setting, part): &(Setting, Seconds)| Some((self.known)(setting)?.power * (*part / time));
        if of.settings.is_empty() { None } else { of.settings.iter().map(part).sum() }
    }

    /// The power of training at each setting that something was drawn at.
    pub(super) fn levels(&self) -> Vec<(&'a Setting, Option<Watts>)> {
        let mut levels: Vec<(&Setting, Option<Watts>)> = Vec::new();
        for drawn in self.drawn {
            if levels.iter().all(|(setting, _)| **setting != drawn.setting) {
                levels.push((&drawn.setting, self.level(&drawn.setting)));
            }
        }
        levels
    }

    /// Measured, or assumed by the limit; at the reference by the readings there.
    fn level(&self, setting: &Setting) -> Option<Watts> {
        let known = (self.known)(setting).map(|known| known.power);
        let plain = setting.iter().all(|set| set.clock.is_none());
        let assumed =
            self.reference.filter(|_| plain).map(|r| r.power.min(self.equipment.limit_of(setting)) * LEAST_PART);
        known.or(assumed).or_else(|| self.upper_power(setting))
    }

    /// The power that most readings at a setting show, if those of pauses are lower.
    fn upper_power(&self, setting: &Setting) -> Option<Watts> {
        let at_setting = self.drawn.iter().filter(|d| d.setting == *setting && d.span() > Seconds::ZERO);
        let mut powers: Vec<Watts> = at_setting.map(|d| d.energy / d.span()).collect();
        powers.sort_by(Watts::total_cmp);
        let upper = *powers.get((powers.len() as f64 * UPPER) as usize).filter(|_| powers.len() >= LEAST_READINGS)?;
        let (low, high) = (upper * (1.0 - FLUCTUATION), upper * (1.0 + FLUCTUATION));
        let near: Vec<Watts> = powers.into_iter().filter(|power| (low..=high).contains(power)).collect();
        Some(near.iter().copied().sum::<Watts>() / near.len() as f64)
    }
}
