//! A job whose planning died of a fault in the planner: it is left alone for a while, and said so.

use super::job::Job;
use wattune_core::time::{Monotonic, Now};
use wattune_core::units::Seconds;

/// Its planning is tried again after this, then after twice as long, and so on.
const FIRST_REST: Seconds = Seconds::new(60.0);
/// But at least so often.
const LONGEST_REST: Seconds = Seconds::new(3600.0);

/// How often the planning of a job died in a row, and when it is tried again.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::controller) struct Setback {
    times: u32,
    until: Monotonic,
    why: String,
}

impl Setback {
    /// One more, after those before.
    fn after(before: Option<&Self>, why: String, now: Now) -> Self {
        let times = before.map_or(0, |before| before.times).saturating_add(1);
        let rest = FIRST_REST * f64::from(1u32 << (times - 1).min(10));
        Self { times, until: now.monotonic.after(rest.min(LONGEST_REST)), why }
    }
}

impl Job {
    /// Its planning died: its boards go back to the limits found on them, and it is not planned for a while.
    pub(in crate::controller) fn fail_planning(&mut self, why: String, now: Now) {
        let setback = Setback::after(self.setback.as_ref(), why, now);
        tracing::error!(job.id = %self.id, times = setback.times, "job {}: {}", self.id, setback.in_words());
        self.plan = None;
        self.unplannable = Some(setback.in_words());
        self.setback = Some(setback);
    }

    /// Whether it is not to be planned yet, because its planning died a short while ago.
    pub(in crate::controller) fn rests_from_planning(&self, now: Now) -> bool {
        self.setback.as_ref().is_some_and(|setback| now.monotonic < setback.until)
    }

    /// That its planning died, in one sentence.
    pub(in crate::controller) fn setback_in_words(&self) -> Option<String> {
        self.setback.as_ref().map(Setback::in_words)
    }
}

impl Setback {
    fn in_words(&self) -> String {
        let Self { times, why, .. } = self;
        let tries = if *times == 1 { "once".to_owned() } else { format!("{times} times in a row") };
        format!(
            "planning it failed {tries} by a fault in wattune ({why}); its boards keep the limits found on them, other jobs \
             are planned as usual, and it is tried again within the hour"
        )
    }
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;

    use super::*;

    #[test]
    fn rests_double_up_to_an_hour() {
        let now = Now { utc: DateTime::UNIX_EPOCH, monotonic: Monotonic::default() };
        let mut setback = None;
        let mut rests = Vec::new();
        for _ in 0..40 {
            let next = Setback::after(setback.as_ref(), "a fault".into(), now);
            rests.push(next.until.since(now.monotonic).get());
            setback = Some(next);
        }
        assert_eq!(rests[..7], [60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 3600.0]);
        assert!(rests[7..].iter().all(|rest| *rest == 3600.0));
    }
}
