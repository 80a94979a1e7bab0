//! Every batch size at every limit once, in order, each measured by a whole run; then the cheapest of them.

use super::{Chooses, Knobs, Setting};
use crate::simulate::bandit::{Done, Job, SimulationError};
use wattune_core::bandit::Cost;

struct Grid {
    /// What is still to be tried, the next last.
    left: Vec<(usize, usize)>,
    /// The cheapest that reached the target.
    best: (Cost, (usize, usize)),
}

/// From the smallest batch size and its largest limit on. A batch size that does not reach the target is tried no more.
pub(super) fn begin(job: &Job, _: &Knobs, _: u64) -> Result<Box<dyn Chooses>, SimulationError> {
    let all = job.arms.iter().enumerate().flat_map(|(arm, a)| (0..a.levels.len()).map(move |level| (arm, level)));
    let mut left: Vec<_> = all.collect();
    left.reverse();
    Ok(Box::new(Grid { left, best: (Cost::INFINITE, (job.default, 0)) }))
}

impl Chooses for Grid {
    fn choose(&mut self, _: &Job, _: u32, _: bool) -> Setting {
        let (arm, level) = self.left.pop().unwrap_or(self.best.1);
        Setting { arm, level, profiling: None }
    }

    fn observe(&mut self, _: &Job, done: &Done, _: Cost) {
        let Setting { arm, level, .. } = done.setting;
        if !done.reached {
            self.left.retain(|(other, _)| *other != arm);
        } else if done.cost < self.best.0 {
            self.best = (done.cost, (arm, level));
        }
    }

    fn favourite(&self, _: &Job) -> (usize, usize) {
        self.best.1
    }
}
