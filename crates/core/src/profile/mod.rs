//! Just-in-time profiling (pure): throughput and power of a job at every limit, and where limits do
//! not bind at every clock, learned while it trains.

#[cfg(test)]
mod clock_tests;
mod curve;
mod dips;
mod drawn;
mod drift;
pub mod ladder;
mod noise;
mod pace;
mod point;
mod profiler;
mod progress;
mod settings;
mod slack;
mod stall;
mod stats;
mod stretch;
mod student;
mod visit;

pub(crate) use curve::concave_envelope;
pub use curve::{Curve, HullPoint, Mix};
pub use dips::Dip;
pub use drawn::Known;
pub use point::{Evidence, PointStats, Record};
pub use profiler::{Profiler, Report, Sight, Stage};
pub use progress::ProgressAccount;
pub use settings::Settings;
pub use slack::{Lost, Slack, reserve};
pub use stall::{Newest, Stalls};
pub use stats::RateStats;
pub use student::{LEAST_FREEDOM, student};
