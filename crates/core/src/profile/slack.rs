//! The slack account: what a job lost to lower limits so far, and what it may still lose.
//!
//! Time at the reference setting costs nothing, whatever the job's own speed does meanwhile: only intervals below it
//! count, each with its time less what the same samples take at the reference. Learning, planned slowness and waiting
//! between two reports are all paid from this account.

use serde::{Deserialize, Serialize};

use super::noise::Noise;
use crate::units::{Samples, SamplesPerSecond, Seconds};

/// Noise may break a promise by this much time, within the bounds below: it is not worth a reserve.
const TOLERATED: Seconds = Seconds::new(1.0);
/// The same as a part of the job's time at the least and at the most.
const TOLERATED_PART: (f64, f64) = (0.0009, 0.0025);
/// A reserve in standard errors below which it never falls.
const LEAST_RESERVE: f64 = 0.5;

/// Training below the reference setting since the job's first report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Lost {
    /// Training time of all intervals in which another setting than the reference was in force.
    pub below: Seconds,
    /// Samples of these intervals.
    pub samples: Samples,
}

impl Lost {
    /// The sum of both.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        Self { below: self.below + other.below, samples: self.samples + other.samples }
    }

    /// The time lost, t − x/r(l_max), in seconds; negative where lower limits turned out to be faster.
    pub fn time(&self, reference: SamplesPerSecond) -> Seconds {
        self.below - self.samples / reference
    }
}

/// What a job may lose in all, and lost so far, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Slack {
    /// Allowed in all, the reserve for what is not known of the reference taken off.
    pub allowed: Seconds,
    /// Lost so far.
    pub lost: Seconds,
    /// Time that all of the job's work takes at the reference; `None` where it does not say how much there is.
    pub whole: Option<Seconds>,
    /// The slowdown that is promised: 0.03 is 3 %.
    pub part: f64,
}

impl Slack {
    /// What may still be lost; negative once the promise is broken.
    pub fn left(&self) -> Seconds {
        self.allowed - self.lost
    }
}

/// The part of a job's time that plans leave unspent, because the reference is known with an error only: what that costs
/// at most in all but one of 200 cases, less what is tolerated (a second, within 0.09 % and 0.25 % of the time), and half
/// a standard error at the least. All of it while the error is not known.
///
/// `error` is the reference's relative standard error, `whole` the time of all work at the reference.
pub fn reserve(error: f64, noise: Option<&Noise>, whole: Seconds) -> f64 {
    let Some(noise) = noise else { return if error > 0.0 { 1.0 } else { 0.0 } };
    let part = if whole > Seconds::ZERO { TOLERATED / whole } else { 0.0 };
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
        let lost = Lost { below: Seconds::new(20.0), samples: Samples::new(1_800.0) };
        assert_eq!(lost.time(RATE), Seconds::new(2.0));
        assert_eq!(lost.plus(&lost).time(RATE), Seconds::new(4.0));
        let slack = Slack { allowed: Seconds::new(3.0), lost: lost.time(RATE), whole: None, part: 0.03 };
        assert_eq!(slack.left(), Seconds::new(1.0));
    }

    #[test]
    fn what_is_known_badly_is_kept_in_reserve() {
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
