//! One run, drawn from the traces.

use super::policy::{Chooses, Setting};
use super::{Epoch, Job};
use wattune_core::bandit::{Cost, Generator};
use wattune_core::units::{Joules, Seconds};

/// Why a recurring job cannot be simulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SimulationError {
    /// No batch size reaches the target.
    #[error("no batch size reaches the target metric within the epochs; lower the target or allow more")]
    Hopeless,
    /// The first recurrence did not reach its target.
    #[error(
        "the first run, with batch size {batch_size}, did not reach the target (seed {seed}); the default batch size \
         must: choose another, more epochs, or another target"
    )]
    DefaultFails {
        /// The default.
        batch_size: u64,
        /// Of the generators.
        seed: u64,
    },
}

/// A run is tried so often until it reaches its target.
pub(super) const TRIES: u32 = 20;

/// A run that has ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Done {
    /// Its number, from 1.
    pub number: u32,
    /// What it ran with.
    pub setting: Setting,
    /// Whole epochs; 0 if not even one fitted under the bound.
    pub epochs: u32,
    /// Whether it was at its target.
    pub reached: bool,
    /// What it took, profiling included.
    pub energy: Joules,
    /// How long, profiling included.
    pub time: Seconds,
    /// What it cost.
    pub cost: Cost,
    /// An epoch of it.
    pub epoch: Epoch,
}

/// Runs a setting: draws a training run and a measurement of the epoch from the traces.
pub(super) fn play(
    job: &Job,
    eta: f64,
    number: u32,
    setting: Setting,
    policy: &mut dyn Chooses,
    generator: &mut Generator,
) -> Done {
    let arm = &job.arms[setting.arm];
    let measured = &arm.levels[setting.level].epochs;
    let rows = u32::try_from(arm.paths.len() * measured.len()).unwrap_or(u32::MAX);
    let row = generator.below(rows) as usize;
    let (path, epoch) = (arm.paths[row / measured.len()], measured[row % measured.len()]);
    let most = policy.patience(job, &setting, &epoch).min(job.max_epochs);
    let (epochs, reached) = path.filter(|epoch| *epoch <= most).map_or((most, false), |epoch| (epoch, true));
    // The first epoch of a run that looks for its limit is another.
    let others = f64::from(epochs.saturating_sub(1));
    let (energy, time) = match setting.profiling {
        Some((energy, time)) if epochs > 0 => (energy + epoch.energy() * others, time + epoch.time * others),
        _ => (epoch.energy() * f64::from(epochs), epoch.time * f64::from(epochs)),
    };
    let cost = job.knob(eta).cost(energy, time);
    Done { number, setting, epochs, reached, energy, time, cost, epoch }
}
