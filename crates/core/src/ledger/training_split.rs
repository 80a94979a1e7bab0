//! Division of a job's training between the reference's setting, where it counts in the reference as it was, and other
//! settings, whose work is converted to the throughput and power that the profile measured at the reference.

use super::counterfactual::{Comparison, CompletedWork, compare};
use crate::domain::CarbonSeries;
use crate::profile::ProgressAccount;
use crate::units::{Joules, Samples, SamplesPerSecond, Seconds, Watts};

/// Division of a job's training between the reference's setting and other settings.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct TrainingSplit {
    /// Training time at the reference's setting, as it was.
    at_reference: Seconds,
    /// Energy of slowed training and of the job's own pauses; `None` if unknown.
    other_energy: Option<Joules>,
    /// Fraction of the job's samples that were completed at other settings.
    part: f64,
    /// Training time in which these samples were completed.
    converted: Seconds,
}

/// Throughput and power of a job's training at its reference.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct AtReference {
    pub throughput: SamplesPerSecond,
    pub power: Watts,
    /// `power`, as a multiple of the power that the profile measured there.
    pub scale: f64,
}

impl TrainingSplit {
    /// Returns a division that converts all of the work.
    pub(super) fn all(account: &ProgressAccount) -> Self {
        Self { at_reference: Seconds::ZERO, other_energy: None, part: 1.0, converted: account.active }
    }

    /// Returns the division that `account` records for the maximum usable limits as the reference.
    pub(super) fn at_ceiling(account: &ProgressAccount) -> Self {
        let lost = account.lost();
        if account.samples <= Samples::ZERO || account.has_other_ceilings {
            return Self::all(account);
        }
        let slowed = lost.total_energy().filter(|_| account.metered >= account.stalled);
        Self {
            at_reference: (account.active - lost.below).max(Seconds::ZERO),
            other_energy: slowed.map(|slowed| slowed + account.stalled_energy),
            part: (lost.samples / account.samples).min(1.0),
            converted: lost.below,
        }
    }

    /// Returns the training time whose work is converted to the reference.
    pub(super) fn converted(&self) -> Seconds {
        self.converted
    }

    /// Returns the division with more converted work by the fraction `relative`.
    pub(super) fn with_more_converted(self, relative: f64) -> Self {
        self.with_part_more(self.part * relative)
    }

    /// Returns the division with more converted work, by the fraction `part` of all of the job's samples.
    pub(super) fn with_part_more(self, part: f64) -> Self {
        Self { part: self.part + part, ..self }
    }

    /// Returns true if all training took place at the reference's setting, and its energy is known.
    pub(super) fn is_unslowed(&self) -> bool {
        self.part <= 0.0 && self.other_energy.is_some()
    }

    /// Returns throughput and power of the work `completed` at the reference. `profiled` is the time and energy of all of
    /// it by the profile. `None` if this time or the training time at the reference is zero.
    ///
    /// Training at the reference's setting keeps its measured energy. If that is unknown, all training has the profile's
    /// power.
    pub(super) fn at_reference(&self, completed: &CompletedWork, profiled: (Seconds, Joules)) -> Option<AtReference> {
        let (time, energy) = profiled;
        let training = self.at_reference + time * self.part;
        if time <= Seconds::ZERO || training <= Seconds::ZERO {
            return None;
        }
        let profiled = energy / time;
        let own = self.other_energy.map(|other| completed.energy - other);
        let power = match own.filter(|own| *own > Joules::ZERO && self.at_reference > Seconds::ZERO) {
            Some(own) => (own + profiled * (time * self.part)) / training,
            None => profiled,
        };
        Some(AtReference { throughput: completed.samples / training, power, scale: power / profiled })
    }
}

/// Compares `completed` with the same work at the maximum usable limit, where the profile measured the throughput
/// `profiled.0` and the power `profiled.1`. `static_power` returns the power of the best constant mix of power limits
/// with a given throughput (the lower hull of the profile); `account` is the job's, `series` holds the carbon
/// intensities.
///
/// Returns `None` where [`compare`] does, for a throughput of zero, and for a job that was slowed and has changed: the
/// profile is not that of its earlier work.
pub fn compare_at_ceiling(
    completed: &CompletedWork,
    account: &ProgressAccount,
    profiled: (SamplesPerSecond, Watts),
    static_power: impl Fn(SamplesPerSecond) -> Option<Watts>,
    series: &CarbonSeries,
) -> Option<Comparison> {
    let (rate, power) = profiled;
    let time = (rate > SamplesPerSecond::ZERO).then(|| completed.samples / rate)?;
    let split = TrainingSplit::at_ceiling(account);
    if split.is_unslowed() {
        return Comparison::with_itself(completed);
    }
    if account.earlier.is_some() {
        return None;
    }
    let at = split.at_reference(completed, (time, power * time))?;
    compare(completed, (at.throughput, at.power), |rate| Some(static_power(rate)? * at.scale), series)
}
