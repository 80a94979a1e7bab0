//! The jobs that are planned together, and what they share.

use super::request::Request;
use crate::domain::TimeSeries;
use crate::units::{GramsCo2e, Watts};

/// One of the jobs that are planned together.
#[derive(Clone, Copy, Debug)]
pub struct Member<'a> {
    /// What it would be planned alone from.
    pub request: Request<'a>,
    /// Who bends first where not all promises can be kept: the lowest does. Zero where nobody said otherwise.
    pub priority: i32,
    /// What a cap counts the job with at each point of its profile, in the profile's order: the limits in force there,
    /// summed over its boards. What is not given counts as P_max.
    pub limits: &'a [Watts],
    /// What a cap counts the job's boards with while there is no plan for it, and once it has ended: what they will then
    /// be lowered to.
    pub at_rest: Watts,
}

impl Member<'_> {
    /// What a cap counts the job with at a point of its profile.
    pub(super) fn limit(&self, point: usize) -> Watts {
        self.limits.get(point).copied().unwrap_or(self.request.max_power)
    }
}

/// What jobs share.
#[derive(Clone, Copy, Debug)]
pub struct Shared<'a> {
    /// What is left of the node's cap for the limits of these jobs: other boards have been subtracted. A span without
    /// an entry is not capped.
    pub cap: &'a TimeSeries<Watts>,
    /// What all of them may still emit together within each span; elsewhere as much as they like.
    pub carbon_budget: Option<&'a TimeSeries<GramsCo2e>>,
}
