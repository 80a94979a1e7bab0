//! Choice of a batch size for the next run.

use super::Kind;

/// Choice for the next run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Batch size.
    pub batch_size: u64,
    /// Reason for it.
    pub kind: Kind,
}

/// Error: no batch size of the job reached the target, and none is left to try.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "no batch size reaches the target metric; create the job again (DELETE it, or use another name) with other batch \
     sizes, more epochs, or an easier target"
)]
pub struct NoneConverges;
