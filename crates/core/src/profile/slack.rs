//! Slack account: time that a job lost to lower limits so far, and may still lose.
//!
//! An interval costs time only if its setting is not the reference (maximum usable limits): its duration less the time
//! that its samples would have taken at the reference. The account pays for profiling, planned slowdown and waiting for
//! reports.

use serde::{Deserialize, Serialize};

use super::noise::Noise;
use crate::units::{Joules, Samples, SamplesPerSecond, Seconds};

/// Time by which noise may make a job exceed its allowed slowdown; plans keep no reserve for this time.
const TOLERATED: Seconds = Seconds::new(1.0);
/// Minimum fraction of slowed training with known energy for an estimate of all its energy. The rest may have been a
/// planned pause, which draws far less.
const LEAST_METERED: f64 = 0.998;
/// Minimum (first) and maximum (second) of the tolerance [`TOLERATED`], as fractions of the job's duration.
const TOLERATED_PART: (f64, f64) = (0.0009, 0.0025);
/// Minimum reserve (time that plans leave unspent), in standard errors of the reference throughput.
const LEAST_RESERVE: f64 = 0.5;

/// Training that a job has done below the reference setting (all GPUs at their maximum usable limits) since its first
/// report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SlowedTraining {
    /// Training time in intervals with a setting other than the reference.
    pub below: Seconds,
    /// Samples done in these intervals.
    pub samples: Samples,
    /// Part of `below` whose energy is known; zero in accounts of versions that did not record it.
    #[serde(default)]
    pub metered: Seconds,
    /// Energy of the training in the time `metered`.
    #[serde(default)]
    pub energy: Joules,
}

impl SlowedTraining {
    /// Returns the sum of two such records.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        Self {
            below: self.below + other.below,
            samples: self.samples + other.samples,
            metered: self.metered + other.metered,
            energy: self.energy + other.energy,
        }
    }

    /// Returns this record less `earlier`, an earlier record of the same job.
    #[must_use]
    pub(super) fn less(&self, earlier: &Self) -> Self {
        Self {
            below: self.below - earlier.below,
            samples: self.samples - earlier.samples,
            metered: self.metered - earlier.metered,
            energy: self.energy - earlier.energy,
        }
    }

    /// Returns the energy of this training; `None` if it is unknown for more than 0.2 % of the time.
    pub fn total_energy(&self) -> Option<Joules> {
        if self.below <= Seconds::ZERO {
            return Some(Joules::ZERO);
        }
        (self.metered >= self.below * LEAST_METERED).then(|| self.energy * (self.below / self.metered))
    }

    /// Returns the time lost against the reference throughput, t − x/r(l_max); negative if lower limits were faster.
    pub fn time(&self, reference: SamplesPerSecond) -> Seconds {
        self.below - self.samples / reference
    }
}

/// Time that a job may lose to lower limits in total, and time that it has lost so far.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Slack {
    /// Time that the job may lose in total, less the reserve for the error of the reference throughput.
    pub allowed: Seconds,
    /// Time that the job lost so far.
    pub lost: Seconds,
    /// Duration of the whole job at the reference setting; `None` if its work is unknown.
    pub full_duration: Option<Seconds>,
    /// Allowed slowdown, less the reserve for the error of the reference throughput; 0.03 is 3 %.
    pub part: f64,
}

impl Slack {
    /// Returns the time that the job may still lose; negative once the allowed slowdown is exceeded.
    pub fn left(&self) -> Seconds {
        self.allowed - self.lost
    }
}

/// Returns the fraction of a job's duration that plans leave unspent because the reference throughput (at the maximum
/// usable limits) has an error: the 99.5 % quantile of that error less a tolerance (1 s, but at least 0.09 % and at
/// most 0.25 % of the duration), and at least half a standard error. While the noise is unknown, returns 1, or 0 if
/// `error` is zero.
///
/// `error` is the relative standard error of the reference throughput, `full_duration` the duration of all work at the
/// reference.
pub fn reserve(error: f64, noise: Option<&Noise>, full_duration: Seconds) -> f64 {
    let Some(noise) = noise else { return if error > 0.0 { 1.0 } else { 0.0 } };
    let part = if full_duration > Seconds::ZERO { TOLERATED / full_duration } else { 0.0 };
    let tolerated = part.clamp(TOLERATED_PART.0, TOLERATED_PART.1);
    (noise.rare() * error - tolerated).max(LEAST_RESERVE * error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::RateStats;

    const RATE: SamplesPerSecond = SamplesPerSecond::new(100.0);

    #[test]
    fn only_time_below_the_reference_is_lost() {
        let lost =
            SlowedTraining { below: Seconds::new(20.0), samples: Samples::new(1_800.0), ..SlowedTraining::default() };
        assert_eq!(lost.time(RATE), Seconds::new(2.0));
        assert_eq!(lost.plus(&lost).time(RATE), Seconds::new(4.0));
        let slack = Slack { allowed: Seconds::new(3.0), lost: lost.time(RATE), full_duration: None, part: 0.03 };
        assert_eq!(slack.left(), Seconds::new(1.0));
    }

    #[test]
    fn an_uncertain_reference_needs_a_reserve() {
        let mut stats = RateStats::default();
        for n in 0..50 {
            stats.add(1.0, if n % 2 == 0 { 98.0 } else { 102.0 });
        }
        let noise = Noise::pooled([stats].iter()).expect("many chunks");
        let hour = Seconds::new(3600.0);
        assert_eq!(reserve(0.0, Some(&noise), hour), 0.0);
        assert_eq!(reserve(0.01, None, hour), 1.0);
        assert_eq!(reserve(0.0002, Some(&noise), hour), 0.0001, "half an error at the least");
        let reserved = reserve(0.004, Some(&noise), hour);
        assert!((reserved - (0.004 * noise.rare() - 0.0009)).abs() < 1e-12, "{reserved}");
        assert!(reserve(0.004, Some(&noise), Seconds::new(300.0)) < reserved, "short jobs tolerate more");
    }
}
