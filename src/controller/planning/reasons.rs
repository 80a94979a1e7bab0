//! Detection of reasons to plan a job again: an ended slot, progress off the plan, a changed out-of-band cap.

use super::replan::ReplanReason;
use crate::controller::jobs::Job;
use wattune_core::domain::PowerLimit;
use wattune_core::plan::Plan;
use wattune_core::time::Now;
use wattune_core::units::{Samples, Seconds};

/// Difference between completed and planned work, as a fraction of the planned work, that is a reason to plan again.
const DEVIATION: f64 = 0.01;
/// Minimum age of a plan before deviations from the plan count, because earlier deviations are noise. For a short job,
/// the age is lower: the fraction `DEVIATION_PART` of the job's whole time.
const DEVIATION_SPAN: Seconds = Seconds::new(60.0);
const DEVIATION_PART: f64 = 0.02;
/// Minimum lag behind the plan that is a reason to plan again: the fraction `LAG` of the time that the job may still
/// lose, or the fraction `LEAST_LAG` of the job's whole time, whichever is longer.
const LAG: f64 = 0.05;
const LEAST_LAG: f64 = 0.0002;

impl Job {
    /// Records a reason to plan the job again, if there is one. `out_of_band_cap` is the lowest out-of-band cap (power
    /// limit set from outside the host) on the job's GPUs.
    pub(super) fn detect_reasons(&mut self, now: Now, out_of_band_cap: Option<PowerLimit>) {
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
        } else if out_of_band_cap != self.planned_out_of_band_cap {
            self.replan = Some(ReplanReason::OutOfBandCap);
        } else if self.is_off(planned - done, planned, since, now) {
            self.replan = Some(ReplanReason::OffThePlan);
        }
    }

    /// Returns whether the job is so far off its plan that it needs a new one. Of the work `planned` for the time
    /// `since` the plan was made, the work `missing` is not done.
    fn is_off(&self, missing: Samples, planned: Samples, since: Seconds, now: Now) -> bool {
        let (Some(reference), Some(slack)) = (self.reference(), self.slack(now)) else {
            return since > DEVIATION_SPAN && missing.abs() > planned * DEVIATION;
        };
        let full_duration = slack.full_duration.unwrap_or(DEVIATION_SPAN / DEVIATION_PART);
        let is_late = missing / reference > (slack.left() * LAG).max(full_duration * LEAST_LAG);
        since > DEVIATION_SPAN.min(full_duration * DEVIATION_PART) && (missing.abs() > planned * DEVIATION || is_late)
    }

    /// Returns whether the slot (time step of the plan) in which the plan was made has ended.
    pub(super) fn slot_ended(&self, now: Now) -> bool {
        let end_at = |plan: &Plan, at| plan.segment_at(at).map(|s| s.slot.end());
        self.plan.as_ref().is_some_and(|plan| end_at(plan, now.utc) != end_at(plan, plan.made_at))
    }

    /// Returns whether the job is to be planned now. A job is not planned while it is profiled, only afterwards.
    pub(super) fn is_due(&self, now: Now) -> bool {
        self.replan.is_some() && self.is_profiled() && !self.is_held() && !self.rests_from_planning(now)
    }
}
