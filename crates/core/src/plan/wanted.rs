//! State that a plan wants of a job that offered to be stopped: running or stopped, and until when.

use chrono::{DateTime, Utc};

use super::schedule::{JobActivity, Plan};

/// State of a job that a plan wants at one time, and the time of the next change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// The job is to run.
    Run {
        /// Start of the next planned stop; `None` if no stop is planned.
        until: Option<DateTime<Utc>>,
    },
    /// The job is to stop, or to stay stopped.
    Stop {
        /// Planned time of the restart.
        until: DateTime<Utc>,
    },
}

impl Plan {
    /// Returns whether the job is to run or to be stopped at a time. A restart counts as running. Before the plan's
    /// start and after its end the job is to run.
    pub fn wanted_at(&self, t: DateTime<Utc>) -> Wanted {
        let stopped = |activity| activity == JobActivity::Paused;
        let ahead = || self.segments.iter().filter(|s| s.slot.end() > t);
        let present = self.segment_at(t).is_some_and(|s| stopped(s.activity));
        if !present {
            return Wanted::Run { until: ahead().find(|s| stopped(s.activity)).map(|s| s.slot.start()) };
        }
        let until = ahead().take_while(|s| stopped(s.activity)).last().map_or(t, |s| s.slot.end());
        Wanted::Stop { until }
    }
}
