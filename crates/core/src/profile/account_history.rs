//! Work of a job by the time of earlier reports. A change of the job is detected only some time later; the work before the
//! change is needed then.

use std::collections::VecDeque;

use super::progress::EarlierWork;
use crate::time::Monotonic;
use crate::units::Seconds;

/// Maximum number of kept entries.
const KEPT: usize = 256;

/// Work of a job by the time of earlier reports, oldest first, each with the reference throughput known then.
#[derive(Clone, Debug, Default)]
pub struct AccountHistory {
    restarts: u32,
    entries: VecDeque<(Monotonic, EarlierWork)>,
}

impl AccountHistory {
    /// Adds the work by a report, unless the last entry was added just before. A full history drops the entry without
    /// which the gap is smallest relative to its age: the longer ago a change was, the less exact its time needs to be.
    /// `detection_time` is the time within which a change of a job is detected.
    pub fn push(&mut self, at: Monotonic, work: EarlierWork, detection_time: Seconds) {
        let spacing = detection_time * (2.0 / KEPT as f64);
        if self.entries.back().is_some_and(|(last, ..)| at.since(*last) < spacing) {
            return;
        }
        if self.entries.len() == KEPT {
            let time = |i: usize| self.entries[i].0;
            let gap = |i: usize| time(i + 1).since(time(i - 1)) / at.since(time(i));
            if let Some(least) = (1..KEPT - 1).min_by(|a, b| gap(*a).total_cmp(&gap(*b))) {
                self.entries.remove(least);
            }
        }
        self.entries.push_back((at, work));
    }

    /// Creates an empty history for a job that was profiled again `restarts` times.
    pub fn after(restarts: u32) -> Self {
        Self { restarts, ..Self::default() }
    }

    /// Returns how often the job had been profiled again when the history began.
    pub fn restarts(&self) -> u32 {
        self.restarts
    }

    /// Returns the work up to the last report that was received by `time`, or up to the oldest kept report if all are
    /// later; `None` if none is kept.
    pub fn work_until(&self, time: Monotonic) -> Option<EarlierWork> {
        let entry = self.entries.iter().rev().find(|(at, ..)| *at <= time).or(self.entries.front());
        entry.map(|(_, work)| *work)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::{ProgressAccount, SlowedTraining};
    use crate::units::{Samples, SamplesPerSecond};

    #[test]
    fn work_of_any_age_is_known_within_a_part_of_its_age() {
        let at = |s: f64| Monotonic::default().after(Seconds::new(s));
        let work = |s: f64| EarlierWork { samples: Samples::new(s), ..EarlierWork::default() };
        let mut history = AccountHistory::default();
        for s in 1..=20_000 {
            history.push(at(f64::from(s)), work(f64::from(s)), Seconds::new(128.0));
        }
        for age in [10.0, 100.0, 600.0, 1200.0, 5000.0, 15_000.0] {
            let known = 20_000.0 - history.work_until(at(20_000.0 - age)).expect("kept").samples.get();
            assert!((age..=age * 1.1 + 1.0).contains(&known), "{age}: {known}");
        }
        assert!(history.entries.len() <= KEPT);
    }

    #[test]
    fn work_from_before_a_change_keeps_its_reference() {
        let at = |s: f64| Monotonic::default().after(Seconds::new(s));
        let account = |s: f64| {
            let lost = SlowedTraining { below: Seconds::new(s), samples: Samples::new(95.0 * s), ..Default::default() };
            let (samples, active) = (lost.samples, lost.below);
            ProgressAccount { samples, active, lost: Some(lost), ..ProgressAccount::default() }
        };
        let mut history = AccountHistory::default();
        assert_eq!(history.work_until(at(5.0)), None);
        let rate = SamplesPerSecond::new(100.0);
        let every_5_s = (1..=200).map(|n| 5.0 * f64::from(n));
        every_5_s.for_each(|s| history.push(at(s), account(s).as_earlier(rate), Seconds::new(128.0)));
        history.push(at(1000.5), account(1000.5).as_earlier(rate), Seconds::new(128.0));
        let earlier = history.work_until(at(900.5)).expect("kept");
        assert_eq!((earlier.samples, earlier.time), (Samples::new(85_500.0), Seconds::new(855.0)));
        assert!((earlier.lost - Seconds::new(45.0)).abs() < Seconds::new(1e-9));
        // Before the first report, and after the last.
        assert_eq!(history.work_until(at(0.5)).expect("kept").samples, Samples::new(475.0));
        assert_eq!(history.work_until(at(2000.0)).expect("kept").samples, Samples::new(95_000.0));

        // After the change, 100 s at 40 of 50 samples/s lose 20 s more.
        let mut later = account(1000.0);
        let lost = later.lost.as_mut().expect("recorded");
        let more = Samples::new(4000.0 - 95.0 * 100.0);
        (lost.samples, later.samples) = (lost.samples + more, later.samples + more);
        later.earlier = Some(earlier);
        let rate = SamplesPerSecond::new(50.0);
        assert!((later.lost_time(rate) - Seconds::new(45.0 + 20.0)).abs() < Seconds::new(1e-9));
        assert!((later.reference_time(later.samples, rate) - Seconds::new(855.0 + 80.0)).abs() < Seconds::new(1e-9));
        assert!((later.slowdown(rate).expect("known") - 65.0 / 935.0).abs() < 1e-12);
    }
}
