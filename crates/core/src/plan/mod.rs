//! Planning of power limits over a forecast (pure).
//!
//! [`plan`] is what the controller and the simulator call: a job's state and a forecast in, a [`Plan`] out, with the
//! reason of each choice. Underneath, [`Problem`] is `planning.md` §2 for one job, [`solve`] its optimum by marginal
//! costs and [`solve_linear`] the same as a linear programme.
//!
//! Nothing here knows a clock, a GPU or a file, and nothing fails for lack of a feasible plan: then the job runs flat
//! out and [`Verdict`] says what that breaks.

mod ahead;
mod budget;
mod caution;
mod dual;
mod dwell;
pub mod fleet;
mod joint;
mod linear;
mod member;
mod pausing;
mod problem;
mod promise;
mod reason;
mod receding;
mod request;
mod risk;
mod schedule;
mod settings;
mod shares;
mod slots;
mod steady;
#[cfg(test)]
mod tests;
mod together;

pub use ahead::slots_ahead;
pub use dual::solve;
pub use fleet::Solver;
pub use linear::{LinearError, solve_linear};
pub use member::{Member, Shared};
pub use problem::{Infeasible, InvalidProblem, PlanSlot, Point, Problem, Solution};
pub use promise::Promise;
pub use reason::{Margin, Reason};
pub use receding::plan;
pub use request::{Past, Prices, Progress, Request, Unplannable, WINDOW, Weighing};
pub use risk::Risk;
pub use schedule::{Doing, Expected, Plan, Segment, Verdict};
pub use settings::Settings;
pub use slots::{SlotPolicy, cut, floor, planning_slots};
pub use steady::{Held, Pace, follow, steadier, steadier_together};
pub use together::{Broken, Together, plan_together};
