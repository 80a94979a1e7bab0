//! Several jobs planned together under what they share (`planning.md` §3).

use chrono::{DateTime, Utc};

use super::fleet::{Solver, solve_fleet};
use super::joint::Joint;
use super::member::{Member, Shared};
use super::receding::plan;
use super::request::Unplannable;
use super::schedule::Plan;
use crate::domain::{Slot, TimeSeries};
use crate::units::{GramsCo2e, Seconds, Watts};

/// Watts above a cap that are rounding.
const NO_POWER: Watts = Watts::new(1e-3);

/// A promise that cannot be kept, and by how much the plans break it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Broken {
    /// Even the lowest limits add up to more than the cap.
    Cap {
        /// The most by which it is exceeded at any moment.
        by: Watts,
        /// For how long in all.
        during: Seconds,
    },
    /// More is emitted than the jobs share.
    SharedBudget {
        /// Within the span of that budget.
        during: Slot,
        /// How much more.
        by: GramsCo2e,
    },
}

/// The plans of jobs that share something.
#[derive(Clone, Debug)]
pub struct Together {
    /// One per member, in their order. What a job promised alone and cannot keep is in its plan's verdict.
    pub plans: Vec<Result<Plan, Unplannable>>,
    /// What they share and cannot keep.
    pub broken: Vec<Broken>,
    /// How much cheaper the best plan could be at most, as a part of this plan's cost; zero where it is the best, and
    /// where not all promises are kept.
    pub gap: f64,
    /// Whether the search was left to finish. Plans keep the cap either way.
    pub finished: bool,
}

/// Plans jobs together so that at every instant the limits in force of those that run, and what those that have ended
/// rest at, add up to no more than the cap. Where nothing that they share binds, each plan is the one that
/// [`plan`] makes of the job alone. All `now` are the same moment.
///
/// Where not all promises can be kept, carbon budgets bend first, then promises about time, those of the lowest priority
/// first, and the cap only where even the lowest limits exceed it. A job that pauses does so when it would alone, at its
/// lowest limit.
///
/// `solver` solves the joint plan; `go_on` is asked from time to time whether to search further.
pub fn plan_together(
    members: &[Member<'_>],
    shared: &Shared<'_>,
    solver: Solver,
    go_on: &dyn Fn() -> bool,
) -> Together {
    let plans: Vec<_> = members.iter().map(|member| plan(&member.request)).collect();
    let alone = Together { broken: broken(members, &plans, shared), plans, gap: 0.0, finished: true };
    if alone.broken.is_empty() {
        return alone;
    }
    let Some(joint) = Joint::new(members, &alone.plans, shared) else { return alone };
    let solution = solve_fleet(joint.problem(), solver, go_on);
    let plans = joint.plans(&solution, alone.plans);
    let kept = solution.clashes.is_empty() && solution.cost > GramsCo2e::ZERO;
    let gap = if kept { (1.0 - solution.bound / solution.cost).clamp(0.0, 1.0) } else { 0.0 };
    Together { broken: broken(members, &plans, shared), plans, gap, finished: solution.finished }
}

/// What plans break of what is shared.
pub(super) fn broken(members: &[Member<'_>], plans: &[Result<Plan, Unplannable>], shared: &Shared<'_>) -> Vec<Broken> {
    let mut broken = Vec::new();
    let (by, during) = above_cap(members, plans, shared.cap);
    if by > NO_POWER {
        broken.push(Broken::Cap { by, during });
    }
    for (during, budget) in shared.carbon_budget.iter().flat_map(|budgets| budgets.points()) {
        let carbon: GramsCo2e = plans.iter().flatten().map(|plan| plan.carbon_within(during)).sum();
        let by = carbon - *budget;
        if by > carbon * 1e-6 {
            broken.push(Broken::SharedBudget { during: *during, by });
        }
    }
    broken
}

/// The most by which limits exceed a cap, and for how long in all they do.
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
    // Moments are in order, so that each plan is walked through once.
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
