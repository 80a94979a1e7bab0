//! Reports: energy and emissions of a span by job, name, device, label, day or month, with the context that an auditor
//! needs.
//!
//! Energy is in integer millijoules and emissions are in integer micrograms, so that every grouping adds up to the same
//! total. Amounts that are scaled by factors from the settings (facility, contract, embodied) have separate columns.

mod build;
mod days;
mod gaps;
mod holding_time;
mod job;
mod ledger_data;
mod request;
mod row;
mod score;
pub mod span;
mod unsettled;
mod whole_job;

#[cfg(test)]
mod ledger_data_tests;
#[cfg(test)]
mod tests;

pub use super::block::DeviceBalance;
pub use build::{Report, build};
pub use days::{DaySums, DayTotal};
pub use gaps::{Restatements, carbon_after, gaps, is_restated};
pub use job::{JobFacts, NewestOutcome, Saved, SavedEffects};
pub use ledger_data::{BoundaryPeriod, Correction, Gap, LedgerData, Owner, Restatement, Sum, Version};
pub use request::{FunctionalUnit, Grouping, InvalidGrouping, MIN_SAMPLES_PER_EPOCH, ReportRequest};
pub use row::{Row, RowKey, Split};
pub use score::Score;
pub use unsettled::{Unsettled, unsettled_after};
pub use whole_job::WholeJob;
