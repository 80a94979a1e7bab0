//! Calls that a GPU or its driver says it does not support, and when they are asked again.
//!
//! A driver may say so for a moment, while it is busy with something else; a GPU that really lacks a call lacks it for
//! good. So no answer is final, and none is asked for at a rate that costs: the longer a call has been refused, the longer
//! it waits.

use crate::gpu::GpuError;
use wattune_core::time::Monotonic;
use wattune_core::units::Seconds;

/// A refused call waits for this part of the time for which it has been refused,
const PART: f64 = 0.25;
/// but no shorter
const SHORTEST: Seconds = Seconds::new(0.1);
/// and no longer than this.
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
    /// Returns the last refusal of `call`, if it is too early to ask again.
    pub(super) fn hold(&self, call: &str, now: Monotonic) -> Option<&GpuError> {
        self.calls.iter().find(|r| r.error.call() == call && now < r.again).map(|r| &r.error)
    }

    /// Notes a refusal.
    pub(super) fn note(&mut self, error: GpuError, now: Monotonic) {
        let since = self.calls.iter().find(|r| r.error.call() == error.call()).map_or(now, |r| r.since);
        self.clear(error.call());
        let pause = (now.since(since) * PART).max(SHORTEST).min(LONGEST);
        self.calls.push(Refusal { error, since, again: now.after(pause) });
    }

    /// Forgets the refusals of a call that answers.
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

    /// When a call that is refused from the start is asked, looked at ten times a second up to `end` seconds.
    fn asked(end: u32) -> Vec<f64> {
        let (mut refusals, mut asked) = (Refusals::default(), Vec::new());
        for tenth in 0..end * 10 {
            let seconds = f64::from(tenth) / 10.0;
            if refusals.hold(CALL, at(seconds)).is_none() {
                asked.push(seconds);
                refusals.note(GpuError::NotSupported { call: CALL }, at(seconds));
            }
        }
        asked
    }

    #[test]
    fn what_was_refused_for_a_moment_is_asked_again_at_once_and_what_is_absent_hardly_ever() {
        let asked = asked(3600);
        let after = |seconds: f64| asked.iter().filter(|at| **at > seconds).copied().fold(f64::INFINITY, f64::min);
        assert!(after(0.3) < 0.5 && after(1.3) < 1.8 && after(20.0) < 25.5 && after(600.0) < 631.0, "{asked:?}");
        let of_hour = asked.len();
        assert!((100..170).contains(&of_hour), "{of_hour}");
    }

    #[test]
    fn an_answer_forgets_the_refusals_of_its_call_alone() {
        let mut refusals = Refusals::default();
        for second in 0..100 {
            refusals.note(GpuError::NotSupported { call: CALL }, at(f64::from(second)));
        }
        refusals.note(GpuError::NotSupported { call: "nvmlDeviceGetPowerUsage" }, at(99.0));
        assert!(refusals.hold(CALL, at(120.0)).is_some());
        refusals.clear(CALL);
        assert!(refusals.hold(CALL, at(99.0)).is_none());
        assert!(refusals.hold("nvmlDeviceGetPowerUsage", at(99.0)).is_some());
        refusals.note(GpuError::NotSupported { call: CALL }, at(121.0));
        assert!(refusals.hold(CALL, at(121.2)).is_none(), "it counts from anew");
    }
}
