//! Joint planning of several jobs with shared constraints: a power cap or a carbon budget of the node (`planning.md`
//! §3).

use std::fmt;

use chrono::{DateTime, Utc};

use super::general::Solver;
use super::joint::{Joint, Member, Shared};
use super::search::solve_fleet;
use crate::domain::{Slot, TimeSeries};
use crate::plan::job::plan;
use crate::plan::request::Unplannable;
use crate::plan::schedule::Plan;
use crate::units::{GramsCo2e, Lasting, Seconds, Watts};

/// Excess of the limits over the cap that counts as rounding.
const NO_POWER: Watts = Watts::new(1e-3);

/// A constraint shared by all jobs that their joint plans violate, with the excess over the constraint.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SharedViolation {
    /// The sum of the jobs' power limits exceeds the node's cap.
    Cap {
        /// Maximum excess over the cap.
        by: Watts,
        /// Total duration of the excess.
        during: Seconds,
    },
    /// Emissions of all jobs exceed the node's carbon budget.
    SharedBudget {
        /// Budget period.
        during: Slot,
        /// Excess over the budget.
        by: GramsCo2e,
    },
}

impl fmt::Display for SharedViolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cap { by, during } => {
                let (by, during) = (by.get(), Lasting(*during));
                write!(f, "the plans exceed the node's cap by up to {by:.0} W during {during}: ")?;
                f.write_str(
                    "even the lowest limits that are measured for the jobs add up to more, so limits are lowered ",
                )?;
                f.write_str("below the plans, and the jobs may end later than planned")
            }
            Self::SharedBudget { during, by } => {
                let (until, by) = (during.end().format("%FT%TZ"), by.get());
                write!(f, "the node's carbon budget until {until} will be exceeded by {by:.0} g ")?;
                f.write_str("although no plans that keep the jobs' promises about time emit less")
            }
        }
    }
}

/// Plans of several jobs that were made together under shared constraints.
#[derive(Clone, Debug)]
pub struct JointPlan {
    /// One plan per member (jointly planned job), in the members' order. A plan's verdict lists the job's own promises
    /// that the plan breaks.
    pub plans: Vec<Result<Plan, Unplannable>>,
    /// Shared constraints that the plans violate.
    pub broken: Vec<SharedViolation>,
    /// Relative gap between the plans' cost and the lower bound of any plans' cost, 0 to 1; zero also if constraints
    /// are violated.
    pub gap: f64,
    /// True if the search for better plans was not stopped early. Plans meet the cap either way.
    pub finished: bool,
}

/// Plans jobs jointly: at each time, the limits in force of running jobs and the resting limits of ended jobs sum up to
/// no more than the cap. If no shared constraint binds, each plan is the job's own ([`plan`]). The requests of all
/// members must have the same `now`.
///
/// If not all constraints can be met, carbon budgets yield first, then time constraints, those of the lowest priority
/// first, and the cap only if even the lowest limits exceed it. A job pauses at the times at which its own plan pauses,
/// with its GPUs at their lowest limits.
///
/// `solver` solves the joint problem; `go_on` is called from time to time and returns false to stop the search.
pub fn plan_jointly(
    members: &[Member<'_>],
    shared: &Shared<'_>,
    solver: Solver,
    go_on: &dyn Fn() -> bool,
) -> JointPlan {
    let plans: Vec<_> = members.iter().map(|member| plan(&member.request)).collect();
    let alone = JointPlan { broken: broken(members, &plans, shared), plans, gap: 0.0, finished: true };
    if alone.broken.is_empty() {
        return alone;
    }
    let Some(joint) = Joint::new(members, &alone.plans, shared) else { return alone };
    let solution = solve_fleet(joint.problem(), solver, go_on);
    let plans = joint.plans(&solution, alone.plans);
    let kept = solution.breaches.is_empty() && solution.cost > GramsCo2e::ZERO;
    let gap = if kept { (1.0 - solution.bound / solution.cost).clamp(0.0, 1.0) } else { 0.0 };
    JointPlan { broken: broken(members, &plans, shared), plans, gap, finished: solution.finished }
}

/// Returns the shared constraints that the plans together violate.
pub(in crate::plan) fn broken(
    members: &[Member<'_>],
    plans: &[Result<Plan, Unplannable>],
    shared: &Shared<'_>,
) -> Vec<SharedViolation> {
    let mut broken = Vec::new();
    let (by, during) = above_cap(members, plans, shared.cap);
    if by > NO_POWER {
        broken.push(SharedViolation::Cap { by, during });
    }
    for (during, budget) in shared.carbon_budget.iter().flat_map(|budgets| budgets.points()) {
        let carbon: GramsCo2e = plans.iter().flatten().map(|plan| plan.carbon_within(during)).sum();
        let by = carbon - *budget;
        if by > carbon * 1e-6 {
            broken.push(SharedViolation::SharedBudget { during: *during, by });
        }
    }
    broken
}

/// Returns first the maximum excess of the plans' limits over a cap, second the total duration of the excess.
fn above_cap(members: &[Member<'_>], plans: &[Result<Plan, Unplannable>], cap: &TimeSeries<Watts>) -> (Watts, Seconds) {
    let Some(now) = members.iter().map(|member| member.request.now).min() else {
        return (Watts::ZERO, Seconds::ZERO);
    };
    let of_plan = |plan: &Plan| plan.segments.iter().flat_map(|s| [s.slot.start(), s.slot.end()]).collect::<Vec<_>>();
    let mut moments: Vec<DateTime<Utc>> = plans.iter().flatten().flat_map(of_plan).collect();
    moments.extend(cap.points().iter().flat_map(|(slot, _)| [slot.start(), slot.end()]));
    moments.sort_unstable();
    moments.dedup();
    moments.retain(|t| *t >= now);
    // `moments` are in time order, so each plan's segments are traversed once.
    let mut next = vec![0; plans.len()];
    let (mut most, mut time) = (Watts::ZERO, Seconds::ZERO);
    for pair in moments.windows(2) {
        let (Some(span), Some((_, cap))) = (Slot::new(pair[0], pair[1]), cap.at(pair[0])) else { continue };
        let mut sum = Watts::ZERO;
        for ((member, plan), next) in members.iter().zip(plans).zip(&mut next) {
            let segments = plan.as_ref().map_or(&[][..], |plan| &plan.segments);
            while segments.get(*next).is_some_and(|segment| segment.slot.end() <= pair[0]) {
                *next += 1;
            }
            let present = segments.get(*next).filter(|segment| segment.slot.contains(pair[0]));
            sum += present.map_or(member.at_rest, |segment| member.limit(segment.point));
        }
        if sum - *cap > NO_POWER {
            most = most.max(sum - *cap);
            time += span.duration();
        }
    }
    (most, time)
}
