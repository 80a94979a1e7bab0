//! Planning of power limits over a forecast (pure).
//!
//! [`plan`] turns a job's state and a forecast into a [`Plan`] with the reason of each choice; the controller and the
//! simulator call it. [`Problem`] is the planning problem of one job (`planning.md` §2), [`solve`] its optimum by
//! marginal costs, [`solve_linear`] the same as a linear programme.
//!
//! There is always a plan: without a feasible one, the job runs at full speed and [`Verdict`] names the broken promises.

mod budget;
mod constraints;
mod dual;
mod dwell;
pub mod fleet;
mod hysteresis;
mod joint;
mod joint_planning;
mod linear;
mod member;
mod pausing;
mod problem;
mod reason;
mod receding;
mod request;
mod risk;
mod schedule;
mod settings;
mod shares;
mod slots;
mod slots_ahead;
#[cfg(test)]
mod tests;
mod uncertainty;

pub use dual::solve;
pub use fleet::Solver;
pub use hysteresis::{
    AppliedSetPoint, SwitchingLimits, keep_if_nearly_as_good, keep_jointly_if_nearly_as_good, next_set_point,
};
pub use joint_planning::{JointPlan, SharedViolation, plan_jointly};
pub use linear::{LinearError, solve_linear};
pub use member::{Member, Shared};
pub use problem::{Infeasible, InvalidProblem, PlanSlot, Point, Problem, Solution};
pub use reason::{Margin, Reason};
pub use receding::plan;
pub use request::{PastEmissions, Prices, Progress, Request, Unplannable, WINDOW, Weighing};
pub use risk::Risk;
pub use schedule::{Expected, JobActivity, Plan, Segment, Verdict};
pub use settings::Settings;
pub use slots::{SlotPolicy, cut, floor, planning_slots};
pub use slots_ahead::slots_ahead;
