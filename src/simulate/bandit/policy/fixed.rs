//! The same always: the default batch size at the largest limit, or the best of all, known beforehand.

use super::{Chooses, Knobs, Setting};
use crate::simulate::bandit::{Job, SimulationError, oracle};

struct Fixed {
    at: fn(&Job, f64) -> (usize, usize),
    eta: f64,
    now: (usize, usize),
}

/// What users do who do not look at energy.
pub(super) fn default(job: &Job, knobs: &Knobs, _: u64) -> Result<Box<dyn Chooses>, SimulationError> {
    Ok(begin(job, knobs, |job, _| (job.default, 0)))
}

/// The bound.
pub(super) fn oracle(job: &Job, knobs: &Knobs, _: u64) -> Result<Box<dyn Chooses>, SimulationError> {
    oracle::best(job, &job.knob(knobs.eta)).ok_or(SimulationError::Hopeless)?;
    let best =
        |job: &Job, eta| oracle::best(job, &job.knob(eta)).map_or((job.default, 0), |best| (best.arm, best.level));
    Ok(begin(job, knobs, best))
}

fn begin(job: &Job, knobs: &Knobs, at: fn(&Job, f64) -> (usize, usize)) -> Box<dyn Chooses> {
    Box::new(Fixed { at, eta: knobs.eta, now: at(job, knobs.eta) })
}

impl Chooses for Fixed {
    fn choose(&mut self, _: &Job, _: u32, _: bool) -> Setting {
        Setting { arm: self.now.0, level: self.now.1, profiling: None }
    }

    fn switched(&mut self, job: &Job, _: bool) {
        self.now = (self.at)(job, self.eta);
    }

    fn favourite(&self, _: &Job) -> (usize, usize) {
        self.now
    }
}
