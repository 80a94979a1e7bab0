//! Reasons to plan a job again: a slot that ended, work off the plan, a cap that came or went.

use super::replan::ReplanReason;
use crate::controller::jobs::Job;
use wattune_core::domain::PowerLimit;
use wattune_core::plan::Plan;
use wattune_core::time::Now;
use wattune_core::units::{Samples, Seconds};

/// Work off the plan by more than this part is a reason to plan again.
const DEVIATION: f64 = 0.01;
/// Deviations within less time than this are noise of the reports' spacing; within this part of a shorter job.
const DEVIATION_SPAN: Seconds = Seconds::new(60.0);
const DEVIATION_PART: f64 = 0.02;
/// So is a lag of less than this part of what the job may still lose, and of less than this part of its time.
const LAG: f64 = 0.05;
const LEAST_LAG: f64 = 0.0002;

impl Job {
    /// Looks for reasons to plan again.
    pub(super) fn detect_reasons(&mut self, now: Now, allowed: Option<PowerLimit>) {
        let Some(plan) = &self.plan else {
            self.replan.get_or_insert(ReplanReason::NoPlan);
            return;
        };
        if self.replan.is_some() {
            return;
        }
        let (samples, _) = self.progress_now(now);
        let planned = plan.expected_samples_at(now.utc) - plan.samples_done;
        let since = Seconds::from_delta(now.utc - plan.made_at);
        let done = samples - plan.samples_done;
        if self.slot_ended(now) {
            self.replan = Some(ReplanReason::NewSlot);
        } else if allowed != self.planned_under {
            self.replan = Some(ReplanReason::OutOfBandCap);
        } else if self.is_off(planned - done, planned, since, now) {
            self.replan = Some(ReplanReason::OffThePlan);
        }
    }

    /// Whether work that is `missing` from what was `planned` since the plan was made asks for a new one: by much, or by a
    /// part of what the job may still lose.
    fn is_off(&self, missing: Samples, planned: Samples, since: Seconds, now: Now) -> bool {
        let (Some(reference), Some(slack)) = (self.reference(), self.slack(now)) else {
            return since > DEVIATION_SPAN && missing.abs() > planned * DEVIATION;
        };
        let whole = slack.whole.unwrap_or(DEVIATION_SPAN / DEVIATION_PART);
        let is_late = missing / reference > (slack.left() * LAG).max(whole * LEAST_LAG);
        since > DEVIATION_SPAN.min(whole * DEVIATION_PART) && (missing.abs() > planned * DEVIATION || is_late)
    }

    /// Whether the slot in which the plan was made is over.
    pub(super) fn slot_ended(&self, now: Now) -> bool {
        let end_at = |plan: &Plan, at| plan.segment_at(at).map(|s| s.slot.end());
        self.plan.as_ref().is_some_and(|plan| end_at(plan, now.utc) != end_at(plan, plan.made_at))
    }

    /// Returns whether it is to be planned now. A sweep is not interrupted by a plan; what it learns is planned with when it
    /// is done.
    pub(super) fn is_due(&self, now: Now) -> bool {
        self.replan.is_some() && self.is_profiled() && !self.rests_from_planning(now)
    }
}
