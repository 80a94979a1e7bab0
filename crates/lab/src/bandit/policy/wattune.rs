//! The daemon's own policy, [`wattune_core::bandit::wattune`], with a search for power limits: the first batch size is
//! profiled at all limits, each later one only around the best limit of the nearest batch size that was profiled.

use std::ops::RangeInclusive;

use super::kind::{Chooser, Knobs, Learner, Policy, SimulationError};
use crate::bandit::job::{Job, cheapest};
use crate::bandit::run::{EndedRun, Setting};
use crate::traces::Epoch;
use wattune_core::bandit::{self, Choice, Cost, Kind, Outcome, PolicyName, State, Trial};

/// Number of limits that are profiled on each side of the neighbouring batch size's best limit. If the best limit is
/// the outermost of those profiled, the search goes on beyond it.
const WINDOW: usize = 2;

pub(super) const POLICY: Policy = Policy {
    name: "wattune",
    about: "the daemon's: one belief about all batch sizes; explores where it may pay",
    start,
    first_must_reach: false,
};

struct Wattune(Learner);

fn start(job: &Job, knobs: &Knobs, seed: u64) -> Result<Box<dyn Chooser>, SimulationError> {
    Ok(Box::new(Wattune(Learner::new(job, knobs, PolicyName::Wattune, seed))))
}

impl Wattune {
    /// Returns the best limit of an arm that was not profiled yet (first), and the range of limits that are profiled to
    /// find it (second), as indices of levels.
    fn search(&self, job: &Job, arm: usize) -> (usize, RangeInclusive<usize>) {
        let trace = &job.arms[arm];
        let last = trace.levels.len() - 1;
        let cost = |level: usize| trace.levels[level].epoch_cost(&self.0.spec.knob);
        let Some(neighbour) = self.neighbour(job, arm) else {
            return (cheapest((0..=last).map(cost)), 0..=last);
        };
        let away = |level: &usize| (trace.levels[*level].limit - neighbour).abs();
        let near = (0..=last).min_by(|a, b| away(a).total_cmp(&away(b))).unwrap_or_default();
        let (mut first, mut end) = (near.saturating_sub(WINDOW), (near + WINDOW).min(last));
        loop {
            let best = first + cheapest((first..=end).map(cost));
            if best == first && first > 0 {
                first -= 1;
            } else if best == end && end < last {
                end += 1;
            } else {
                return (best, first..=end);
            }
        }
    }

    /// Returns the best limit of the profiled batch size that is nearest to that of `arm` on a logarithmic scale;
    /// `None` if no batch size was profiled.
    fn neighbour(&self, job: &Job, arm: usize) -> Option<wattune_core::units::Watts> {
        #[expect(clippy::cast_precision_loss, reason = "a batch size")]
        let log = |arm: usize| (job.arms[arm].batch_size as f64).ln();
        let away = |other: &usize| (log(*other) - log(arm)).abs();
        let profiled = (0..job.arms.len()).filter(|other| self.0.limits[*other].is_some());
        let nearest = profiled.min_by(|a, b| away(a).total_cmp(&away(b)))?;
        self.0.limits[nearest].map(|level| job.arms[nearest].levels[level].limit)
    }
}

impl Chooser for Wattune {
    fn choose(&mut self, job: &Job, number: u32, _: bool) -> Setting {
        // If no batch size is left to choose from, the run uses the best one so far.
        let choice = self.0.next().unwrap_or_else(|| Choice {
            batch_size: bandit::favourite(&self.0.spec, &self.0.trials),
            kind: Kind::Regular,
        });
        let Choice { batch_size, kind } = choice;
        let (state, cost) = (State::Running, Cost::ZERO);
        self.0.trials.push(Trial {
            number,
            batch_size,
            kind,
            state,
            cost,
            epochs: 0,
            epoch_cost: None,
            ended_at: None,
        });
        let arm = job.arm_of(batch_size).unwrap_or(job.default);
        if let Some(level) = self.0.limits[arm] {
            return Setting { arm, level, profiling: None };
        }
        let (level, swept) = self.search(job, arm);
        self.0.limits[arm] = Some(level);
        Setting { arm, level, profiling: Some(job.arms[arm].mean_epoch(swept)) }
    }

    fn patience(&self, job: &Job, setting: &Setting, epoch: &Epoch) -> u32 {
        let epoch_cost = self.0.epoch_cost(epoch);
        // The newest trial is that of the run itself.
        let others = self.0.trials.split_last().map_or(&[][..], |(_, others)| others);
        bandit::patience(&self.0.spec, others, job.arms[setting.arm].batch_size, epoch_cost)
    }

    fn observe(&mut self, job: &Job, ended: &EndedRun, _: Cost) {
        let epoch_cost = self.0.epoch_cost(&ended.epoch);
        let outcome = match ended.reached {
            true => Outcome::Reached,
            false if ended.epochs < job.max_epochs => Outcome::Stopped,
            false => Outcome::NotReached,
        };
        if let Some(trial) = self.0.trials.iter_mut().rev().find(|trial| trial.number == ended.number) {
            trial.state = State::Ended(outcome);
            (trial.cost, trial.epochs, trial.epoch_cost) = (ended.cost, ended.epochs, Some(epoch_cost));
        }
    }

    fn learner(&mut self) -> Option<&mut Learner> {
        Some(&mut self.0)
    }

    fn favourite(&self, job: &Job) -> (usize, usize) {
        let arm = self.0.favourite(job);
        (arm, self.0.limits[arm].unwrap_or_else(|| self.search(job, arm).0))
    }
}
