//! Planning of one job: the planning problem, its optimum, carbon budgets, pauses, and planning again as time passes
//! (receding horizon).

pub(super) mod budget;
mod constraints;
mod dual;
mod patterns;
pub(super) mod pausing;
mod planner;
mod problem;
mod receding;
mod shares;
mod uncertainty;

pub use dual::solve;
pub(super) use dual::{Hulls, MarginalStep, finishing_slot_steps, full_slot_steps};
pub(super) use planner::{Due, Planner};
pub use problem::{Infeasible, InvalidProblem, PlanSlot, Point, Problem, Solution};
pub(super) use problem::{Mode, RESOLUTION, check_horizon};
pub use receding::plan;
pub(super) use shares::{SHORTEST, shortest_dwell, spans};
