//! The largest limit, always: what everything is compared with.

use crate::simulate::replay::{Decision, Step, View};

/// The profile's first point to the end.
pub(super) fn decide(_view: &View<'_>) -> Decision {
    Ok(vec![Step::to_the_end(0)])
}
