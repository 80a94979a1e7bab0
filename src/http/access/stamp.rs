//! State of a file, by which a change of the file is noticed.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// State of a file, which differs after each change: device, inode, size, and times of change in seconds and nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp(u64, u64, u64, (i64, i64), (i64, i64));

/// Returns the state of a file; `None` if there is none.
pub(super) fn stamp(path: &Path) -> Option<Stamp> {
    let found = fs::metadata(path).ok()?;
    let times = ((found.mtime(), found.mtime_nsec()), (found.ctime(), found.ctime_nsec()));
    Some(Stamp(found.dev(), found.ino(), found.len(), times.0, times.1))
}
