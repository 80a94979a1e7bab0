//! A job replayed on recorded carbon intensities under a policy (`planning.md` §5): no daemon, no threads, no clock.
//!
//! [`replay`] asks a policy for its decision, applies the decision to the actual carbon intensities, and asks again
//! when its steps are over, until the work is done. Carbon is exact: a step counts with the mean intensity of its own
//! time.

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
