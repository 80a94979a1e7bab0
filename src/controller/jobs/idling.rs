//! The time in which a job was told to do no work.

use wattune_core::time::Monotonic;
use wattune_core::units::Seconds;

/// Idle time since the last progress report.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::controller) struct Idling {
    /// When that was looked at last.
    seen: Option<Monotonic>,
    /// Time since the last report in which it was told to do no work.
    pub(in crate::controller) since_report: Seconds,
}

impl Idling {
    /// Counts the time since this was called last, if the job was told to do no work.
    pub(in crate::controller) fn pass_time(&mut self, at: Monotonic, is_idle: bool) {
        let since = self.seen.replace(at).map_or(Seconds::ZERO, |seen| at.since(seen));
        if is_idle {
            self.since_report += since;
        }
    }
}
