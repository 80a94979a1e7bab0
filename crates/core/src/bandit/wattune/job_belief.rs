//! Model of a recurring job: the cost of a run with each batch size (arm), estimated from the job's trials.
//!
//! *Cost.* The cost of a run is its number of epochs × the cost of an epoch. The cost of an epoch hardly varies, and
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
//! neighbouring batch sizes (`gaussian_belief.rs`); a stopped run shows that more epochs would have been needed. The sum
//! f + g has nearly always a single minimum, from which on f rises faster than g falls.
//!
//! *Roughness.* Far from the best batch size, f may change more than a random walk of 0.07 allows. A belief that is too
//! smooth takes such a change for noise and prefers the wrong batch size. So beliefs are also computed for random walks
//! of 2, 4 and 8 times 0.07, and the likeliest one is used; each doubling is 20 times less likely a priori.
//!
//! *Change.* At a change of the job (`change_detection.rs`), an unknown function of any size is added to f and g, with
//! their prior drift and a mean slope of zero. What is known about the relative costs of batch sizes then remains as an
//! estimate.

use super::change_detection::{Changes, NOISE, Spread, changes};
use super::gaussian_belief::{Drift, GaussianBelief, survival};
use super::observation::Observation;
use crate::bandit::{Outcome, Spec, State, Trial};

/// Prior standard deviation of the shift that a change of the job adds to log epochs and to log epoch cost.
const CHANGE_DEVIATION: f64 = 1.0;
/// Prior of the change of log epochs with the batch size, per octave (doubling of the batch size).
const EPOCHS_DRIFT: Drift = Drift { slope: 0.15, slope_deviation: 0.12, walk: 0.07 };
/// Prior of the change of an epoch's log cost with the batch size, per octave.
const EPOCH_COST_DRIFT: Drift = Drift { slope: -0.25, slope_deviation: 0.25, walk: 0.15 };
/// Standard deviation of log epochs at a single batch size from the smooth curve of log epochs over batch sizes.
const RESIDUAL_DEVIATION: f64 = 0.04;
/// Prior standard deviation of log epochs at the batch size of the first run, around the result of that run.
const FIRST_RUN_DEVIATION: f64 = 0.5;
/// Deviations of the random walk for which beliefs are computed, as multiples of the `walk` of [`EPOCHS_DRIFT`].
const WALK_MULTIPLES: [f64; 4] = [1.0, 2.0, 4.0, 8.0];
/// Reduction of the prior log likelihood with each doubling of the random walk's deviation.
const DOUBLING_PENALTY: f64 = 3.0;

/// Belief about log epochs, for one assumed deviation of the random walk.
struct EpochsHypothesis {
    drift: Drift,
    log_epochs: GaussianBelief,
    /// Log likelihood of the observations so far, plus the log prior of this deviation.
    log_likelihood: f64,
}

impl EpochsHypothesis {
    fn new(octaves: &[f64], first: &Observation, walk_multiple: f64) -> Self {
        let drift = Drift { walk: EPOCHS_DRIFT.walk * walk_multiple, ..EPOCHS_DRIFT };
        let mut log_epochs = GaussianBelief::new(octaves, first.arm, first.log_epochs, FIRST_RUN_DEVIATION, drift);
        add_residual_variance(&mut log_epochs, first);
        Self { drift, log_epochs, log_likelihood: -DOUBLING_PENALTY * walk_multiple.log2() }
    }

    /// Adds the unknown shift with which a change of the job begins; `first` is the first observation after the change.
    fn change(&mut self, octaves: &[f64], first: &Observation) {
        let drift = Drift { slope: 0.0, ..self.drift };
        self.log_epochs.shift_by_unknown(octaves, first.arm, CHANGE_DEVIATION, drift);
        add_residual_variance(&mut self.log_epochs, first);
    }

    fn learn(&mut self, s: &Observation, noise_variance: f64) {
        let variance = self.log_epochs.variance(s.arm) + noise_variance;
        let z = (s.log_epochs - self.log_epochs.mean(s.arm)) / variance.sqrt();
        if s.reached {
            self.log_likelihood -= 0.5 * (z * z + variance.ln());
            self.log_epochs.observe(s.arm, s.log_epochs, noise_variance);
        } else {
            self.log_likelihood += survival(f64::NEG_INFINITY, z).max(f64::MIN_POSITIVE).ln();
            self.log_epochs.observe_above(s.arm, s.log_epochs, noise_variance);
        }
    }
}

/// Belief about the cost of a run at each of a job's batch sizes (arms), after a list of trials.
pub(super) struct JobBelief {
    /// Observations since the last change of the job, oldest first.
    pub(super) observations: Vec<Observation>,
    /// log₂ of each arm's batch size.
    pub(super) octaves: Vec<f64>,
    pub(super) log_epochs: GaussianBelief,
    pub(super) log_epoch_cost: GaussianBelief,
    /// True for arms with an observation since the last change of the job, and for failed arms.
    pub(super) tried: Vec<bool>,
    /// True for arms that were tried and seem unable to reach the target.
    pub(super) failed: Vec<bool>,
    /// Variance of log epochs among runs with the same batch size.
    pub(super) noise_variance: f64,
    /// Arm of the first run; after a change of the job, of the first run since the last change.
    pub(super) first_arm: usize,
    pub(super) has_changed: bool,
    /// Arm of the latest result, if that result is an outlier and it is not yet certain whether the job changed.
    pub(super) unconfirmed_outlier: Option<usize>,
}

/// Batch size (arm) with the least expected cost among those that reached the target.
#[derive(Clone, Copy)]
pub(super) struct BestArm {
    pub(super) arm: usize,
    pub(super) cost: f64,
}

impl JobBelief {
    /// Returns the belief after all trials; `None` if no trial has a result with an epoch.
    pub(super) fn new(spec: &Spec, trials: &[Trial]) -> Option<Self> {
        let mut observations: Vec<Observation> = trials.iter().filter_map(|t| Observation::of(spec, t)).collect();
        let octaves: Vec<f64> = spec.batch_sizes.iter().map(|b| log2(*b)).collect();
        let Changes { at: changed_at, unconfirmed_outlier } = changes(octaves.len(), &observations);
        let present = changed_at.last().copied().unwrap_or(0);
        let noise_variance = noise_variance(octaves.len(), &observations[present..]);
        let first = *observations.first()?;
        let mut hypotheses: Vec<EpochsHypothesis> =
            WALK_MULTIPLES.iter().map(|multiple| EpochsHypothesis::new(&octaves, &first, *multiple)).collect();
        let mut log_epoch_cost = GaussianBelief::new(&octaves, first.arm, first.log_epoch_cost, 0.0, EPOCH_COST_DRIFT);
        let mut last_cost = vec![None; octaves.len()];
        let mut next_change = changed_at.iter().copied().peekable();
        for (i, s) in observations.iter().enumerate() {
            if next_change.next_if_eq(&i).is_some() {
                hypotheses.iter_mut().for_each(|hypothesis| hypothesis.change(&octaves, s));
                let drift = Drift { slope: 0.0, ..EPOCH_COST_DRIFT };
                log_epoch_cost.shift_by_unknown(&octaves, s.arm, CHANGE_DEVIATION, drift);
                last_cost.fill(None);
            }
            // The cost of an epoch has nearly no noise: if it differs from that of the arm's previous run, the newest
            // value counts.
            let before = last_cost[s.arm].replace(s.log_epoch_cost);
            if before != Some(s.log_epoch_cost) {
                log_epoch_cost.add_variance(s.arm, before.map_or(0.0, |before| (s.log_epoch_cost - before).powi(2)));
                log_epoch_cost.observe(s.arm, s.log_epoch_cost, 1e-6);
            }
            hypotheses.iter_mut().for_each(|hypothesis| hypothesis.learn(s, noise_variance));
        }
        let likeliest = hypotheses.into_iter().max_by(|a, b| a.log_likelihood.total_cmp(&b.log_likelihood))?;
        observations.drain(..present);
        let first_arm = observations.first()?.arm;
        let failed: Vec<bool> = spec.batch_sizes.iter().map(|b| has_failed(spec, trials, *b)).collect();
        let tried = last_cost.iter().zip(&failed).map(|(cost, failed)| cost.is_some() || *failed).collect();
        Some(Self {
            observations,
            octaves,
            log_epochs: likeliest.log_epochs,
            log_epoch_cost,
            tried,
            failed,
            noise_variance,
            first_arm,
            has_changed: present > 0,
            unconfirmed_outlier,
        })
    }

    /// Returns the expected cost of a run with an arm's batch size, in joules.
    pub(super) fn cost(&self, arm: usize) -> f64 {
        (self.log_epochs.mean(arm) + self.log_epoch_cost.mean(arm) + 0.5 * self.noise_variance).exp()
    }

    /// Returns the cheapest arm that reached its target; `None` if no arm has.
    pub(super) fn best(&self) -> Option<BestArm> {
        let reached = |arm: &usize| !self.failed[*arm] && self.has_reached(*arm);
        let all = (0..self.tried.len()).filter(reached).map(|arm| BestArm { arm, cost: self.cost(arm) });
        all.min_by(|a, b| a.cost.total_cmp(&b.cost))
    }

    /// Returns true if a run with this batch size reached the target since the last change of the job.
    fn has_reached(&self, arm: usize) -> bool {
        self.results(arm).any(|s| s.reached)
    }

    /// Returns true if there were runs with this batch size since the last change of the job, and all were stopped.
    pub(super) fn is_only_stopped(&self, arm: usize) -> bool {
        self.results(arm).next().is_some() && !self.has_reached(arm)
    }

    /// Returns the observations of an arm.
    pub(super) fn results(&self, arm: usize) -> impl Iterator<Item = &Observation> {
        self.observations.iter().filter(move |s| s.arm == arm)
    }

    /// Returns true if two or more runs of an arm reached the target, all after the same number of epochs, and no run
    /// missed it after as many.
    pub(super) fn repeats_exactly(&self, arm: usize) -> bool {
        let mut reached = self.results(arm).filter(|s| s.reached).map(|s| s.epochs);
        let Some(first) = reached.next() else { return false };
        let mut others = reached.peekable();
        others.peek().is_some()
            && others.all(|epochs| (epochs - first).abs() < 0.5)
            && self.results(arm).all(|s| s.reached || s.epochs < first - 0.5)
    }
}

/// Returns true if a batch size should not be tried again: its last run failed early and no run ever reached the
/// target, or its last two runs failed early. A run failed early if the target turned out to be out of reach
/// before `max_epochs`, or if its first epoch cost too much.
pub(super) fn has_failed(spec: &Spec, trials: &[Trial], batch_size: u64) -> bool {
    let of_arm = || trials.iter().filter(|t| t.batch_size == batch_size && t.has_result());
    let early = |t: &&Trial| match t.state {
        State::Ended(Outcome::NotReached) => t.epochs < spec.max_epochs,
        State::Ended(Outcome::Stopped) => t.epochs == 0,
        _ => false,
    };
    let in_a_row = of_arm().rev().take_while(early).count();
    in_a_row >= if of_arm().any(Trial::reached) { 2 } else { 1 }
}

/// Adds to each arm the variance of its own deviation from the smooth curve of log epochs. Part of this variance comes
/// from rounding to whole epochs, and is lower for more epochs, whose number is estimated from the observation `first`.
fn add_residual_variance(log_epochs: &mut GaussianBelief, first: &Observation) {
    for arm in 0..log_epochs.arms() {
        let expected = first.epochs * (log_epochs.mean(arm) - log_epochs.mean(first.arm)).exp();
        log_epochs.add_variance(arm, RESIDUAL_DEVIATION.powi(2) + 1.0 / (12.0 * expected.max(0.5).powi(2)));
    }
}

/// Returns the variance of log epochs among runs with the same batch size.
fn noise_variance(arms: usize, observations: &[Observation]) -> f64 {
    let mut spread = Spread::new(arms);
    observations.iter().filter(|s| s.reached).for_each(|s| spread.add(s.arm, s.log_epochs));
    spread.pooled(NOISE)
}

#[expect(clippy::cast_precision_loss, reason = "batch sizes are far below 2^52")]
fn log2(batch_size: u64) -> f64 {
    (batch_size as f64).log2()
}
