//! The choice of a batch size for the next run.

use super::Kind;

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
