//! Whether a GPU's limit is as it is wanted: what is written in vain is a state that people see, and is tried again.

use super::astray::Astray;
use super::gpu::Gpu;
use super::limit_history::LimitState;
use crate::gpu::{GpuError, Write};
use wattune_core::domain::PowerLimit;
use wattune_core::time::{Monotonic, Now};
use wattune_core::units::{Seconds, Watts};

/// What lasts longer than this is a problem.
pub(in crate::controller) const LASTING: Seconds = Seconds::new(10.0);
/// Drivers round what they are given; a limit further off than this, and than a part of it, is another one.
const ROUNDED: Watts = Watts::new(3.0);
const ROUNDED_PART: f64 = 0.02;
/// What is written in vain is tried again after this part of the time for which it has been,
const PART: f64 = 0.25;
/// but no later than this.
const LONGEST: Seconds = Seconds::new(10.0);
/// What is not permitted, or not supported, is tried again no sooner than after this,
const DENIED_SHORTEST: Seconds = Seconds::new(10.0);
/// and no later than after this.
const DENIED_LONGEST: Seconds = Seconds::new(300.0);

/// Whether a GPU that was given `wanted` shows no more than a rounding of it.
fn is_rounded(wanted: PowerLimit, shown: PowerLimit) -> bool {
    let (wanted, shown) = (wanted.watts(), shown.watts());
    (wanted - shown).abs() <= ROUNDED.max(wanted * ROUNDED_PART)
}

impl Gpu {
    /// Why its limit is not wattune's to set, in words a person can act on; `None` if it is.
    pub fn why_no_control(&self) -> Option<String> {
        if let Some(why) = self.handle.capabilities().why_no_control() {
            return Some(why);
        }
        if let Some(error) = &self.denied {
            return Some(format!("observing only: {error}"));
        }
        if let Some(foreign) = &self.foreign {
            return Some(format!(
                "somebody else set it to {} at {}; wattune leaves it alone until its job ends or a new limit is asked \
                 for with PUT …/power-limit",
                foreign.limit,
                foreign.since.format("%FT%TZ")
            ));
        }
        if let Some((error, since)) = &self.seen.fault {
            return Some(format!("{error} (since {})", since.utc.format("%FT%TZ")));
        }
        // A moment without it is nothing: what is wanted waits for the limit to be read again.
        let missing =
            self.seen.at.and_then(|at| self.seen.limit_availability.missing_longer_than(LASTING, at.monotonic));
        missing.map(|since| {
            let why = match &self.handle.capabilities().limit {
                Err(error) => error.to_string(),
                Ok(()) => "nvmlDeviceGetPowerManagementLimit".into(),
            };
            format!(
                "the driver does not tell the present limit since {} ({why}), so that it could not be given back: nothing \
                 is set",
                since.utc.format("%FT%TZ")
            )
        })
    }

    /// A cap shows only while more than it is asked for. Below it, the last one seen is taken to be there still.
    pub(in crate::controller) fn notice_cap(&mut self) {
        let reading = &self.seen.reading;
        let (Some(requested), Some(enforced)) = (reading.requested, reading.enforced) else { return };
        if enforced < requested && !enforced.same_as(requested) {
            self.cap = Some(enforced);
        } else if self.cap.is_some_and(|cap| requested > cap && !requested.same_as(cap)) {
            self.cap = None;
        }
    }

    /// Takes a cap that does not show for gone, so that the next plan finds out.
    pub fn doubt_cap(&mut self) {
        self.cap = None;
        self.notice_cap();
    }

    /// Compares what the GPU shows with what is wanted of it; with `None`, nothing is.
    pub(in crate::controller) fn compare(&mut self, wanted: Option<PowerLimit>, shown: PowerLimit, now: Now) {
        let Some(wanted) = wanted.filter(|wanted| !wanted.same_as(shown) && !is_rounded(*wanted, shown)) else {
            self.astray = None;
            return;
        };
        let error = self.write_error.clone();
        let before = self.astray.take();
        let (since, looks) = before.map_or((now, 0), |astray| (astray.since, astray.looks));
        self.astray = Some(Astray { since, looks: looks + 1, wanted, shown, error });
    }

    /// Whether what was written in vain has to wait before it is written again.
    pub(in crate::controller) fn waits_to_write_again(&self, now: Now) -> bool {
        let astray = self.astray.as_ref();
        let pause = astray.map(|astray| (now.monotonic.since(astray.since.monotonic) * PART).min(LONGEST));
        pause.is_some_and(|pause| self.asked_within(pause, now))
    }

    /// Why its limit is not as wanted, once that has lasted.
    pub(in crate::controller) fn why_astray(&self, now: Monotonic) -> Option<String> {
        let lasts = |a: &&Astray| a.looks > 2 && now.since(a.since.monotonic) > LASTING;
        let Astray { since, wanted, shown, error, .. } = self.astray.as_ref().filter(lasts)?;
        let why = match error {
            Some(error) => error.to_string(),
            None => "the driver accepts the limit and does not keep it".into(),
        };
        Some(format!(
            "its power limit is {shown} and not {wanted} as wanted, since {}: {why}; it is tried again",
            since.utc.format("%FT%TZ")
        ))
    }

    /// Notes that limits may not be written now.
    pub(in crate::controller) fn deny(&mut self, error: GpuError, at: Monotonic) {
        self.denied = Some(error);
        self.denied_since.get_or_insert(at);
    }

    /// Tries whether limits may be written again where they were not, by writing the limit that is there. Answers whether
    /// that was asked for.
    pub(in crate::controller) fn probe_denial(&mut self, current: PowerLimit, now: Now) -> bool {
        if self.denied.is_none() {
            self.denied_since = None;
            return false;
        }
        let Some(since) = self.denied_since.filter(|_| self.owner.is_some()) else { return false };
        let pause = (now.monotonic.since(since) * PART).max(DENIED_SHORTEST).min(DENIED_LONGEST);
        if self.asked_within(pause, now) {
            return false;
        }
        self.ask(Write::PowerLimit(current), now);
        true
    }

    /// Notes the limit that it shows, the one that was wanted, and what it drew.
    pub(in crate::controller) fn remember(&mut self, wanted: Option<PowerLimit>, now: Now) {
        let (reading, can) = (&self.seen.reading, self.handle.capabilities());
        let answers = self.seen.fault.is_none();
        let limit = reading.enforced.or(reading.requested).filter(|_| answers);
        let told = answers && (can.energy_counter.is_ok() || can.power.is_ok());
        let metered = told.then_some(self.seen.metered.drawn);
        self.history.look(now.utc, LimitState { limit, wanted, job: self.owner.clone() }, metered);
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
