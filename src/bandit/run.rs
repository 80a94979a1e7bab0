//! A trial with all that is kept of it.

use chrono::{DateTime, Utc};

use super::{Cost, Knob, Trial};
use crate::domain::JobId;
use crate::units::{Joules, Seconds};

/// What a running trial says: all of it cumulative.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Report {
    /// Whole epochs done.
    pub epochs: u32,
    /// Energy of all its boards.
    pub energy: Joules,
    /// Time spent training.
    pub time: Seconds,
    /// The metric after the last of these epochs; none where it was not measured or is no number.
    pub metric: Option<f64>,
}

/// What a trial is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Whether it is to stop: it has ended, and what it says from now on changes nothing.
    pub stop: bool,
    /// Whether it ended at its target.
    pub reached: bool,
    /// Up to how many epochs it may go on.
    pub max_epochs: u32,
    /// Whether this came after its end, and was not taken.
    pub late: bool,
}

/// How a trial ends that has neither reached its target nor been told to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// As if it had not been: it was interrupted.
    Withdrawn,
    /// With this batch size it does not get there: it diverged, or does not fit into memory.
    NotReached,
}

/// A trial with all that is kept of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// As policies see it.
    pub trial: Trial,
    /// Energy so far; at the end, in all.
    pub energy: Joules,
    /// Time so far.
    pub time: Seconds,
    /// The metric of its last report.
    pub metric: Option<f64>,
    /// Epochs and cost by the first report with an epoch. What was spent on finding the limit is in there.
    pub first: Option<(u32, Cost)>,
    /// By what its client knows it again.
    pub key: Option<String>,
    /// The training run whose books know its energy.
    pub job: Option<JobId>,
    /// When it began.
    pub begun_at: DateTime<Utc>,
    /// Until when its client may be silent.
    pub lease_until: DateTime<Utc>,
    /// When it ended.
    pub ended_at: Option<DateTime<Utc>>,
    /// How it stands, in words.
    pub reason: String,
}

impl Run {
    /// Takes a report that does not contradict the one before.
    pub(super) fn take(&mut self, report: &Report, knob: &Knob) {
        let cost = knob.cost(report.energy, report.time);
        (self.energy, self.time, self.metric) = (report.energy, report.time, report.metric);
        (self.trial.epochs, self.trial.cost) = (report.epochs, cost);
        if report.epochs == 0 {
            return;
        }
        let (first_epochs, first_cost) = *self.first.get_or_insert((report.epochs, cost));
        let later = report.epochs - first_epochs;
        // The first epochs also pay for the profile; those after them say what an epoch costs without.
        let each = match later {
            0 => cost.get() / f64::from(report.epochs),
            _ => (cost - first_cost).get() / f64::from(later),
        };
        self.trial.epoch_cost = (each > 0.0).then_some(Cost::new(each));
    }
}
