//! Counts of requests to a source. They are kept across restarts of the daemon, because the source's own quota does not
//! begin anew with a restart.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use chrono::{DateTime, TimeDelta, Utc};
use serde::{Deserialize, Serialize};

use super::json::is_code;
use crate::providers::error::ProviderError;

const HOUR: TimeDelta = TimeDelta::hours(1);
const DAY: TimeDelta = TimeDelta::days(1);

/// Maximum number of request times that are kept, more than the highest quota (36 000 per hour).
const MOST: usize = 100_000;

/// Maximum number of bytes that are read of a stored file; files that wattune writes are shorter.
const MAX_BYTES: u64 = 4 << 20;

/// Numbers of recent requests to a source, and the source's quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Requests {
    /// Number of requests within the last hour.
    pub last_hour: u32,
    /// Number of requests within the last 24 hours.
    pub last_day: u32,
    /// Maximum number of requests per hour.
    pub allowed_per_hour: u32,
}

/// Counts requests to one source, and stores the zone that the source determined for coordinates.
#[derive(Debug)]
pub(in crate::providers) struct Usage {
    path: Option<PathBuf>,
    per_hour: u32,
    inner: Mutex<Kept>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Kept {
    /// Times of requests, in seconds since 1970, oldest first.
    #[serde(rename = "asked")]
    request_times: VecDeque<i64>,
    /// Zone that the source determined for a place; stored because near a border the source's response varies.
    pinned: Option<Pinned>,
    /// True if this run has stored `pinned`. The zone that an earlier run stored may be outdated.
    #[serde(skip)]
    is_current: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Pinned {
    place: String,
    zone: String,
}

impl Kept {
    fn read(bytes: &[u8]) -> Option<Self> {
        let mut kept: Self = serde_json::from_slice(bytes).ok()?;
        // The file may have been edited by hand.
        kept.request_times.make_contiguous().sort_unstable();
        kept.request_times.drain(..kept.request_times.len().saturating_sub(MOST));
        kept.pinned = kept.pinned.filter(|pinned| is_code(&pinned.zone));
        Some(kept)
    }
}

impl Usage {
    /// Loads the counts of an earlier run from a file in `directory`; a file that cannot be read counts as empty. If
    /// `directory` is absent, counts are kept in memory only. `name` is a part of the file's name.
    pub(in crate::providers) fn load(directory: Option<&Path>, name: &str, per_hour: u32) -> Arc<Self> {
        let path = directory.map(|d| d.join(format!("requests-{name}.json")));
        let read = |path: &PathBuf| {
            let mut bytes = Vec::new();
            crate::files::regular::open(path).ok()?.take(MAX_BYTES).read_to_end(&mut bytes).ok()?;
            Some(bytes)
        };
        let kept = path.as_ref().and_then(read);
        let kept = kept.and_then(|bytes| Kept::read(&bytes)).unwrap_or_default();
        Arc::new(Self { path, per_hour, inner: Mutex::new(kept) })
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a request that is about to be made, and stores the count.
    ///
    /// # Errors
    /// If the request would exceed the quota; then it must not be made.
    pub(in crate::providers) fn reserve(&self, now: DateTime<Utc>) -> Result<(), ProviderError> {
        let mut kept = self.kept();
        let (present, day_ago) = (now.timestamp(), (now - DAY).timestamp());
        // Times in the future, left by a clock that was set back, would block the source until they pass.
        kept.request_times.retain(|t| (day_ago..=present).contains(t));
        let hour_ago = (now - HOUR).timestamp();
        let recent = kept.request_times.iter().filter(|t| **t > hour_ago).count();
        if recent >= self.per_hour as usize {
            let oldest = kept.request_times.iter().find(|t| **t > hour_ago).copied().unwrap_or(present);
            let until = DateTime::from_timestamp(oldest, 0).unwrap_or(now) + HOUR;
            return Err(ProviderError::QuotaSpent { per_hour: self.per_hour, until });
        }
        if kept.request_times.len() >= MOST {
            kept.request_times.pop_front();
        }
        kept.request_times.push_back(present);
        let copy = kept.clone();
        drop(kept);
        self.store(&copy);
        Ok(())
    }

    pub(in crate::providers) fn requests(&self, now: DateTime<Utc>) -> Requests {
        let kept = self.kept();
        let since = |t: DateTime<Utc>| kept.request_times.iter().filter(|a| **a > t.timestamp()).count();
        let count = |t| u32::try_from(since(t)).unwrap_or(u32::MAX);
        Requests { last_hour: count(now - HOUR), last_day: count(now - DAY), allowed_per_hour: self.per_hour }
    }

    /// Returns the zone that this run stored for a place; `None` if it stored none, or if that of another place is
    /// stored now.
    pub(in crate::providers) fn pinned(&self, place: &str) -> Option<String> {
        let is_current = self.kept().is_current;
        if is_current { self.last_pinned(place) } else { None }
    }

    /// Returns the zone that this run or an earlier one stored for a place.
    pub(in crate::providers) fn last_pinned(&self, place: &str) -> Option<String> {
        self.kept().pinned.as_ref().filter(|p| p.place == place).map(|p| p.zone.clone())
    }

    pub(in crate::providers) fn pin(&self, place: &str, zone: &str) {
        self.set_pinned(Some(Pinned { place: place.to_owned(), zone: zone.to_owned() }));
    }

    /// Forgets the stored zone.
    pub(in crate::providers) fn unpin(&self) {
        self.set_pinned(None);
    }

    fn set_pinned(&self, pinned: Option<Pinned>) {
        let mut kept = self.kept();
        (kept.pinned, kept.is_current) = (pinned, true);
        let copy = kept.clone();
        drop(kept);
        self.store(&copy);
    }

    /// Writes the counts to disk. If that fails, they are lost at the next restart. The directory must exist: the
    /// daemon creates it.
    fn store(&self, kept: &Kept) {
        let Some(path) = &self.path else { return };
        let write = || -> std::io::Result<()> {
            let temporary = path.with_extension("json.tmp");
            let mut file = crate::files::create(&temporary)?;
            file.write_all(&serde_json::to_vec(kept)?)?;
            std::fs::rename(&temporary, path)
        };
        if let Err(error) = write() {
            tracing::debug!(path = %path.display(), "request count not written: {error}");
        }
    }
}

/// Runs the reader of stored files on any bytes, which must not cause a panic.
#[cfg(any(test, feature = "fuzzing"))]
pub(in crate::providers) fn read_any(bytes: &[u8], now: DateTime<Utc>) {
    let Some(kept) = Kept::read(bytes) else { return };
    let usage = Usage { path: None, per_hour: 10, inner: Mutex::new(kept) };
    let _ = (usage.requests(now), usage.reserve(now), usage.last_pinned("1,2"));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(minutes: i64) -> DateTime<Utc> {
        DateTime::UNIX_EPOCH + TimeDelta::days(20_000) + TimeDelta::minutes(minutes)
    }

    #[test]
    fn a_quota_holds_over_restarts_and_opens_again() {
        let directory = tempfile::tempdir().expect("a directory");
        let open = || Usage::load(Some(directory.path()), "test", 2);
        let usage = open();
        assert_eq!((usage.reserve(at(0)), usage.reserve(at(10))), (Ok(()), Ok(())));
        let spent = Err(ProviderError::QuotaSpent { per_hour: 2, until: at(60) });
        assert_eq!(usage.reserve(at(20)), spent);
        assert_eq!(open().reserve(at(30)), spent, "counted over a restart");
        assert_eq!(open().requests(at(30)), Requests { last_hour: 2, last_day: 2, allowed_per_hour: 2 });
        assert_eq!(open().reserve(at(61)), Ok(()));
        assert_eq!(open().requests(at(61)), Requests { last_hour: 2, last_day: 3, allowed_per_hour: 2 });
        assert_eq!(open().reserve(at(-500)), Ok(()), "a clock set back does not block");
    }

    #[test]
    fn a_file_that_was_not_written_here_does_no_harm() {
        let directory = tempfile::tempdir().expect("a directory");
        let open = |text: &str| {
            std::fs::write(directory.path().join("requests-test.json"), text).expect("written");
            Usage::load(Some(directory.path()), "test", 2)
        };
        let second = at(0).timestamp();
        let usage = open(&format!("{{\"asked\":[{},{},{}],\"pinned\":null}}", i64::MAX, second, second - 60));
        let spent = Err(ProviderError::QuotaSpent { per_hour: 2, until: at(59) });
        assert_eq!(usage.reserve(at(1)), spent, "the oldest, whatever the order");
        let many = format!("{{\"asked\":[{}0],\"pinned\":null}}", "0,".repeat(MOST + 10));
        assert_eq!(open(&many).kept().request_times.len(), MOST);
        let long = format!("{{\"asked\":[],\"pinned\":{{\"place\":\"1,2\",\"zone\":\"{}\"}}}}", "D".repeat(97));
        for pinned in [long.as_str(), "{\"asked\":[],\"pinned\":{\"place\":\"1,2\",\"zone\":\"D E\"}}"] {
            assert_eq!(open(pinned).last_pinned("1,2"), None);
        }
        assert_eq!(open(&" ".repeat(5 << 20)).requests(at(1)).last_day, 0);
    }

    #[test]
    fn a_place_keeps_its_zone_in_a_run_and_as_the_last_one_over_a_restart() {
        let directory = tempfile::tempdir().expect("a directory");
        let open = || Usage::load(Some(directory.path()), "test", 2);
        let usage = open();
        usage.pin("1,2", "DE");
        assert_eq!((usage.pinned("1,2").as_deref(), usage.pinned("1,3")), (Some("DE"), None));
        let again = open();
        assert_eq!((again.last_pinned("1,2").as_deref(), again.last_pinned("1,3")), (Some("DE"), None));
        assert_eq!(again.pinned("1,2"), None, "to be determined anew");
        again.unpin();
        assert_eq!((again.last_pinned("1,2"), open().last_pinned("1,2")), (None, None));
    }
}
