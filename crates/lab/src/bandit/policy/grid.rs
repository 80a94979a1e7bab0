//! Policy that tries every batch size at every power limit once, in order, each with a whole run, and then uses the
//! cheapest combination.

use super::kind::{Chooser, Knobs, Policy, SimulationError};
use crate::bandit::job::Job;
use crate::bandit::run::{EndedRun, Setting};
use wattune_core::bandit::Cost;

pub(super) const POLICY: Policy = Policy {
    name: "grid",
    about: "every batch size at every limit once, then the cheapest",
    start,
    first_must_reach: false,
};

struct Grid {
    /// Choices that were not tried yet, in reverse order: index of the arm (first) and of the limit among its levels
    /// (second).
    left: Vec<(usize, usize)>,
    /// Cost of the cheapest run that reached the target (first), and the choice of this run (second).
    best: (Cost, (usize, usize)),
}

/// Starts with the smallest batch size at its largest limit. A batch size that misses the target once is not tried at
/// the limits that remain.
fn start(job: &Job, _: &Knobs, _: u64) -> Result<Box<dyn Chooser>, SimulationError> {
    Ok(Box::new(Grid::new(job)))
}

impl Grid {
    fn new(job: &Job) -> Self {
        let all = job.arms.iter().enumerate().flat_map(|(arm, a)| (0..a.levels.len()).map(move |level| (arm, level)));
        let mut left: Vec<_> = all.collect();
        left.reverse();
        Self { left, best: (Cost::INFINITE, (job.default, 0)) }
    }
}

impl Chooser for Grid {
    fn choose(&mut self, _: &Job, _: u32, _: bool) -> Setting {
        let (arm, level) = self.left.pop().unwrap_or(self.best.1);
        Setting { arm, level, profiling: None }
    }

    fn observe(&mut self, _: &Job, ended: &EndedRun, _: Cost) {
        let Setting { arm, level, .. } = ended.setting;
        if !ended.reached {
            self.left.retain(|(other, _)| *other != arm);
        } else if ended.cost < self.best.0 {
            self.best = (ended.cost, (arm, level));
        }
    }

    /// Begins anew on a new GPU: other GPUs have other limits, and other costs at each.
    fn switched(&mut self, job: &Job, new_gpu: bool) {
        if new_gpu {
            *self = Self::new(job);
        }
    }

    fn favourite(&self, _: &Job) -> (usize, usize) {
        self.best.1
    }
}
