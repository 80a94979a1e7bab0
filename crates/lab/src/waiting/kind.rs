//! Description of a policy that chooses when a job starts, and of the jobs that it chooses for.

use chrono::{DateTime, TimeDelta, Utc};

use crate::grid::VisibleGrid;
use wattune_core::units::Seconds;

/// Job that is submitted at a time and may wait until its latest start.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Submission {
    /// Time of the submission, which is the earliest start.
    pub at: DateTime<Utc>,
    /// Duration of the job.
    pub duration: Seconds,
    /// Time for which the start may wait.
    pub within: Seconds,
}

impl Submission {
    /// Returns the latest start.
    pub fn latest(&self) -> DateTime<Utc> {
        self.at.checked_add_signed(self.within.to_delta()).unwrap_or(DateTime::<Utc>::MAX_UTC)
    }

    /// Returns the end of the job if it starts at `start`.
    pub fn end(&self, start: DateTime<Utc>) -> DateTime<Utc> {
        start.checked_add_signed(self.duration.to_delta()).unwrap_or(DateTime::<Utc>::MAX_UTC)
    }

    /// Returns the full hours from the submission to the latest start. Rules without a forecast model of their own
    /// compare these starts.
    pub(super) fn hourly_starts(&self) -> impl Iterator<Item = DateTime<Utc>> + use<> {
        let (at, latest) = (self.at, self.latest());
        (0..).map(move |hours| at + TimeDelta::hours(hours)).take_while(move |start| *start <= latest)
    }
}

/// Start that a policy chose.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ChosenStart {
    /// Start of the job, from the submission to the latest start.
    pub start: DateTime<Utc>,
    /// Risk of waiting as stated at the submission, also if the job starts at once; `None` if the policy states none.
    pub stated: Option<StatedRisk>,
}

/// Risk of waiting for a window, as stated at the submission.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StatedRisk {
    /// Start of the window.
    pub start: DateTime<Utc>,
    /// Probability that starting then emits more than starting at once.
    pub loss_probability: f64,
}

impl ChosenStart {
    /// Creates a start for which the policy states no risk.
    pub(super) fn at(start: DateTime<Utc>) -> Self {
        Self { start, stated: None }
    }
}

/// A named policy that chooses when a job starts.
#[derive(Clone, Copy, Debug)]
pub struct StartPolicy {
    /// Name of the policy, for `--policy` and in rows of results.
    pub name: &'static str,
    /// Rule of the policy, for the command-line help; ends without a period.
    pub about: &'static str,
    /// Chooses the start of a job on a grid, of which the policy sees what was known at each time.
    pub choose: fn(&Submission, &VisibleGrid<'_>) -> ChosenStart,
}
