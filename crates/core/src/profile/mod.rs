//! Just-in-time profiling, without I/O: measures throughput and power of a running job at each power limit, from the
//! ceiling (the maximum usable limit) down. Where the ceiling has no effect on the job, it also measures locked GPU
//! clocks.

mod account_history;
#[cfg(test)]
mod clock_tests;
#[cfg(test)]
mod counter_tests;
mod curve;
mod dips;
mod drift;
mod measurement;
mod noise;
mod pause_detection;
mod point;
mod profiler;
mod progress;
mod progress_interval;
mod rate_model;
mod settings;
mod slack;
mod stall_detector;
mod stats;
pub mod steps;
mod student;

pub use account_history::AccountHistory;
pub(crate) use curve::concave_envelope;
pub use curve::{Curve, HullPoint, Mix};
pub use dips::Dip;
pub use noise::Noise;
pub use point::{Evidence, PointStats, Record};
pub use profiler::{GpuSnapshot, Profiler, Report, Stage};
pub use progress::{EarlierWork, ProgressAccount};
pub use rate_model::SettingEstimate;
pub use settings::Settings;
pub use slack::{Slack, SlowedTraining, reserve};
pub use stall_detector::{LatestPauses, StallDetector};
pub use stats::RateStats;
pub use student::{LEAST_FREEDOM, student};
