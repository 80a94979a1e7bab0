//! Execution of plans: whether to keep the current plan, and which set point to apply now.

mod keep;
mod set_point;

pub use keep::{keep_if_nearly_as_good, keep_jointly_if_nearly_as_good};
pub use set_point::{AppliedSetPoint, SwitchingLimits, next_set_point};
