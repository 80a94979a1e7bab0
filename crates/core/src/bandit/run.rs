//! All data of a trial of a recurring job, reports about the trial, and responses to them.

use chrono::{DateTime, Utc};

use super::{Cost, Knob, Outcome, State, Trial};
use crate::domain::JobId;
use crate::units::{Joules, Seconds};

/// Cumulative progress report of a running trial.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Report {
    /// Number of completed epochs.
    pub epochs: u32,
    /// Energy of all the trial's GPUs since its beginning.
    pub energy: Joules,
    /// Time since the trial's beginning.
    pub time: Seconds,
    /// Target metric after the last of these epochs; absent if it was not measured or is not a number.
    pub metric: Option<f64>,
}

/// Response to a trial's report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// True if the trial has ended: the client must stop, and later reports change nothing.
    pub stop: bool,
    /// True if the trial has reached its target.
    pub reached: bool,
    /// Number of epochs after which the trial is stopped, by current estimates.
    pub max_epochs: u32,
    /// True if the report arrived after the end and was ignored.
    pub late: bool,
}

/// End of a trial as its client reports it: neither at its target nor because it was told to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The run was interrupted; the trial is ignored.
    Withdrawn,
    /// The target is out of reach with this batch size: the run diverged, or does not fit into memory.
    NotReached,
}

/// Trial of a recurring job with all its data.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// Data of the trial that policies need.
    pub trial: Trial,
    /// Energy of all GPUs so far.
    pub energy: Joules,
    /// Time from its beginning so far.
    pub time: Seconds,
    /// Target metric in the last report.
    pub metric: Option<f64>,
    /// Epochs and cost at the first report with a completed epoch. They include the search for the power limit.
    pub first: Option<(u32, Cost)>,
    /// Client-chosen key that makes repeated requests for this trial return the same trial.
    pub key: Option<String>,
    /// Training run whose ledger account supplies energy and time.
    pub job: Option<JobId>,
    /// Time at which the trial began.
    pub begun_at: DateTime<Utc>,
    /// Time at which the lease expires unless the client reports again.
    pub lease_until: DateTime<Utc>,
    /// Time at which the trial ended; `None` while it runs.
    pub ended_at: Option<DateTime<Utc>>,
    /// Reason of the trial's state, shown to users.
    pub reason: String,
}

impl Run {
    /// Returns true if the client must not continue: the trial was withdrawn, or its lease expired. Most trials with an
    /// expired lease are lost; one whose batch size counts as the cause did not reach its target. All other trials end
    /// while their lease is valid.
    pub(super) fn is_over(&self) -> bool {
        self.trial.is_void() || self.ended_at.is_some_and(|at| at > self.lease_until)
    }

    /// Applies a report that does not contradict the previous one.
    pub(super) fn apply(&mut self, report: &Report, knob: &Knob) {
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

    /// Checks that the data are consistent, such as the cost with energy and time. A trial that did not reach its
    /// target may have a higher cost than these give.
    pub fn check(&self, knob: &Knob) -> Result<(), String> {
        let Trial { epochs, state, .. } = self.trial;
        let (cost, counts) = (knob.cost(self.energy, self.time), self.trial.cost);
        // Sums and text formats may round the last digits.
        let same = |a: Cost, b: Cost| (a - b).get().abs() <= 1e-9 * cost.get();
        let dearer = state == State::Ended(Outcome::NotReached) && counts > cost;
        if !same(counts, cost) && !dearer {
            let why = "follows from energy_j and time_s with eta and max_power_w";
            return Err(format!("with cost_j {}, but {} {why}", counts.get(), cost.get()));
        }
        if epochs == 0 {
            return match (state, self.first, self.trial.epoch_cost) {
                (State::Ended(Outcome::Reached), ..) => Err("that reached its target without an epoch".into()),
                (_, None, None) => Ok(()),
                _ => Err("without an epoch, but with first_epochs, first_cost_j or epoch_cost_j".into()),
            };
        }
        if cost <= Cost::ZERO {
            return Err("with epochs but without cost; give their energy_j and time_s".into());
        }
        let Some(first) = self.first else {
            return Err("with epochs and without first_epochs and first_cost_j".into());
        };
        if first.0 == 0 || first.0 > epochs || (first.1 > cost && !same(first.1, cost)) {
            return Err("with first_epochs beyond its epochs, or first_cost_j beyond its cost".into());
        }
        let (has, right) = (self.trial.epoch_cost.unwrap_or(Cost::ZERO), each_epoch(epochs, cost, first));
        if !same(has, right) {
            let why = "is the mean cost of its epochs after the first report";
            return Err(format!("with epoch_cost_j {}, but {} {why}", has.get(), right.get()));
        }
        Ok(())
    }
}

/// Returns the cost of an epoch. The first epochs include the search for the power limit, so only later ones count if
/// there are any.
fn each_epoch(epochs: u32, cost: Cost, (first_epochs, first_cost): (u32, Cost)) -> Cost {
    match epochs - first_epochs {
        0 => Cost::new(cost.get() / f64::from(epochs)),
        later => Cost::new((cost - first_cost).get() / f64::from(later)),
    }
}
