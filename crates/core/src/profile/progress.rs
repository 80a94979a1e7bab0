//! Progress account of a job: samples done, training time, and time and energy of pauses.

use serde::{Deserialize, Serialize};

use super::slack::SlowedTraining;
use super::student::student;
use crate::units::{Joules, Samples, SamplesPerSecond, Seconds, Watts};

/// Fraction of the expected rate (samples/s) below which the time between two reports counts as a pause of the job
/// (validation, checkpoint, data loading) even if the noise of the rate is unknown: no power limit slows a job that
/// much.
pub(super) const STALL: f64 = 0.5;

/// Maximum fraction of a job's time in which pauses cannot be distinguished from training. Above it, the durations of
/// training and pauses count as unknown.
const MOST_UNCLEAR: f64 = 0.1;

/// Maximum half width of the 95 % confidence interval of a slowdown that is reported: 0.3 percentage points.
const STATED_WITHIN: f64 = 0.003;
/// Largest relative time gain (negative slowdown) that counts as rounding: 0.0001 is 0.01 %.
const ROUNDING: f64 = 1e-4;

/// Progress of a job accumulated since its first report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ProgressAccount {
    /// Samples done since the first report.
    pub samples: Samples,
    /// Time spent training and in pauses requested by the daemon.
    pub active: Seconds,
    /// Time in the job's own pauses.
    pub stalled: Seconds,
    /// Longest of these pauses.
    #[serde(default)]
    pub longest_stall: Seconds,
    /// Energy of the stalled time, where known.
    #[serde(default)]
    pub stalled_energy: Joules,
    /// Stalled time whose energy is known; zero in accounts of versions that did not record it.
    #[serde(default)]
    pub metered: Seconds,
    /// Part of `metered` in which a power limit below the maximum usable limit lowered the power.
    #[serde(default)]
    pub bound: Seconds,
    /// Energy used during the time `bound`.
    #[serde(default)]
    pub bound_energy: Joules,
    /// Time in which reports were too sparse or too irregular to distinguish pauses from training.
    #[serde(default)]
    pub unclear: Seconds,
    /// Time that may be attributed wrongly to training or to pauses.
    #[serde(rename = "doubt", default)]
    pub unclear_time: Seconds,
    /// Training below the reference setting (all GPUs at their maximum usable limits). Absent before the first report
    /// and in accounts of older versions; all training then counts as below the reference setting.
    #[serde(default)]
    pub lost: Option<SlowedTraining>,
    /// True if a part of the training took place while a cap on the node's power had set other ceilings (maximum usable
    /// limits): training at those is not in `lost`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub has_other_ceilings: bool,
    /// Part of this account from before the job last changed so much that it was profiled again; absent if it never
    /// did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub earlier: Option<EarlierWork>,
    /// Part of this account (`earlier` included) from before a cap on the node's power last changed the ceilings; absent
    /// if none did since the job last changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_other_ceilings: Option<EarlierWork>,
    /// Usual time between reports; absent while it is unknown, and in accounts of older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spacing: Option<Seconds>,
    /// Part of this account from before the job began to differ from its profile, while the job waits at its maximum
    /// usable limits for a new profile; absent at other times.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drifting: Option<EarlierWork>,
}

/// Work from before a job, or the ceilings (maximum usable limits) of its GPUs, changed. Its time at the reference setting
/// is fixed with the reference throughput that was measured before the change, because that throughput is different since
/// then.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EarlierWork {
    /// Samples done by the time of the change.
    pub samples: Samples,
    /// Time that these samples take at the reference setting.
    pub time: Seconds,
    /// Training below the reference setting by the time of the change.
    pub slowed: SlowedTraining,
    /// Time lost in this training.
    pub lost: Seconds,
}

impl ProgressAccount {
    /// Returns the sum of two accounts.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        Self {
            samples: self.samples + other.samples,
            active: self.active + other.active,
            stalled: self.stalled + other.stalled,
            longest_stall: self.longest_stall.max(other.longest_stall),
            stalled_energy: self.stalled_energy + other.stalled_energy,
            metered: self.metered + other.metered,
            bound: self.bound + other.bound,
            bound_energy: self.bound_energy + other.bound_energy,
            unclear: self.unclear + other.unclear,
            unclear_time: self.unclear_time + other.unclear_time,
            lost: Some(self.lost().plus(&other.lost())),
            has_other_ceilings: self.has_other_ceilings || other.has_other_ceilings,
            earlier: self.earlier.or(other.earlier),
            at_other_ceilings: self.at_other_ceilings.or(other.at_other_ceilings),
            spacing: self.spacing.or(other.spacing),
            drifting: self.drifting.or(other.drifting),
        }
    }

    /// Fixes the part of this account from before the job changed.
    pub fn set_earlier(&mut self, earlier: EarlierWork) {
        self.earlier = Some(earlier);
        self.at_other_ceilings = None;
    }

    /// Returns the work whose time at the reference setting is fixed.
    fn fixed(&self) -> EarlierWork {
        self.at_other_ceilings.or(self.earlier).unwrap_or_default()
    }

    /// Returns the time that the first `samples` since the first report take at the reference setting, with the
    /// throughput `reference` for those since the job or its ceilings last changed.
    pub fn reference_time(&self, samples: Samples, reference: SamplesPerSecond) -> Seconds {
        let fixed = self.fixed();
        fixed.time + (samples - fixed.samples).max(Samples::ZERO) / reference
    }

    /// Returns how much longer the work from before the job or its ceilings last changed takes at the reference setting of
    /// then than with the throughput `reference`.
    pub fn excess_before(&self, reference: SamplesPerSecond) -> Seconds {
        let fixed = self.fixed();
        fixed.time - fixed.samples / reference
    }

    /// Returns the expected time of the job's own pauses in the work that it does after these samples, which takes
    /// `left` at the reference setting: as many pauses per work as so far, and the longest once more, because the next one
    /// may be due at once. Zero for a job that never paused.
    pub fn pauses_ahead(&self, left: Seconds, reference: SamplesPerSecond) -> Seconds {
        let trained = self.reference_time(self.samples, reference);
        if left <= Seconds::ZERO || trained <= Seconds::ZERO {
            return Seconds::ZERO;
        }
        left * (self.stalled / trained) + self.longest_stall
    }

    /// Returns the time lost to lower limits, with the throughput `reference` at the reference setting since the job
    /// or its ceilings last changed; negative if lower limits were faster.
    pub fn lost_time(&self, reference: SamplesPerSecond) -> Seconds {
        let fixed = self.fixed();
        fixed.lost + self.lost().less(&fixed.slowed).time(reference)
    }

    /// Returns all work in this account as work from before a change, with the throughput `reference` at the reference
    /// setting until then.
    pub fn as_earlier(&self, reference: SamplesPerSecond) -> EarlierWork {
        EarlierWork {
            samples: self.samples,
            time: self.reference_time(self.samples, reference),
            slowed: self.lost(),
            lost: self.lost_time(reference),
        }
    }

    /// Returns the training below the reference setting (maximum usable limits): all training if it was not recorded
    /// separately.
    pub fn lost(&self) -> SlowedTraining {
        let all = SlowedTraining { below: self.active, samples: self.samples, ..SlowedTraining::default() };
        self.lost.unwrap_or(all)
    }

    /// Adds stalled time, in which the longest pause took `longest`, with its energy, if known. If the mean power of that
    /// time is at least `bound`, a power limit counts as having lowered it; with `None`, never.
    pub(super) fn add_stall(&mut self, span: Seconds, longest: Seconds, energy: Option<Joules>, bound: Option<Watts>) {
        self.stalled += span;
        self.longest_stall = self.longest_stall.max(longest);
        let Some(energy) = energy else { return };
        self.metered += span;
        self.stalled_energy += energy;
        if bound.is_some_and(|bound| energy >= bound * span) {
            self.bound += span;
            self.bound_energy += energy;
        }
    }

    /// Returns true if too much time is unclear to report what power limits cost the job.
    pub fn is_unclear(&self) -> bool {
        self.unclear > self.time() * MOST_UNCLEAR
    }

    /// Returns the time since the first report.
    pub fn time(&self) -> Seconds {
        self.active + self.stalled
    }

    /// Returns the slowdown so far against training at the maximum usable limit (throughput `ceiling` since the job last
    /// changed) with the same pauses; 0.03 is 3 %. `None` before the first sample.
    pub fn slowdown(&self, ceiling: SamplesPerSecond) -> Option<f64> {
        let lost = self.lost_time(ceiling);
        let at_ceiling = self.time() - lost;
        (self.samples > Samples::ZERO && at_ceiling > Seconds::ZERO).then(|| lost / at_ceiling)
    }

    /// Returns the slowdown if the half width of its 95 % confidence interval is at most 0.3 percentage points; `None`
    /// otherwise, and if too much time is unclear or the slowdown is negative by more than that half width. `error` is
    /// the relative standard error of `ceiling`.
    pub fn known_slowdown(&self, ceiling: SamplesPerSecond, error: f64) -> Option<f64> {
        let slowdown = self.slowdown(ceiling)?;
        let half = student(f64::INFINITY) * error * (self.lost().below / self.time()) + self.unclear_time / self.time();
        let is_known = !self.is_unclear() && half <= STATED_WITHIN && slowdown >= -half.max(ROUNDING);
        is_known.then_some(slowdown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_in_doubt_leaves_a_slowdown_unknown() {
        let lost = Some(SlowedTraining {
            below: Seconds::new(500.0),
            samples: Samples::new(48_500.0),
            ..SlowedTraining::default()
        });
        let (samples, active) = (Samples::new(98_500.0), Seconds::new(1000.0));
        let account = ProgressAccount { samples, active, lost, ..ProgressAccount::default() };
        let known = |account: &ProgressAccount, error| account.known_slowdown(SamplesPerSecond::new(100.0), error);
        assert!(known(&account, 0.001).is_some_and(|slowdown| (slowdown - 15.0 / 985.0).abs() < 1e-12));
        assert_eq!(known(&account, 0.004), None, "half of its time may be off by 0.8 %");
        assert_eq!(known(&ProgressAccount { unclear_time: Seconds::new(2.5), ..account }, 0.001), None);
        assert!(known(&ProgressAccount { unclear_time: Seconds::new(1.5), ..account }, 0.001).is_some());
    }
}
