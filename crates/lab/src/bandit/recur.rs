//! Simulation of a recurring job with one run after the other.

use super::job::Job;
use super::play::{TRIES, play};
use super::policy::{Knobs, Policy, SimulationError};
use super::run::{JobRuns, Run};
use wattune_core::bandit::{Cost, Generator};

/// A recurring job, the number of its recurrences, and the settings of policies.
#[derive(Clone, Copy, Debug)]
pub struct Recurring<'a> {
    /// The job, with its traces before a switch, if there is one.
    pub job: &'a Job,
    /// Number of recurrences of the job.
    pub recurrences: u32,
    /// Settings of all policies.
    pub knobs: Knobs,
    /// Switch to other traces; `None` if the job's traces stay the same.
    pub switch: Option<&'a Switch>,
}

/// A switch of a recurring job to other traces.
#[derive(Clone, Debug)]
pub struct Switch {
    /// Number of the first recurrence with the other traces.
    pub at: u32,
    /// The job according to the other traces, with the same batch sizes.
    pub job: Job,
    /// True if the job runs on another GPU after the switch, so that the best power limits are learned anew.
    pub new_gpu: bool,
}

/// Repeats a job under a policy. In each recurrence, a run that does not reach its target is repeated, up to 20 runs;
/// after that, the next recurrence follows.
///
/// # Errors
/// If no batch size reaches the target, or no run of the first recurrence does; policies with `first_must_reach` have
/// only one run in that recurrence.
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
        // If no run of the recurrence had a whole epoch, the recurrence still gets a row.
        if let Some(ended) = last.filter(|_| runs.len() == before) {
            runs.push(Run::new(job, recurrence, &ended, 1.0));
        }
    }
    let (arm, level) = chooser.favourite(job);
    let arm = &job.arms[arm];
    Ok(JobRuns { runs, batch_size: arm.batch_size, limit: arm.levels[level].limit })
}
