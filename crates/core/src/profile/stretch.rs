//! A stretch of a job's time: what was done and drawn between two reports at which samples had grown.

use super::dips::Dip;
use super::ladder::Setting;
use super::pace::Pace;
use crate::time::Monotonic;
use crate::units::{Joules, Samples, Seconds};

/// Rounding leaves no stretch without time.
const LEAST_SPAN: f64 = 0.05;

/// Time between two reports at which samples had grown.
#[derive(Clone, Debug, Default)]
pub(super) struct Stretch {
    /// On the daemon's clock.
    pub(super) from: Monotonic,
    pub(super) to: Monotonic,
    pub(super) span: Seconds,
    pub(super) done: Samples,
    /// Time in which the job was asked to do no work.
    pub(super) idle: Seconds,
    pub(super) waited: bool,
    /// Energy of all GPUs; `None` where some of it is not known.
    pub(super) energy: Option<Joules>,
    /// The settings in force, with the time that each was.
    pub(super) settings: Vec<(Setting, Seconds)>,
}

impl Stretch {
    pub(super) fn open(from: Monotonic) -> Self {
        Self { from, to: from, energy: Some(Joules::ZERO), ..Self::default() }
    }

    /// The setting, if it was one throughout and the job was to train.
    pub(super) fn setting(&self) -> Option<&Setting> {
        match self.settings.as_slice() {
            [(only, _)] if self.idle <= Seconds::ZERO => Some(only),
            _ => None,
        }
    }

    /// Whether a setting was in force throughout, and the job was to train.
    pub(super) fn is_at(&self, setting: &Setting) -> bool {
        let same = |set: &Setting| set.len() == setting.len() && set.iter().zip(setting).all(|(a, b)| a.same_as(*b));
        self.idle <= Seconds::ZERO && !self.settings.is_empty() && self.settings.iter().all(|(set, _)| same(set))
    }

    pub(super) fn pace(&self, dip: &Dip) -> Pace {
        // What lies in a dip was not waited for.
        let waited = self.waited && dip.span <= Seconds::ZERO;
        Pace { span: (self.span - dip.span).get().max(LEAST_SPAN), done: self.done.get(), waited }
    }

    pub(super) fn trainable(&self) -> Seconds {
        (self.span - self.idle).max(Seconds::ZERO)
    }
}
