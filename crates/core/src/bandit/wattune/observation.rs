//! Result of a run as the model of the job uses it.

use crate::bandit::{Spec, Trial};

/// Result of one run, as far as beliefs use the result.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Observation {
    pub(super) arm: usize,
    /// Natural logarithm of `epochs`, the number of completed epochs.
    pub(super) log_epochs: f64,
    pub(super) epochs: f64,
    pub(super) log_epoch_cost: f64,
    pub(super) reached: bool,
}

impl Observation {
    /// Returns the result of a trial; `None` if the trial has no result, no completed epoch or no cost.
    pub(super) fn of(spec: &Spec, trial: &Trial) -> Option<Self> {
        let epoch_cost = trial.epoch_cost.filter(|c| c.get() > 0.0 && c.get().is_finite())?;
        if !trial.has_result() || trial.epochs == 0 {
            return None;
        }
        let epochs = f64::from(trial.epochs);
        Some(Self {
            arm: spec.place(trial.batch_size)?,
            log_epochs: epochs.ln(),
            epochs,
            log_epoch_cost: epoch_cost.get().ln(),
            reached: trial.reached(),
        })
    }

    /// Returns the cost of the run, in joules.
    pub(super) fn cost(&self) -> f64 {
        self.epochs * self.log_epoch_cost.exp()
    }
}
