//! Reports: what a span of time used and emitted, by job, name, device, label, day or month, with everything an auditor
//! needs beside it.
//!
//! All energy is in integer millijoules and all emissions in integer micrograms, so that every grouping adds up to the
//! same total. What is multiplied by declared factors (facility, contract, embodied) stands in columns of its own.

mod books;
mod build;
mod functional_unit;
mod grouping;
mod held;
mod job;
mod row;
mod score;
#[cfg(test)]
mod tests;
mod wanted;

pub use books::{Books, Correction, DeviceBalance, Gap, Piece, Restatement, SYNTHETIC, Sum, Version, Whose};
pub use build::{Report, build};
pub use functional_unit::{FunctionalUnit, LEAST_PER_EPOCH};
pub use grouping::{By, NoGrouping};
pub use job::{JobFacts, Saved};
pub use row::{Key, Row, Split};
pub use score::Score;
pub use wanted::Wanted;
