//! A recurring job whose submissions overlap.

use super::play::{TRIES, play};
use super::policy::{Chooses, Knobs, Policy};
use super::{Done, Ends, Job, Run, SimulationError, Submission};
use wattune_core::bandit::Generator;
use wattune_core::units::Seconds;

/// A run that has begun. Its result is known to nobody before its end.
struct Flight {
    end: Seconds,
    duration: Seconds,
    /// Which submission, from 1.
    recurrence: u32,
    tries: u32,
    ratio: f64,
    done: Done,
}

struct Group<'a> {
    job: &'a Job,
    eta: f64,
    chooses: Box<dyn Chooses>,
    generator: Generator,
    started: u32,
    flights: Vec<Flight>,
    runs: Vec<Run>,
}

/// Runs the submissions of one group, in the order of their starts, under a policy. What ended before an arrival is observed then, in the order of ends;
/// a run that did not reach its target is repeated from its end on and takes as long again, 20 times at the most. At the
/// end all are waited for.
///
/// # Errors
/// If no batch size reaches the target.
pub fn overlap(
    job: &Job,
    knobs: &Knobs,
    submissions: &[&Submission],
    policy: &Policy,
    seed: u64,
) -> Result<Ends, SimulationError> {
    let mut group = Group {
        job,
        eta: knobs.eta,
        chooses: (policy.begins)(job, knobs, seed)?,
        generator: Generator::new(seed),
        started: 0,
        flights: Vec::new(),
        runs: Vec::new(),
    };
    for (recurrence, arrival) in (1..).zip(submissions) {
        group.reap(Some(arrival.start));
        let duration = arrival.end - arrival.start;
        group.start(arrival.end, duration, recurrence, 1, arrival.runtime_ratio);
    }
    group.reap(None);
    let (arm, level) = group.chooses.favourite(job);
    let arm = &job.arms[arm];
    Ok(Ends { runs: group.runs, batch_size: arm.batch_size, limit: arm.levels[level].limit })
}

impl Group<'_> {
    fn start(&mut self, end: Seconds, duration: Seconds, recurrence: u32, tries: u32, ratio: f64) {
        self.started += 1;
        let setting = self.chooses.choose(self.job, self.started, !self.flights.is_empty());
        let done = play(self.job, self.eta, self.started, setting, self.chooses.as_mut(), &mut self.generator);
        self.flights.push(Flight { end, duration, recurrence, tries, ratio, done });
    }

    /// Takes in what has ended by then, or all.
    fn reap(&mut self, by: Option<Seconds>) {
        let ended = |flight: &Flight| by.is_none_or(|by| flight.end <= by);
        while let Some(place) = first(&self.flights).filter(|place| ended(&self.flights[*place])) {
            let Flight { end, duration, recurrence, tries, ratio, done } = self.flights.remove(place);
            self.chooses.observe(self.job, &done, done.cost);
            if done.epochs > 0 {
                self.runs.push(Run::new(self.job, recurrence, &done, ratio));
            }
            if !done.reached && tries < TRIES {
                self.start(end + duration, duration, recurrence, tries + 1, ratio);
            }
        }
    }
}

/// The place of the one that ends first.
fn first(flights: &[Flight]) -> Option<usize> {
    (0..flights.len()).min_by(|a, b| flights[*a].end.total_cmp(&flights[*b].end))
}
