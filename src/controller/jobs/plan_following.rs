//! Application of a job's plan: set points with a minimum duration, pauses, and a delay after planning failed.

use super::job::{Job, Phase};
use super::setback::Setback;
use wattune_core::domain::Activity;
use wattune_core::plan::{AppliedSetPoint, JobActivity, SwitchingLimits, next_set_point};
use wattune_core::profile::steps::joined;
use wattune_core::time::Now;

impl Job {
    /// Applies the set point and the activity of the plan's current segment, within the limits `pace` on how often and
    /// how fast set points change.
    pub(crate) fn follow_plan(&mut self, now: Now, pace: &SwitchingLimits) {
        if matches!(self.phase, Phase::Waiting | Phase::Held | Phase::Suspended) {
            return; // it has not reported, or is not on its GPUs
        }
        let (samples, _) = self.progress_now(now);
        let profile = self.profile();
        let plan = self.plan.as_ref().filter(|_| self.phase == Phase::Planned);
        self.applied =
            plan.and_then(|plan| next_set_point(self.applied.as_ref(), plan, profile, samples, now.utc, pace));
        let pauses = self.applied.as_ref().is_some_and(|applied| applied.activity == JobActivity::Paused);
        self.ask_to_suspend(pauses, now);
        let present = self.activity();
        let activity = match present {
            JobActivity::Paused => Activity::PausedSince(now.utc),
            JobActivity::Training | JobActivity::Resuming => Activity::RunningSince(now.utc),
        };
        let kind = std::mem::discriminant::<Activity>;
        let before = self.progress.activity.as_ref().map(kind);
        // No activity is recorded for a job that never paused: such a job has been running since its start.
        let began = before.is_none() && present != JobActivity::Paused;
        if self.planned_objective().pausable.is_some() && !began && before != Some(kind(&activity)) {
            self.progress.activity = Some(activity);
            self.unsaved = true;
        }
        if present == JobActivity::Paused {
            self.phase = Phase::Paused;
        }
    }

    /// Returns the activity that the daemon assumes of the job now. A job that offers to be suspended trains until it
    /// has suspended, and after its resumption restarts until it makes progress again.
    pub(crate) fn activity(&self) -> JobActivity {
        let presence = &self.progress.presence;
        if presence.suspended_since().is_some() {
            return JobActivity::Paused;
        }
        if presence.restarted_at.is_some() {
            return JobActivity::Resuming;
        }
        match self.applied.as_ref().map(|applied| applied.activity) {
            Some(_) if self.suspend_offer().is_some() => JobActivity::Training,
            planned => planned.unwrap_or(JobActivity::Training),
        }
    }

    /// Returns the time at which the job is to resume, if it is paused now.
    pub(crate) fn resume_at(&self, now: Now) -> Option<chrono::DateTime<chrono::Utc>> {
        let ahead = self.plan.iter().flat_map(|plan| &plan.segments).filter(|s| s.slot.end() > now.utc);
        let pause = ahead.take_while(|s| s.activity == JobActivity::Paused).last()?;
        (self.phase == Phase::Paused).then(|| pause.slot.end())
    }

    /// Returns why the applied set point differs from the planned one; `None` if it does not.
    pub(crate) fn describe_applied(&self, now: Now) -> Option<String> {
        let segment = self.plan.as_ref()?.segment_at(now.utc)?;
        let AppliedSetPoint { setting, ramping, .. } = self.applied.as_ref()?;
        if *setting == segment.setting {
            return None;
        }
        let (applied, planned) = (joined(setting), joined(&segment.setting));
        Some(match ramping {
            true => format!("ramping to {planned}: {applied} now"),
            false => format!("stays at {applied} until its minimum dwell time has passed; the plan has {planned}"),
        })
    }

    /// Records that the planner failed on the job: the job's GPUs return to their original limits, and the job is not
    /// planned again for a while.
    pub(crate) fn fail_planning(&mut self, why: String, now: Now) {
        let setback = Setback::after(self.setback.as_ref(), why, now);
        tracing::error!(job.id = %self.id, times = setback.times, "job {}: {}", self.id, setback.describe());
        self.plan = None;
        self.unplannable = Some(setback.describe());
        self.setback = Some(setback);
    }

    /// Returns whether the job is not to be planned now because its planning failed recently.
    pub(crate) fn rests_from_planning(&self, now: Now) -> bool {
        self.setback.as_ref().is_some_and(|setback| now.monotonic < setback.until)
    }
    pub(crate) fn describe_setback(&self) -> Option<String> {
        self.setback.as_ref().map(Setback::describe)
    }
}
