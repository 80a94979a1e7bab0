//! A job's progress: how far it is, how much of the time it was training, and what its pauses used.

use serde::{Deserialize, Serialize};

use super::slack::Lost;
use super::student::student;
use crate::units::{Joules, Samples, SamplesPerSecond, Seconds, Watts};

/// Slower than this part of what the setting in force allows is a stall (validation, checkpoint, data loading) even where
/// nothing is known of the noise: no power limit is to blame for it.
pub(super) const STALL: f64 = 0.5;

/// More than this part of the time without a clear split between training and pauses, and nothing is known of either.
const MOST_UNCLEAR: f64 = 0.1;

/// A slowdown is stated once half of its 95 % confidence interval is below this: 0.3 points.
const STATED_WITHIN: f64 = 0.003;
/// Time gained by less than this part is rounding.
const ROUNDING: f64 = 1e-4;

/// Accumulated progress since the job's first report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ProgressAccount {
    /// Samples done since the first report.
    pub samples: Samples,
    /// Time spent training, and in pauses that the job was asked to make.
    pub active: Seconds,
    /// Time in which the job stood still for reasons of its own.
    pub stalled: Seconds,
    /// What the job used in that time, as far as it is known.
    #[serde(default)]
    pub stalled_energy: Joules,
    /// The part of the stalled time whose energy is known: none of it in accounts of versions that did not record it.
    #[serde(default)]
    pub metered: Seconds,
    /// The part of that in which a limit below the ceiling lowered the draw.
    #[serde(default)]
    pub bound: Seconds,
    /// What the job used in that part.
    #[serde(default)]
    pub bound_energy: Joules,
    /// Time in which reports were too far apart, or too unlike, to tell pauses from training.
    #[serde(default)]
    pub unclear: Seconds,
    /// Time counted as training that may have been pauses, or the other way round.
    #[serde(default)]
    pub doubt: Seconds,
    /// Training below the reference setting. Absent before the first report, and in accounts of versions that did not
    /// record it: then all training counts as below.
    #[serde(default)]
    pub lost: Option<Lost>,
}

impl ProgressAccount {
    /// The sum of both.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        Self {
            samples: self.samples + other.samples,
            active: self.active + other.active,
            stalled: self.stalled + other.stalled,
            stalled_energy: self.stalled_energy + other.stalled_energy,
            metered: self.metered + other.metered,
            bound: self.bound + other.bound,
            bound_energy: self.bound_energy + other.bound_energy,
            unclear: self.unclear + other.unclear,
            doubt: self.doubt + other.doubt,
            lost: Some(self.lost().plus(&other.lost())),
        }
    }

    /// Training below the reference setting.
    pub fn lost(&self) -> Lost {
        self.lost.unwrap_or(Lost { below: self.active, samples: self.samples })
    }

    /// Adds stalled time with its energy, if that is known. From a mean power of `bound` on the limit lowered it.
    pub(super) fn add_stall(&mut self, span: Seconds, energy: Option<Joules>, bound: Option<Watts>) {
        self.stalled += span;
        let Some(energy) = energy else { return };
        self.metered += span;
        self.stalled_energy += energy;
        if bound.is_some_and(|bound| energy >= bound * span) {
            self.bound += span;
            self.bound_energy += energy;
        }
    }

    /// Whether too much of the time could not be split between training and pauses to say what limits cost.
    pub fn is_unclear(&self) -> bool {
        self.unclear > self.time() * MOST_UNCLEAR
    }

    /// The whole time since the first report.
    pub fn time(&self) -> Seconds {
        self.active + self.stalled
    }

    /// By how much the job is slower so far than it would have been at the ceiling, with the same pauses of its own: 0.03
    /// is 3 %. `None` before anything was done.
    pub fn slowdown(&self, ceiling: SamplesPerSecond) -> Option<f64> {
        let lost = self.lost().time(ceiling);
        let at_ceiling = self.time() - lost;
        (self.samples > Samples::ZERO && at_ceiling > Seconds::ZERO).then(|| lost / at_ceiling)
    }

    /// The slowdown, where half of its 95 % confidence interval is below 0.3 points: with the standard error of the
    /// throughput at the ceiling, relative to it, and the time that may be training or pauses.
    pub fn known_slowdown(&self, ceiling: SamplesPerSecond, error: f64) -> Option<f64> {
        let slowdown = self.slowdown(ceiling)?;
        let half = student(f64::INFINITY) * error * (self.lost().below / self.time()) + self.doubt / self.time();
        let is_known = !self.is_unclear() && half <= STATED_WITHIN && slowdown >= -half.max(ROUNDING);
        is_known.then_some(slowdown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_in_doubt_leaves_a_slowdown_unknown() {
        let lost = Some(Lost { below: Seconds::new(500.0), samples: Samples::new(48_500.0) });
        let (samples, active) = (Samples::new(98_500.0), Seconds::new(1000.0));
        let account = ProgressAccount { samples, active, lost, ..ProgressAccount::default() };
        let known = |account: &ProgressAccount, error| account.known_slowdown(SamplesPerSecond::new(100.0), error);
        assert!(known(&account, 0.001).is_some_and(|slowdown| (slowdown - 15.0 / 985.0).abs() < 1e-12));
        assert_eq!(known(&account, 0.004), None, "half of its time may be off by 0.8 %");
        assert_eq!(known(&ProgressAccount { doubt: Seconds::new(2.5), ..account }, 0.001), None);
        assert!(known(&ProgressAccount { doubt: Seconds::new(1.5), ..account }, 0.001).is_some());
    }
}
