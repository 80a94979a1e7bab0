//! Planning of power limits over a forecast (pure).

mod dual;
mod linear;
mod problem;
#[cfg(test)]
mod tests;

pub use dual::solve;
pub use linear::{LinearError, solve_linear};
pub use problem::{Infeasible, InvalidProblem, PlanSlot, Point, Problem, Solution};
