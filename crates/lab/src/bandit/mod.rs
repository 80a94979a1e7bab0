//! Recurring jobs on recorded training runs: the batch sizes that policies choose, and the costs of these choices.
//!
//! [`Traces`] joins Zeus's trace files; a [`Job`] is a workload of the traces on a GPU. A [`policy`] chooses batch size
//! and power limit of each run; the number and the measurements of the run's epochs are drawn from the traces.
//! [`recur()`] repeats a job one run after the other; [`overlap()`] starts the runs as a trace of submissions says. A
//! [`Study`] compares policies with the [`oracle`], which knows the best choice beforehand.

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
