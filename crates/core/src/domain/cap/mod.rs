//! Power caps: the maximum sum of the power limits of a node's GPUs over time (`planning.md` §3).
//!
//! A cap consists of rules: a constant, weekly windows, spans of time, and demand-response events. Where several apply,
//! the strictest counts. All times are UTC.

mod configured;
mod event;
mod level;
mod rule;
mod schedule;
mod source;

pub use configured::{ConfiguredCap, Window};
pub use event::{DemandResponse, Rebound};
pub use level::{Level, check_level};
pub use schedule::CapSchedule;
pub use source::CapSource;
