//! Detects a job's own pauses from its progress alone.
//!
//! Compares the intervals between reports at one setting: an interval that took longer than its samples explain, by
//! more than the noise of the other intervals, contains a pause. The interval before it is excluded too, because the
//! pause may have begun there; excluding that interval only if it looks slow would bias the rate.

use super::progress::STALL;

/// Minimum number of intervals for estimating their rate.
pub(super) const FEW: usize = 3;
/// Minimum number of intervals for estimating their noise.
const SOME: usize = 6;
/// Quantile of the rate over all samples, used as first estimate of the rate without pauses.
const UPPER: f64 = 0.75;
/// Standard deviations by which the duration of an interval with a pause exceeds the time that its samples explain.
const DEVIATIONS: f64 = 4.0;
/// Minimum excess ([`DEVIATIONS`]) relative to the interval's duration: if the noise is well known (`LEAST_PART`), and
/// if it is not (`LEAST_PART_OF_SOME`).
pub(super) const LEAST_PART: f64 = 0.05;
pub(super) const LEAST_PART_OF_SOME: f64 = 0.15;
/// Excess that counts as a pause, in durations of one training step: intervals differ by up to one step anyway.
pub(super) const STEP_MARGIN: f64 = 1.2;
/// Smallest training step considered, as a divisor of the samples of a usual interval.
const FINEST_STEP: u32 = 32;
/// Minimum fraction of intervals whose samples are whole multiples of a step, for that step to be accepted.
const LEAST_WHOLE_STEPS: f64 = 0.8;
/// Fraction of intervals that contain reports without progress. From this fraction on, a training step counts as longer
/// than the time between reports.
const LONG_STEPS: f64 = 0.05;
/// Noise relative to an interval's duration above which pauses cannot be detected.
const MOST_NOISE: f64 = 0.5;
/// Minimum ratio of intervals that neither contain a pause nor precede one to intervals with a pause. Below it, pauses
/// cannot be distinguished from training.
const LEAST_BETWEEN: f64 = 0.4;
/// Minimum rate (as a fraction of the previous rate) and minimum duration (in seconds) from which slower work counts as
/// a changed rate instead of a pause.
const CHANGED_RATE: f64 = 0.3;
const CHANGED_S: f64 = 20.0;

/// Samples and duration of one interval between reports.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct IntervalWork {
    /// Duration in seconds.
    pub(super) span: f64,
    /// Samples done.
    pub(super) samples: f64,
    /// True if the interval contains reports without progress.
    pub(super) waited: bool,
}

/// Result of judging the intervals at one setting, with one entry per interval in their order.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Verdict {
    /// True for each interval that took longer than its samples explain.
    pub(super) paused: Vec<bool>,
    /// True for each interval that is excluded because it contains a pause or possibly the beginning of one.
    pub(super) excluded: Vec<bool>,
    /// Samples per second without pauses; `None` while unknown.
    pub(super) rate: Option<f64>,
    /// True if reports are too sparse or too irregular to distinguish pauses from training.
    pub(super) unclear: bool,
    /// Index of the interval from which on work is slower for too long to be a pause; `None` if the rate did not
    /// change.
    pub(super) changed_at: Option<usize>,
}

/// Compares the intervals between a job's reports, all at one setting, and finds those that contain pauses. `known` is
/// the rate of training, in samples per second, from other measurements; `None` if there are none.
pub(super) fn judge(intervals: &[IntervalWork], known: Option<f64>) -> Verdict {
    let count = intervals.iter().filter(|p| p.samples > 0.0).count();
    if count < FEW {
        let slow = |p: &IntervalWork| p.samples <= 0.0 || known.is_some_and(|rate| p.samples < rate * p.span * STALL);
        return Verdict::new(intervals.iter().map(slow).collect(), known);
    }
    // If there are few intervals, all of them may contain pauses; the rate from other measurements reveals that.
    let Some(mut rate) = known.filter(|_| count < SOME).or_else(|| upper_rate(intervals)) else {
        return Verdict::default();
    };
    let typical = typical_span(intervals);
    let quantum = step(intervals);
    let mut paused = vec![false; intervals.len()];
    let mut noise_share = 0.0;
    for _ in 0..12 {
        let excess = |p: &IntervalWork| p.span - p.samples / rate;
        // Pauses only slow down, so only the intervals faster than the mean show the noise alone: half of it, hence 2.
        let squares: f64 = intervals.iter().map(excess).filter(|x| *x < 0.0).map(|x| x * x).sum();
        let training = paused.iter().filter(|p| !**p).count().max(1);
        let deviation = (2.0 * squares / training as f64).sqrt();
        noise_share = if quantum > 0.0 { 0.0 } else { DEVIATIONS * deviation / typical };
        let part = if count < SOME { LEAST_PART_OF_SOME } else { LEAST_PART };
        let slow: Vec<bool> = intervals
            .iter()
            .map(|p| {
                let least = part * p.span.min(4.0 * typical);
                let noise = match quantum > 0.0 {
                    // One step more or less causes most of the apparent noise.
                    true => STEP_MARGIN * quantum / rate + least,
                    false => DEVIATIONS * deviation * (p.span / typical).max(1.0).sqrt(),
                };
                p.samples <= 0.0 || excess(p) > noise.max(least)
            })
            .collect();
        let Some(refined) = rate_without(intervals, &before_pauses(&slow)) else {
            paused = slow;
            break;
        };
        let settled = slow == paused && (refined / rate - 1.0).abs() < 1e-9;
        (rate, paused) = (refined, slow);
        if settled {
            break;
        }
    }
    let changed_at = changed(intervals, &paused, rate);
    let pauses = paused.iter().filter(|p| **p).count() as f64;
    let beside = intervals.len() as f64 - (0..intervals.len()).filter(|i| is_beside(&paused, *i)).count() as f64;
    let unclear = count >= SOME && (noise_share > MOST_NOISE || pauses > 0.0 && beside < LEAST_BETWEEN * pauses);
    Verdict { changed_at, unclear, ..Verdict::new(paused, Some(rate)) }
}

impl Verdict {
    fn new(paused: Vec<bool>, rate: Option<f64>) -> Self {
        Self { excluded: before_pauses(&paused), paused, rate, unclear: false, changed_at: None }
    }
}

/// Returns samples per second over the intervals without a pause.
fn rate_without(intervals: &[IntervalWork], pauses: &[bool]) -> Option<f64> {
    let (mut span, mut done) = (0.0, 0.0);
    for (interval, _) in intervals.iter().zip(pauses).filter(|(_, pauses)| !**pauses) {
        span += interval.span;
        done += interval.samples;
    }
    (done > 0.0).then(|| done / span)
}

fn is_beside(paused: &[bool], place: usize) -> bool {
    paused[place] || paused.get(place + 1) == Some(&true)
}

/// Marks each interval with a pause and the one before it. If that leaves no interval unmarked, marks only those with a
/// pause.
fn before_pauses(paused: &[bool]) -> Vec<bool> {
    let out: Vec<bool> = (0..paused.len()).map(|i| is_beside(paused, i)).collect();
    if out.contains(&false) { out } else { paused.to_vec() }
}

/// Returns the index of the first of the newest intervals, without a break, in which the job was slow but did not
/// pause; `None` if they are too short in all.
fn changed(intervals: &[IntervalWork], paused: &[bool], rate: f64) -> Option<usize> {
    let slow = intervals.iter().zip(paused).rev();
    let run = slow.take_while(|(p, slow)| **slow && p.samples > CHANGED_RATE * rate * p.span).count();
    let start = intervals.len() - run;
    let span: f64 = intervals[start..].iter().map(|p| p.span).sum();
    (run >= SOME && start > 0 && span >= CHANGED_S).then_some(start)
}

/// Returns the rate below which three quarters of all samples were done. Weighting by samples keeps the estimate useful
/// even if most intervals contain pauses.
fn upper_rate(intervals: &[IntervalWork]) -> Option<f64> {
    let mut rates: Vec<(f64, f64)> =
        intervals.iter().filter(|p| p.samples > 0.0 && p.span > 0.0).map(|p| (p.samples / p.span, p.samples)).collect();
    rates.sort_by(|a, b| a.0.total_cmp(&b.0));
    let all: f64 = rates.iter().map(|r| r.1).sum();
    let mut below = 0.0;
    rates.into_iter().find_map(|(rate, done)| {
        below += done;
        (below >= all * UPPER).then_some(rate)
    })
}

/// Returns the median duration of the intervals in seconds.
fn typical_span(intervals: &[IntervalWork]) -> f64 {
    let mut spans: Vec<f64> = intervals.iter().map(|p| p.span).collect();
    spans.sort_by(f64::total_cmp);
    spans.get(spans.len() / 2).copied().unwrap_or(0.0).max(f64::MIN_POSITIVE)
}

/// Returns the samples per training step if intervals contain few and varying numbers of whole steps, else 0.
pub(super) fn step(intervals: &[IntervalWork]) -> f64 {
    let mut done: Vec<f64> = intervals.iter().map(|p| p.samples).filter(|d| *d > 0.0).collect();
    done.sort_by(f64::total_cmp);
    let Some(usual) = done.get(done.len() / 2).copied() else { return 0.0 };
    let is_whole = |of: f64| move |d: &f64| ((d / of) - (d / of).round()).abs() < 1e-6;
    let whole = |of: f64| done.iter().copied().filter(is_whole(of)).collect::<Vec<f64>>();
    let steps = (1..=FINEST_STEP).map(|n| (usual / f64::from(n), whole(usual / f64::from(n))));
    // A finer step must match many more intervals, because the last step of an epoch may have any size.
    let more = done.len() / 10;
    let best = steps.reduce(|best, next| if next.1.len() > best.1.len() + more { next } else { best });
    let Some((step, whole)) = best.filter(|(_, whole)| whole.len() as f64 >= LEAST_WHOLE_STEPS * done.len() as f64)
    else {
        return 0.0;
    };
    let equal = whole.iter().all(|d| (d - usual).abs() < step * 0.5);
    let waited = intervals.iter().filter(|p| p.waited).count() as f64;
    if equal && waited < LONG_STEPS * intervals.len() as f64 { 0.0 } else { step }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_more_or_less_is_no_pause() {
        // 15 or 16 steps of 128 samples in five seconds: 400 samples per second.
        let mut reported = 0.0;
        let mut interval = |n: i32| {
            let shown = (f64::from(n) * 5.0 * 400.0 / 128.0).floor() * 128.0;
            let done = shown - std::mem::replace(&mut reported, shown);
            IntervalWork { span: 5.0, samples: done, waited: false }
        };
        let intervals: Vec<IntervalWork> = (1..40).map(&mut interval).collect();
        let verdict = judge(&intervals, None);
        assert!(!verdict.paused.contains(&true) && !verdict.unclear, "{verdict:?}");
        assert!(verdict.rate.is_some_and(|rate| (rate / 400.0 - 1.0).abs() < 0.005), "{:?}", verdict.rate);
    }
}
