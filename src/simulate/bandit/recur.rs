//! One recurring job, a run after the other.

use super::play::{TRIES, play};
use super::policy::{Knobs, Policy};
use super::{Done, Job, SimulationError};
use wattune_core::bandit::{Cost, Generator};
use wattune_core::units::{Joules, Seconds, Watts};

/// A job that recurs.
#[derive(Clone, Copy, Debug)]
pub struct Plan<'a> {
    /// The job.
    pub job: &'a Job,
    /// How often it is run.
    pub recurrences: u32,
    /// How it is judged.
    pub knobs: Knobs,
    /// What becomes of it meanwhile.
    pub switch: Option<Switch<'a>>,
}

/// Other traces from a recurrence on.
#[derive(Clone, Copy, Debug)]
pub struct Switch<'a> {
    /// The first recurrence with them.
    pub at: u32,
    /// The job in them; it has the same batch sizes.
    pub job: &'a Job,
    /// It runs on another board, so that profiles are learnt anew.
    pub new_board: bool,
}

/// A run in the history.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Run {
    /// Of which recurrence, from 1; a run that is repeated has the same.
    pub recurrence: u32,
    /// Its batch size.
    pub batch_size: u64,
    /// Its power limit.
    pub limit: Watts,
    /// Whether it was at its target.
    pub reached: bool,
    /// What it took.
    pub energy: Joules,
    /// How long.
    pub time: Seconds,
    /// What it cost.
    pub cost: Cost,
}

impl Run {
    pub(super) fn new(job: &Job, recurrence: u32, done: &Done, ratio: f64) -> Self {
        let arm = &job.arms[done.setting.arm];
        Self {
            recurrence,
            batch_size: arm.batch_size,
            limit: arm.levels[done.setting.level].limit,
            reached: done.reached,
            energy: done.energy * ratio,
            time: done.time * ratio,
            cost: done.cost * ratio,
        }
    }
}

/// What came of a job.
#[derive(Clone, Debug, PartialEq)]
pub struct Ends {
    /// All runs, in order.
    pub runs: Vec<Run>,
    /// The batch size that the policy holds for the best at the end.
    pub batch_size: u64,
    /// Its limit.
    pub limit: Watts,
}

/// Repeats a job under a policy. A run that does not reach its target is repeated, 20 times at the most; the recurrence is
/// then given up.
///
/// # Errors
/// If no batch size reaches the target, or the first recurrence does not.
pub fn recur(plan: &Plan<'_>, policy: &Policy, seed: u64) -> Result<Ends, SimulationError> {
    let mut job = plan.job;
    let mut generator = Generator::new(seed);
    let mut chooses = (policy.begins)(job, &plan.knobs, seed)?;
    let (mut runs, mut number) = (Vec::new(), 0);
    for recurrence in 1..=plan.recurrences {
        if let Some(switch) = plan.switch.filter(|switch| switch.at == recurrence) {
            job = switch.job;
            chooses.switched(job, switch.new_board);
        }
        let (mut spent, mut last, mut reached) = (Cost::ZERO, None, false);
        let before = runs.len();
        for _ in 0..TRIES {
            number += 1;
            let setting = chooses.choose(job, number, false);
            let done = play(job, plan.knobs.eta, number, setting, chooses.as_mut(), &mut generator);
            spent += done.cost;
            chooses.observe(job, &done, spent);
            if done.epochs > 0 {
                runs.push(Run::new(job, recurrence, &done, 1.0));
            }
            (last, reached) = (Some(done), done.reached);
            if reached || (recurrence == 1 && policy.first_must_reach) {
                break;
            }
        }
        if recurrence == 1 && !reached {
            return Err(SimulationError::DefaultFails { batch_size: job.arms[job.default].batch_size, seed });
        }
        // Not one epoch in all tries: there is a row all the same.
        if let Some(done) = last.filter(|_| runs.len() == before) {
            runs.push(Run::new(job, recurrence, &done, 1.0));
        }
    }
    let (arm, level) = chooses.favourite(job);
    let arm = &job.arms[arm];
    Ok(Ends { runs, batch_size: arm.batch_size, limit: arm.levels[level].limit })
}
