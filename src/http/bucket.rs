//! Allowances of the senders of requests: a burst at once, then a steady rate (token buckets).

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::access::Identity;

/// Number of senders from which those whose allowance is full are forgotten.
const MANY: usize = 1024;

/// Size of each sender's allowance.
#[derive(Clone, Copy, Debug)]
pub(super) struct Allowance {
    /// Number of times a second for long.
    pub(super) per_second: f64,
    /// Number of times at once, after a pause.
    pub(super) burst: f64,
}

/// Allowances of all senders, one for each. Clones share them.
#[derive(Clone, Debug)]
pub(super) struct Buckets {
    allowance: Allowance,
    all: Arc<Mutex<HashMap<Identity, Bucket>>>,
}

/// Rest of one sender's allowance.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    left: f64,
    at: Instant,
    /// Number of times since the last permitted one that were not permitted.
    skipped: u64,
}

impl Allowance {
    fn left(self, bucket: Bucket, now: Instant) -> f64 {
        (bucket.left + now.saturating_duration_since(bucket.at).as_secs_f64() * self.per_second).min(self.burst)
    }
}

impl Buckets {
    pub(super) fn new(allowance: Allowance) -> Self {
        Self { allowance, all: Arc::default() }
    }

    /// Returns the size of each sender's allowance.
    pub(super) const fn allowance(&self) -> Allowance {
        self.allowance
    }

    /// Takes one from a sender's allowance, and returns the number of times since the last one that were not permitted. The
    /// error is the time until the next one is permitted.
    pub(super) fn take(&self, who: &Identity, now: Instant) -> Result<u64, Duration> {
        let Allowance { per_second, burst } = self.allowance;
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= MANY {
            all.retain(|_, bucket| self.allowance.left(*bucket, now) < burst);
        }
        let bucket = all.entry(who.clone()).or_insert(Bucket { left: burst, at: now, skipped: 0 });
        let left = self.allowance.left(*bucket, now);
        if left < 1.0 {
            bucket.skipped += 1;
            return Err(Duration::from_secs_f64((1.0 - left) / per_second));
        }
        let skipped = bucket.skipped;
        *bucket = Bucket { left: left - 1.0, at: now, skipped: 0 };
        Ok(skipped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALLOWANCE: Allowance = Allowance { per_second: 200.0, burst: 2000.0 };

    #[test]
    fn a_sender_has_a_burst_and_then_so_many_each_second() {
        let (buckets, begin) = (Buckets::new(ALLOWANCE), Instant::now());
        let count = |user: u32, after_ms: u64, tries: u32| {
            let now = begin + Duration::from_millis(after_ms);
            (0..tries).filter(|_| buckets.take(&Identity::User(user), now).is_ok()).count()
        };
        assert_eq!(count(1, 0, 5000), 2000);
        assert_eq!(count(2, 0, 10), 10, "another user has an allowance of its own");
        assert_eq!(count(1, 1000, 500), 200);
        let wait = buckets.take(&Identity::User(1), begin + Duration::from_millis(1000));
        assert_eq!(wait, Err(Duration::from_millis(5)));
        assert_eq!(count(1, 60_000, 5000), 2000);
        assert_eq!(count(1, 30_000, 1), 0, "a clock that goes back grants nothing");
        for who in [Identity::Token("a".into()), Identity::Address("10.0.0.1".parse().expect("an address"))] {
            assert_eq!(buckets.take(&who, begin), Ok(0), "{who:?}");
        }
    }

    #[test]
    fn what_was_not_permitted_is_counted() {
        let (buckets, begin) = (Buckets::new(Allowance { per_second: 0.1, burst: 100.0 }), Instant::now());
        let who = Identity::User(7);
        let permitted = (0..5000).filter(|_| buckets.take(&who, begin).is_ok()).count();
        assert_eq!(permitted, 100);
        let later = begin + Duration::from_secs(10);
        assert_eq!((buckets.take(&who, later).ok(), buckets.take(&who, later).ok()), (Some(4900), None));
    }

    #[test]
    fn senders_with_a_full_allowance_are_forgotten() {
        let (buckets, begin) = (Buckets::new(ALLOWANCE), Instant::now());
        for user in 0..3000 {
            assert_eq!(buckets.take(&Identity::User(user), begin), Ok(0));
        }
        assert_eq!(buckets.take(&Identity::User(9), begin + Duration::from_secs(60)), Ok(0));
        assert_eq!(buckets.all.lock().expect("not poisoned").len(), 1);
    }
}
