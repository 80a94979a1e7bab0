//! Retries of planning for a job on which the planner panicked.

use wattune_core::time::{Monotonic, Now};
use wattune_core::units::Seconds;

/// Time before the first retry of planning; doubles with each further failure.
const FIRST_REST: Seconds = Seconds::new(60.0);
/// Maximum time between two retries.
const LONGEST_REST: Seconds = Seconds::new(3600.0);

/// Consecutive failures of a job's planning, and the time of the next retry.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::controller) struct Setback {
    pub(super) times: u32,
    pub(super) until: Monotonic,
    why: String,
}

impl Setback {
    /// Returns the state after another failure.
    pub(super) fn after(before: Option<&Self>, why: String, now: Now) -> Self {
        let times = before.map_or(0, |before| before.times).saturating_add(1);
        let rest = FIRST_REST * f64::from(1u32 << (times - 1).min(10));
        Self { times, until: now.monotonic.after(rest.min(LONGEST_REST)), why }
    }

    pub(super) fn describe(&self) -> String {
        let Self { times, why, .. } = self;
        let tries = if *times == 1 { "once".to_owned() } else { format!("{times} times in a row") };
        format!(
            "planning failed {tries} because of a bug in wattune ({why}); the job's GPUs have their original limits, and wattune plans the job again within an hour"
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
