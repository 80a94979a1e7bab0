//! The most that the power limits of all boards of a node may add up to, over time (`planning.md` §3).
//!
//! A cap is made of rules: a constant, windows of the week, spans of time, and demand-response events. Where several
//! speak for one moment, the strictest counts. All times are UTC.

mod event;
mod level;
mod rule;
mod schedule;
mod source;
mod standing;

pub use event::{DemandResponse, Rebound};
pub use level::{Level, check_level};
pub use schedule::CapSchedule;
pub use source::CapSource;
pub use standing::{StandingCap, Window};
