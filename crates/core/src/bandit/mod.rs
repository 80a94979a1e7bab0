//! Which batch size a recurring job should run with: learnt over its runs.
//!
//! A job that is trained again and again ([`Spec`]) makes one [`Trial`] after the other. Everything a policy knows is in
//! the list of trials; there is no other state but the [`Generator`]'s, so that whoever stores both has stored all. Two
//! policies answer the same two questions:
//!
//! * [`next`]: which batch size the next run takes;
//! * [`patience`]: for how many epochs it may go on before it is given up.
//!
//! A [`Job`] is the life of such a job: trials begin, report, end, or fall silent until their lease runs out.
//!
//! [`zeus`] is the published algorithm (Zeus, NSDI'23: pruning, then Gaussian Thompson sampling); [`wattune`] spends less
//! on exploration, and says in its module why it may.

mod belief;
mod choice;
mod contradiction;
pub mod cost;
mod doubt;
mod job;
mod limit;
pub mod numpy;
mod policy;
mod refused;
mod run;
mod spec;
mod terms;
#[cfg(test)]
mod tests;
mod trial;
pub mod wattune;
pub mod zeus;

pub use belief::Belief;
pub use choice::{Choice, NoneConverges};
pub use cost::{Cost, Knob};
pub use doubt::doubts;
pub use job::{Begun, Job};
pub use limit::best_limit;
pub use numpy::Generator;
pub use policy::{beliefs, favourite, next, patience};
pub use refused::Refused;
pub use run::{Ending, Report, Run, Verdict};
pub use spec::{InvalidSpec, PolicyName, Spec};
pub use terms::{Boards, Reward, Target, Terms};
pub use trial::{Kind, Outcome, State, Trial};
