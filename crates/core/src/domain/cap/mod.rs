//! Power caps: the maximum sum of the power limits of a node's GPUs over time (`planning.md` §3).
//!
//! A cap consists of rules: a constant, weekly windows, single spans of time, and demand-response events. Where several
//! rules apply, the strictest counts. All times are UTC.

mod configured;
mod event;
mod rule;
mod schedule;

pub use configured::{CapSource, ConfiguredCap, Level, Window, check_level};
pub use event::{DemandResponse, Rebound};
pub use schedule::CapSchedule;
