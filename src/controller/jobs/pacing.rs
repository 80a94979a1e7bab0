//! How a job follows its plan: set points that stay for a while, and pauses.

use super::job::Job;
use super::phase::Phase;
use wattune_core::domain::Activity;
use wattune_core::plan::{AppliedSetPoint, JobActivity, SwitchingLimits, next_set_point};
use wattune_core::profile::Profiler;
use wattune_core::profile::steps::Setting;
use wattune_core::time::{Monotonic, Now};
use wattune_core::units::{Samples, Seconds};

impl Job {
    /// Takes up what its plan says for now, at the pace that the settings allow.
    pub(in crate::controller) fn follow_plan(&mut self, now: Now, pace: &SwitchingLimits) {
        if self.phase == Phase::Waiting {
            return; // nothing is known of what it does
        }
        let (samples, _) = self.progress_now(now);
        let profile = self.profile();
        let plan = self.plan.as_ref().filter(|_| self.phase == Phase::Planned);
        self.held = plan.and_then(|plan| next_set_point(self.held.as_ref(), plan, &profile, samples, now.utc, pace));
        let doing = self.doing();
        let activity = match doing {
            JobActivity::Paused => Activity::PausedSince(now.utc),
            JobActivity::Training | JobActivity::Resuming => Activity::RunningSince(now.utc),
        };
        let kind = std::mem::discriminant::<Activity>;
        let before = self.progress.activity.as_ref().map(kind);
        // A job that never paused has been running since long ago.
        let began = before.is_none() && doing != JobActivity::Paused;
        if self.spec.objective.pausable.is_some() && !began && before != Some(kind(&activity)) {
            self.progress.activity = Some(activity);
            self.unsaved = true;
        }
        if doing == JobActivity::Paused {
            self.phase = Phase::Paused;
        }
    }

    /// What it was told to do.
    pub(in crate::controller) fn doing(&self) -> JobActivity {
        self.held.as_ref().map_or(JobActivity::Training, |held| held.doing)
    }

    /// Counts the time in which it was told to do no work.
    pub(in crate::controller) fn pass_time(&mut self, at: Monotonic) {
        let is_idle = self.doing() != JobActivity::Training;
        self.idling.pass_time(at, is_idle);
    }

    /// Accounts for what was done between two reports. Time in which it was told to do no work is no stall: it counts
    /// towards the slowdown, and so does what it did all the same.
    pub(in crate::controller) fn account_for(&mut self, span: Seconds, done: Samples) {
        self.idling.since_report = Seconds::ZERO;
        let known = self.profiler.as_ref().map(Profiler::setting_estimates).unwrap_or_default();
        let known = |setting: &Setting| known.iter().find(|(of, _)| of == setting).map(|(_, known)| *known);
        self.progress.account = self.stalls.report(span, done, &known);
        if let (Some(profiler), Some(pauses)) = (&mut self.profiler, self.stalls.latest_pauses()) {
            profiler.exclude_pauses(pauses);
        }
    }

    /// When it is to go on, if it pauses now.
    pub(in crate::controller) fn resume_at(&self, now: Now) -> Option<chrono::DateTime<chrono::Utc>> {
        let ahead = self.plan.iter().flat_map(|plan| &plan.segments).filter(|s| s.slot.end() > now.utc);
        let pause = ahead.take_while(|s| s.doing == JobActivity::Paused).last()?;
        (self.phase == Phase::Paused).then(|| pause.slot.end())
    }

    /// What of the present set point the plan's reason does not explain.
    pub(in crate::controller) fn why_held(&self, now: Now) -> Option<String> {
        let segment = self.plan.as_ref()?.segment_at(now.utc)?;
        let AppliedSetPoint { setting, ramping, .. } = self.held.as_ref()?;
        if *setting == segment.setting {
            return None;
        }
        let words = |setting: &[wattune_core::domain::SetPoint]| {
            setting.iter().map(ToString::to_string).collect::<Vec<_>>().join(" + ")
        };
        let (held, planned) = (words(setting), words(&segment.setting));
        Some(match ramping {
            true => format!("at {held} on the ramp to {planned}"),
            false => format!("stays at {held} for a while, as changes shall be seldom; planned are {planned}"),
        })
    }
}
