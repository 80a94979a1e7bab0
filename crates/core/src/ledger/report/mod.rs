//! Reports: energy and emissions of a span by job, name, device, label, day or month, with the context that an auditor
//! needs.
//!
//! All energy is in integer millijoules and all emissions are in integer micrograms, so that every grouping adds up to
//! the same total. Amounts that are scaled by declared factors (facility, contract, embodied) have separate columns.

mod books;
mod build;
mod days;
pub mod first_seen;
mod functional_unit;
mod gaps;
mod grouping;
mod held;
mod job;
mod restated;
mod row;
mod saved;
mod score;
pub mod span;
mod unsettled;
mod wanted;

#[cfg(test)]
mod books_tests;
#[cfg(test)]
mod tests;

pub use super::block::DeviceBalance;
pub use books::{Books, Correction, Gap, Piece, Restatement, Sum, Version, Whose};
pub use build::{Report, build};
pub use days::{DaySums, DayTotal};
pub use functional_unit::{FunctionalUnit, LEAST_PER_EPOCH};
pub use gaps::gaps;
pub use grouping::{By, NoGrouping};
pub use job::JobFacts;
pub use restated::{Restatements, carbon_after, is_restated};
pub use row::{Key, Row, Split};
pub use saved::{NewestOutcome, Saved};
pub use score::Score;
pub use unsettled::{Unsettled, unsettled_after};
pub use wanted::Wanted;
