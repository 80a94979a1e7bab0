//! Joint planning of several jobs (the fleet) under shared caps and carbon budgets (`planning.md` §3), in numbers.
//!
//! [`solve_fleet`] solves a [`FleetProblem`] in three steps. Jobs without binding shared constraints are solved one by
//! one. Else the slot in which each job ends is chosen, and a structured interior-point method solves the relaxation
//! for this choice, in which caps hold on average over a slot; its prices (multipliers of the constraints) show cheaper
//! ends, or prove that there are none. Where this method fails, or the settings ask for it, a general linear programme
//! solves the relaxation ([`Solver`]). At last the averages become limits whose sum keeps the cap at every instant.

mod alone;
mod arrange;
mod breaches;
mod dense;
mod ends;
mod general;
mod interior;
mod iterate;
mod joint;
mod model;
mod newton;
mod planning;
mod problem;
mod programme;
mod prune;
mod rows;
mod search;
#[cfg(test)]
mod tests;

pub use general::{Relaxation, Solver};
pub use joint::{Member, Shared};
pub(super) use planning::broken;
pub use planning::{JointPlan, SharedViolation, plan_jointly};
pub use problem::{Breach, FleetJob, FleetPoint, FleetProblem, FleetSchedule, FleetSolution};
pub use programme::{Column, Elastic, Programme};
pub use search::solve_fleet;
