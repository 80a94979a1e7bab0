//! What a policy believes of a batch size.

use super::Cost;

/// What is believed of what a run with some batch size costs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Belief {
    /// The mean.
    pub mean: Cost,
    /// The standard deviation of that mean.
    pub deviation: Cost,
}
