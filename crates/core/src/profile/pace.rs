//! Tells stretches of training from those that hold a pause of the job's own, by their progress alone.
//!
//! Stretches at one setting are compared with each other: one that took longer than its work explains, by more than the
//! noise of the others, holds a pause. The stretch before it belongs to the pause too, as the pause may have begun within
//! it: leaving it in because it looks normal, or out because it does not, would bias the rate.

use super::progress::STALL;

/// Fewer stretches than this say nothing of their own rate.
pub(super) const FEW: usize = 3;
/// Fewer than this say little of their noise.
const SOME: usize = 6;
/// This share of all samples was done more slowly than the first guess of the rate without pauses.
const UPPER: f64 = 0.75;
/// A stretch holds a pause if it is longer than its work explains by more than this many standard deviations.
const DEVIATIONS: f64 = 4.0;
/// And by more than this part of it, where noise is known or hardly known.
pub(super) const LEAST_PART: f64 = 0.05;
pub(super) const LEAST_PART_OF_SOME: f64 = 0.15;
/// A whole step more or less per stretch is no pause; a little more than that.
pub(super) const STEP_MARGIN: f64 = 1.2;
/// Steps of less than one part in this many of a usual stretch make no difference.
const FINEST_STEP: u32 = 32;
/// Stretches hold whole steps if this share of them does.
const MOST_STEPS: f64 = 0.8;
/// This share of stretches with reports without progress shows that steps are longer than the time between reports.
const LONG_STEPS: f64 = 0.05;
/// Noise that hides pauses of more than this part of a usual stretch makes the split unclear.
const MOST_NOISE: f64 = 0.5;
/// Fewer stretches per pause than this without it do too.
const LEAST_BETWEEN: f64 = 0.4;
/// Slower work than before, at more than the first part of the rate, is no pause but a new rate once it lasts that long,
/// in so many stretches without a faster one.
const CHANGED_RATE: f64 = 0.3;
const CHANGED_S: f64 = 20.0;

/// Work and time of one stretch, with what its setting is known to do.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Pace {
    /// Seconds.
    pub(super) span: f64,
    /// Samples.
    pub(super) done: f64,
    /// Whether reports without progress lie within it.
    pub(super) waited: bool,
}

/// The verdict on stretches at one setting, in their order.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Verdict {
    /// Whether each took longer than its work explains.
    pub(super) paused: Vec<bool>,
    /// Whether each says nothing of the setting: it holds a pause, or may hold the beginning of one.
    pub(super) left_out: Vec<bool>,
    /// Samples per second without pauses; `None` while too little is known.
    pub(super) rate: Option<f64>,
    /// Whether reports are too far apart, or too unlike, to tell pauses from training.
    pub(super) unclear: bool,
    /// Where slower work begins that lasts too long to be a pause.
    pub(super) changed_at: Option<usize>,
}

/// Judges stretches at one setting; `known` is the rate there that is known otherwise, if any.
pub(super) fn judge(paces: &[Pace], known: Option<f64>) -> Verdict {
    let count = paces.iter().filter(|p| p.done > 0.0).count();
    if count < FEW {
        let slow = |p: &Pace| p.done <= 0.0 || known.is_some_and(|rate| p.done < rate * p.span * STALL);
        return Verdict::new(paces.iter().map(slow).collect(), known);
    }
    // Few stretches may all hold pauses; what is known from before shows it.
    let Some(mut rate) = known.filter(|_| count < SOME).or_else(|| upper_rate(paces)) else {
        return Verdict::default();
    };
    let typical = typical_span(paces);
    let quantum = step(paces);
    let mut paused = vec![false; paces.len()];
    let mut noise_share = 0.0;
    for _ in 0..12 {
        let excess = |p: &Pace| p.span - p.done / rate;
        // What is faster than the mean shows the noise alone, and half of it: pauses only make slower.
        let squares: f64 = paces.iter().map(excess).filter(|x| *x < 0.0).map(|x| x * x).sum();
        let training = paused.iter().filter(|p| !**p).count().max(1);
        let deviation = (2.0 * squares / training as f64).sqrt();
        noise_share = if quantum > 0.0 { 0.0 } else { DEVIATIONS * deviation / typical };
        let part = if count < SOME { LEAST_PART_OF_SOME } else { LEAST_PART };
        let slow: Vec<bool> = paces
            .iter()
            .map(|p| {
                let least = part * p.span.min(4.0 * typical);
                let noise = match quantum > 0.0 {
                    // Whole steps more or less are most of what looks like noise.
                    true => STEP_MARGIN * quantum / rate + least,
                    false => DEVIATIONS * deviation * (p.span / typical).max(1.0).sqrt(),
                };
                p.done <= 0.0 || excess(p) > noise.max(least)
            })
            .collect();
        let Some(refined) = rate_without(paces, &before_pauses(&slow)) else {
            paused = slow;
            break;
        };
        let settled = slow == paused && (refined / rate - 1.0).abs() < 1e-9;
        (rate, paused) = (refined, slow);
        if settled {
            break;
        }
    }
    let changed_at = changed(paces, &paused, rate);
    let pauses = paused.iter().filter(|p| **p).count() as f64;
    let beside = paces.len() as f64 - (0..paces.len()).filter(|i| is_beside(&paused, *i)).count() as f64;
    let unclear = count >= SOME && (noise_share > MOST_NOISE || pauses > 0.0 && beside < LEAST_BETWEEN * pauses);
    Verdict { changed_at, unclear, ..Verdict::new(paused, Some(rate)) }
}

impl Verdict {
    fn new(paused: Vec<bool>, rate: Option<f64>) -> Self {
        Self { left_out: before_pauses(&paused), paused, rate, unclear: false, changed_at: None }
    }
}

/// Samples per second in stretches that hold no pause.
fn rate_without(paces: &[Pace], pauses: &[bool]) -> Option<f64> {
    let (mut span, mut done) = (0.0, 0.0);
    for (pace, _) in paces.iter().zip(pauses).filter(|(_, pauses)| !**pauses) {
        span += pace.span;
        done += pace.done;
    }
    (done > 0.0).then(|| done / span)
}

fn is_beside(paused: &[bool], place: usize) -> bool {
    paused[place] || paused.get(place + 1) == Some(&true)
}

/// Each stretch that holds a pause, and the one before it, in which the pause may have begun. If that leaves none, as
/// pauses are frequent and reports are not, only those that show a pause.
fn before_pauses(paused: &[bool]) -> Vec<bool> {
    let out: Vec<bool> = (0..paused.len()).map(|i| is_beside(paused, i)).collect();
    if out.contains(&false) { out } else { paused.to_vec() }
}

/// Where the newest stretches begin that are all slow without standing still, for long.
fn changed(paces: &[Pace], paused: &[bool], rate: f64) -> Option<usize> {
    let slow = paces.iter().zip(paused).rev();
    let run = slow.take_while(|(p, slow)| **slow && p.done > CHANGED_RATE * rate * p.span).count();
    let start = paces.len() - run;
    let span: f64 = paces[start..].iter().map(|p| p.span).sum();
    (run >= SOME && start > 0 && span >= CHANGED_S).then_some(start)
}

/// The rate that a quarter of all samples were done above: stretches that hold little work hardly count, and most may hold
/// pauses.
fn upper_rate(paces: &[Pace]) -> Option<f64> {
    let mut rates: Vec<(f64, f64)> =
        paces.iter().filter(|p| p.done > 0.0 && p.span > 0.0).map(|p| (p.done / p.span, p.done)).collect();
    rates.sort_by(|a, b| a.0.total_cmp(&b.0));
    let all: f64 = rates.iter().map(|r| r.1).sum();
    let mut below = 0.0;
    rates.into_iter().find_map(|(rate, done)| {
        below += done;
        (below >= all * UPPER).then_some(rate)
    })
}

/// The median length of stretches, in seconds.
fn typical_span(paces: &[Pace]) -> f64 {
    let mut spans: Vec<f64> = paces.iter().map(|p| p.span).collect();
    spans.sort_by(f64::total_cmp);
    spans.get(spans.len() / 2).copied().unwrap_or(0.0).max(f64::MIN_POSITIVE)
}

/// Samples of one step where stretches hold only a few whole steps, and not always equally many per time; 0 where that
/// makes no difference.
pub(super) fn step(paces: &[Pace]) -> f64 {
    let mut done: Vec<f64> = paces.iter().map(|p| p.done).filter(|d| *d > 0.0).collect();
    done.sort_by(f64::total_cmp);
    let Some(usual) = done.get(done.len() / 2).copied() else { return 0.0 };
    let is_whole = |of: f64| move |d: &f64| ((d / of) - (d / of).round()).abs() < 1e-6;
    let whole = |of: f64| done.iter().copied().filter(is_whole(of)).collect::<Vec<f64>>();
    let steps = (1..=FINEST_STEP).map(|n| (usual / f64::from(n), whole(usual / f64::from(n))));
    // A finer step must explain many more: the last one of an epoch may be of any size.
    let more = done.len() / 10;
    let best = steps.reduce(|best, next| if next.1.len() > best.1.len() + more { next } else { best });
    let Some((step, whole)) = best.filter(|(_, whole)| whole.len() as f64 >= MOST_STEPS * done.len() as f64) else {
        return 0.0;
    };
    let equal = whole.iter().all(|d| (d - usual).abs() < step * 0.5);
    let waited = paces.iter().filter(|p| p.waited).count() as f64;
    if equal && waited < LONG_STEPS * paces.len() as f64 { 0.0 } else { step }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_more_or_less_is_no_pause() {
        // 15 or 16 steps of 128 samples in five seconds: 400 samples per second.
        let mut reported = 0.0;
        let mut pace = |n: i32| {
            let shown = (f64::from(n) * 5.0 * 400.0 / 128.0).floor() * 128.0;
            let done = shown - std::mem::replace(&mut reported, shown);
            Pace { span: 5.0, done, waited: false }
        };
        let paces: Vec<Pace> = (1..40).map(&mut pace).collect();
        let verdict = judge(&paces, None);
        assert!(!verdict.paused.contains(&true) && !verdict.unclear, "{verdict:?}");
        assert!(verdict.rate.is_some_and(|rate| (rate / 400.0 - 1.0).abs() < 0.005), "{:?}", verdict.rate);
    }
}
