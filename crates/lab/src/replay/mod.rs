//! Replay of a job on recorded carbon intensities under a policy (`planning.md` §5): no daemon, no threads, no clock.
//!
//! [`replay`] asks a policy for a decision (a list of steps), applies the steps at the actual carbon intensities, and
//! asks again when the steps are over, until the work is done. Emissions are exact: the energy of a step counts with
//! the mean carbon intensity over the step's time.

mod job;
mod joint;
mod planned;
mod run;
#[cfg(test)]
mod tests;
mod view;

pub use job::Job;
pub use joint::{UnderCap, replay_jointly};
pub(crate) use planned::{no_horizon, planned};
pub use run::{Leg, ReplayError, Replayed, Setting, replay};
pub use view::{Action, Decision, Step, View};
