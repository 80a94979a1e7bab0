//! A job whose planning died of a fault in the planner: it is left alone for a while, and said so.

use super::job::Job;
use super::setback::Setback;
use wattune_core::time::Now;

impl Job {
    /// Its planning died: its boards go back to the limits found on them, and it is not planned for a while.
    pub(in crate::controller) fn fail_planning(&mut self, why: String, now: Now) {
        let setback = Setback::after(self.setback.as_ref(), why, now);
        tracing::error!(job.id = %self.id, times = setback.times, "job {}: {}", self.id, setback.describe());
        self.plan = None;
        self.unplannable = Some(setback.describe());
        self.setback = Some(setback);
    }

    /// Whether it is not to be planned yet, because its planning died a short while ago.
    pub(in crate::controller) fn rests_from_planning(&self, now: Now) -> bool {
        self.setback.as_ref().is_some_and(|setback| now.monotonic < setback.until)
    }

    /// That its planning died, in one sentence.
    pub(in crate::controller) fn setback_in_words(&self) -> Option<String> {
        self.setback.as_ref().map(Setback::describe)
    }
}
