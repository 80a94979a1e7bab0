//! The rest of a job whose planning died of a fault in the planner.

use wattune_core::time::{Monotonic, Now};
use wattune_core::units::Seconds;

/// Its planning is tried again after this, then after twice as long, and so on.
const FIRST_REST: Seconds = Seconds::new(60.0);
/// But at least so often.
const LONGEST_REST: Seconds = Seconds::new(3600.0);

/// How often the planning of a job died in a row, and when it is tried again.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::controller) struct Setback {
    pub(super) times: u32,
    pub(super) until: Monotonic,
    why: String,
}

impl Setback {
    /// One more, after those before.
    pub(super) fn after(before: Option<&Self>, why: String, now: Now) -> Self {
        let times = before.map_or(0, |before| before.times).saturating_add(1);
        let rest = FIRST_REST * f64::from(1u32 << (times - 1).min(10));
        Self { times, until: now.monotonic.after(rest.min(LONGEST_REST)), why }
    }
}

impl Setback {
    pub(super) fn describe(&self) -> String {
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
