//! Reports: energy and emissions of a span by job, name, device, label, day or month, with the context that an auditor
//! needs.
//!
//! All energy is in integer millijoules and all emissions are in integer micrograms, so that every grouping adds up to
//! the same total. Amounts that are scaled by declared factors (facility, contract, embodied) have separate columns.

mod build;
mod days;
pub mod first_seen;
mod functional_unit;
mod gaps;
mod grouping;
mod holding_time;
mod job;
mod ledger_data;
mod request;
mod restated;
mod row;
mod saved;
mod score;
pub mod span;
mod unsettled;

#[cfg(test)]
mod ledger_data_tests;
#[cfg(test)]
mod tests;

pub use super::block::DeviceBalance;
pub use build::{Report, build};
pub use days::{DaySums, DayTotal};
pub use functional_unit::{FunctionalUnit, MIN_SAMPLES_PER_EPOCH};
pub use gaps::gaps;
pub use grouping::{Grouping, InvalidGrouping};
pub use job::JobFacts;
pub use ledger_data::{BoundaryPeriod, Correction, Gap, LedgerData, Owner, Restatement, Sum, Version};
pub use request::ReportRequest;
pub use restated::{Restatements, carbon_after, is_restated};
pub use row::{Row, RowKey, Split};
pub use saved::{NewestOutcome, Saved};
pub use score::Score;
pub use unsettled::{Unsettled, unsettled_after};
