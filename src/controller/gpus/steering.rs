//! Results of writes: a limit that is not as wanted, not permitted or not restored is shown as a problem, and the write
//! is tried again.

use super::control_state::{Before, LimitDeviation, WriteRequest, WrittenLimit};
use super::gpu::Gpu;
use super::limit_history::LimitState;
pub(crate) use crate::gpu::is_rounded;
use crate::gpu::{Reading, Write};
use wattune_core::domain::PowerLimit;
use wattune_core::time::{Monotonic, Now};
use wattune_core::units::Seconds;

/// Duration from which an unwanted state counts as a problem.
pub(crate) const LASTING: Seconds = Seconds::new(10.0);
/// Pause before a limit that did not take effect is written again, as a fraction of the time since it deviated.
const PAUSE_FRACTION: f64 = 0.25;
/// Maximum pause before a limit that did not take effect is written again.
const LONGEST: Seconds = Seconds::new(10.0);
/// Minimum pause before a write that was not permitted, or not supported, is tried again.
const DENIED_SHORTEST: Seconds = Seconds::new(10.0);
/// Maximum pause before a write that was not permitted, or not supported, is tried again.
const DENIED_LONGEST: Seconds = Seconds::new(300.0);

/// Time after a write of a power limit in which a lower enforced limit does not count as an out-of-band cap.
const ENFORCED_AFTER: Seconds = Seconds::new(3.0);

impl Gpu {
    /// Returns whether the reported limit is what the driver made of the limit `requested`, which wattune wrote last.
    pub(crate) fn has_rounded(&self, requested: PowerLimit, shown: PowerLimit) -> bool {
        self.writes.limit.is_some_and(|written| written.requested.same_as(requested)) && is_rounded(requested, shown)
    }

    /// Returns why wattune may not set the GPU's limit, in one sentence; `None` if it may.
    pub(crate) fn why_no_control(&self) -> Option<String> {
        self.reason_against_control(|_| true)
    }

    /// Returns why wattune cannot control the GPU's whole job, in one sentence; `None` if it can. A fault counts only after
    /// `LASTING`: the job's other GPUs would rise to their original limits, and be lowered again seconds later.
    pub(crate) fn why_no_control_of_job(&self, now: Monotonic) -> Option<String> {
        self.reason_against_control(|since| now.since(since.monotonic) > LASTING)
    }

    /// Returns why wattune may not set the GPU's limit, in one sentence; `None` if it may. `counts` gets the
    /// start of a fault and returns whether the fault is a reason.
    fn reason_against_control(&self, counts: impl Fn(&Now) -> bool) -> Option<String> {
        if let Some(why) = self.handle.capabilities().why_no_control() {
            return Some(why);
        }
        if let Some(error) = &self.denied {
            return Some(format!("observing only: {error}"));
        }
        if let Some(external) = &self.external {
            return Some(format!(
                "an external writer set it to {} at {}; wattune leaves that limit alone until the GPU's job ends or a new limit is \
                 requested with PUT …/power-limit",
                external.limit,
                external.since.format("%FT%TZ")
            ));
        }
        if let Some((error, since)) = self.observed.fault.as_ref().filter(|(_, since)| counts(since)) {
            return Some(format!("{error} (since {})", since.utc.format("%FT%TZ")));
        }
        // If the reported limit is absent for a short time, that is no problem: writes wait until it is read again.
        let missing =
            self.observed.at.and_then(|at| self.observed.limit_availability.missing_longer_than(LASTING, at.monotonic));
        missing.map(|since| {
            let why = match &self.handle.capabilities().limit {
                Err(error) => error.to_string(),
                Ok(()) => "nvmlDeviceGetPowerManagementLimit".into(),
            };
            format!(
                "the driver has not reported the present limit since {} ({why}): wattune could not restore it later, so it sets \
                 no limit",
                since.utc.format("%FT%TZ")
            )
        })
    }

    /// Detects an out-of-band cap (power limit set from outside the host). Such a cap is visible only while a higher
    /// limit is requested; at other times the cap that was visible last is assumed to hold. Right after a write, the
    /// enforced limit may still be the one before.
    pub(crate) fn detect_cap(&mut self) {
        let reading = &self.observed.reading;
        let (Some(requested), Some(enforced)) = (reading.requested, reading.enforced) else { return };
        if enforced < requested && !enforced.same_as(requested) {
            let is_being_written = matches!(self.writes.in_flight, Some((Write::PowerLimit(_), _)));
            let since = self.writes.limit_at.zip(self.observed.at).map(|(written, at)| at.monotonic.since(written));
            if !is_being_written && since.is_none_or(|since| since >= ENFORCED_AFTER) {
                self.out_of_band_cap = Some(enforced);
            }
        } else if self.out_of_band_cap.is_some_and(|cap| requested > cap && !requested.same_as(cap)) {
            self.out_of_band_cap = None;
        }
    }

    /// Forgets an out-of-band cap that is not visible, so that the next plan tests whether it holds.
    pub(crate) fn expire_cap(&mut self) {
        self.out_of_band_cap = None;
        self.detect_cap();
    }

    /// Records a deviation of the shown limit from the wanted one; with `None`, no limit is wanted.
    pub(crate) fn compare(&mut self, wanted: Option<PowerLimit>, shown: PowerLimit, now: Now) {
        let Some(wanted) = wanted.filter(|wanted| !wanted.same_as(shown) && !is_rounded(*wanted, shown)) else {
            self.deviation = None;
            return;
        };
        let error = self.writes.error.clone();
        let before = self.deviation.take();
        let (since, ticks) = before.map_or((now, 0), |deviation| (deviation.since, deviation.ticks));
        self.deviation = Some(LimitDeviation { since, ticks: ticks + 1, wanted, shown, error });
    }

    /// Returns whether a limit that did not take effect has to wait before it is written again.
    pub(crate) fn is_backing_off(&self, now: Now) -> bool {
        let deviation = self.deviation.as_ref();
        let pause =
            deviation.map(|deviation| (now.monotonic.since(deviation.since.monotonic) * PAUSE_FRACTION).min(LONGEST));
        pause.is_some_and(|pause| self.requested_within(pause, now))
    }

    /// Returns why the GPU's limit is not as wanted, in one sentence, once the deviation has lasted.
    pub(crate) fn describe_deviation(&self, now: Monotonic) -> Option<String> {
        let lasts = |a: &&LimitDeviation| a.ticks > 2 && now.since(a.since.monotonic) > LASTING;
        let LimitDeviation { since, wanted, shown, error, .. } = self.deviation.as_ref().filter(lasts)?;
        let why = match error {
            Some(error) => error.to_string(),
            None => "the driver accepts the limit and does not keep it".into(),
        };
        Some(format!(
            "its power limit has been {shown} instead of {wanted} since {}: {why}; wattune tries again",
            since.utc.format("%FT%TZ")
        ))
    }

    /// If writing limits was denied, tests from time to time whether it is permitted again, by writing the present
    /// limit. `is_wanted` is true if a limit is wanted that cannot be written meanwhile, which may be the cap's on a GPU
    /// without a job.
    pub(super) fn probe_denial(&mut self, is_wanted: bool, current: PowerLimit, now: Now) {
        if self.denied.is_none() {
            self.denied_since = None;
            return;
        }
        let Some(since) = self.denied_since.filter(|_| is_wanted || self.owner.is_some()) else { return };
        let pause = (now.monotonic.since(since) * PAUSE_FRACTION).max(DENIED_SHORTEST).min(DENIED_LONGEST);
        if !self.requested_within(pause, now) {
            self.request_write(Write::PowerLimit(current), now);
        }
    }

    /// Applies the result of a successful write; `shown` is the limit that the GPU reports after it.
    pub(super) fn apply_written(&mut self, requested: PowerLimit, shown: Option<PowerLimit>) {
        self.denied = None;
        self.writes.error = None;
        self.writes.failed_limit = None;
        self.writes.is_unconfirmed = !self.writes.is_restoring;
        match shown.filter(|shown| self.writes.is_restoring && !shown.same_as(requested)) {
            Some(shown) => {
                self.record_failed_restore(requested, format!("the driver accepted it, and it shows {shown}"));
            }
            None => self.record_restored(),
        }
        self.writes.limit = Some(WrittenLimit { requested, shown });
        self.writes.restarts_seen = self.observed.restarts();
        self.arrived_late = false;
    }

    pub(super) fn record_failed_restore(&mut self, original: PowerLimit, why: String) {
        let words = format!(
            "its original limit of {original} could not be restored: {why}; wattune tries again every few seconds"
        );
        tracing::error!(gpu.uuid = %self.id(), "GPU {}: {words}", self.id());
        self.remark = Some(words.clone());
        self.restore_problem = Some(words);
        self.restore_failures += 1;
        self.writes.failed_restores += 1;
    }

    pub(super) fn record_restored(&mut self) {
        self.restore_problem = None;
        self.writes.failed_restores = 0;
    }

    pub(super) fn requested_within(&self, span: Seconds, now: Now) -> bool {
        self.writes.last_request.is_some_and(|at| now.monotonic.since(at) < span)
    }

    /// Requests a write of the daemon's own accord; its result appears in a later observation. Returns whether the GPU's
    /// thread accepted it.
    pub(super) fn request_write(&mut self, write: Write, now: Now) -> bool {
        self.send_write(write, None, now)
    }

    /// Requests a write for the caller who has requested one, if there is such a caller. Returns whether the GPU's thread
    /// accepted it.
    pub(super) fn request_write_for_caller(&mut self, write: Write, now: Now) -> bool {
        let request = self.writes.next_request.clone();
        let is_sent = self.send_write(write, request, now);
        if is_sent {
            self.writes.next_request = None;
        }
        is_sent
    }

    /// Sends a write to the GPU's thread. Returns whether the thread accepted it.
    fn send_write(&mut self, write: Write, request: Option<WriteRequest>, now: Now) -> bool {
        if !self.handle.request(write, self.observed.reading.requested) {
            return false;
        }
        self.writes.last_request = Some(now.monotonic);
        self.writes.in_flight = Some((write, now.monotonic));
        let Reading { requested: limit, persistence, .. } = self.observed.reading;
        (self.writes.request, self.writes.before) = (request, Before { limit, persistence, clock: self.clock_lock() });
        if let Write::PowerLimit(limit) = write {
            self.writes.last_limit = Some(limit);
            self.remark = Some(format!("set to {limit} at {}", now.utc.format("%FT%TZ")));
        }
        // A handle without a thread of its own has completed the write already.
        let observed = self.handle.observe();
        if observed.last_write.is_some() && observed.last_write != self.observed.last_write {
            self.observed = observed;
        }
        true
    }

    /// Records the reported limit, the wanted limit and the energy in the GPU's limit history.
    pub(crate) fn remember(&mut self, wanted: Option<PowerLimit>, now: Now) {
        let (reading, can) = (&self.observed.reading, self.handle.capabilities());
        let answers = self.observed.fault.is_none();
        let limit = reading.enforced.or(reading.requested).filter(|_| answers);
        let is_metered = answers && (can.energy_counter.is_ok() || can.power.is_ok());
        let metered = is_metered.then_some(self.observed.metered.drawn);
        self.history.record(now.utc, LimitState { limit, wanted, job: self.owner.clone() }, metered);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rounded_limit_is_as_wanted_and_another_is_not() {
        let watts = |w: u32| PowerLimit::from_milliwatts(w * 1000);
        assert!(is_rounded(watts(233), watts(235)) && is_rounded(watts(700), watts(690)));
        assert!(!is_rounded(watts(240), watts(270)) && !is_rounded(watts(100), watts(104)));
    }
}
