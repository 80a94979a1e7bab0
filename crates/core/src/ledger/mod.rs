//! The energy ledger (pure): energy per closed interval, emissions as a view of energy × the best known intensity, and
//! a hash chain that third parties can verify.

pub mod apportion;
mod attribution;
pub mod block;
pub mod chain;
mod counterfactual;
pub mod derived;
pub mod due;
mod emissions;
pub mod entry;
pub mod frozen;
pub mod hour;
pub mod intensities;
mod interval;
mod meter;
mod open_interval;
pub mod pauses;
pub mod report;
pub mod savings;
mod settings;
pub mod settlement;
pub mod sources;
pub mod sure;
pub mod verify;
mod wrapping;

pub use attribution::{CpuTime, Rule, Use};
pub use counterfactual::{Comparison, Done, compare};
pub use emissions::{Emissions, emissions, mean_intensity};
pub use interval::{Interval, Share, within};
pub use meter::{Meter, Metered, rebased};
pub use open_interval::{OpenInterval, Stay, gap_intervals};
pub use settings::Settings;
pub use settlement::Total;
pub use wrapping::{Mark, WrappingMeter, least_between, whole};
