//! A trial with all that is kept of it.

use chrono::{DateTime, Utc};

use super::{Cost, Knob, Outcome, State, Trial};
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
    /// Whether its client may not go on with it: it was withdrawn, or fell silent. Of those that fell silent most are
    /// lost; one whose batch size is taken for the reason did not reach its target. All others end while their lease
    /// lasts.
    pub(super) fn is_over(&self) -> bool {
        self.trial.is_void() || self.ended_at.is_some_and(|at| at > self.lease_until)
    }

    /// Takes a report that does not contradict the one before.
    pub(super) fn take(&mut self, report: &Report, knob: &Knob) {
        let cost = knob.cost(report.energy, report.time);
        (self.energy, self.time, self.metric) = (report.energy, report.time, report.metric);
        (self.trial.epochs, self.trial.cost) = (report.epochs, cost);
        if report.epochs == 0 {
            return;
        }
        let first = *self.first.get_or_insert((report.epochs, cost));
        let each = each_epoch(report.epochs, cost, first);
        self.trial.epoch_cost = (each > Cost::ZERO).then_some(each);
    }

    /// Where it contradicts itself, in words: another cost than its energy and time give, say. One that did not reach its
    /// target may count as more than it cost.
    ///
    /// # Errors
    /// Says in what, and what would be right.
    pub fn check(&self, knob: &Knob) -> Result<(), String> {
        let Trial { epochs, state, .. } = self.trial;
        let (cost, counts) = (knob.cost(self.energy, self.time), self.trial.cost);
        // Sums and texts may round the last digits.
        let same = |a: Cost, b: Cost| (a - b).get().abs() <= 1e-9 * cost.get();
        let dearer = state == State::Ended(Outcome::NotReached) && counts > cost;
        if !same(counts, cost) && !dearer {
            let why = "energy_j and time_s give by eta and max_power_w";
            return Err(format!("with cost_j {}, where {} is what {why}", counts.get(), cost.get()));
        }
        if epochs == 0 {
            return match (state, self.first, self.trial.epoch_cost) {
                (State::Ended(Outcome::Reached), ..) => Err("that reached its target without an epoch".into()),
                (_, None, None) => Ok(()),
                _ => Err("without an epoch, and yet with first_epochs, first_cost_j or epoch_cost_j".into()),
            };
        }
        if cost <= Cost::ZERO {
            return Err("with epochs that cost nothing; give their energy_j and time_s".into());
        }
        let Some(first) = self.first else {
            return Err("with epochs and without first_epochs and first_cost_j".into());
        };
        if first.0 == 0 || first.0 > epochs || (first.1 > cost && !same(first.1, cost)) {
            return Err("with first_epochs beyond its epochs, or first_cost_j beyond its cost".into());
        }
        let (has, right) = (self.trial.epoch_cost.unwrap_or(Cost::ZERO), each_epoch(epochs, cost, first));
        if !same(has, right) {
            let why = "its epochs cost on the mean after the first report";
            return Err(format!("with epoch_cost_j {}, where {} is what {why}", has.get(), right.get()));
        }
        Ok(())
    }
}

/// What each of so many epochs cost. The first ones also paid for the profile; those after them say what one costs without.
fn each_epoch(epochs: u32, cost: Cost, (first_epochs, first_cost): (u32, Cost)) -> Cost {
    match epochs - first_epochs {
        0 => Cost::new(cost.get() / f64::from(epochs)),
        later => Cost::new((cost - first_cost).get() / f64::from(later)),
    }
}
