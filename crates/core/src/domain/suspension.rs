//! Costs of stopping a job and starting it again: the times that its offer states, and what observations teach.

use serde::{Deserialize, Serialize};

use super::{InvalidJob, Pausing};
use crate::units::{Seconds, Short, Watts};

/// Maximum number of observations that an estimate keeps; older ones are dropped, so that it follows a job that changes.
const KEPT: usize = 8;
/// Minimum duration of a stop, and minimum time of training between two stops, however little a stop costs.
const SHORTEST: Seconds = Seconds::new(1800.0);
/// Longest time for a checkpoint or a restart.
const LONGEST: Seconds = Seconds::new(86_400.0);

/// Duration of one step of a stop: first as stated, then learned from observations.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LearnedTime {
    stated: Seconds,
    /// Observed durations, the latest last.
    observed: Vec<Seconds>,
}

impl LearnedTime {
    /// Creates an estimate from the stated duration.
    pub fn stated(stated: Seconds) -> Self {
        Self { stated, observed: Vec::new() }
    }

    /// Adds an observed duration; one outside 0 to a day is no duration of a step and is ignored.
    pub fn observe(&mut self, took: Seconds) {
        if (0.0..=LONGEST.get()).contains(&took.get()) {
            self.observed.push(took);
            self.observed.drain(..self.observed.len().saturating_sub(KEPT));
        }
    }

    /// Returns the estimate: the median of the latest observations and the stated duration. So one odd observation
    /// changes little, and the stated duration counts as much as one observation.
    pub fn estimate(&self) -> Seconds {
        let mut known: Vec<Seconds> = self.observed.iter().copied().chain([self.stated]).collect();
        known.sort_by(|a, b| a.get().total_cmp(&b.get()));
        let middle = known.len() / 2;
        if known.len() % 2 == 1 { known[middle] } else { (known[middle - 1] + known[middle]) * 0.5 }
    }
}

/// Costs of one stop of a job: during both steps its GPUs draw power and do no useful work.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StopCosts {
    /// Time from the request to stop until the process has saved a checkpoint and is gone.
    pub checkpoint: LearnedTime,
    /// Time from the start of the process until it does new work.
    pub restart: LearnedTime,
}

impl StopCosts {
    /// Creates the costs that a job states when it offers to be stopped.
    ///
    /// # Errors
    /// If a time is outside 0 to a day. The error names the field.
    pub fn stated(checkpoint: Seconds, restart: Seconds) -> Result<Self, InvalidJob> {
        for (field, length) in [("suspend.checkpoint_s", checkpoint), ("suspend.restart_s", restart)] {
            if !(0.0..=LONGEST.get()).contains(&length.get()) {
                let why = format!("is {}; it must be within 0 to {} seconds", Short(length.get()), LONGEST.get());
                return Err(InvalidJob { field, why });
            }
        }
        Ok(Self { checkpoint: LearnedTime::stated(checkpoint), restart: LearnedTime::stated(restart) })
    }

    /// Returns the time that a stop costs: checkpoint and restart.
    pub fn per_stop(&self) -> Seconds {
        self.checkpoint.estimate() + self.restart.estimate()
    }

    /// Returns the rules by which the planner plans stops. While the job is stopped its GPUs draw `reserved`: 0 W if
    /// they are free for others, their idle power if they are kept for the job. A stop, and the training between two
    /// stops, last at least half an hour, and at least as long as a stop costs.
    pub fn pausing(&self, reserved: Watts) -> Pausing {
        let cost = self.per_stop();
        let least = SHORTEST.max(cost);
        Pausing { idle_power: reserved, min_run: least, min_pause: least, checkpoint: cost }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_are_the_stated_ones_until_observations_outnumber_them() {
        let s = Seconds::new;
        let mut time = LearnedTime::stated(s(120.0));
        assert_eq!(time.estimate(), s(120.0));
        for (took, estimate) in [(60.0, 90.0), (40.0, 60.0), (5000.0, 90.0), (50.0, 60.0), (55.0, 57.5)] {
            time.observe(s(took));
            assert_eq!(time.estimate(), s(estimate), "after {took} s");
        }
        for odd in [-1.0, 1e9] {
            time.observe(s(odd));
        }
        assert_eq!(time.estimate(), s(57.5), "no durations of a step");
        (0..20).for_each(|_| time.observe(s(300.0)));
        assert_eq!((time.estimate(), time.observed.len()), (s(300.0), KEPT), "follows a change");
    }

    #[test]
    fn rules_charge_checkpoint_and_restart_once_per_stop() {
        let costs = StopCosts::stated(Seconds::new(120.0), Seconds::new(180.0)).expect("valid");
        let half_an_hour = Seconds::new(1800.0);
        let rules = costs.pausing(Watts::ZERO);
        assert_eq!((rules.checkpoint, rules.idle_power), (Seconds::new(300.0), Watts::ZERO));
        assert_eq!((rules.min_run, rules.min_pause), (half_an_hour, half_an_hour));
        let slow = StopCosts::stated(Seconds::new(1800.0), Seconds::new(1800.0)).expect("valid").pausing(Watts::ZERO);
        assert_eq!((slow.min_run, slow.min_pause), (Seconds::new(3600.0), Seconds::new(3600.0)));
        let wrong = StopCosts::stated(Seconds::new(120.0), Seconds::new(-1.0)).expect_err("negative");
        assert_eq!(
            (wrong.field, wrong.why.as_str()),
            ("suspend.restart_s", "is -1; it must be within 0 to 86400 seconds")
        );
    }
}
