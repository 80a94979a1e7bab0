//! Interval between two progress reports of a job: samples, energy and settings.

use super::dips::Dip;
use super::pause_detection::IntervalWork;
use super::steps::Setting;
use crate::time::Monotonic;
use crate::units::{Joules, Samples, Seconds};

/// Minimum duration in seconds of an interval without its power dips, so that rounding never makes it zero.
const LEAST_SPAN: f64 = 0.05;

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
            [(only, _)] if self.idle <= Seconds::ZERO => Some(only),
            _ => None,
        }
    }

    /// Returns true if `setting` was in force throughout the interval and the daemon did not pause the job.
    pub(super) fn is_at(&self, setting: &Setting) -> bool {
        let same = |set: &Setting| set.len() == setting.len() && set.iter().zip(setting).all(|(a, b)| a.same_as(*b));
        self.idle <= Seconds::ZERO && !self.settings.is_empty() && self.settings.iter().all(|(set, _)| same(set))
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
