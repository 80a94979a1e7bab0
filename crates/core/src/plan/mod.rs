//! Planning of power limits over a forecast of carbon intensity, without side effects.
//!
//! [`plan`] turns a job's state and a forecast into a [`Plan`] with the reason of each choice; the controller and the
//! simulator call it. [`Problem`] is the planning problem of one job (`planning.md` §2); [`solve`] computes the optimal
//! [`Solution`] of a problem from marginal costs.
//!
//! If no plan keeps the promises about time (deadline and maximum slowdown), the job runs at full speed; [`Verdict`]
//! lists the promises that the plan breaks.
//!
//! [`advise_start`] says when a job that may wait should start, [`plan_held_starts`] the same for several jobs on a node.

mod execution;
pub mod fleet;
mod job;
mod reason;
mod request;
mod risk;
mod schedule;
mod settings;
mod slots;
mod start;
#[cfg(test)]
mod tests;

pub use execution::{
    AppliedSetPoint, SwitchingLimits, keep_if_nearly_as_good, keep_jointly_if_nearly_as_good, next_set_point,
};
pub use fleet::{JointPlan, Member, Shared, SharedViolation, Solver, plan_jointly};
pub use job::{Infeasible, InvalidProblem, PlanSlot, Point, Problem, Solution, plan, solve};
pub use reason::{Margin, Reason};
pub use request::{FirstPlan, PastEmissions, Prices, Progress, Request, Unplannable, WINDOW, Weighing};
pub use risk::Risk;
pub use schedule::{Expected, JobActivity, Plan, Segment, Verdict};
pub use settings::Settings;
pub use slots::slots_ahead;
pub use start::{
    HeldStart, InvalidStart, Latest, Reservation, StartAdvice, StartForecast, StartProfile, StartQuestion, StartReason,
    StartWindow, WaitingSaving, advise_start, plan_held_starts,
};
