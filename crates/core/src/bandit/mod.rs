//! Choice of a recurring job's batch size, learnt over its runs.
//!
//! A job that is trained repeatedly ([`Spec`]) makes one [`Trial`] after another. Policies use only the list of trials
//! and the state of the random [`Generator`], so that storing these stores the whole state. Each policy implements two
//! functions:
//!
//! A [`Job`] implements the lifecycle: trials begin, report, end, or are lost when their lease expires.
//!
//! [`zeus`] is the published algorithm (Zeus, NSDI'23: pruning, then Gaussian Thompson sampling); [`wattune`] spends
//! less on exploration, as its module explains.

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

pub use cost::{Cost, Knob, best_limit};
pub use job::{Begun, Job};
pub use numpy::Generator;
pub use policy::{beliefs, favourite, next, patience};
pub use refused::Refused;
pub use run::{Ending, Report, Run, Verdict};
pub use spec::{GpuSet, InvalidSpec, PolicyName, Reward, Spec, Target, Terms};
pub use trial::{Belief, Choice, Kind, NoneConverges, Outcome, State, Trial};
pub use unit_warnings::unit_warnings;
