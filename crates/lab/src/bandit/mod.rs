//! Recurring jobs on recorded training runs: the batch sizes that policies choose, and the cost of that.
//!
//! [`Traces`] join Zeus's files; a [`Job`] is one workload of them on a GPU. A [`policy`] chooses batch size and limit of
//! each run; its epochs are drawn from the traces. [`recur()`] repeats a job one run after the other, [`overlap()`] as a trace
//! of submissions says. [`oracle`] knows the best, and a [`Study`] compares with it.

mod job;
pub mod oracle;
mod overlap;
mod play;
pub mod policy;
mod recur;
mod rows;
mod run;
mod study;
#[cfg(test)]
mod tests;
mod traces;

pub use job::{Arm, Job, Level};
pub use overlap::overlap;
pub use recur::{Recurring, Switch, recur};
pub use rows::{HistoryRow, Report, SummaryRow, mean_of};
pub use run::{EndedRun, JobRuns, Run, Setting};
pub use study::{Case, Recurrences, Study, StudyError};
pub use traces::{JobQuery, Traces};
