//! What a job may still lose to lower limits, by its promises about time, and by how much one is broken.

use super::job::Job;
use wattune_core::domain::{OperatingPoint, Work};
use wattune_core::profile::{Slack, reserve};
use wattune_core::time::Now;
use wattune_core::units::{Points, Samples, SamplesPerSecond, Seconds};

/// With fewer reports than this in all, pauses of a job's own cannot be told from slowness in time: it is not slowed.
const FEWEST_REPORTS: f64 = 40.0;
/// The time between two reports before the second one has come.
const ASSUMED_SPACING: Seconds = Seconds::new(30.0);
/// A lower setting that is faster than the highest by more than this many of its standard errors shows that the highest
/// was measured too slow.
const FASTER: f64 = 2.0;
/// Losses above what is allowed by less than this part of the job's time are rounding.
const ROUNDING: f64 = 1e-4;

impl Job {
    /// The throughput at the reference setting, r(l_max), once it was measured: no less than what lower settings
    /// certainly do, since none is faster.
    pub(in crate::controller) fn reference(&self) -> Option<SamplesPerSecond> {
        let profile = self.profile();
        let least = |p: &OperatingPoint| p.throughput.mean * (1.0 - FASTER * p.throughput.relative_error).max(0.0);
        let rate = profile.points.iter().map(least).fold(profile.ceiling()?.throughput.mean, SamplesPerSecond::max);
        (rate > SamplesPerSecond::ZERO).then_some(rate)
    }

    /// By how much it is slower so far than at the ceiling: 0.03 is 3 %. `None` while that is not known within 0.3 points.
    pub(in crate::controller) fn slowdown(&self) -> Option<f64> {
        let error = self.profile().ceiling()?.throughput.relative_error;
        self.progress.account.known_slowdown(self.reference()?, error)
    }

    /// The time that all of its work since the registration takes at the reference; of unknown work, what was done.
    fn whole(&self, reference: SamplesPerSecond) -> (Seconds, bool) {
        match self.spec.work {
            Work::TotalSamples(total) => {
                ((total - Samples::new(self.progress.first_samples)).max(Samples::ZERO) / reference, true)
            }
            Work::Unknown => (self.progress.account.samples / reference, false),
        }
    }

    /// The part of its time that plans leave unspent, since its speed at the reference is known with an error only: all of
    /// it where its reports are too few, or its pauses cannot be told from training.
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

    /// What it may lose to lower limits in all, and lost so far; `None` where it promises nothing about time.
    pub(in crate::controller) fn slack(&self, now: Now) -> Option<Slack> {
        let objective = &self.spec.objective;
        if objective.max_slowdown.is_none() && objective.deadline.is_none() {
            return None;
        }
        let nothing = Slack { allowed: Seconds::ZERO, lost: Seconds::ZERO, whole: None, part: 0.0 };
        let Some(reference) = self.reference() else { return Some(nothing) };
        let (whole, is_known) = self.whole(reference);
        let (reserve, lost) = (self.reserve(), self.progress.account.lost().time(reference));
        let by_slowdown = objective.max_slowdown.map(|max| whole * (max - reserve).max(0.0));
        let by_deadline = objective
            .deadline
            .zip(self.remaining())
            .map(|(at, left)| lost + Seconds::from_delta(at - now.utc) - left / reference * (1.0 + reserve));
        let allowed = by_slowdown.into_iter().chain(by_deadline).reduce(Seconds::min)?;
        let part = if whole > Seconds::ZERO { (allowed / whole).max(0.0) } else { 0.0 };
        Some(Slack { allowed, lost, whole: is_known.then_some(whole), part })
    }

    /// Tells the profiler what learning may cost now.
    pub(in crate::controller) fn allow_learning(&mut self, now: Now) {
        let slack = self.slack(now);
        if let Some(profiler) = &mut self.profiler {
            profiler.allow(slack);
        }
    }

    /// By how much the slowdown that was promised was exceeded by all that it did, in one sentence.
    pub(in crate::controller) fn overran(&self) -> Option<String> {
        let max = self.spec.objective.max_slowdown.filter(|_| self.spec.control)?;
        let done = self.progress.account.samples / self.reference()?;
        let lost = self.progress.account.lost().time(self.reference()?);
        let over = lost - done * max;
        (over > done * ROUNDING).then(|| {
            format!(
                "lower limits cost {:.1} s where {:.1} % of the work done allowed {:.1} s: it was {} slower than \
                 allowed",
                lost.get(),
                100.0 * max,
                (done * max).get(),
                Points(over / done)
            )
        })
    }

    /// By how much the slowdown that was promised is exceeded whatever comes, in one sentence.
    pub(in crate::controller) fn overrun(&self) -> Option<String> {
        let max = self.spec.objective.max_slowdown?;
        let reference = self.reference()?;
        let (whole, is_known) = self.whole(reference);
        let lost = self.progress.account.lost().time(reference);
        let over = lost - whole * max;
        (is_known && over > whole * ROUNDING).then(|| {
            format!(
                "lower limits have cost {:.1} s and the promise of {:.1} % allows {:.1} s: the job will be {} \
                 slower than allowed",
                lost.get(),
                100.0 * max,
                (whole * max).get(),
                Points(over / whole)
            )
        })
    }
}
