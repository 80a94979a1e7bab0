//! Recurring jobs on recorded training runs: which batch size policies choose, and what that costs.
//!
//! [`Traces`] are read from Zeus's files; a [`Job`] is one workload of them on a board. A policy ([`policy`]) chooses batch
//! size and limit of each run; what a run needs is drawn from the traces. [`recur`] repeats a job one run after the other,
//! [`overlap`] as a trace of submissions says. [`oracle`] knows the best.

mod group;
mod job;
pub mod oracle;
mod play;
pub mod policy;
mod recur;
mod rows;
mod traces;

pub use group::overlap;
pub use job::{Arm, Epoch, Job, Level, Traces, Wanted};
pub use play::{Done, SimulationError};
pub use recur::{Ends, Plan, Run, Switch, recur};
pub use rows::{Expected, HistoryRow, Report, SummaryRow, What, history, mean_of, summary};
pub use traces::{Submission, TraceError, read_groups};

#[cfg(test)]
mod tests;
