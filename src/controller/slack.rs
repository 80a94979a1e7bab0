//! What a job may still lose to lower limits, by its promises about time, and by how much one is broken.

use super::job::Job;
use crate::clock::Now;
use crate::domain::Work;
use crate::profile::{Slack, reserve};
use crate::units::{Samples, SamplesPerSecond, Seconds};

/// Losses above what is allowed by less than this part of the job's time are rounding.
const ROUNDING: f64 = 1e-4;

impl Job {
    /// The throughput at the reference setting, r(l_max), once it was measured.
    pub(super) fn reference(&self) -> Option<SamplesPerSecond> {
        let rate = self.profile().ceiling()?.throughput.mean;
        (rate > SamplesPerSecond::ZERO).then_some(rate)
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

    /// The part of its time that plans leave unspent, since its speed at the reference is known with an error only.
    pub(super) fn reserve(&self) -> f64 {
        let Some((reference, profiler)) = self.reference().zip(self.profiler.as_ref()) else { return 0.0 };
        let error = profiler.profile().ceiling().map_or(1.0, |p| p.throughput.relative_error);
        reserve(error, profiler.noise_at(profiler.ceiling()).as_ref(), self.whole(reference).0)
    }

    /// What it may lose to lower limits in all, and lost so far; `None` where it promises nothing about time.
    pub(super) fn slack(&self, now: Now) -> Option<Slack> {
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
    pub(super) fn allow_learning(&mut self, now: Now) {
        let slack = self.slack(now);
        if let Some(profiler) = &mut self.profiler {
            profiler.allow(slack);
        }
    }

    /// By how much the slowdown that was promised is exceeded whatever comes, in one sentence.
    pub(super) fn overrun(&self) -> Option<String> {
        let max = self.spec.objective.max_slowdown?;
        let reference = self.reference()?;
        let (whole, is_known) = self.whole(reference);
        let lost = self.progress.account.lost().time(reference);
        let over = lost - whole * max;
        (is_known && over > whole * ROUNDING).then(|| {
            format!(
                "lower limits have cost {:.1} s and the promise of {:.1} % allows {:.1} s: the job will be {:.2} points \
                 slower than allowed",
                lost.get(),
                100.0 * max,
                (whole * max).get(),
                100.0 * (over / whole)
            )
        })
    }
}
