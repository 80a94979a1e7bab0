//! Time that a job has lost to lower limits, and time that its promises (deadline, maximum slowdown) allow it to lose.

use super::job::{Group, Job};
use wattune_core::domain::{PowerLimit, Promise, Work};
use wattune_core::profile::steps::Setting;
use wattune_core::profile::{Slack, reserve};
use wattune_core::time::Now;
use wattune_core::units::{Samples, SamplesPerSecond, Seconds};

/// Minimum number of reports that a job must send over its life to be slowed down. With fewer reports, wattune would
/// notice too late whether the job pauses by itself or is slow.
const FEWEST_REPORTS: f64 = 40.0;
/// Time between two reports that is assumed until a job has sent two.
const ASSUMED_SPACING: Seconds = Seconds::new(30.0);

impl Job {
    /// Returns the throughput that the slowdown refers to; `None` until it was measured.
    pub(in crate::controller) fn reference(&self) -> Option<SamplesPerSecond> {
        self.profile().reference()
    }

    /// Returns the slowdown so far against the maximum usable limit: 0.03 is 3 %. `None` unless the slowdown is known
    /// to within 0.3 percentage points.
    pub(in crate::controller) fn slowdown(&self) -> Option<f64> {
        let error = self.profile().ceiling()?.throughput.relative_error;
        self.progress.account.known_slowdown(self.reference()?, error)
    }

    /// Returns first the time that all work from the first report on takes at the reference throughput, and second
    /// true. If the total work is unknown, returns the time that the work done so far takes, and false.
    fn reference_duration(&self, reference: SamplesPerSecond) -> (Seconds, bool) {
        match self.spec.work {
            Work::TotalSamples(total) => {
                let all = (total - Samples::new(self.progress.first_samples)).max(Samples::ZERO);
                (self.progress.account.reference_time(all, reference), true)
            }
            Work::Unknown => (self.reference_time(reference), false),
        }
    }

    /// Returns the time that the work done so far takes at the reference throughput.
    fn reference_time(&self, reference: SamplesPerSecond) -> Seconds {
        self.progress.account.reference_time(self.progress.account.samples, reference)
    }

    /// Returns the fraction of the job's time that plans leave unspent because the reference throughput has an error.
    /// Returns 1 if the job's reports are too few, or if too much of its time may be either training or pauses; 0 until
    /// the reference is measured.
    pub(in crate::controller) fn reserve(&self) -> f64 {
        let Some((reference, profiler)) = self.reference().zip(self.profiler.as_ref()) else { return 0.0 };
        let (reference_duration, is_known) = self.reference_duration(reference);
        let few = is_known && reference_duration < profiler.spacing().unwrap_or(ASSUMED_SPACING) * FEWEST_REPORTS;
        if few || self.progress.account.is_unclear() {
            return 1.0;
        }
        let error = profiler.profile().ceiling().map_or(1.0, |p| p.throughput.relative_error);
        reserve(error, profiler.noise_at(profiler.ceiling()).as_ref(), reference_duration)
    }

    /// Returns the part of the job's maximum slowdown that plans leave unspent: [`Self::reserve`] and, while a temporary cap
    /// lowers the ceilings (maximum usable limits), the slack that the job would no longer have if the cap ended now.
    pub(in crate::controller) fn planned_reserve(&self) -> f64 {
        let reserve = self.reserve();
        let max_slowdown = self.spec.objective.promises().find_map(|promise| match promise {
            Promise::Slowdown(max) => Some(max),
            _ => None,
        });
        max_slowdown.map_or(reserve, |max| max - (max - reserve).max(0.0) * self.shortest_part())
    }

    /// Returns the time that all work takes if the node's cap is lifted now, as a fraction of the time that it takes at
    /// the present ceilings; 1 if no cap lowers these, or if the total work is unknown. Until the throughput at the full
    /// ceilings is measured, it counts as proportional to the limits less half of the lowest limit: of 1,391 limits
    /// below the highest in Zeus's power traces, the throughput at the highest is more for seven, by 3 % at most.
    fn shortest_part(&self) -> f64 {
        let Some(reference) = self.reference().filter(|_| self.progress.has_lowered_ceilings) else { return 1.0 };
        let (duration, is_known) = self.reference_duration(reference);
        if !is_known || duration <= Seconds::ZERO {
            return 1.0;
        }
        let full: Setting = self.full_ceilings.iter().map(|limit| (*limit).into()).collect();
        let measured = self.profiler.as_ref().and_then(|profiler| profiler.evidence(&full)).map(|at| at.throughput);
        // A job is as fast as its slowest group of GPUs.
        let of_group = |(group, full): (&Group, &PowerLimit)| {
            let base = group.range.min.watts() * 0.5;
            (group.range.ceiling.watts() - base) / (full.watts() - base)
        };
        let by_limits = || self.groups.iter().zip(&self.full_ceilings).map(of_group).fold(1.0, f64::min);
        let faster =
            measured.filter(|rate| *rate > SamplesPerSecond::ZERO).map_or_else(by_limits, |rate| reference / rate);
        let done = self.reference_time(reference).min(duration);
        (done + (duration - done) * faster.min(1.0)) / duration
    }

    /// Returns the expected time of the job's own pauses in its remaining work; zero while the work or the reference
    /// throughput is unknown.
    pub(in crate::controller) fn pauses_ahead(&self) -> Seconds {
        let Some((left, reference)) = self.remaining().zip(self.reference()) else { return Seconds::ZERO };
        self.progress.account.pauses_ahead(left / reference, reference)
    }

    /// Returns the time that the job may lose to lower limits and the time that it has lost to them; `None` without a
    /// promise about time (deadline or maximum slowdown).
    pub(in crate::controller) fn slack(&self, now: Now) -> Option<Slack> {
        let objective = &self.spec.objective;
        if !objective.bounds_time() {
            return None;
        }
        let nothing = Slack { allowed: Seconds::ZERO, lost: Seconds::ZERO, full_duration: None, part: 0.0 };
        let Some(reference) = self.reference() else { return Some(nothing) };
        let (reference_duration, is_known) = self.reference_duration(reference);
        let (reserve, lost) = (self.reserve(), self.progress.account.lost_time(reference));
        let allowed = objective.promises().filter_map(|promise| match promise {
            Promise::Slowdown(max) => Some(reference_duration * (max - self.planned_reserve()).max(0.0)),
            Promise::Deadline(at) => {
                let needed = self.remaining()? / reference * (1.0 + reserve);
                Some(lost + Seconds::from_delta(at - now.utc) - needed - self.pauses_ahead())
            }
            _ => None,
        });
        let allowed = allowed.reduce(Seconds::min)?;
        let part = if reference_duration > Seconds::ZERO { (allowed / reference_duration).max(0.0) } else { 0.0 };
        Some(Slack { allowed, lost, full_duration: is_known.then_some(reference_duration), part })
    }

    /// Returns the time within which the rest of the work must be done if the slowdown over the job's life is to stay
    /// within `max_slowdown`; negative if that is no longer possible. `None` if the total work or the reference
    /// throughput is unknown.
    pub(in crate::controller) fn time_left(&self, max_slowdown: f64, now: Now) -> Option<Seconds> {
        let (reference_duration, is_known) = self.reference_duration(self.reference()?);
        let (_, elapsed) = self.progress_now(now);
        is_known.then_some(reference_duration * (1.0 + max_slowdown) - elapsed)
    }

    /// Passes the job's slack (time that it may still lose) to the profiler, whose measurements at lower limits cost
    /// time.
    pub(in crate::controller) fn allow_learning(&mut self, now: Now) {
        let slack = self.slack(now);
        if let Some(profiler) = &mut self.profiler {
            profiler.allow(slack);
        }
    }

    /// Returns the slowdown over the job's life if no more time is lost to lower limits from now on; `None` if the
    /// total work or the reference throughput is unknown.
    pub(super) fn least_slowdown(&self) -> Option<f64> {
        let reference = self.reference()?;
        let (reference_duration, is_known) = self.reference_duration(reference);
        self.slowdown_over(reference_duration).filter(|_| is_known)
    }

    /// Returns the slowdown over all work done; `None` if wattune did not control the job or measured no reference.
    pub(super) fn final_slowdown(&self) -> Option<f64> {
        self.slowdown_over(self.reference_time(self.reference()?)).filter(|_| self.controls())
    }

    /// Returns the time that the job has lost to lower limits, as a fraction of `time`, which is the time that some
    /// work takes at the reference throughput.
    fn slowdown_over(&self, time: Seconds) -> Option<f64> {
        let lost = self.progress.account.lost_time(self.reference()?);
        (time > Seconds::ZERO).then(|| lost / time)
    }
}
