//! How many refused requests the audit log records, so that a program in a loop cannot fill the disk with them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::time::Instant;

/// Number of refusals of one user that are recorded per second for long.
const PER_SECOND: f64 = 0.1;
/// Number of refusals of one user that are recorded at once, after a pause.
const BURST: f64 = 100.0;
/// Number of users from which those who were not refused anything lately are forgotten.
const MANY_USERS: usize = 1024;

/// The refusals that may still be recorded, by the number of the user; `None` stands for all users who are unknown. Clones
/// share them.
#[derive(Clone, Debug, Default)]
pub(super) struct Refusals(Arc<Mutex<HashMap<Option<u32>, Share>>>);

/// What is left of one user's records.
#[derive(Clone, Copy, Debug)]
struct Share {
    left: f64,
    at: Instant,
    /// Number of refusals since the last record that have none.
    skipped: u64,
}

impl Share {
    fn at(self, now: Instant) -> f64 {
        (self.left + now.saturating_duration_since(self.at).as_secs_f64() * PER_SECOND).min(BURST)
    }
}

impl Refusals {
    /// Counts a refusal. Returns the number of the user's earlier refusals without a record if this one is to be recorded.
    pub(super) fn count(&self, user: Option<u32>, now: Instant) -> Option<u64> {
        let mut users = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if users.len() >= MANY_USERS {
            users.retain(|_, share| share.at(now) < BURST);
        }
        let share = users.entry(user).or_insert(Share { left: BURST, at: now, skipped: 0 });
        let left = share.at(now);
        if left < 1.0 {
            share.skipped += 1;
            return None;
        }
        let skipped = share.skipped;
        *share = Share { left: left - 1.0, at: now, skipped: 0 };
        Some(skipped)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_flood_of_refusals_is_counted_and_not_recorded() {
        let (refusals, begin) = (Refusals::default(), Instant::now());
        let recorded = (0..5000).filter(|_| refusals.count(Some(7), begin).is_some()).count();
        assert_eq!(recorded, 100);
        assert_eq!(refusals.count(Some(8), begin), Some(0), "another user has records of their own");
        let later = begin + Duration::from_secs(10);
        assert_eq!((refusals.count(Some(7), later), refusals.count(Some(7), later)), (Some(4900), None));
    }

    #[test]
    fn users_who_are_refused_nothing_are_forgotten() {
        let (refusals, begin) = (Refusals::default(), Instant::now());
        for user in 0..3000 {
            refusals.count(Some(user), begin);
        }
        refusals.count(None, begin + Duration::from_secs(60));
        assert_eq!(refusals.0.lock().expect("not poisoned").len(), 1);
    }
}
