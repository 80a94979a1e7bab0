//! Finds pauses of a job's own (evaluation, checkpoint, input) in its progress, and splits time and energy at them.
//!
//! The unit is a stretch: the time between two reports at which samples had grown. Reports without progress extend it,
//! so that a pause begins at the last sample before it, whatever was reported meanwhile. Stretches at one setting are
//! compared with each other: one that took longer than its work explains, by more than the noise of the others, holds
//! a pause. The stretch before it belongs to the pause too, as the pause may have begun within it: leaving it in
//! because it looks normal, or out because it does not, would bias the rate.

use std::collections::VecDeque;

use super::ladder::{GroupRange, Setting};
use super::progress::{ProgressAccount, STALL};
use super::slack::Lost;
use crate::clock::Monotonic;
use crate::units::{Joules, Samples, SamplesPerSecond, Seconds, Watts};

/// Stretches that are kept and judged again with each new one.
const KEPT: usize = 48;
/// Fewer stretches than this say nothing of their own rate.
pub(super) const FEW: usize = 3;
/// Fewer than this say little of their noise.
const SOME: usize = 6;
/// This share of all samples was done more slowly than the first guess of the rate without pauses.
const UPPER: f64 = 0.75;
/// A stretch holds a pause if it is longer than its work explains by more than this many standard deviations.
const DEVIATIONS: f64 = 4.0;
/// And by more than this part of it, where noise is known or hardly known.
const LEAST_PART: f64 = 0.05;
const LEAST_PART_OF_SOME: f64 = 0.15;
/// A whole step more or less per stretch is no pause; a little more than that.
const STEP_MARGIN: f64 = 1.2;
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
/// Of the mean power in a pause over the limit: from here on the limit lowers it.
const BOUND: f64 = 0.95;

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
fn step(paces: &[Pace]) -> f64 {
    let mut done: Vec<f64> = paces.iter().map(|p| p.done).filter(|d| *d > 0.0).collect();
    done.sort_by(f64::total_cmp);
    let Some(usual) = done.get(done.len() / 2).copied() else { return 0.0 };
    let is_whole = |of: f64| move |d: &f64| ((d / of) - (d / of).round()).abs() < 1e-6;
    let whole = |of: f64| done.iter().copied().filter(is_whole(of)).collect::<Vec<f64>>();
    let steps = (1..=8).map(|n| (usual / f64::from(n), whole(usual / f64::from(n))));
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

/// A rate and a power that are known of a setting.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Known {
    /// Samples per second of the whole job.
    pub throughput: SamplesPerSecond,
    /// Average power of all its GPUs together.
    pub power: Watts,
}

/// Time between two reports at which samples had grown.
#[derive(Clone, Debug, Default)]
struct Stretch {
    span: Seconds,
    done: Samples,
    /// Time in which the job was asked to do no work.
    idle: Seconds,
    waited: bool,
    /// Energy of all GPUs; `None` where some of it is not known.
    energy: Option<Joules>,
    /// The settings in force, with the time that each was.
    settings: Vec<(Setting, Seconds)>,
}

impl Stretch {
    fn open() -> Self {
        Self { energy: Some(Joules::ZERO), ..Self::default() }
    }

    /// The setting, if it was one throughout and the job was to train.
    fn setting(&self) -> Option<&Setting> {
        match self.settings.as_slice() {
            [(only, _)] if self.idle <= Seconds::ZERO => Some(only),
            _ => None,
        }
    }

    /// Whether a setting was in force throughout, and the job was to train.
    fn is_at(&self, setting: &Setting) -> bool {
        let same = |set: &Setting| set.len() == setting.len() && set.iter().zip(setting).all(|(a, b)| a.same_as(*b));
        self.idle <= Seconds::ZERO && !self.settings.is_empty() && self.settings.iter().all(|(set, _)| same(set))
    }

    fn trainable(&self) -> Seconds {
        (self.span - self.idle).max(Seconds::ZERO)
    }
}

/// The last reading of a job's GPUs.
#[derive(Clone, Copy, Debug)]
struct Seen {
    at: Monotonic,
    energy: Option<Joules>,
}

/// Splits a job's time and energy between training and pauses of its own. Pure: times are arguments.
#[derive(Clone, Debug)]
pub struct Stalls {
    /// GPUs per group.
    gpus: Vec<f64>,
    /// The sum of the highest limits of all GPUs.
    ceiling: Watts,
    /// The setting below which time is lost.
    reference: Setting,
    /// The account of all that is not judged again.
    settled: ProgressAccount,
    recent: VecDeque<Stretch>,
    open: Stretch,
    seen: Option<Seen>,
}

impl Stalls {
    /// Starts with an account of what was before.
    pub fn new(account: ProgressAccount) -> Self {
        Self {
            gpus: Vec::new(),
            ceiling: Watts::ZERO,
            reference: Setting::new(),
            settled: account,
            recent: VecDeque::new(),
            open: Stretch::open(),
            seen: None,
        }
    }

    /// Says how many GPUs are in each group, and the highest limit of each of them: the reference, below which time is
    /// lost.
    pub fn equip(&mut self, groups: &[GroupRange]) {
        self.reference = groups.iter().map(|g| g.ceiling.into()).collect();
        self.gpus = groups.iter().map(|g| f64::from(g.boards)).collect();
        self.ceiling = groups.iter().map(|g| g.ceiling.watts() * f64::from(g.boards)).sum();
    }

    /// Records what the GPUs show: the setting in force, if there is one, and their energy counted so far, `None` if not
    /// all answer. `idle` says that the job is asked to do no work. To be called at each tick and right before
    /// [`Self::report`].
    pub fn see(&mut self, at: Monotonic, setting: Option<&Setting>, energy: Option<Joules>, idle: bool) {
        let Some(before) = self.seen.replace(Seen { at, energy }) else { return };
        let span = at.since(before.at);
        if idle {
            self.open.idle += span;
        }
        self.open.energy = match (self.open.energy, before.energy, energy) {
            (Some(sum), Some(from), Some(to)) => Some(sum + (to - from)),
            _ => None,
        };
        let Some(setting) = setting else { return };
        match self.open.settings.iter_mut().find(|(set, _)| set == setting) {
            Some((_, time)) => *time += span,
            None => self.open.settings.push((setting.clone(), span)),
        }
    }

    /// Begins at the first report: what was before it is not the job's.
    pub fn begin(&mut self) {
        self.open = Stretch::open();
    }

    /// Adds a report: `done` samples in `span` since the one before. `known` says what a setting is known to do. Returns
    /// the account up to this report.
    pub fn report(
        &mut self,
        span: Seconds,
        done: Samples,
        known: &dyn Fn(&Setting) -> Option<Known>,
    ) -> ProgressAccount {
        self.open.span += span;
        self.open.done += done;
        self.open.idle = self.open.idle.min(self.open.span);
        if done > Samples::ZERO || self.open.idle > Seconds::ZERO {
            self.recent.push_back(std::mem::replace(&mut self.open, Stretch::open()));
        } else {
            self.open.waited = true;
        }
        self.account(known)
    }

    /// The account up to the last report; settles what is old.
    fn account(&mut self, known: &dyn Fn(&Setting) -> Option<Known>) -> ProgressAccount {
        let judged = self.judged(known);
        let mut sums = self.settled;
        let mut oldest = None;
        let mut at = 0;
        while at < judged.len() {
            let end = (at..judged.len()).find(|i| !judged[*i].paused).unwrap_or(judged.len()).max(at + 1);
            sums = sums.plus(&self.split(&judged[at..end], at));
            if oldest.is_none() {
                oldest = Some((end, sums));
            }
            at = end;
        }
        // A run of pauses is settled as one.
        if let (true, Some((end, sums))) = (self.recent.len() > KEPT, oldest) {
            self.settled = sums;
            self.recent.drain(..end);
        }
        sums.plus(&self.standing_still())
    }

    /// The verdict on each recent stretch.
    fn judged(&self, known: &dyn Fn(&Setting) -> Option<Known>) -> Vec<Judged> {
        let mut judged: Vec<Judged> = self.recent.iter().map(|s| Judged::by_what_is_known(s, known)).collect();
        let mut settings: Vec<&Setting> = Vec::new();
        for setting in self.recent.iter().filter_map(Stretch::setting) {
            if !settings.contains(&setting) {
                settings.push(setting);
            }
        }
        for setting in settings {
            let mut places: Vec<usize> =
                (0..self.recent.len()).filter(|i| self.recent[*i].setting() == Some(setting)).collect();
            let pace = |i: &usize| {
                let of = &self.recent[*i];
                Pace { span: of.span.get(), done: of.done.get(), waited: of.waited }
            };
            let prior = known(setting);
            while !places.is_empty() {
                let paces: Vec<Pace> = places.iter().map(pace).collect();
                let mut verdict = judge(&paces, prior.map(|k| k.throughput.get()));
                let later = verdict.changed_at.map_or_else(Vec::new, |start| places.split_off(start));
                verdict.paused.truncate(places.len());
                self.apply(&mut judged, &places, &verdict, prior);
                places = later;
            }
        }
        // A pause may have begun in the stretch before the one that shows it.
        for i in 1..judged.len() {
            if judged[i].alone && self.recent[i - 1].idle <= Seconds::ZERO {
                judged[i - 1].paused = true;
            }
        }
        judged
    }

    fn apply(&self, judged: &mut [Judged], places: &[usize], verdict: &Verdict, prior: Option<Known>) {
        let (mut span, mut energy) = (Seconds::ZERO, Some(Joules::ZERO));
        for (place, _) in places.iter().zip(&verdict.left_out).filter(|(_, out)| !**out) {
            let of = &self.recent[*place];
            if let (Some(sum), Some(part)) = (energy, of.energy) {
                (span, energy) = (span + of.span, Some(sum + part));
            }
        }
        let own = energy.filter(|_| span > Seconds::ZERO).map(|energy| energy / span);
        // What the profile knows is known better, as long as it is still true.
        let near = |known: f64, own: f64| (known / own - 1.0).abs() < LEAST_PART;
        let enough = places.len() >= FEW;
        for (place, slow) in places.iter().zip(&verdict.paused) {
            let rate = verdict.rate.map(SamplesPerSecond::new).filter(|_| enough);
            let it = &mut judged[*place];
            it.alone = *slow;
            it.unclear = verdict.unclear;
            it.paused = *slow;
            it.rate = match (prior, rate) {
                (Some(known), Some(own)) if near(known.throughput.get(), own.get()) => Some(known.throughput),
                (known, own) => own.or(known.map(|k| k.throughput)),
            };
            it.power = match (prior, own.filter(|_| enough)) {
                (Some(known), Some(own)) if near(known.power.get(), own.get()) => Some(known.power),
                (known, own) => own.or(known.map(|k| k.power)),
            };
        }
    }

    /// Splits one stretch without a pause, or a run of those with.
    fn split(&self, run: &[Judged], from: usize) -> ProgressAccount {
        let stretches = || self.recent.iter().skip(from).zip(run);
        let mut sums = ProgressAccount::default();
        let (mut training, mut used, mut trained) = (Seconds::ZERO, Some(Joules::ZERO), Some(Joules::ZERO));
        let (mut span, mut idle, mut capped) = (Seconds::ZERO, Seconds::ZERO, Watts::ZERO);
        for (of, it) in stretches() {
            sums.samples += of.done;
            sums.unclear += if it.unclear { of.span } else { Seconds::ZERO };
            span += of.span;
            idle += of.idle;
            let work = it.rate.filter(|r| *r > SamplesPerSecond::ZERO).map_or(of.trainable(), |rate| of.done / rate);
            let work = if it.rate.is_none() && of.done <= Samples::ZERO { Seconds::ZERO } else { work };
            training += work;
            used = used.zip(of.energy).map(|(sum, e)| sum + e).filter(|_| of.idle <= Seconds::ZERO);
            trained = match it.power {
                _ if work <= Seconds::ZERO => trained,
                Some(power) => trained.map(|sum| sum + power * work),
                None => None,
            };
            let limit = |(set, time): &(Setting, Seconds)| {
                let watts: Watts = set.iter().zip(&self.gpus).map(|(s, n)| s.limit.watts() * *n).sum();
                (watts, *time)
            };
            let longest = of.settings.iter().map(limit).max_by(|a, b| a.1.total_cmp(&b.1));
            capped = longest.map_or(capped, |(watts, _)| watts);
        }
        let below = stretches().any(|(of, _)| !of.is_at(&self.reference));
        let with_losses = |sums: ProgressAccount| {
            let lost = Lost { below: sums.active, samples: sums.samples };
            ProgressAccount { lost: Some(if below { lost } else { Lost::default() }), ..sums }
        };
        let stalled = (span - idle - training).max(Seconds::ZERO);
        if !run.iter().any(|it| it.paused) || stalled <= Seconds::ZERO {
            sums.active = span;
            return with_losses(sums);
        }
        sums.active = span - stalled;
        // At the ceiling the limit is the reference's own.
        let bound = Some(capped * BOUND).filter(|_| capped < self.ceiling * BOUND);
        sums.add_stall(stalled, used.zip(trained).map(|(used, trained)| used - trained), bound);
        with_losses(sums)
    }

    /// The account of the time since the last progress: a pause once it is longer than a stretch usually is.
    fn standing_still(&self) -> ProgressAccount {
        // What a stretch lost is known once it ends.
        let mut sums = ProgressAccount { lost: Some(Lost::default()), ..ProgressAccount::default() };
        let span = self.open.span;
        let usual = self.recent.iter().rev().take(SOME).map(|s| s.trainable().get()).fold(0.0, f64::max);
        if self.recent.is_empty() || span.get() <= 2.0 * usual {
            sums.active = span;
        } else {
            sums.add_stall(span, self.open.energy, None);
        }
        sums
    }
}

/// The verdict on one stretch.
#[derive(Clone, Copy, Debug, Default)]
struct Judged {
    /// Whether it holds a pause, or the beginning of one.
    paused: bool,
    /// Whether it shows that by itself.
    alone: bool,
    /// Whether pauses cannot be told from training there.
    unclear: bool,
    rate: Option<SamplesPerSecond>,
    power: Option<Watts>,
}

impl Judged {
    /// By what its settings are known to do, each for its part of the time.
    fn by_what_is_known(of: &Stretch, known: &dyn Fn(&Setting) -> Option<Known>) -> Self {
        let time: Seconds = of.settings.iter().map(|(_, time)| *time).sum();
        let mut mean = (time > Seconds::ZERO).then_some((SamplesPerSecond::ZERO, Watts::ZERO));
        for (setting, part) in &of.settings {
            mean = mean
                .zip(known(setting))
                .map(|((rate, power), it)| (rate + it.throughput * (*part / time), power + it.power * (*part / time)));
        }
        let (rate, power) = mean.unzip();
        let least = rate.map(|rate| rate * of.trainable() * STALL);
        let nothing = of.done <= Samples::ZERO && of.trainable() > Seconds::ZERO && rate.is_some();
        let alone = nothing || least.is_some_and(|least| of.done < least);
        Self { paused: alone, alone, unclear: false, rate, power }
    }
}
