//! wattune's policy: what Zeus's ignores is used, so that far less is spent on exploration.
//!
//! *The model.* A run costs epochs × cost of an epoch. The cost of an epoch hardly varies, and one epoch shows it; the
//! number of epochs is noisy, and changes slowly from one batch size to the next. So for each batch size b, with x = log₂ b,
//!
//! ```text
//! log epochs(b) = f(x) + ν(b) + noise     f: drifting with slope s, s ~ N(0.15, 0.12²) an octave, and a walk of 0.07 an octave
//! log epoch cost(b) = g(x)                g: the same with s ~ N(−0.25, 0.25²) and 0.15; seen exactly once an epoch was run
//! ```
//!
//! ν is what a batch size has of its own: 0.04, and what rounding up to whole epochs makes, 1/√12 of an epoch, since the same
//! batch size is rounded alike each time. The noise is shared by all: its variance is what runs of one batch size
//! show among one another, drawn to 0.1² as by two of them. All is Gaussian, so that
//! a run teaches about its neighbours by the rules of conditional distributions (`belief.rs`); a run that was given up
//! says that it would have taken longer. The sum f + g is near-unimodal wherever f rises faster than g falls.
//!
//! *Roughness.* Far from the best batch size f may jump by more in an octave than the walk of 0.07 allows. A belief that is
//! too smooth takes the jump for noise and holds the wrong batch size for the best. So walks of 2, 4 and 8 times that
//! are kept beside it, and the likeliest one counts, each doubling being 20 times less likely beforehand.
//!
//! *The walk.* From the best so far, an octave down, then an octave up; then the middle of what lies between it and the
//! next one tried, until both neighbours were tried. A run further down costs at most what its first epoch tells, so
//! that down comes first.
//!
//! *After the walk* the batch sizes that were tried, and those next to them, are drawn from the belief as in Thompson
//! sampling, with 0.6 of its deviation: errors that are made together cost less than independent ones. What ran only once
//! is drawn with 0.85 of it, lest one unlucky run decide. No draw is below one epoch.
//!
//! *Patience.* A run of another batch size than the best is given up when even an optimistic guess (1.5 deviations) of
//! what it will have cost lies above the best, and giving up, which costs what was spent, is the cheaper. All such
//! losses together stay below 0.65 of a run for each batch size beside the default, and what was gained since; what
//! a further epoch could lose counts as far as it is likely not to be the last. Where nothing of that is left, a tenth of
//! what runs have cost is put by, and pays for a batch size that was never tried once it comes to a whole run of the best:
//! one dear failure does not end the search for good. After a run that was given up comes the best known. Without a bound on
//! cost (`beta`) nothing is given up.
//!
//! *Change.* A result that lies off what was known (`regime.rs`) is looked into at once, by another run of that batch
//! size. After two in a row that are dearer, or three that are cheaper, since there is less of a hurry then, f and g are
//! what they were and something unknown: of any size, and drifting as f and g did before anything was seen, with a mean
//! slope of none. So what the batch sizes cost over one another is a guess still, and the walk, which begins anew, goes
//! only where that guess is below the best.

mod belief;
mod observation;
mod regime;

use self::belief::{Belief, Drift, hazard, survival};
use self::observation::Observation;
use self::regime::NOISE;
use super::{Choice, Cost, Generator, Kind, NoneConverges, Outcome, Spec, State, Trial};

/// By how much all may change at once, in logarithms.
const CHANGE: f64 = 1.0;
/// Of log epochs, an octave.
const EPOCHS: Drift = Drift { slope: 0.15, slope_deviation: 0.12, walk: 0.07 };
/// Of the log cost of an epoch, an octave.
const EPOCH_COST: Drift = Drift { slope: -0.25, slope_deviation: 0.25, walk: 0.15 };
/// What log epochs of a batch size have of their own.
const OWN: f64 = 0.04;
/// How far the first run's epochs may be from what is usual.
const FIRST: f64 = 0.5;
/// How wide a step of the walk is, in octaves.
const STEP: f64 = 1.0;
/// The part of the belief's deviation that draws have.
const TEMPERATURE: f64 = 0.6;
/// The same for what ran only once.
const ONCE: f64 = 0.85;
/// How many deviations below its mean a guess is optimistic.
const OPTIMISM: f64 = 1.5;
/// What may be lost on runs that are given up, in runs of the default for each other batch size.
const ALLOWANCE: f64 = 0.65;
/// A run that could be afforded for less than this part of the best is not begun.
const LEAST: f64 = 0.3;
/// The part of each run's cost that is put by for batch sizes that were never tried.
const PUT_BY: f64 = 0.1;
/// How many times rougher log epochs may be, and how much less likely each doubling is beforehand, in logarithms.
const ROUGHER: [f64; 4] = [1.0, 2.0, 4.0, 8.0];
const ROUGHER_UNLIKELY: f64 = 3.0;
/// A batch size that was given up is tried again only if it may cost this much more.
const AGAIN: f64 = 2.0;

/// Log epochs under one assumption of how rough they are.
struct Roughness {
    drift: Drift,
    epochs: Belief,
    /// How likely what was seen is under it, in logarithms.
    likelihood: f64,
}

impl Roughness {
    fn new(octaves: &[f64], begun: &Observation, rougher: f64) -> Self {
        let drift = Drift { walk: EPOCHS.walk * rougher, ..EPOCHS };
        let mut epochs = Belief::new(octaves, begun.arm, begun.log_epochs, FIRST, drift);
        add_own(&mut epochs, begun);
        Self { drift, epochs, likelihood: -ROUGHER_UNLIKELY * rougher.log2() }
    }

    /// All is what it was and something unknown.
    fn change(&mut self, octaves: &[f64], first: &Observation) {
        self.epochs.shift_by_unknown(octaves, first.arm, CHANGE, Drift { slope: 0.0, ..self.drift });
        add_own(&mut self.epochs, first);
    }

    fn learn(&mut self, s: &Observation, noise: f64) {
        let variance = self.epochs.variance(s.arm) + noise;
        let z = (s.log_epochs - self.epochs.mean(s.arm)) / variance.sqrt();
        if s.reached {
            self.likelihood -= 0.5 * (z * z + variance.ln());
            self.epochs.observe(s.arm, s.log_epochs, noise);
        } else {
            self.likelihood += survival(f64::NEG_INFINITY, z).max(f64::MIN_POSITIVE).ln();
            self.epochs.exceeds(s.arm, s.log_epochs, noise);
        }
    }
}

/// All that is believed of a job at a moment.
struct Standing {
    /// Since the last change, the oldest first.
    seen: Vec<Observation>,
    octaves: Vec<f64>,
    epochs: Belief,
    epoch_cost: Belief,
    tried: Vec<bool>,
    /// Those among them that do not get there.
    failed: Vec<bool>,
    noise: f64,
    /// Where it began: the default, and after a change what ran then.
    first: usize,
    changed: bool,
    /// Where it is not yet clear whether things changed.
    doubtful: Option<usize>,
}

/// The best batch size so far.
#[derive(Clone, Copy)]
struct Best {
    arm: usize,
    cost: f64,
}

impl Standing {
    /// `None` before the first result.
    fn new(spec: &Spec, trials: &[Trial]) -> Option<Self> {
        let mut seen: Vec<Observation> = trials.iter().filter_map(|t| Observation::of(spec, t)).collect();
        let octaves: Vec<f64> = spec.batch_sizes.iter().map(|b| log2(*b)).collect();
        let regime::Changes { at: changes, doubtful } = regime::changes(octaves.len(), &seen);
        let present = changes.last().copied().unwrap_or(0);
        let noise = noise(octaves.len(), &seen[present..]);
        let begun = *seen.first()?;
        let mut epochs: Vec<Roughness> = ROUGHER.iter().map(|by| Roughness::new(&octaves, &begun, *by)).collect();
        let mut epoch_cost = Belief::new(&octaves, begun.arm, begun.log_epoch_cost, 0.0, EPOCH_COST);
        let mut last_cost = vec![None; octaves.len()];
        let mut changed = changes.iter().copied().peekable();
        for (i, s) in seen.iter().enumerate() {
            if changed.next_if_eq(&i).is_some() {
                epochs.iter_mut().for_each(|rough| rough.change(&octaves, s));
                epoch_cost.shift_by_unknown(&octaves, s.arm, CHANGE, Drift { slope: 0.0, ..EPOCH_COST });
                last_cost.fill(None);
            }
            // One epoch shows it. Where it is another than it was, it is the newer one.
            let before = last_cost[s.arm].replace(s.log_epoch_cost);
            if before != Some(s.log_epoch_cost) {
                epoch_cost.add_own(s.arm, before.map_or(0.0, |before| (s.log_epoch_cost - before).powi(2)));
                epoch_cost.observe(s.arm, s.log_epoch_cost, 1e-6);
            }
            epochs.iter_mut().for_each(|rough| rough.learn(s, noise));
        }
        let epochs = epochs.into_iter().max_by(|a, b| a.likelihood.total_cmp(&b.likelihood))?.epochs;
        seen.drain(..present);
        let first = seen.first()?.arm;
        let failed: Vec<bool> = spec.batch_sizes.iter().map(|b| has_failed(spec, trials, *b)).collect();
        let tried = last_cost.iter().zip(&failed).map(|(cost, failed)| cost.is_some() || *failed).collect();
        Some(Self { seen, octaves, epochs, epoch_cost, tried, failed, noise, first, changed: present > 0, doubtful })
    }

    /// The expected cost of a run.
    fn cost(&self, arm: usize) -> f64 {
        (self.epochs.mean(arm) + self.epoch_cost.mean(arm) + 0.5 * self.noise).exp()
    }

    /// `None` if nothing reached its target yet.
    fn best(&self) -> Option<Best> {
        let reached = |arm: &usize| !self.failed[*arm] && self.seen.iter().any(|s| s.arm == *arm && s.reached);
        let all = (0..self.tried.len()).filter(reached).map(|arm| Best { arm, cost: self.cost(arm) });
        all.min_by(|a, b| a.cost.total_cmp(&b.cost))
    }

    /// What runs that are given up may still cost.
    fn allowance(&self, best: Best) -> f64 {
        let default = self.cost(self.first);
        #[expect(clippy::cast_precision_loss, reason = "a hundred batch sizes at the most")]
        let others = self.tried.len() as f64 - 1.0;
        let gained: f64 = self.seen.iter().filter(|s| s.reached).map(|_| (default - best.cost).max(0.0)).sum();
        // Where it began was no attempt: whatever it cost had to be found out.
        let lost: f64 = self.seen.iter().filter(|s| !s.reached && s.arm != self.first).map(spent).sum();
        ALLOWANCE * others * default + gained - lost
    }

    /// What a run with this batch size may lose: what runs that are given up may, and where nothing of that is left and it
    /// was never tried, what was put by.
    fn allowance_of(&self, arm: usize, best: Best) -> f64 {
        let allowance = self.allowance(best);
        if self.tried[arm] || allowance >= LEAST * best.cost {
            return allowance;
        }
        allowance + self.seen.iter().filter(|s| s.reached).map(|_| PUT_BY * best.cost).sum::<f64>()
    }

    /// The next step of the walk from the best, if there is one.
    fn step(&self, best: usize) -> Option<usize> {
        let down = || {
            let next = best.checked_sub(1).filter(|k| !self.tried[*k])?;
            let bound = (0..best).rev().find(|k| self.tried[*k]);
            Some(bound.map_or_else(|| self.octave((0..best).rev(), best, next), |tried| (best + tried).div_ceil(2)))
        };
        let up = || {
            let next = Some(best + 1).filter(|k| *k < self.tried.len() && !self.tried[*k])?;
            let bound = (next..self.tried.len()).find(|k| self.tried[*k]);
            let free = || self.octave(next..self.tried.len(), best, next);
            Some(bound.map_or_else(free, |tried| usize::midpoint(best, tried)))
        };
        let promising = |k: &usize| !self.changed || self.cost(*k) < self.cost(best);
        down().filter(promising).or_else(|| up().filter(promising))
    }

    /// The last of `outwards` that lies within a step of `from`, or the `next` one.
    fn octave(&self, outwards: impl Iterator<Item = usize>, from: usize, next: usize) -> usize {
        let near = |k: &usize| (self.octaves[*k] - self.octaves[from]).abs() <= STEP + 1e-9;
        outwards.take_while(near).last().unwrap_or(next)
    }

    /// Whether a run of another batch size than the best is worth beginning.
    fn affordable(&self, arm: usize, best: Best) -> bool {
        let allowance = self.allowance(best);
        let of_arm = || self.seen.iter().filter(|s| s.arm == arm);
        let survived = of_arm().filter(|s| !s.reached).map(spent).fold(0.0, f64::max);
        let never = !of_arm().any(|s| s.reached);
        if allowance < LEAST * best.cost {
            return !self.tried[arm] && self.allowance_of(arm, best) >= best.cost;
        }
        !(never && survived > 0.0 && allowance < AGAIN * survived)
    }

    /// The least of a joint draw, among what was tried and what lies next to it.
    fn draw(&self, generator: &mut Generator) -> usize {
        let n = self.tried.len();
        let (epochs, epoch_cost) = (self.epochs.draw(generator), self.epoch_cost.draw(generator));
        let known = |k: usize| self.tried[k] || (k > 0 && self.tried[k - 1]) || (k + 1 < n && self.tried[k + 1]);
        let runs = |k: usize| self.seen.iter().filter(|s| s.arm == k).count();
        let part = |k: usize| if runs(k) == 1 { ONCE } else { TEMPERATURE };
        let drawn: Vec<f64> = (0..n)
            .map(|k| {
                (self.epochs.mean(k) + part(k) * epochs[k]).max(0.0) + self.epoch_cost.mean(k) + part(k) * epoch_cost[k]
            })
            .collect();
        let least = (0..n).filter(|k| known(*k) && !self.failed[*k]).min_by(|a, b| drawn[*a].total_cmp(&drawn[*b]));
        least.unwrap_or(self.first)
    }
}

/// See [`super::next`].
pub(super) fn next(spec: &Spec, trials: &[Trial], generator: &mut Generator) -> Result<Choice, NoneConverges> {
    let under_way = |batch_size| trials.iter().any(|t| t.is_running() && t.batch_size == batch_size);
    let Some(state) = Standing::new(spec, trials) else {
        let from = spec.place(spec.default_batch_size).unwrap_or(0);
        let left = (0..spec.batch_sizes.len()).filter(|k| !has_failed(spec, trials, spec.batch_sizes[*k]));
        let nearest = left.min_by_key(|k| k.abs_diff(from)).ok_or(NoneConverges)?;
        let batch_size = spec.batch_sizes[nearest];
        let kind = if under_way(batch_size) { Kind::Concurrent } else { Kind::Exploration };
        return Ok(Choice { batch_size, kind });
    };
    let of_arm = |arm: usize, kind| Choice { batch_size: spec.batch_sizes[arm], kind };
    let Some(best) = state.best() else {
        // Nothing reaches its target: the untried one next to where it began.
        let untried = (0..state.tried.len()).filter(|k| !state.tried[*k]);
        let nearest = untried.min_by_key(|k| k.abs_diff(state.first)).ok_or(NoneConverges)?;
        return Ok(of_arm(nearest, Kind::Exploration));
    };
    if let Some(arm) = state.doubtful.filter(|arm| !state.failed[*arm]) {
        return Ok(of_arm(arm, Kind::Regular));
    }
    let last = trials.iter().rfind(|t| t.has_result());
    let given_up = last.is_some_and(|t| t.state != State::Ended(Outcome::Reached));
    if given_up {
        return Ok(of_arm(best.arm, Kind::Regular));
    }
    let (arm, kind) = match state.step(best.arm) {
        Some(arm) => (arm, Kind::Exploration),
        None => (state.draw(generator), Kind::Regular),
    };
    if arm != best.arm && !state.affordable(arm, best) {
        return Ok(of_arm(best.arm, Kind::Regular));
    }
    if kind == Kind::Exploration && under_way(spec.batch_sizes[arm]) {
        return Ok(of_arm(best.arm, Kind::Concurrent));
    }
    Ok(of_arm(arm, kind))
}

/// See [`super::patience`].
pub(super) fn patience(spec: &Spec, trials: &[Trial], batch_size: u64, epoch_cost: Cost) -> u32 {
    let (most, epoch_cost) = (spec.max_epochs, epoch_cost.get());
    let Some((state, arm)) = Standing::new(spec, trials).zip(spec.place(batch_size)) else { return most };
    let (Some(best), Some(beta)) = (state.best(), spec.beta) else { return most };
    let (mean, variance) = (state.epochs.mean(arm), state.epochs.variance(arm) + state.noise);
    let allowance = state.allowance_of(arm, best);
    let z_of = |epochs: f64| (epochs.ln() - mean) / variance.sqrt();
    let given_up_after = |epochs: &u32| {
        let done = f64::from(*epochs);
        let spent = done * epoch_cost;
        if spent > beta * best.cost {
            return true;
        }
        if arm == best.arm {
            return false;
        }
        // Epochs are whole: these were not enough, and one more may be.
        let risked = (spent + epoch_cost) * survival(z_of(done + 0.5), z_of(done + 1.5));
        // The epochs that it takes, given that they are more than these.
        let z = z_of(done);
        let h = hazard(z);
        let (mean, variance) = (mean + variance.sqrt() * h, variance * (1.0 - h * (h - z)).max(0.0));
        let optimistic = (mean - OPTIMISM * variance.sqrt()).exp() * epoch_cost;
        let expected = (mean + 0.5 * variance).exp() * epoch_cost;
        risked > allowance || (optimistic > best.cost && expected - best.cost > spent)
    };
    (1..most).find(given_up_after).unwrap_or(most)
}

/// The batch size that is held for the best so far.
pub fn favourite(spec: &Spec, trials: &[Trial]) -> u64 {
    let best = Standing::new(spec, trials).and_then(|state| state.best());
    best.map_or(spec.default_batch_size, |best| spec.batch_sizes[best.arm])
}

/// What is believed of each batch size's cost of a run, in the job's order: its mean, and the relative deviation of that
/// mean. Empty before the first result.
pub fn posterior(spec: &Spec, trials: &[Trial]) -> Vec<(Cost, f64)> {
    let Some(state) = Standing::new(spec, trials) else { return Vec::new() };
    let arm = |k| (Cost::new(state.cost(k)), (state.epochs.variance(k) + state.epoch_cost.variance(k)).sqrt());
    (0..state.tried.len()).map(arm).collect()
}

/// Whether a batch size is to be left alone: runs with it ended before their time as ones that do not get there, the last
/// one if none ever reached its target, the last two if some did.
fn has_failed(spec: &Spec, trials: &[Trial], batch_size: u64) -> bool {
    let of_arm = || trials.iter().filter(|t| t.batch_size == batch_size && t.has_result());
    let early = |t: &&Trial| t.state == State::Ended(Outcome::NotReached) && t.epochs < spec.max_epochs;
    let in_a_row = of_arm().rev().take_while(early).count();
    in_a_row >= if of_arm().any(Trial::reached) { 2 } else { 1 }
}

fn spent(seen: &Observation) -> f64 {
    seen.epochs * seen.log_epoch_cost.exp()
}

/// Gives each batch size what it has of its own, at the level that a first result shows: with what rounding to whole
/// epochs makes, the less the more epochs there are.
fn add_own(epochs: &mut Belief, first: &Observation) {
    for arm in 0..epochs.arms() {
        let expected = first.epochs * (epochs.mean(arm) - epochs.mean(first.arm)).exp();
        epochs.add_own(arm, OWN.powi(2) + 1.0 / (12.0 * expected.max(0.5).powi(2)));
    }
}

/// The variance of log epochs among runs of one batch size.
fn noise(arms: usize, seen: &[Observation]) -> f64 {
    let mut spread = regime::Spread::new(arms);
    seen.iter().filter(|s| s.reached).for_each(|s| spread.add(s.arm, s.log_epochs));
    spread.pooled(NOISE)
}

#[expect(clippy::cast_precision_loss, reason = "batch sizes are far below 2^52")]
fn log2(batch_size: u64) -> f64 {
    (batch_size as f64).log2()
}

#[cfg(test)]
mod tests;
