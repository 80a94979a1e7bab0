//! Observation made by one run.

use crate::bandit::{Spec, Trial};

/// Observation made by one run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Observation {
    pub(super) arm: usize,
    /// Logarithm of the epochs.
    pub(super) log_epochs: f64,
    pub(super) epochs: f64,
    pub(super) log_epoch_cost: f64,
    pub(super) reached: bool,
}

impl Observation {
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
}
