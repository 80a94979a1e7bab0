//! Which batch size a recurring job should run with: learnt over its runs.
//!
//! A job that is trained again and again ([`Spec`]) makes one [`Trial`] after the other. Everything a policy knows is in
//! the list of trials; there is no other state but the [`Generator`]'s, so that whoever stores both has stored all. Two
//! policies answer the same two questions:
//!
//! * [`next`]: which batch size the next run takes;
//! * [`patience`]: for how many epochs it may go on before it is given up.
//!
//! A [`Job`] is the life of such a job: trials begin, report, end, or fall silent until their lease runs out.
//!
//! [`zeus`] is the published algorithm (Zeus, NSDI'23: pruning, then Gaussian Thompson sampling); [`wattune`] spends less
//! on exploration, and says in its module why it may.

mod contradiction;
pub mod cost;
mod doubt;
mod job;
mod limit;
pub mod numpy;
mod run;
mod spec;
mod terms;
mod trial;
pub mod wattune;
pub mod zeus;

pub use cost::{Cost, Knob};
pub use doubt::doubts;
pub use job::{Begun, Job, Refused};
pub use limit::best_limit;
pub use numpy::Generator;
pub use run::{Ending, Report, Run, Verdict};
pub use spec::{InvalidSpec, PolicyName, Spec};
pub use terms::{Boards, Reward, Target, Terms};
pub use trial::{Kind, Outcome, State, Trial};

#[cfg(test)]
mod tests;

/// What the next run does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Its batch size.
    pub batch_size: u64,
    /// Why it was chosen.
    pub kind: Kind,
}

/// No batch size of the job has reached its target, so that there is nothing left to choose from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "no batch size reaches the target metric; begin anew (DELETE the job, or take another name) with others, more epochs, \
     or a lower target"
)]
pub struct NoneConverges;

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

/// What is believed of what a run with some batch size costs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Belief {
    /// The mean.
    pub mean: Cost,
    /// The standard deviation of that mean.
    pub deviation: Cost,
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
