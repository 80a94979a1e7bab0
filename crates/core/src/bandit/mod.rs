//! Choice of a recurring job's batch size, learnt over the runs of the job.
//!
//! A recurring job ([`Spec`]) is a training that is repeated; each of its runs is a [`Trial`] of one batch size.
//! Policies choose the batch sizes. They use only the list of trials and the state of the random [`Generator`], so that
//! storing this list and this state stores everything that was learnt. Two functions call the policy: [`next`] chooses
//! the batch size of the next run, and [`patience`] returns the number of epochs after which a run is stopped.
//!
//! [`Job`] implements the lifecycle of trials: they begin, report their progress and end, or are lost when their lease
//! (longest time between two reports) expires.
//!
//! A job that a Zeus client registered has the lifecycle of Zeus's own server ([`Job::report_for_zeus`]).
//!
//! There are two policies. [`zeus`] is the published algorithm (Zeus, NSDI'23: pruning, then Gaussian Thompson
//! sampling); [`wattune`] spends less on exploration, as its module explains.

pub mod cost;
mod job;
pub mod numpy;
mod policy;
mod refused;
mod run;
mod spec;
#[cfg(test)]
mod tests;
mod trial;
mod unit_warnings;
pub mod wattune;
pub mod zeus;
mod zeus_server;
#[cfg(test)]
mod zeus_server_tests;
mod zeus_spec;
mod zeus_terms;
mod zeus_verdict;

pub use cost::{Cost, Knob, best_limit};
pub use job::{Begun, Job};
pub use numpy::Generator;
use policy::exceeds_beta;
pub use policy::{beliefs, favourite, next, patience};
pub use refused::Refused;
pub use run::{EarlierJob, Ending, MeteringJob, Report, Run, Verdict};
pub use spec::{GpuSet, InvalidSpec, PolicyName, Reward, Spec, Target, Terms};
pub use trial::{Belief, Choice, Kind, NoneConverges, Outcome, State, Trial};
pub use unit_warnings::unit_warnings;
pub use zeus_spec::ZeusSpec;
pub use zeus_verdict::{ZeusRefused, ZeusReport, ZeusVerdict};
