//! Zeus as its published simulator runs it. Batch sizes are chosen by [`wattune_core::bandit::zeus`]. The other rules
//! are those of the published simulator, which differ from the daemon's: the bound on the cost and the power limit of a
//! run, the cost of profiling, and runs without a whole epoch.

use super::kind::{Chooser, Knobs, Learner, Policy, SimulationError};
use crate::bandit::job::Job;
use crate::bandit::run::{EndedRun, Setting};
use crate::traces::Epoch;
use wattune_core::bandit::{Cost, Kind, Knob, Outcome, PolicyName, Spec, State, Trial};

/// Cost that counts for a run without a whole epoch, as a multiple of the bound on the run's cost.
const WITHOUT_EPOCH: f64 = 100.0;

pub(super) const POLICY: Policy = Policy {
    name: "zeus",
    about: "the published algorithm, draw for draw: pruning, then Gaussian Thompson sampling",
    start,
    first_must_reach: true,
};

struct Zeus {
    /// State of the policy; its trials are the runs that have ended, in the order of their ends.
    learner: Learner,
    /// Cost of the cheapest recurrence so far (first), and the arm with which it reached the target (second).
    cheapest: Option<(Cost, usize)>,
    /// Batch size that is being explored, on whose result pruning waits; `None` if there is none.
    exploring: Option<u64>,
}

fn start(job: &Job, knobs: &Knobs, seed: u64) -> Result<Box<dyn Chooser>, SimulationError> {
    Ok(Box::new(Zeus { learner: Learner::new(job, knobs, PolicyName::Zeus, seed), cheapest: None, exploring: None }))
}

/// Returns the cost function by which power limits are chosen: P_max is the largest limit of the batch size, not of the
/// GPU.
fn limit_knob(spec: &Spec, job: &Job, arm: usize) -> Knob {
    Knob { max_power: job.arms[arm].max_limit(), ..spec.knob }
}

/// Returns the number of whole epochs that fit under a bound. The exact remainder is subtracted first: a rounded
/// quotient could be one more than in the published simulator.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates")]
fn whole_epochs(bound: f64, epoch_cost: f64) -> u32 {
    ((bound - bound % epoch_cost) / epoch_cost).round() as u32
}

impl Zeus {
    fn best_known(&self, job: &Job) -> usize {
        self.cheapest.map_or(job.default, |(_, arm)| arm)
    }

    /// Returns the maximum cost of a run; `None` if runs are not bounded, or no run has reached the target yet.
    fn bound(&self) -> Option<Cost> {
        self.learner.spec.beta.zip(self.cheapest).map(|(beta, (cheapest, _))| cheapest * beta)
    }

    /// Returns the kind of a run that has ended. A run with the batch size on whose result pruning waits counts as
    /// exploration, even if it was not started as one; other runs only add to the history of their batch size.
    fn kind(&mut self, batch_size: u64) -> Kind {
        if self.exploring == Some(batch_size) {
            self.exploring = None;
            return Kind::Exploration;
        }
        Kind::Regular
    }
}

impl Chooser for Zeus {
    fn choose(&mut self, job: &Job, _: u32, in_flight: bool) -> Setting {
        let learned = |zeus: &mut Self| {
            let choice = zeus.learner.next()?;
            zeus.exploring = (choice.kind == Kind::Exploration).then_some(choice.batch_size);
            job.arm_of(choice.batch_size)
        };
        let chosen = if in_flight { None } else { learned(self) };
        // If there is no choice, the run uses the batch size of the cheapest recurrence that reached its target.
        let arm = chosen.unwrap_or_else(|| self.best_known(job));
        let first = self.learner.limits[arm].is_none();
        let trace = &job.arms[arm];
        let level = *self.learner.limits[arm]
            .get_or_insert_with(|| trace.best_level(&limit_knob(&self.learner.spec, job, arm)));
        Setting { arm, level, profiling: first.then(|| trace.mean_epoch(0..=trace.levels.len() - 1)) }
    }

    fn patience(&self, job: &Job, setting: &Setting, epoch: &Epoch) -> u32 {
        let cost = limit_knob(&self.learner.spec, job, setting.arm).cost(epoch.energy(), epoch.time);
        self.bound().map_or(job.max_epochs, |bound| whole_epochs(bound.get(), cost.get()))
    }

    fn observe(&mut self, job: &Job, ended: &EndedRun, spent: Cost) {
        let arm = ended.setting.arm;
        let batch_size = job.arms[arm].batch_size;
        let cost = if ended.epochs > 0 { ended.cost } else { self.bound().unwrap_or_default() * WITHOUT_EPOCH };
        if ended.reached && self.cheapest.is_none_or(|(cheapest, _)| spent < cheapest) {
            self.cheapest = Some((spent, arm));
        }
        let outcome = if ended.reached { Outcome::Reached } else { Outcome::NotReached };
        let kind = self.kind(batch_size);
        let trial = Trial {
            number: ended.number,
            batch_size,
            kind,
            state: State::Ended(outcome),
            cost,
            epochs: ended.epochs,
            epoch_cost: Some(self.learner.epoch_cost(&ended.epoch)),
            ended_at: None,
        };
        self.learner.trials.push(trial);
    }

    fn learner(&mut self) -> Option<&mut Learner> {
        Some(&mut self.learner)
    }

    fn favourite(&self, job: &Job) -> (usize, usize) {
        let arm = self.learner.favourite(job);
        let level = self.learner.limits[arm];
        (arm, level.unwrap_or_else(|| job.arms[arm].best_level(&limit_knob(&self.learner.spec, job, arm))))
    }
}
