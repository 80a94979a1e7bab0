//! Estimate of a batch size's cost.

use super::Cost;

/// Estimate of the cost of a run with a batch size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Belief {
    /// Mean.
    pub mean: Cost,
    /// Standard deviation of the mean.
    pub deviation: Cost,
}
