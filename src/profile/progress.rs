//! A job's progress: how far it is, and how much of the time it was really training.

use serde::{Deserialize, Serialize};

use crate::units::{Samples, SamplesPerSecond, Seconds};

/// Slower than this part of what the setting in force allows is not a slowdown but a stall (validation, checkpoint,
/// data loading): no power limit is to blame for it.
pub(super) const STALL: f64 = 0.5;

/// Accumulated progress since the job's first report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ProgressAccount {
    /// Samples done since the first report.
    pub samples: Samples,
    /// Time spent training.
    pub active: Seconds,
    /// Time in which the job stood still for reasons of its own.
    pub stalled: Seconds,
}

impl ProgressAccount {
    /// Adds what happened between two reports. `expected` is the profiled throughput at the setting in force, if known.
    pub fn add(&mut self, span: Seconds, done: Samples, expected: Option<SamplesPerSecond>) {
        self.samples += done;
        let active = match expected {
            Some(rate) if done < rate * span * STALL => done / rate,
            _ => span,
        };
        self.active += active;
        self.stalled += span - active;
    }

    /// By how much the job is slower so far than it would have been at the ceiling: 0.03 is 3 %. `None` before
    /// anything was done.
    pub fn slowdown(&self, ceiling: SamplesPerSecond) -> Option<f64> {
        let (done, possible) = (self.samples, ceiling * self.active);
        (done > Samples::ZERO).then(|| possible / done - 1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stalls_are_not_slowdown() {
        let ceiling = SamplesPerSecond::new(100.0);
        let now = SamplesPerSecond::new(95.0);
        let mut account = ProgressAccount::default();
        assert_eq!(account.slowdown(ceiling), None);
        account.add(Seconds::new(100.0), Samples::new(9_500.0), Some(now));
        account.add(Seconds::new(60.0), Samples::new(950.0), Some(now));
        assert_eq!(account.stalled, Seconds::new(50.0));
        let slowdown = account.slowdown(ceiling).expect("something done");
        assert!((slowdown - (100.0 / 95.0 - 1.0)).abs() < 1e-12);
        account.add(Seconds::new(10.0), Samples::new(800.0), Some(now));
        assert_eq!(account.stalled, Seconds::new(50.0), "a bit slower is slower, not stalled");
    }
}
