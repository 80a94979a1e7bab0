//! Just-in-time profiling (pure): throughput and power of a job at every limit, learned while it trains.

mod curve;
pub mod ladder;
mod profiler;
mod progress;
mod settings;
mod stats;

pub(crate) use curve::concave_envelope;
pub use curve::{Curve, HullPoint, Mix};
pub use profiler::{PointStats, Profiler, Record, Report, Sight, Stage};
pub use progress::ProgressAccount;
pub use settings::Settings;
pub use stats::RateStats;
