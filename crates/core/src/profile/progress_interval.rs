//! Interval between two progress reports of a job: samples, energy and settings.

use super::dips::Dip;
use super::pause_detection::IntervalWork;
use super::steps::Setting;
use crate::time::Monotonic;
use crate::units::{Joules, Samples, Seconds};

/// Minimum duration in seconds of an interval without its power dips, so that rounding never makes it zero.
const LEAST_SPAN: f64 = 0.05;
/// Maximum time, and maximum part of an interval, without a reading of the setting in force.
const UNREAD: Seconds = Seconds::new(2.0);
const UNREAD_PART: f64 = 0.05;

/// Interval between two progress reports that show new samples.
#[derive(Clone, Debug, Default)]
pub(super) struct ProgressInterval {
    /// Start (`from`) and end (`to`) on the daemon's clock.
    pub(super) from: Monotonic,
    pub(super) to: Monotonic,
    pub(super) span: Seconds,
    pub(super) samples_done: Samples,
    /// Time in which the daemon paused the job.
    pub(super) idle: Seconds,
    pub(super) waited: bool,
    /// Energy of all GPUs; `None` if part of it is unknown.
    pub(super) energy: Option<Joules>,
    /// Settings in force during the interval, each with its duration.
    pub(super) settings: Vec<(Setting, Seconds)>,
}

impl ProgressInterval {
    pub(super) fn open(from: Monotonic) -> Self {
        Self { from, to: from, energy: Some(Joules::ZERO), ..Self::default() }
    }

    /// Returns the setting of the interval; `None` if there were several, or if the daemon paused the job.
    pub(super) fn setting(&self) -> Option<&Setting> {
        match self.settings.as_slice() {
            [(only, _)] if self.idle <= Seconds::ZERO && self.is_observed() => Some(only),
            _ => None,
        }
    }

    /// Returns true if `setting` was in force throughout the interval and the daemon did not pause the job.
    pub(super) fn is_at(&self, setting: &Setting) -> bool {
        let same = |set: &Setting| set.len() == setting.len() && set.iter().zip(setting).all(|(a, b)| a.same_as(*b));
        self.idle <= Seconds::ZERO && self.is_observed() && self.settings.iter().all(|(set, _)| same(set))
    }

    /// Returns true if the settings were read for nearly the whole interval. While no daemon ran, others may have been in
    /// force.
    pub(super) fn is_observed(&self) -> bool {
        let read: Seconds = self.settings.iter().map(|(_, time)| *time).sum();
        !self.settings.is_empty() && read >= self.span - UNREAD.max(self.span * UNREAD_PART)
    }

    pub(super) fn work(&self, dip: &Dip) -> IntervalWork {
        // A power dip in the interval already explains why some reports showed no progress.
        let waited = self.waited && dip.span <= Seconds::ZERO;
        IntervalWork { span: (self.span - dip.span).get().max(LEAST_SPAN), samples: self.samples_done.get(), waited }
    }

    pub(super) fn trainable(&self) -> Seconds {
        (self.span - self.idle).max(Seconds::ZERO)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::PowerLimit;
    use crate::profile::steps::GroupRange;
    use crate::profile::{ProgressAccount, SettingEstimate, StallDetector};
    use crate::units::SamplesPerSecond;

    #[test]
    fn time_without_a_daemon_is_not_taken_for_time_at_the_maximum() {
        let max = PowerLimit::from_watts(crate::units::Watts::new(300.0));
        let mut stalls = StallDetector::new(ProgressAccount::default());
        stalls.set_groups(&[GroupRange::of_limits(max, PowerLimit::from_milliwatts(100_000))]);
        // A job that trained two hours at 80 % of its speed while the limit of a killed daemon stayed in force; the next
        // daemon restored the maximum before it read a limit, a second before the next report.
        for at in [7199.0, 7200.0] {
            let energy = Some(Joules::new(at * 200.0));
            stalls.observe(Monotonic::default().after(Seconds::new(at)), Some(&vec![max.into()]), energy, false);
        }
        let (throughput, power) = (SamplesPerSecond::new(100.0), crate::units::Watts::new(200.0));
        let known = Some(SettingEstimate { throughput, error: 0.001, power });
        let account = stalls.report(Seconds::new(7200.0), Samples::new(7200.0 * 80.0), &|_| known);
        let lost = account.lost().time(SamplesPerSecond::new(100.0));
        assert!((lost.get() - 0.2 * 7200.0).abs() < 1.0, "{lost}");
    }
}
