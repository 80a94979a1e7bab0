//! Joint planning of several jobs (the fleet) under shared power caps and carbon budgets (`planning.md` §3).
//!
//! [`solve_fleet`] solves a [`FleetProblem`] in three steps. If no shared constraint binds, the jobs are solved one by
//! one. Else the search chooses the slot in which each job ends, and a structured interior-point method solves the
//! relaxation for this choice, in which caps hold only on average over a slot. The prices of the relaxation
//! (multipliers of the constraints) show cheaper ends, or prove that there are none. Where the interior-point method
//! fails, or the settings ask for it, a general linear programme solves the relaxation ([`Solver`]). At last the
//! averages are converted to power limits whose sum keeps the cap at every instant.

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
