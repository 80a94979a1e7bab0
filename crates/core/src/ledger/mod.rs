//! The energy ledger, without I/O: energy of closed intervals, emissions as energy × the best known carbon intensity,
//! and a hash chain that third parties can verify.

pub mod apportion;
mod attribution;
pub mod block;
pub mod chain;
pub mod confidence;
mod counterfactual;
pub mod derived;
pub mod due;
mod emissions;
pub mod entry;
mod figures;
pub mod forecast_id;
pub mod hour;
pub mod intensities;
mod interval;
mod meter;
mod open_interval;
pub mod pauses;
pub mod presence_entries;
pub mod report;
pub mod savings;
pub mod savings_entries;
mod settings;
pub mod settlement;
pub mod sources;
mod training_split;
pub mod verify;
pub mod waiting_times;
mod wrapping_counter;

pub use attribution::{AttributionRule, CpuTime, GpuUsage};
pub use counterfactual::{Comparison, CompletedWork, compare};
pub use emissions::{Emissions, emissions, mean_intensity};
pub use interval::{Interval, Share, within};
pub use meter::{CounterJump, Disagreement, Meter, Metered, PowerBound, rebased};
pub use open_interval::{LONGEST_GAP, OccupancySpan, OpenInterval, gap_intervals};
pub use settings::Settings;
pub use settlement::Total;
pub use training_split::compare_at_ceiling;
pub use wrapping_counter::{CounterPosition, WrappingCounter, min_energy_between, whole_millijoules};
