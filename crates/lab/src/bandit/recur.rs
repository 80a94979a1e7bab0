//! One recurring job, a run after the other.

use super::job::Job;
use super::play::{TRIES, play};
use super::policy::{Knobs, Policy, SimulationError};
use super::run::{JobRuns, Run};
use wattune_core::bandit::{Cost, Generator};

/// A job that recurs.
#[derive(Clone, Copy, Debug)]
pub struct Recurring<'a> {
    /// The job.
    pub job: &'a Job,
    /// The number of its recurrences.
    pub recurrences: u32,
    /// The policies' settings.
    pub knobs: Knobs,
    /// The switch of its traces, if there is one.
    pub switch: Option<&'a Switch>,
}

/// Other traces from a recurrence on.
#[derive(Clone, Debug)]
pub struct Switch {
    /// The first recurrence with them.
    pub at: u32,
    /// The job in them; it has the same batch sizes.
    pub job: Job,
    /// True if it runs on another GPU then, so that profiles are learned anew.
    pub new_gpu: bool,
}

/// Repeats a job under a policy. A run that does not reach its target is repeated, 20 times at the most; the recurrence is
/// then given up.
///
/// # Errors
/// If no batch size reaches the target, or the first recurrence does not.
pub fn recur(plan: &Recurring<'_>, policy: &Policy, seed: u64) -> Result<JobRuns, SimulationError> {
    let mut job = plan.job;
    let mut generator = Generator::new(seed);
    let mut chooser = (policy.start)(job, &plan.knobs, seed)?;
    let (mut runs, mut number) = (Vec::new(), 0);
    for recurrence in 1..=plan.recurrences {
        if let Some(switch) = plan.switch.filter(|switch| switch.at == recurrence) {
            job = &switch.job;
            chooser.switched(job, switch.new_gpu);
        }
        let (mut spent, mut last, mut reached) = (Cost::ZERO, None, false);
        let before = runs.len();
        for _ in 0..TRIES {
            number += 1;
            let setting = chooser.choose(job, number, false);
            let ended = play(job, plan.knobs.eta, number, setting, chooser.as_mut(), &mut generator);
            spent += ended.cost;
            chooser.observe(job, &ended, spent);
            if ended.epochs > 0 {
                runs.push(Run::new(job, recurrence, &ended, 1.0));
            }
            (last, reached) = (Some(ended), ended.reached);
            if reached || (recurrence == 1 && policy.first_must_reach) {
                break;
            }
        }
        if recurrence == 1 && !reached {
            return Err(SimulationError::DefaultFails { batch_size: job.arms[job.default].batch_size, seed });
        }
        // Not one epoch in all tries: the recurrence still has a row.
        if let Some(ended) = last.filter(|_| runs.len() == before) {
            runs.push(Run::new(job, recurrence, &ended, 1.0));
        }
    }
    let (arm, level) = chooser.favourite(job);
    let arm = &job.arms[arm];
    Ok(JobRuns { runs, batch_size: arm.batch_size, limit: arm.levels[level].limit })
}
