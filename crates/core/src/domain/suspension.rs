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

/// Observed durations of one step of a suspension (saving and exiting, or restarting), from which the step's expected
/// duration is learned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LearnedTime {
    /// Latest observed durations, the newest last.
    #[serde(default)]
    observed: [Option<Seconds>; KEPT],
}

impl LearnedTime {
    /// Adds an observed duration. Ignores durations below zero or above a day, which no step takes.
    pub fn observe(&mut self, took: Seconds) {
        if (0.0..=LONGEST.get()).contains(&took.get()) {
            self.observed.rotate_left(1);
            self.observed[KEPT - 1] = Some(took);
        }
    }

    /// Returns the expected duration: the median of the latest observations and the stated duration, which counts as
    /// one observation. A single unusual observation therefore changes little.
    pub fn estimate(&self, stated: Seconds) -> Seconds {
        let mut known: Vec<Seconds> = self.observed.into_iter().flatten().chain([stated]).collect();
        known.sort_by(|a, b| a.get().total_cmp(&b.get()));
        let middle = known.len() / 2;
        if known.len() % 2 == 1 { known[middle] } else { (known[middle - 1] + known[middle]) * 0.5 }
    }
}

/// Costs of one suspension of a job. While the job saves and while it restarts, its GPUs draw power and do no useful
/// work.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StopCosts {
    checkpoint: Seconds,
    restart: Seconds,
}

impl StopCosts {
    /// Creates the costs from the time from the request to stop until the process has saved a checkpoint and is gone, and
    /// the time from the start of the process until it does new work.
    ///
    /// # Errors
    /// If a time is outside 0 to a day. The error names the field.
    pub fn new(checkpoint: Seconds, restart: Seconds) -> Result<Self, InvalidJob> {
        for (field, length) in [("suspend.checkpoint_s", checkpoint), ("suspend.restart_s", restart)] {
            if !(0.0..=LONGEST.get()).contains(&length.get()) {
                let why = format!("is {}; it must be from 0 to {} seconds", Short(length.get()), LONGEST.get());
                return Err(InvalidJob { field, why });
            }
        }
        Ok(Self { checkpoint, restart })
    }

    /// Returns the time that one suspension costs: checkpoint plus restart.
    pub fn per_stop(self) -> Seconds {
        self.checkpoint + self.restart
    }

    /// Returns the rules by which the planner plans suspensions. While the job is suspended, its GPUs draw `reserved`:
    /// 0 W if other jobs may use them, otherwise their idle power. A suspension, and the training between two
    /// suspensions, last at least half an hour, and at least as long as a suspension costs.
    pub fn pausing(self, reserved: Watts) -> Pausing {
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
        let (stated, mut time) = (s(120.0), LearnedTime::default());
        assert_eq!(time.estimate(stated), stated);
        for (took, estimate) in [(60.0, 90.0), (40.0, 60.0), (5000.0, 90.0), (50.0, 60.0), (55.0, 57.5)] {
            time.observe(s(took));
            assert_eq!(time.estimate(stated), s(estimate), "after {took} s");
        }
        for odd in [-1.0, 1e9] {
            time.observe(s(odd));
        }
        assert_eq!(time.estimate(stated), s(57.5), "no durations of a step");
        (0..20).for_each(|_| time.observe(s(300.0)));
        assert_eq!(time.estimate(stated), s(300.0), "follows a change");
    }

    #[test]
    fn rules_charge_checkpoint_and_restart_once_per_stop() {
        let costs = StopCosts::new(Seconds::new(120.0), Seconds::new(180.0)).expect("valid");
        let half_an_hour = Seconds::new(1800.0);
        let rules = costs.pausing(Watts::ZERO);
        assert_eq!((rules.checkpoint, rules.idle_power), (Seconds::new(300.0), Watts::ZERO));
        assert_eq!((rules.min_run, rules.min_pause), (half_an_hour, half_an_hour));
        let slow = StopCosts::new(Seconds::new(1800.0), Seconds::new(1800.0)).expect("valid").pausing(Watts::ZERO);
        assert_eq!((slow.min_run, slow.min_pause), (Seconds::new(3600.0), Seconds::new(3600.0)));
        let wrong = StopCosts::new(Seconds::new(120.0), Seconds::new(-1.0)).expect_err("negative");
        assert_eq!(
            (wrong.field, wrong.why.as_str()),
            ("suspend.restart_s", "is -1; it must be from 0 to 86400 seconds")
        );
    }
}
