//! Policies whose choice is constant: the default batch size at the largest power limit, or the best choice, known
//! beforehand.

use super::kind::{Chooser, Knobs, Policy, SimulationError};
use crate::bandit::job::Job;
use crate::bandit::oracle;
use crate::bandit::run::Setting;

/// Policy of users who do not tune energy: the default batch size at the largest power limit.
pub(super) const DEFAULT: Policy = Policy {
    name: "default",
    about: "always the default batch size at the largest limit",
    start: |job, knobs, _| Ok(start(job, knobs, |job, _| (job.default, 0))),
    first_must_reach: false,
};

/// Lower bound on the expected cost of all policies: the best choice, known beforehand.
pub(super) const ORACLE: Policy = Policy {
    name: "oracle",
    about: "the best batch size and limit, known beforehand",
    start: start_oracle,
    first_must_reach: false,
};

struct Fixed {
    at: fn(&Job, f64) -> (usize, usize),
    eta: f64,
    now: (usize, usize),
}

fn start_oracle(job: &Job, knobs: &Knobs, _: u64) -> Result<Box<dyn Chooser>, SimulationError> {
    oracle::best(job, &job.knob(knobs.eta)).ok_or(SimulationError::Hopeless { max_epochs: job.max_epochs })?;
    let best =
        |job: &Job, eta| oracle::best(job, &job.knob(eta)).map_or((job.default, 0), |best| (best.arm, best.level));
    Ok(start(job, knobs, best))
}

fn start(job: &Job, knobs: &Knobs, at: fn(&Job, f64) -> (usize, usize)) -> Box<dyn Chooser> {
    Box::new(Fixed { at, eta: knobs.eta, now: at(job, knobs.eta) })
}

impl Chooser for Fixed {
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
