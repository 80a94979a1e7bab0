//! The books (pure): energy per closed interval, grams as a view of energy × the best intensity known.

mod attribution;
mod counterfactual;
mod emissions;
mod interval;
mod meter;
mod wrapping;

pub use attribution::{CpuTime, Use, apportion, by_cpu_time, by_use};
pub use counterfactual::{Comparison, Done, compare};
pub use emissions::{Emissions, emissions, mean_intensity};
pub use interval::{Interval, OpenInterval, Share, gap_intervals, within};
pub use meter::{Meter, Metered};
pub use wrapping::{WrappingMeter, least_between};
