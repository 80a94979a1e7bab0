//! Jobs that are planned jointly, and their shared constraints.

use crate::domain::TimeSeries;
use crate::plan::request::Request;
use crate::units::{GramsCo2e, Watts};

/// One of several jobs that are planned jointly.
#[derive(Clone, Copy, Debug)]
pub struct Member<'a> {
    /// Planning input of the job.
    pub request: Request<'a>,
    /// Priority: the lowest yields first if not all constraints can be met. Default zero.
    pub priority: i32,
    /// Power that a cap counts for each point of its profile, in order: the limits in force summed over its GPUs.
    /// Missing values count as P_max.
    pub limits: &'a [Watts],
    /// Power that a cap counts for its GPUs without a plan and after its end, when their limits are lowered to this.
    pub at_rest: Watts,
}

impl Member<'_> {
    /// Returns the power that a cap counts at a point.
    pub(super) fn limit(&self, point: usize) -> Watts {
        self.limits.get(point).copied().unwrap_or(self.request.max_power)
    }
}

/// Constraints shared by several jobs.
#[derive(Clone, Copy, Debug)]
pub struct Shared<'a> {
    /// Remaining cap for these jobs' limits, with other GPUs subtracted. Spans without a value are not capped.
    pub cap: &'a TimeSeries<Watts>,
    /// Emissions that all of them may still cause within each span; unlimited elsewhere.
    pub carbon_budget: Option<&'a TimeSeries<GramsCo2e>>,
}
