//! All data of a trial of a recurring job, the client's reports about the trial, and the responses to these reports.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use super::{Cost, Knob, Outcome, State, Trial};
use crate::domain::{JobId, Owners};
use crate::units::{Joules, Seconds};

/// Progress report of a running trial, with values since the trial's beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Report {
    /// Number of completed epochs.
    pub epochs: u32,
    /// Energy of all GPUs of the trial since the trial's beginning.
    pub energy: Joules,
    /// Time since the trial's beginning.
    pub time: Seconds,
    /// Target metric after the last completed epoch; `None` if it was not measured or is not a number.
    pub metric: Option<f64>,
}

/// Training run whose ledger account supplies the energy of a report.
#[derive(Clone, Debug, PartialEq)]
pub struct MeteringJob {
    /// Identifier of the training run.
    pub id: JobId,
    /// True if the account also supplies the time; false if the client measured the time since the trial's beginning.
    pub has_time: bool,
    /// Account of the training run that reported for the trial before this one, which may have used energy after its
    /// last report; `None` if there is none, or if it is unknown.
    pub before: Option<EarlierJob>,
}

/// Training run that reported for a trial before another one took its place, such as after the end of its lease, with
/// its part of the trial's energy and time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EarlierJob {
    /// Identifier of the training run.
    #[serde(rename = "job_id")]
    pub job: JobId,
    /// Energy of the training run's GPUs.
    #[serde(rename = "energy_j")]
    pub energy: Joules,
    /// Time that the training run added to the trial.
    #[serde(rename = "time_s")]
    pub time: Seconds,
}

/// Maximum number of a trial's earlier training runs that are kept apart. Of more of them, the oldest ones are kept as
/// a sum.
const MAX_EARLIER_JOBS: usize = 100;

/// Response to a report of a trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// True if the trial has ended: the client must stop training, and later reports change nothing.
    pub stop: bool,
    /// True if the trial has reached its target.
    pub reached: bool,
    /// Number of epochs after which the trial is stopped, by current estimates; after the trial's end, the completed
    /// epochs.
    pub max_epochs: u32,
    /// True if the report was ignored because it arrived after the trial's end and differs from the trial's last
    /// report.
    pub late: bool,
}

/// Reason for which a client ends a trial by itself, before the target is reached and before a response requires a
/// stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The run was interrupted; policies ignore the trial.
    Withdrawn,
    /// The target is out of reach with this batch size: the run diverged, or does not fit into memory.
    NotReached,
}

/// Trial of a recurring job with all stored data.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// Data of the trial that policies need.
    pub trial: Trial,
    /// Energy of all GPUs of the trial, from the trial's beginning to the last report.
    pub energy: Joules,
    /// Time from the trial's beginning to the last report.
    pub time: Seconds,
    /// Target metric in the last report; `None` if the report contained none.
    pub metric: Option<f64>,
    /// Number of epochs (first value) and cost (second) at the first report with a completed epoch; `None` before that
    /// report. This cost includes the search for the best power limit.
    pub first: Option<(u32, Cost)>,
    /// Key that the client chose, so that repeated requests for a new trial return this trial; `None` if it chose none.
    pub key: Option<String>,
    /// Training run whose ledger account supplies energy and time; `None` if the client measures them.
    pub job: Option<JobId>,
    /// Training runs that reported before `job`, whose energy and time are part of the trial's.
    pub earlier_jobs: Vec<EarlierJob>,
    /// Time at which the trial began.
    pub begun_at: DateTime<Utc>,
    /// Time at which the lease expires, and the trial is lost, unless the client reports before.
    pub lease_until: DateTime<Utc>,
    /// Reason for the trial's state, shown to users.
    pub reason: String,
    /// Owners: the caller who began the trial. Empty if unknown, as for trials from before an update.
    pub owners: Owners,
}

impl Run {
    /// Returns true if the client must not continue the trial, because it was withdrawn or its lease expired. Most
    /// trials with an expired lease are lost; if the batch size counts as the cause, the trial has not reached its
    /// target. All other trials end before their lease expires.
    pub(super) fn is_over(&self) -> bool {
        self.trial.is_void() || self.trial.ended_at.is_some_and(|at| at > self.lease_until)
    }

    /// Returns true if a training run reports for the trial, or has reported before.
    pub(super) fn has_job(&self, job: &JobId) -> bool {
        self.job.as_ref() == Some(job) || self.earlier_jobs.iter().any(|earlier| earlier.job == *job)
    }

    /// Returns the report of the whole trial from that of the training run `job`, which becomes the trial's.
    pub(super) fn total(&mut self, report: &Report, job: &MeteringJob) -> Report {
        self.switch_to(job);
        let (energy, time) = self.of_earlier_jobs();
        let time = if job.has_time { report.time + time } else { report.time };
        // In an open ledger interval, energy and time are estimates: a later, exact value may be lower.
        Report { energy: (report.energy + energy).max(self.energy), time: time.max(self.time), ..*report }
    }

    /// Makes `job` the training run that reports. What another one has used until now remains part of the trial.
    fn switch_to(&mut self, job: &MeteringJob) {
        let before = self.job.replace(job.id.clone()).filter(|before| *before != job.id);
        let Some(before) = before else { return };
        let (energy, time) = self.of_earlier_jobs();
        let account = job.before.as_ref().filter(|account| account.job == before);
        let energy = (self.energy - energy).max(account.map_or(Joules::ZERO, |account| account.energy));
        let time = (self.time - time).max(account.map_or(Seconds::ZERO, |account| account.time));
        // A training run that reports again brings its whole account.
        self.earlier_jobs.retain(|earlier| earlier.job != job.id);
        self.earlier_jobs.push(EarlierJob { job: before, energy, time });
        if self.earlier_jobs.len() > MAX_EARLIER_JOBS {
            let second = self.earlier_jobs.remove(1);
            self.earlier_jobs[0].energy += second.energy;
            self.earlier_jobs[0].time += second.time;
        }
    }

    /// Returns the energy and the time of all earlier training runs.
    fn of_earlier_jobs(&self) -> (Joules, Seconds) {
        let earlier = &self.earlier_jobs;
        (earlier.iter().map(|job| job.energy).sum(), earlier.iter().map(|job| job.time).sum())
    }

    /// Applies a report, which must not contradict the previous one.
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

    /// Checks that the data are consistent; for example, that the cost follows from energy and time. The cost of a
    /// trial that did not reach its target may be higher, because a failure is charged.
    pub fn check(&self, knob: &Knob) -> Result<(), String> {
        let Trial { epochs, state, .. } = self.trial;
        let (cost, counts) = (knob.cost(self.energy, self.time), self.trial.cost);
        // Sums and conversions to and from text may change the last digits.
        let same = |a: Cost, b: Cost| (a - b).get().abs() <= 1e-9 * cost.get();
        let has_failure_charge = state == State::Ended(Outcome::NotReached) && counts > cost;
        if !same(counts, cost) && !has_failure_charge {
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
            return Err("with completed epochs but a cost of 0; give the energy_j and time_s of these epochs".into());
        }
        let Some(first) = self.first else {
            return Err("with epochs and without first_epochs and first_cost_j".into());
        };
        if first.0 == 0 || first.0 > epochs || (first.1 > cost && !same(first.1, cost)) {
            return Err("with first_epochs above its epochs, or first_cost_j above its cost".into());
        }
        let (has, right) = (self.trial.epoch_cost.unwrap_or(Cost::ZERO), each_epoch(epochs, cost, first));
        if !same(has, right) {
            let why = "is the mean cost of its epochs after the first report";
            return Err(format!("with epoch_cost_j {}, but {} {why}", has.get(), right.get()));
        }
        Ok(())
    }
}

/// Returns the mean cost of an epoch. The epochs up to the first report, of which there are `first_epochs`, include the
/// search for the power limit, so that only later epochs count, if there are any.
fn each_epoch(epochs: u32, cost: Cost, (first_epochs, first_cost): (u32, Cost)) -> Cost {
    match epochs - first_epochs {
        0 => Cost::new(cost.get() / f64::from(epochs)),
        later => Cost::new((cost - first_cost).get() / f64::from(later)),
    }
}
