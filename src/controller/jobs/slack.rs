//! Time that a job has lost to lower limits, and may still lose by its promises.

use super::job::Job;
use wattune_core::domain::{OperatingPoint, Promise, Work};
use wattune_core::profile::{Slack, reserve};
use wattune_core::time::Now;
use wattune_core::units::{Samples, SamplesPerSecond, Seconds};

/// Minimum number of reports over a job's life: with fewer, its own pauses cannot be distinguished from slowness in time,
/// and it is not slowed.
const FEWEST_REPORTS: f64 = 40.0;
/// Time between two reports assumed before the second one.
const ASSUMED_SPACING: Seconds = Seconds::new(30.0);
/// Standard errors by which a lower setting must be faster than the highest to show that the highest was measured too
/// slow.
const FASTER: f64 = 2.0;

impl Job {
    /// Returns the throughput at the reference setting, r(l_max), once it was measured: no less than what lower settings
    /// certainly do, since none is faster.
    pub(in crate::controller) fn reference(&self) -> Option<SamplesPerSecond> {
        let profile = self.profile();
        let least = |p: &OperatingPoint| p.throughput.mean * (1.0 - FASTER * p.throughput.relative_error).max(0.0);
        let rate = profile.points.iter().map(least).fold(profile.ceiling()?.throughput.mean, SamplesPerSecond::max);
        (rate > SamplesPerSecond::ZERO).then_some(rate)
    }

    /// Returns the slowdown so far against the ceiling: 0.03 is 3 %. `None` unless it is known within 0.3 percentage
    /// points.
    pub(in crate::controller) fn slowdown(&self) -> Option<f64> {
        let error = self.profile().ceiling()?.throughput.relative_error;
        self.progress.account.known_slowdown(self.reference()?, error)
    }

    /// Returns the time of all work since the registration at the reference, and true; of unknown work that of the work
    /// done, and false.
    fn whole(&self, reference: SamplesPerSecond) -> (Seconds, bool) {
        match self.spec.work {
            Work::TotalSamples(total) => {
                ((total - Samples::new(self.progress.first_samples)).max(Samples::ZERO) / reference, true)
            }
            Work::Unknown => (self.progress.account.samples / reference, false),
        }
    }

    /// Returns the part of its time that plans leave unspent because the reference has an error: 1 where its reports are
    /// too few or its pauses cannot be distinguished from training.
    pub(in crate::controller) fn reserve(&self) -> f64 {
        let Some((reference, profiler)) = self.reference().zip(self.profiler.as_ref()) else { return 0.0 };
        let (whole, is_known) = self.whole(reference);
        let few = is_known && whole < profiler.spacing().unwrap_or(ASSUMED_SPACING) * FEWEST_REPORTS;
        if few || self.progress.account.is_unclear() {
            return 1.0;
        }
        let error = profiler.profile().ceiling().map_or(1.0, |p| p.throughput.relative_error);
        reserve(error, profiler.noise_at(profiler.ceiling()).as_ref(), whole)
    }

    /// Returns the time that it may lose to lower limits in all, and lost so far; `None` without promises about time.
    pub(in crate::controller) fn slack(&self, now: Now) -> Option<Slack> {
        let objective = &self.spec.objective;
        if !objective.bounds_time() {
            return None;
        }
        let nothing = Slack { allowed: Seconds::ZERO, lost: Seconds::ZERO, whole: None, part: 0.0 };
        let Some(reference) = self.reference() else { return Some(nothing) };
        let (whole, is_known) = self.whole(reference);
        let (reserve, lost) = (self.reserve(), self.progress.account.lost().time(reference));
        let allowed = objective.promises().filter_map(|promise| match promise {
            Promise::Slowdown(max) => Some(whole * (max - reserve).max(0.0)),
            Promise::Deadline(at) => {
                let needed = self.remaining()? / reference * (1.0 + reserve);
                Some(lost + Seconds::from_delta(at - now.utc) - needed)
            }
            _ => None,
        });
        let allowed = allowed.reduce(Seconds::min)?;
        let part = if whole > Seconds::ZERO { (allowed / whole).max(0.0) } else { 0.0 };
        Some(Slack { allowed, lost, whole: is_known.then_some(whole), part })
    }

    /// Passes the slack to the profiler, which spends it on learning.
    pub(in crate::controller) fn allow_learning(&mut self, now: Now) {
        let slack = self.slack(now);
        if let Some(profiler) = &mut self.profiler {
            profiler.allow(slack);
        }
    }

    /// Returns the slowdown over its life if no more time is lost to lower limits; `None` for unknown work.
    pub(super) fn least_slowdown(&self) -> Option<f64> {
        let reference = self.reference()?;
        let (whole, is_known) = self.whole(reference);
        self.slowdown_over(whole).filter(|_| is_known)
    }

    /// Returns the slowdown of all that it did; `None` where wattune did not control it.
    pub(super) fn final_slowdown(&self) -> Option<f64> {
        self.slowdown_over(self.progress.account.samples / self.reference()?).filter(|_| self.spec.control)
    }

    /// Returns the time lost to lower limits as a part of a time at the reference.
    fn slowdown_over(&self, time: Seconds) -> Option<f64> {
        let lost = self.progress.account.lost().time(self.reference()?);
        (time > Seconds::ZERO).then(|| lost / time)
    }
}
