//! The questions that every policy answers, put to the one that the job names.

use super::{Belief, Choice, Cost, Generator, NoneConverges, PolicyName, Spec, Trial, wattune, zeus};

/// The batch size of the next run, given all trials so far in the order of their numbers, running ones included.
///
/// # Errors
/// If every batch size was tried and none reached the target.
pub fn next(spec: &Spec, trials: &[Trial], generator: &mut Generator) -> Result<Choice, NoneConverges> {
    match spec.policy {
        PolicyName::Zeus => zeus::next(spec, trials, generator),
        PolicyName::Wattune => wattune::next(spec, trials, generator),
    }
}

/// For how many epochs a run with this batch size may go on that costs `epoch_cost` an epoch; `spec.max_epochs` at most.
/// `trials` are the others: those that ended before, and those that run beside it.
pub fn patience(spec: &Spec, trials: &[Trial], batch_size: u64, epoch_cost: Cost) -> u32 {
    match spec.policy {
        PolicyName::Zeus => zeus::patience(spec, trials, epoch_cost),
        PolicyName::Wattune => wattune::patience(spec, trials, batch_size, epoch_cost),
    }
}

/// What the policy believes of each batch size, in the job's order; `None` where it has no opinion.
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

/// The batch size that the policy holds for the best so far.
pub fn favourite(spec: &Spec, trials: &[Trial]) -> u64 {
    match spec.policy {
        PolicyName::Zeus => zeus::favourite(spec, trials),
        PolicyName::Wattune => wattune::favourite(spec, trials),
    }
}
