//! Wattune's own policy.

use super::{Choice, Cost, Generator, NoneConverges, Spec, Trial, zeus};

/// See [`super::next`].
pub(super) fn next(spec: &Spec, trials: &[Trial], generator: &mut Generator) -> Result<Choice, NoneConverges> {
    zeus::next(spec, trials, generator)
}

/// See [`super::patience`].
pub(super) fn patience(spec: &Spec, trials: &[Trial], _batch_size: u64, epoch_cost: Cost) -> u32 {
    zeus::patience(spec, trials, epoch_cost)
}

/// See [`super::favourite`].
pub(super) fn favourite(spec: &Spec, trials: &[Trial]) -> u64 {
    zeus::favourite(spec, trials)
}
