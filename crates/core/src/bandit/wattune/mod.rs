//! wattune's policy for batch sizes. It uses data that Zeus's policy ignores, and therefore spends far less on
//! exploration.
//!
//! *Model.* The cost of a run is its number of epochs × the cost of an epoch. The cost of an epoch hardly varies, and
//! one epoch shows it; the number of epochs is noisy, and changes slowly from one batch size to the next. For each
//! batch size b, with x = log₂ b,
//!
//! ```text
//! log epochs(b) = f(x) + ν(b) + noise  f: slope s ~ N(0.15, 0.12²) and a random walk of 0.07 (deviation) per octave
//! log epoch cost(b) = g(x)             g: the same with s ~ N(−0.25, 0.25²) and 0.15; known exactly after an epoch
//! ```
//!
//! ν is each batch size's own deviation. Its standard deviation is 0.04, combined with that of rounding up to whole
//! epochs (1/√12 of an epoch), which is the same in each run of a batch size. All batch sizes have the same noise; its
//! variance is estimated from runs with equal batch sizes, combined with a prior of 0.1² that weighs as much as two
//! runs. All distributions are Gaussian, so that conditioning on a run with one batch size also informs about the
//! neighbouring batch sizes (`belief.rs`); a stopped run shows that more epochs would have been needed. The sum f + g
//! has nearly always a single minimum, from which on f rises faster than g falls.
//!
//! *Roughness.* Far from the best batch size, f may change more than a random walk of 0.07 allows. A belief that is too
//! smooth takes such a change for noise and prefers the wrong batch size. The policy therefore also computes beliefs
//! for random walks of 2, 4 and 8 times 0.07 and uses the likeliest belief; each doubling is 20 times less likely a
//! priori.
//!
//! *Exploration* tries a batch size an octave (a factor of 2) below the best one so far, then the middle between the
//! best and the nearest tried one below, until the neighbour below was tried; then it does the same above. It goes down
//! first, because a smaller batch size rarely needs more epochs: the cost of its first epoch already shows what the
//! whole run costs at most.
//!
//! *After exploration* the costs of the tried batch sizes and of their neighbours are drawn from the belief, as in
//! Thompson sampling, and the cheapest is run. Draws deviate from the mean by only 0.6 of the belief's deviation,
//! because correlated errors cost less than independent ones; by 0.85 of it for a batch size with a single run, so that
//! one unlucky run does not decide. For a batch size whose runs, two or more, all needed the same number of epochs,
//! drawn log epochs deviate only 0.4 times as much: runs of few epochs repeat exactly, because the noise is smaller than
//! an epoch. No draw has less than one epoch.
//!
//! *Stopping.* Any run is stopped when it has cost more than `beta` times the expected cost of the best batch size. A
//! run with another batch size than the best is also stopped when two conditions hold: even an optimistic estimate of
//! its final cost (1.5 standard deviations below the mean) exceeds the cost of the best, and stopping is cheaper than
//! going on, although what was spent is lost. The allowance for all such losses is 0.65 of a run per batch size other
//! than the default, plus, for each successful run, what the best batch size saves compared with the default. A run
//! also stops when its loss after a further epoch, weighted with the probability that this epoch misses the target too,
//! exceeds the rest of the allowance. When the allowance is used up, a tenth of the best cost for each successful run
//! is available for an untried batch size, which runs when this covers a whole run of the best one: one expensive
//! failure does not end the search. After a run that missed its target the best known batch size runs. Without a cost
//! limit (`beta`) no run is stopped.
//!
//! *Change.* After an outlier (`regime.rs`) the same batch size runs again at once. Two consecutive outliers with a
//! higher cost count as a change of the job; with a lower cost, which is less urgent, three. At a change, an unknown
//! function of any size is added to f and g, with their prior drift and a mean slope of zero. What is known about the
//! relative costs of batch sizes then remains as an estimate, and exploration begins again, but tries only batch sizes
//! with a lower estimate than the best. A batch size whose runs since the change were all stopped may have been stopped
//! only because the change was not known yet. Such a batch size may use what is set aside for untried ones, too; it
//! runs once that covers twice the cost of its dearest stopped run.

mod belief;
mod regime;

use self::belief::{Belief, Drift, hazard, survival};
use self::regime::{NOISE, Observation};
use super::{Choice, Cost, Generator, Kind, NoneConverges, Outcome, Spec, State, Trial};

/// Prior standard deviation of the shift that a change of the job adds to log epochs and to log epoch cost.
const CHANGE: f64 = 1.0;
/// Prior of the change of log epochs with the batch size, per octave (doubling of the batch size).
const EPOCHS: Drift = Drift { slope: 0.15, slope_deviation: 0.12, walk: 0.07 };
/// Prior of the change of an epoch's log cost with the batch size, per octave.
const EPOCH_COST: Drift = Drift { slope: -0.25, slope_deviation: 0.25, walk: 0.15 };
/// Standard deviation of log epochs at a single batch size from the smooth curve of log epochs over batch sizes.
const RESIDUAL: f64 = 0.04;
/// Prior standard deviation of log epochs at the batch size of the first run, around the result of that run.
const FIRST: f64 = 0.5;
/// Largest step of exploration from the best batch size, in octaves.
const STEP: f64 = 1.0;
/// Factor by which draws multiply the belief's standard deviation.
const TEMPERATURE: f64 = 0.6;
/// Factor that draws use instead of [`TEMPERATURE`] for batch sizes with only one run.
const ONCE: f64 = 0.85;
/// Factor on the deviation of drawn log epochs, in addition to [`TEMPERATURE`], for batch sizes whose runs, two or more,
/// all needed the same number of epochs.
const REPEATED: f64 = 0.4;
/// Number of standard deviations by which an optimistic estimate lies below the mean.
const OPTIMISM: f64 = 1.5;
/// Maximum loss on stopped runs per batch size other than the default, as a fraction of a run with the default.
const ALLOWANCE: f64 = 0.65;
/// Fraction of the best batch size's cost below which the allowance for losses counts as used up: then no tried
/// batch size runs except the best.
const LEAST: f64 = 0.3;
/// Fraction of the best batch size's cost that each successful run sets aside for untried batch sizes, and after a change
/// of the job for those that were only stopped since.
const PUT_BY: f64 = 0.1;
/// Deviations of the random walk for which beliefs are computed, as multiples of the `walk` of [`EPOCHS`].
const ROUGHER: [f64; 4] = [1.0, 2.0, 4.0, 8.0];
/// Reduction of the prior log likelihood with each doubling of the random walk's deviation.
const DOUBLING_PENALTY: f64 = 3.0;
/// Factor on the cost limit (`beta`) in the first epoch of a run with a batch size that has reached the target. If its
/// epochs cost more than `beta` allows, the job has probably changed, which only a whole epoch shows. A cost beyond this
/// factor has other causes.
const KNOWN: f64 = 5.0;
/// Minimum allowance for losses at which a batch size whose runs were all stopped runs again, as a multiple of the cost
/// of the most expensive of these runs.
const AGAIN: f64 = 2.0;

/// Belief about log epochs, for one assumed deviation of the random walk.
struct Roughness {
    drift: Drift,
    epochs: Belief,
    /// Log likelihood of the observations so far, plus the log prior of this deviation.
    likelihood: f64,
}

impl Roughness {
    fn new(octaves: &[f64], begun: &Observation, rougher: f64) -> Self {
        let drift = Drift { walk: EPOCHS.walk * rougher, ..EPOCHS };
        let mut epochs = Belief::new(octaves, begun.arm, begun.log_epochs, FIRST, drift);
        add_residual_variance(&mut epochs, begun);
        Self { drift, epochs, likelihood: -DOUBLING_PENALTY * rougher.log2() }
    }

    /// Adds the unknown shift with which a change of the job begins; `first` is the first observation after the change.
    fn change(&mut self, octaves: &[f64], first: &Observation) {
        self.epochs.shift_by_unknown(octaves, first.arm, CHANGE, Drift { slope: 0.0, ..self.drift });
        add_residual_variance(&mut self.epochs, first);
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

/// Belief about the cost of a run at each of a job's batch sizes (arms), after a list of trials.
struct JobBelief {
    /// Observations since the last change of the job, oldest first.
    observations: Vec<Observation>,
    octaves: Vec<f64>,
    epochs: Belief,
    epoch_cost: Belief,
    tried: Vec<bool>,
    /// True for arms that were tried and seem unable to reach the target.
    failed: Vec<bool>,
    noise: f64,
    /// Arm of the first run; after a change of the job, of the first run since the last change.
    first: usize,
    changed: bool,
    /// Arm of the latest result, if that result is an outlier and it is not yet certain whether the job changed.
    doubtful: Option<usize>,
}

/// Batch size (arm) with the least expected cost among those that reached the target.
#[derive(Clone, Copy)]
struct Best {
    arm: usize,
    cost: f64,
}

impl JobBelief {
    /// Returns the belief after all trials; `None` if no trial has a result with an epoch.
    fn new(spec: &Spec, trials: &[Trial]) -> Option<Self> {
        let mut observations: Vec<Observation> = trials.iter().filter_map(|t| Observation::of(spec, t)).collect();
        let octaves: Vec<f64> = spec.batch_sizes.iter().map(|b| log2(*b)).collect();
        let regime::Changes { at: changes, doubtful } = regime::changes(octaves.len(), &observations);
        let present = changes.last().copied().unwrap_or(0);
        let noise = noise(octaves.len(), &observations[present..]);
        let begun = *observations.first()?;
        let mut epochs: Vec<Roughness> = ROUGHER.iter().map(|by| Roughness::new(&octaves, &begun, *by)).collect();
        let mut epoch_cost = Belief::new(&octaves, begun.arm, begun.log_epoch_cost, 0.0, EPOCH_COST);
        let mut last_cost = vec![None; octaves.len()];
        let mut changed = changes.iter().copied().peekable();
        for (i, s) in observations.iter().enumerate() {
            if changed.next_if_eq(&i).is_some() {
                epochs.iter_mut().for_each(|rough| rough.change(&octaves, s));
                epoch_cost.shift_by_unknown(&octaves, s.arm, CHANGE, Drift { slope: 0.0, ..EPOCH_COST });
                last_cost.fill(None);
            }
            // The cost of an epoch has nearly no noise: if it differs from that of the arm's previous run, the newest
            // value counts.
            let before = last_cost[s.arm].replace(s.log_epoch_cost);
            if before != Some(s.log_epoch_cost) {
                epoch_cost.add_variance(s.arm, before.map_or(0.0, |before| (s.log_epoch_cost - before).powi(2)));
                epoch_cost.observe(s.arm, s.log_epoch_cost, 1e-6);
            }
            epochs.iter_mut().for_each(|rough| rough.learn(s, noise));
        }
        let epochs = epochs.into_iter().max_by(|a, b| a.likelihood.total_cmp(&b.likelihood))?.epochs;
        observations.drain(..present);
        let first = observations.first()?.arm;
        let failed: Vec<bool> = spec.batch_sizes.iter().map(|b| has_failed(spec, trials, *b)).collect();
        let tried = last_cost.iter().zip(&failed).map(|(cost, failed)| cost.is_some() || *failed).collect();
        Some(Self {
            observations,
            octaves,
            epochs,
            epoch_cost,
            tried,
            failed,
            noise,
            first,
            changed: present > 0,
            doubtful,
        })
    }

    /// Returns the expected cost of a run with an arm's batch size, in joules.
    fn cost(&self, arm: usize) -> f64 {
        (self.epochs.mean(arm) + self.epoch_cost.mean(arm) + 0.5 * self.noise).exp()
    }

    /// Returns the cheapest arm that reached its target; `None` if no arm has.
    fn best(&self) -> Option<Best> {
        let reached = |arm: &usize| !self.failed[*arm] && self.has_reached(*arm);
        let all = (0..self.tried.len()).filter(reached).map(|arm| Best { arm, cost: self.cost(arm) });
        all.min_by(|a, b| a.cost.total_cmp(&b.cost))
    }

    /// Returns the allowance: the cost, in joules, that may still be lost on stopped runs.
    fn allowance(&self, best: Best) -> f64 {
        let default = self.cost(self.first);
        #[expect(clippy::cast_precision_loss, reason = "a hundred batch sizes at the most")]
        let others = self.tried.len() as f64 - 1.0;
        let gained: f64 = self.observations.iter().filter(|s| s.reached).map(|_| (default - best.cost).max(0.0)).sum();
        // Stopped runs of the first arm are no loss: they measured its cost, which had to be known.
        let lost: f64 = self.observations.iter().filter(|s| !s.reached && s.arm != self.first).map(spent).sum();
        ALLOWANCE * others * default + gained - lost
    }

    /// Returns the maximum loss of a run with this batch size: the allowance for stopped runs and, if the allowance is
    /// used up and the batch size was never tried, the cost that was set aside for such batch sizes. After a change of the
    /// job the latter is also for a batch size that was only stopped since: perhaps because the change was not known yet.
    fn allowance_of(&self, arm: usize, best: Best) -> f64 {
        let allowance = self.allowance(best);
        let is_untried = !self.tried[arm] && allowance < LEAST * best.cost;
        if is_untried || (self.changed && self.is_only_stopped(arm)) {
            return allowance + self.observations.iter().filter(|s| s.reached).map(|_| PUT_BY * best.cost).sum::<f64>();
        }
        allowance
    }

    /// Returns the next arm to explore, given the best arm so far; `None` if exploration has ended.
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

    /// Returns the last arm of `outwards` (arms in order of their distance from `from`) that is within [`STEP`] octaves
    /// of the arm `from`; `next` if there is none.
    fn octave(&self, outwards: impl Iterator<Item = usize>, from: usize, next: usize) -> usize {
        let near = |k: &usize| (self.octaves[*k] - self.octaves[from]).abs() <= STEP + 1e-9;
        outwards.take_while(near).last().unwrap_or(next)
    }

    /// Returns true if the allowance suffices for a run of `arm`, which is not the best arm.
    fn affordable(&self, arm: usize, best: Best) -> bool {
        let allowance = self.allowance_of(arm, best);
        let survived = self.results(arm).filter(|s| !s.reached).map(spent).fold(0.0, f64::max);
        let is_only_stopped = self.is_only_stopped(arm);
        if self.allowance(best) < LEAST * best.cost && (!self.tried[arm] || is_only_stopped) {
            return allowance >= best.cost.max(AGAIN * survived);
        }
        (!is_only_stopped || allowance >= AGAIN * survived) && allowance >= LEAST * best.cost
    }

    /// Returns true if a run with this batch size reached the target since the last change of the job.
    fn has_reached(&self, arm: usize) -> bool {
        self.results(arm).any(|s| s.reached)
    }

    /// Returns true if there were runs with this batch size since the last change of the job, and all were stopped.
    fn is_only_stopped(&self, arm: usize) -> bool {
        self.results(arm).next().is_some() && !self.has_reached(arm)
    }

    /// Returns the observations of an arm.
    fn results(&self, arm: usize) -> impl Iterator<Item = &Observation> {
        self.observations.iter().filter(move |s| s.arm == arm)
    }

    /// Returns true if two or more runs of an arm reached the target, all after the same number of epochs, and no run
    /// missed it after as many.
    fn repeats(&self, arm: usize) -> bool {
        let mut reached = self.results(arm).filter(|s| s.reached).map(|s| s.epochs);
        let Some(first) = reached.next() else { return false };
        let mut others = reached.peekable();
        others.peek().is_some()
            && others.all(|epochs| (epochs - first).abs() < 0.5)
            && self.results(arm).all(|s| s.reached || s.epochs < first - 0.5)
    }

    /// Draws the costs of all arms jointly from the belief. Returns the arm with the least cost among the tried arms
    /// and their neighbours.
    fn draw(&self, generator: &mut Generator) -> usize {
        let n = self.tried.len();
        let (epochs, epoch_cost) = (self.epochs.draw(generator), self.epoch_cost.draw(generator));
        // A batch size that fails, for instance for lack of memory, is no reason to try the next one.
        let works = |k: usize| self.tried[k] && !self.failed[k];
        let known = |k: usize| self.tried[k] || (k > 0 && works(k - 1)) || (k + 1 < n && works(k + 1));
        let part = |k: usize| if self.results(k).count() == 1 { ONCE } else { TEMPERATURE };
        let part_of_epochs = |k: usize| part(k) * if self.repeats(k) { REPEATED } else { 1.0 };
        let drawn: Vec<f64> = (0..n)
            .map(|k| {
                let log_epochs = self.epochs.mean(k) + part_of_epochs(k) * epochs[k];
                log_epochs.max(0.0) + self.epoch_cost.mean(k) + part(k) * epoch_cost[k]
            })
            .collect();
        let least = (0..n).filter(|k| known(*k) && !self.failed[*k]).min_by(|a, b| drawn[*a].total_cmp(&drawn[*b]));
        least.unwrap_or(self.first)
    }
}

/// Chooses the batch size of the next run ([`super::next`]).
pub(super) fn next(spec: &Spec, trials: &[Trial], generator: &mut Generator) -> Result<Choice, NoneConverges> {
    let under_way = |batch_size| trials.iter().any(|t| t.is_running() && t.batch_size == batch_size);
    let Some(state) = JobBelief::new(spec, trials) else {
        let from = spec.place(spec.default_batch_size).unwrap_or(0);
        let left = (0..spec.batch_sizes.len()).filter(|k| !has_failed(spec, trials, spec.batch_sizes[*k]));
        let Some(nearest) = left.min_by_key(|k| k.abs_diff(from)) else { return last_to_reach(trials) };
        let batch_size = spec.batch_sizes[nearest];
        let kind = if under_way(batch_size) { Kind::Concurrent } else { Kind::Exploration };
        return Ok(Choice { batch_size, kind });
    };
    let of_arm = |arm: usize, kind| Choice { batch_size: spec.batch_sizes[arm], kind };
    let Some(best) = state.best() else {
        // No arm has reached the target: explore the untried arm that is nearest to the first one.
        let untried = (0..state.tried.len()).filter(|k| !state.tried[*k]);
        return match untried.min_by_key(|k| k.abs_diff(state.first)) {
            Some(nearest) => Ok(of_arm(nearest, Kind::Exploration)),
            None => last_to_reach(trials),
        };
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

/// Returns the batch size that reached the target last, if none is left to be tried.
///
/// # Errors
/// If none has ever reached it.
fn last_to_reach(trials: &[Trial]) -> Result<Choice, NoneConverges> {
    let last = trials.iter().rfind(|trial| trial.reached()).ok_or(NoneConverges)?;
    Ok(Choice { batch_size: last.batch_size, kind: Kind::Regular })
}

/// Returns the number of epochs after which a run is stopped ([`super::patience`]).
pub(super) fn patience(spec: &Spec, trials: &[Trial], batch_size: u64, epoch_cost: Cost) -> u32 {
    let (most, epoch_cost) = (spec.max_epochs, epoch_cost.get());
    let Some((state, arm)) = JobBelief::new(spec, trials).zip(spec.place(batch_size)) else { return most };
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
        // Epochs are whole numbers: those that are done did not suffice, and one more may.
        let risked = (spent + epoch_cost) * survival(z_of(done + 0.5), z_of(done + 1.5));
        // Distribution of the log epochs that the run needs, given that those that are done did not suffice.
        let z = z_of(done);
        let h = hazard(z);
        let (mean, variance) = (mean + variance.sqrt() * h, variance * (1.0 - h * (h - z)).max(0.0));
        let optimistic = (mean - OPTIMISM * variance.sqrt()).exp() * epoch_cost;
        let expected = (mean + 0.5 * variance).exp() * epoch_cost;
        risked > allowance || (optimistic > best.cost && expected - best.cost > spent)
    };
    (1..most).find(given_up_after).unwrap_or(most)
}

/// Returns whether `cost`, that of a run in its first epoch, exceeds β times the expected cost of a run with the best batch
/// size; [`KNOWN`] times that for a batch size that has reached the target.
pub(super) fn exceeds_beta(spec: &Spec, trials: &[Trial], batch_size: u64, cost: Cost) -> bool {
    let is_known = trials.iter().any(|trial| trial.batch_size == batch_size && trial.reached());
    let best = JobBelief::new(spec, trials).and_then(|state| state.best());
    let times = if is_known { KNOWN } else { 1.0 };
    best.zip(spec.beta).is_some_and(|(best, beta)| cost.get() > times * beta * best.cost)
}

/// Returns the batch size that is best by current estimates.
pub fn favourite(spec: &Spec, trials: &[Trial]) -> u64 {
    let best = JobBelief::new(spec, trials).and_then(|state| state.best());
    best.map_or(spec.default_batch_size, |best| spec.batch_sizes[best.arm])
}

/// Returns the expected cost of a run (first value) and its relative standard deviation (second) for each batch size,
/// in the order of `spec.batch_sizes`. Empty before the first result.
pub fn posterior(spec: &Spec, trials: &[Trial]) -> Vec<(Cost, f64)> {
    let Some(state) = JobBelief::new(spec, trials) else { return Vec::new() };
    let arm = |k| (Cost::new(state.cost(k)), (state.epochs.variance(k) + state.epoch_cost.variance(k)).sqrt());
    (0..state.tried.len()).map(arm).collect()
}

/// Returns true if a batch size should not be tried again: its last run failed early and no run ever reached the
/// target, or its last two runs failed early. A run failed early if the target turned out to be out of reach
/// before `max_epochs`, or if its first epoch cost too much.
fn has_failed(spec: &Spec, trials: &[Trial], batch_size: u64) -> bool {
    let of_arm = || trials.iter().filter(|t| t.batch_size == batch_size && t.has_result());
    let early = |t: &&Trial| match t.state {
        State::Ended(Outcome::NotReached) => t.epochs < spec.max_epochs,
        State::Ended(Outcome::Stopped) => t.epochs == 0,
        _ => false,
    };
    let in_a_row = of_arm().rev().take_while(early).count();
    in_a_row >= if of_arm().any(Trial::reached) { 2 } else { 1 }
}

fn spent(observation: &Observation) -> f64 {
    observation.epochs * observation.log_epoch_cost.exp()
}

/// Adds to each arm the variance of its own deviation from the smooth curve of log epochs. Part of this variance comes
/// from rounding to whole epochs, and is lower for more epochs, whose number is estimated from the observation `first`.
fn add_residual_variance(epochs: &mut Belief, first: &Observation) {
    for arm in 0..epochs.arms() {
        let expected = first.epochs * (epochs.mean(arm) - epochs.mean(first.arm)).exp();
        epochs.add_variance(arm, RESIDUAL.powi(2) + 1.0 / (12.0 * expected.max(0.5).powi(2)));
    }
}

/// Returns the variance of log epochs among runs with the same batch size.
fn noise(arms: usize, observations: &[Observation]) -> f64 {
    let mut spread = regime::Spread::new(arms);
    observations.iter().filter(|s| s.reached).for_each(|s| spread.add(s.arm, s.log_epochs));
    spread.pooled(NOISE)
}

#[expect(clippy::cast_precision_loss, reason = "batch sizes are far below 2^52")]
fn log2(batch_size: u64) -> f64 {
    (batch_size as f64).log2()
}

#[cfg(test)]
mod tests;
