//! Jobs that may wait: policies that choose when a job starts, replayed on recorded grids over many submissions.
//!
//! A policy is one file in `policy/` and one line in its list.

mod calibration;
mod kind;
mod means;
mod policy;
mod row;
mod run;
#[cfg(test)]
mod tests;

pub use calibration::{CalibrationBin, calibration};
pub use kind::{ChosenStart, StartPolicy, StatedRisk, Submission};
pub use means::{WaitingMean, waiting_means};
pub use policy::{START_POLICIES, start_policy};
pub use row::WaitingRow;
pub use run::WaitingStudy;
