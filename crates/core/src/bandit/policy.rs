//! Functions that all policies for batch sizes have; each calls the policy that the specification names.

use super::{Belief, Choice, Cost, Generator, NoneConverges, PolicyName, Spec, Trial, wattune, zeus};

/// Returns the batch size of the next run, and the reason for it. `trials` are all trials of the job, including running
/// ones, in order of their numbers.
///
/// # Errors
/// If every batch size was tried and none of them reached the target.
pub fn next(spec: &Spec, trials: &[Trial], generator: &mut Generator) -> Result<Choice, NoneConverges> {
    match spec.policy {
        PolicyName::Zeus => zeus::next(spec, trials, generator),
        PolicyName::Wattune => wattune::next(spec, trials, generator),
    }
}

/// Returns the number of epochs after which a run with this batch size and this cost per epoch is stopped; at most
/// `spec.max_epochs`. `trials` are the job's other trials, ended or running.
pub fn patience(spec: &Spec, trials: &[Trial], batch_size: u64, epoch_cost: Cost) -> u32 {
    match spec.policy {
        PolicyName::Zeus => zeus::patience(spec, trials, epoch_cost),
        PolicyName::Wattune => wattune::patience(spec, trials, batch_size, epoch_cost),
    }
}

/// Returns whether `cost`, that of a run with this batch size in its first epoch, exceeds β times the cost of the best
/// run: even one epoch then costs too much.
pub(super) fn exceeds_beta(spec: &Spec, trials: &[Trial], batch_size: u64, cost: Cost) -> bool {
    match spec.policy {
        PolicyName::Zeus => zeus::patience(spec, trials, cost) == 0,
        PolicyName::Wattune => wattune::exceeds_beta(spec, trials, batch_size, cost),
    }
}

/// Returns the policy's estimate of a run's cost for each batch size, in the order of `spec.batch_sizes`; `None` for
/// batch sizes without an estimate.
pub fn beliefs(spec: &Spec, trials: &[Trial]) -> Vec<Option<Belief>> {
    match spec.policy {
        PolicyName::Zeus => zeus::beliefs(spec, trials),
        PolicyName::Wattune => {
            let known = wattune::posterior(spec, trials);
            let belief = |&(mean, relative): &(Cost, f64)| Belief { mean, deviation: mean * relative };
            (0..spec.batch_sizes.len()).map(|k| known.get(k).map(belief)).collect()
        }
    }
}

/// Returns the batch size that is best by current estimates.
pub fn favourite(spec: &Spec, trials: &[Trial]) -> u64 {
    match spec.policy {
        PolicyName::Zeus => zeus::favourite(spec, trials),
        PolicyName::Wattune => wattune::favourite(spec, trials),
    }
}
