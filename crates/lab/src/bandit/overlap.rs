//! Simulation of a recurring job whose runs are started by a trace of submissions, and may overlap.

use super::job::Job;
use super::play::{TRIES, play};
use super::policy::{Chooser, Knobs, Policy, SimulationError};
use super::run::{EndedRun, JobRuns, Run};
use crate::traces::Submission;
use wattune_core::bandit::Generator;
use wattune_core::units::Seconds;

/// A run that has not ended yet. Its result is computed already, but the policy observes it only when the run ends.
struct RunInFlight {
    end: Seconds,
    duration: Seconds,
    /// Number of the run's submission, from 1.
    recurrence: u32,
    tries: u32,
    ratio: f64,
    ended: EndedRun,
}

struct Group<'a> {
    job: &'a Job,
    eta: f64,
    chooser: Box<dyn Chooser>,
    generator: Generator,
    started: u32,
    flights: Vec<RunInFlight>,
    runs: Vec<Run>,
}

/// Runs the submissions of one group (a recurring job) under a policy, in the order of their starts. Before each start,
/// the policy observes the runs that have ended by then, in the order of their ends. A run that did not reach its
/// target is repeated when it ends, with the same duration, up to 20 runs for a submission. After the last submission,
/// the policy observes all remaining runs.
pub fn overlap(
    job: &Job,
    knobs: &Knobs,
    submissions: &[&Submission],
    policy: &Policy,
    seed: u64,
) -> Result<JobRuns, SimulationError> {
    let mut group = Group {
        job,
        eta: knobs.eta,
        chooser: (policy.start)(job, knobs, seed)?,
        generator: Generator::new(seed),
        started: 0,
        flights: Vec::new(),
        runs: Vec::new(),
    };
    for (recurrence, arrival) in (1..).zip(submissions) {
        group.collect(Some(arrival.start));
        let duration = arrival.end - arrival.start;
        group.start(arrival.end, duration, recurrence, 1, arrival.runtime_ratio);
    }
    group.collect(None);
    let (arm, level) = group.chooser.favourite(job);
    let arm = &job.arms[arm];
    Ok(JobRuns { runs: group.runs, batch_size: arm.batch_size, limit: arm.levels[level].limit })
}

impl Group<'_> {
    fn start(&mut self, end: Seconds, duration: Seconds, recurrence: u32, tries: u32, ratio: f64) {
        self.started += 1;
        let setting = self.chooser.choose(self.job, self.started, !self.flights.is_empty());
        let ended = play(self.job, self.eta, self.started, setting, self.chooser.as_mut(), &mut self.generator);
        self.flights.push(RunInFlight { end, duration, recurrence, tries, ratio, ended });
    }

    /// Lets the policy observe the runs that ended at `by` or before; all runs if `by` is `None`.
    fn collect(&mut self, by: Option<Seconds>) {
        let is_over = |flight: &RunInFlight| by.is_none_or(|by| flight.end <= by);
        while let Some(place) = first(&self.flights).filter(|place| is_over(&self.flights[*place])) {
            let RunInFlight { end, duration, recurrence, tries, ratio, ended } = self.flights.remove(place);
            self.chooser.observe(self.job, &ended, ended.cost);
            if ended.epochs > 0 {
                self.runs.push(Run::new(self.job, recurrence, &ended, ratio));
            }
            if !ended.reached && tries < TRIES {
                self.start(end + duration, duration, recurrence, tries + 1, ratio);
            }
        }
    }
}

fn first(flights: &[RunInFlight]) -> Option<usize> {
    (0..flights.len()).min_by(|a, b| flights[*a].end.total_cmp(&flights[*b].end))
}
