//! Simulates one run of a recurring job, drawn from the traces.

use super::job::Job;
use super::policy::Chooser;
use super::run::{EndedRun, Setting};
use wattune_core::bandit::Generator;

/// Maximum number of runs in a recurrence, which is over when a run reaches its target.
pub(super) const TRIES: u32 = 20;

/// Simulates a run with a batch size and limit: draws a training run and a measured epoch from the traces at random.
pub(super) fn play(
    job: &Job,
    eta: f64,
    number: u32,
    setting: Setting,
    policy: &mut dyn Chooser,
    generator: &mut Generator,
) -> EndedRun {
    let arm = &job.arms[setting.arm];
    let measured = &arm.levels[setting.level].epochs;
    let rows = u32::try_from(arm.paths.len() * measured.len()).unwrap_or(u32::MAX);
    let row = generator.below(rows) as usize;
    let (path, epoch) = (arm.paths[row / measured.len()], measured[row % measured.len()]);
    let most = policy.patience(job, &setting, &epoch).min(job.max_epochs);
    let (epochs, reached) = path.filter(|epoch| *epoch <= most).map_or((most, false), |epoch| (epoch, true));
    // If the run profiles power limits, `profiling` replaces the energy and time of its first epoch.
    let others = f64::from(epochs.saturating_sub(1));
    let (energy, time) = match setting.profiling {
        Some((energy, time)) if epochs > 0 => (energy + epoch.energy() * others, time + epoch.time * others),
        _ => (epoch.energy() * f64::from(epochs), epoch.time * f64::from(epochs)),
    };
    let cost = job.knob(eta).cost(energy, time);
    EndedRun { number, setting, epochs, reached, energy, time, cost, epoch }
}
