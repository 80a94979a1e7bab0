//! Unsupported calls, and the times at which they are retried.
//!
//! A busy driver may report a call as unsupported although it is only temporarily so; a GPU that lacks a call lacks it
//! permanently. The answers look the same, so every refused call is retried, at intervals that grow with the time since
//! its first refusal.

use crate::gpu::GpuError;
use wattune_core::time::Monotonic;
use wattune_core::units::Seconds;

/// The retry interval as a fraction of the time since the first refusal.
const FRACTION: f64 = 0.25;
/// The minimum retry interval.
const SHORTEST: Seconds = Seconds::new(0.1);
/// The maximum retry interval.
const LONGEST: Seconds = Seconds::new(30.0);

#[derive(Debug, Default)]
pub(super) struct Refusals {
    calls: Vec<Refusal>,
}

#[derive(Debug)]
struct Refusal {
    error: GpuError,
    since: Monotonic,
    again: Monotonic,
}

impl Refusals {
    /// Returns the last refusal of `call` if its retry is not due yet.
    pub(super) fn pending(&self, call: &str, now: Monotonic) -> Option<&GpuError> {
        self.calls.iter().find(|r| r.error.call() == call && now < r.again).map(|r| &r.error)
    }

    pub(super) fn record(&mut self, error: GpuError, now: Monotonic) {
        let since = self.calls.iter().find(|r| r.error.call() == error.call()).map_or(now, |r| r.since);
        self.clear(error.call());
        let pause = (now.since(since) * FRACTION).max(SHORTEST).min(LONGEST);
        self.calls.push(Refusal { error, since, again: now.after(pause) });
    }

    /// Forgets the refusals of a call that succeeded.
    pub(super) fn clear(&mut self, call: &str) {
        self.calls.retain(|r| r.error.call() != call);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALL: &str = "nvmlDeviceGetTotalEnergyConsumption";

    fn at(seconds: f64) -> Monotonic {
        Monotonic::default().after(Seconds::new(seconds))
    }

    /// Returns the times in seconds at which a call is made that the driver always refuses, if the caller tries ten
    /// times a second until `end`.
    fn asked(end: u32) -> Vec<f64> {
        let (mut refusals, mut asked) = (Refusals::default(), Vec::new());
        for tenth in 0..end * 10 {
            let seconds = f64::from(tenth) / 10.0;
            if refusals.pending(CALL, at(seconds)).is_none() {
                asked.push(seconds);
                refusals.record(GpuError::NotSupported { call: CALL }, at(seconds));
            }
        }
        asked
    }

    #[test]
    fn short_refusals_are_retried_soon_and_lasting_ones_rarely() {
        let asked = asked(3600);
        let after = |seconds: f64| asked.iter().filter(|at| **at > seconds).copied().fold(f64::INFINITY, f64::min);
        assert!(after(0.3) < 0.5 && after(1.3) < 1.8 && after(20.0) < 25.5 && after(600.0) < 631.0, "{asked:?}");
        let of_hour = asked.len();
        assert!((100..170).contains(&of_hour), "{of_hour}");
    }

    #[test]
    fn a_success_forgets_the_refusals_of_its_call_only() {
        let mut refusals = Refusals::default();
        for second in 0..100 {
            refusals.record(GpuError::NotSupported { call: CALL }, at(f64::from(second)));
        }
        refusals.record(GpuError::NotSupported { call: "nvmlDeviceGetPowerUsage" }, at(99.0));
        assert!(refusals.pending(CALL, at(120.0)).is_some());
        refusals.clear(CALL);
        assert!(refusals.pending(CALL, at(99.0)).is_none());
        assert!(refusals.pending("nvmlDeviceGetPowerUsage", at(99.0)).is_some());
        refusals.record(GpuError::NotSupported { call: CALL }, at(121.0));
        assert!(refusals.pending(CALL, at(121.2)).is_none(), "the time starts again");
    }
}
