//! Times in which a job waited without its GPUs, before its start and in suspensions, for the comparison with a reference
//! that starts when asked and is never suspended.

use chrono::{DateTime, TimeDelta, Utc};

use super::emissions::mean_intensity;
use super::presence_entries::{PresenceChange, PresenceKind, StartRequest};
use crate::domain::{CarbonSeries, Offers, Slot};
use crate::units::{GramsCo2e, GramsPerKwh, Joules, Samples, Seconds, Watts};

/// Waiting times of a job before its start and in suspensions. The default is a job that started when asked and was
/// never suspended.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WaitingTimes {
    /// Time from the request to the job's first start, without the outages of earlier jobs with the same key; zero for
    /// a job that started when asked.
    pub before_start: Seconds,
    /// Samples that earlier jobs with the same key completed. The reference begins with these samples completed.
    pub done_before: Samples,
    /// Suspensions, oldest first.
    pub suspensions: Vec<Slot>,
    /// Time without progress for saving and restarting, over all suspensions.
    pub stop_time: Seconds,
    /// Emissions of GPUs that were reserved for the job before its start.
    pub reserved_before: GramsCo2e,
    /// Emissions of GPUs that were reserved for the job in its suspensions.
    pub reserved_suspended: GramsCo2e,
    /// Energy of GPUs that were reserved for the job before its start and in its suspensions.
    pub reserved_energy: Joules,
}

impl WaitingTimes {
    /// Returns the waiting times that the ledger's entries about a job record, oldest entry first. `registered_at` is
    /// the time of the job's registration; times after `until` do not count. Nor do `outages`, the time for which
    /// earlier jobs with the same key were dead before the next one continued them: that time was no choice.
    pub fn of(
        request: &StartRequest,
        changes: &[PresenceChange],
        registered_at: DateTime<Utc>,
        until: DateTime<Utc>,
        outages: Seconds,
    ) -> Self {
        let began_at = match request.latest_start {
            Some(_) => first_start(changes).unwrap_or(until),
            None => registered_at,
        };
        let suspensions = suspensions(changes, until);
        Self {
            before_start: (Seconds::from_delta(began_at - request.asked_at) - outages).max(Seconds::ZERO),
            done_before: request.done,
            suspensions,
            ..Self::default()
        }
    }

    /// Returns the time suspended within a span.
    pub fn suspended_within(&self, span: &Slot) -> Seconds {
        self.suspensions.iter().filter_map(|slot| slot.intersection(span)).map(|slot| slot.duration()).sum()
    }

    /// Returns the mean carbon intensity over the first `time` outside of suspensions from `start` on; `None` if an
    /// intensity is unknown.
    pub(super) fn mean_while_present(
        &self,
        series: &CarbonSeries,
        start: DateTime<Utc>,
        time: Seconds,
    ) -> Option<GramsPerKwh> {
        let (mut from, mut left, mut sum) = (start, time, 0.0);
        let mut parts = Vec::new();
        for suspension in &self.suspensions {
            let before = Seconds::from_delta(suspension.start() - from);
            if before >= left {
                break;
            }
            if before > Seconds::ZERO {
                parts.push((from, before));
                left -= before;
            }
            from = from.max(suspension.end());
        }
        parts.push((from, left));
        if let [(from, whole)] = parts.as_slice() {
            return mean_over(series, *from, *whole);
        }
        for (from, part) in parts {
            sum += mean_over(series, from, part)?.get() * part.get();
        }
        Some(GramsPerKwh::new(sum / time.get()))
    }
}

/// Returns the times in which a job neither held its GPUs nor had them reserved: before its start and in suspensions.
/// `changes` are the ledger's entries about the job, oldest first; times after `until` do not count.
pub fn times_without_gpus(
    offers: &Offers,
    changes: &[PresenceChange],
    registered_at: DateTime<Utc>,
    until: DateTime<Utc>,
) -> Vec<Slot> {
    let before = offers.start.filter(|start| start.idle_power <= Watts::ZERO).and_then(|_| {
        let begun = first_start(changes).unwrap_or(until);
        Slot::new(registered_at, begun)
    });
    let is_reserved = offers.suspend.as_ref().is_some_and(|suspend| suspend.idle_power > Watts::ZERO);
    let suspended = if is_reserved { Vec::new() } else { suspensions(changes, until) };
    before.into_iter().chain(suspended).collect()
}

fn first_start(changes: &[PresenceChange]) -> Option<DateTime<Utc>> {
    changes.iter().find(|change| change.change == PresenceKind::Begun).map(|change| change.at)
}

/// Returns the suspensions that entries of the ledger record, oldest first; the last one may last until `until`.
fn suspensions(changes: &[PresenceChange], until: DateTime<Utc>) -> Vec<Slot> {
    let (mut found, mut since) = (Vec::new(), None);
    for change in changes {
        match change.change {
            PresenceKind::Suspended => since = Some(change.at),
            PresenceKind::Resumed => found.extend(since.take().and_then(|from| Slot::new(from, change.at))),
            PresenceKind::Begun => {}
        }
    }
    found.extend(since.and_then(|from| Slot::new(from, until)));
    found
}

/// Returns the mean carbon intensity over a time from `from` on; `None` if an intensity is unknown.
pub(super) fn mean_over(series: &CarbonSeries, from: DateTime<Utc>, time: Seconds) -> Option<GramsPerKwh> {
    mean_intensity(series, &Slot::new(from, from.checked_add_signed(time.to_delta())?)?)
}

/// Returns the time that lies a number of seconds before another; `None` beyond the calendar.
pub(super) fn earlier(at: DateTime<Utc>, by: Seconds) -> Option<DateTime<Utc>> {
    at.checked_sub_signed(if by > Seconds::ZERO { by.to_delta() } else { TimeDelta::zero() })
}

#[cfg(test)]
#[path = "waiting_times_tests.rs"]
mod tests;
