//! Zeus's policy for batch sizes (NSDI'23, §4.4): two rounds of pruning, then Gaussian Thompson sampling over the batch
//! sizes that pruning left.
//!
//! *Pruning.* A round runs each batch size once, from the default down, then from the default up; the first batch size
//! in a direction that does not reach the target ends this direction. The cheapest batch size of the first round
//! becomes the default of the second round, which covers only the batch sizes that reached the target. While the run of
//! an explored batch size is in progress, other runs use the best known batch size.
//!
//! *Thompson sampling.* Each remaining batch size is an arm; the rewards of an arm are the negative costs of its runs.
//! The belief about the mean reward of an arm with n rewards is N(mean, σ²/n), where σ² is the population variance of
//! the rewards. A value is drawn from the belief of each arm, and the arm with the largest value wins. If all rewards
//! of an arm are equal, the variance is 0, and the value is the mean.

use super::{Belief, Choice, Cost, Generator, Kind, NoneConverges, Spec, Trial};

/// Number of pruning rounds.
const ROUNDS: usize = 2;
/// Minimum number of rewards for the belief about an arm (a remaining batch size): arms with fewer are chosen first.
const EXPLORATIONS: usize = 2;

enum Stage {
    /// Pruning: the next run explores this batch size.
    Explore(u64),
    /// Pruning: the run of the explored batch size is still in progress.
    Waiting,
    /// Thompson sampling among the batch sizes that pruning left.
    Arms(Vec<u64>),
}

/// Chooses the batch size of the next run ([`super::next`]).
pub(super) fn next(spec: &Spec, trials: &[Trial], generator: &mut Generator) -> Result<Choice, NoneConverges> {
    match stage(spec, trials) {
        Stage::Explore(batch_size) => Ok(Choice { batch_size, kind: Kind::Exploration }),
        Stage::Waiting => Ok(Choice { batch_size: best_known(spec, trials), kind: Kind::Concurrent }),
        Stage::Arms(arms) if arms.is_empty() => Err(NoneConverges),
        Stage::Arms(arms) => Ok(Choice { batch_size: sample(spec, trials, &arms, generator), kind: Kind::Regular }),
    }
}

/// Returns the number of whole epochs whose cost is at most β times the cost of the cheapest run that reached its
/// target; `max_epochs` if that is lower, if β is not set, or if no run has reached its target.
pub(super) fn patience(spec: &Spec, trials: &[Trial], epoch_cost: Cost) -> u32 {
    let bound = spec.beta.zip(cheapest(trials)).map(|(beta, (cheapest, _))| cheapest * beta);
    bound.map_or(spec.max_epochs, |bound| whole_epochs(bound / epoch_cost).min(spec.max_epochs))
}

/// Returns the best batch size so far: after pruning, the arm with the highest mean reward; during pruning, the batch
/// size of the cheapest run that reached its target, or the default if there is no such run.
pub fn favourite(spec: &Spec, trials: &[Trial]) -> u64 {
    let Stage::Arms(arms) = stage(spec, trials) else { return best_known(spec, trials) };
    let mean = |batch_size: &u64| Arm::fit(&rewards(spec, trials, *batch_size)).mean;
    arms.iter().copied().max_by(|a, b| mean(a).total_cmp(&mean(b))).unwrap_or(spec.default_batch_size)
}

/// Returns the estimated cost of a run for each batch size ([`super::beliefs`]); `None` for batch sizes without
/// results.
pub(super) fn beliefs(spec: &Spec, trials: &[Trial]) -> Vec<Option<Belief>> {
    let belief = |batch_size: &u64| {
        let rewards = rewards(spec, trials, *batch_size);
        let arm = Arm::fit(&rewards);
        let known = Belief { mean: Cost::new(-arm.mean), deviation: Cost::new(arm.deviation) };
        (!rewards.is_empty()).then_some(known)
    };
    spec.batch_sizes.iter().map(belief).collect()
}

fn best_known(spec: &Spec, trials: &[Trial]) -> u64 {
    cheapest(trials).map_or(spec.default_batch_size, |(_, batch_size)| batch_size)
}

/// Returns the cost (first) and the batch size (second) of the cheapest run that reached its target; `None` if no run
/// has.
fn cheapest(trials: &[Trial]) -> Option<(Cost, u64)> {
    let reached = trials.iter().filter(|t| t.reached());
    reached.map(|t| (t.cost, t.batch_size)).min_by(|a, b| a.0.get().total_cmp(&b.0.get()))
}

fn stage(spec: &Spec, trials: &[Trial]) -> Stage {
    let (mut left, mut default) = (spec.batch_sizes.clone(), spec.default_batch_size);
    for round in 0..ROUNDS {
        let (mut good, mut best) = (Vec::new(), (Cost::INFINITE, default));
        let down = left.iter().rev().copied().filter(|b| *b <= default);
        let up = left.iter().copied().filter(|b| *b > default);
        for direction in [down.collect::<Vec<_>>(), up.collect()] {
            for batch_size in direction {
                let counts = |t: &&Trial| t.batch_size == batch_size && t.kind == Kind::Exploration && !t.is_void();
                let Some(trial) = trials.iter().filter(counts).nth(round) else { return Stage::Explore(batch_size) };
                if trial.is_running() {
                    return Stage::Waiting;
                }
                if !trial.reached() {
                    break;
                }
                good.push(batch_size);
                if trial.cost < best.0 {
                    best = (trial.cost, batch_size);
                }
            }
        }
        default = best.1;
        good.sort_unstable();
        left = good;
    }
    Stage::Arms(left)
}

/// Gaussian belief about the mean reward (negative cost) of a run with one batch size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Arm {
    /// Mean of the rewards, in joules; never positive.
    pub mean: f64,
    /// Standard deviation of the belief about that mean, in joules.
    pub deviation: f64,
    /// Number of rewards that the belief is fitted to.
    pub observations: usize,
}

impl Arm {
    /// Returns the belief after `rewards`, from a flat prior and with the population variance of the rewards as noise.
    #[expect(clippy::cast_precision_loss, reason = "a count of runs")]
    pub fn fit(rewards: &[f64]) -> Self {
        let n = rewards.len() as f64;
        let mean = rewards.iter().sum::<f64>() / n;
        let variance = rewards.iter().map(|r| (r - mean).powi(2)).sum::<f64>() / n;
        if variance == 0.0 {
            return Self { mean, deviation: 0.0, observations: rewards.len() };
        }
        // The order of operations is that of the reference implementation, for equal rounding.
        let precision = 1.0 / variance;
        let total = n * precision;
        let mean = precision * rewards.iter().sum::<f64>() / total;
        Self { mean, deviation: (1.0 / total).sqrt(), observations: rewards.len() }
    }
}

/// Returns the rewards of a batch size, oldest first: those of the newest `spec.window` results, or of all results if
/// `window` is 0.
fn rewards(spec: &Spec, trials: &[Trial], batch_size: u64) -> Vec<f64> {
    let of_arm = trials.iter().filter(|t| t.batch_size == batch_size && t.has_result());
    let all: Vec<f64> = of_arm.map(|t| -t.cost.get()).collect();
    let window = usize::try_from(spec.window).unwrap_or(usize::MAX);
    let first = if window == 0 { 0 } else { all.len().saturating_sub(window) };
    all[first..].to_vec()
}

fn sample(spec: &Spec, trials: &[Trial], arms: &[u64], generator: &mut Generator) -> u64 {
    let fitted: Vec<Arm> = arms.iter().map(|arm| Arm::fit(&rewards(spec, trials, *arm))).collect();
    let order = generator.shuffled(u32::try_from(arms.len()).unwrap_or(u32::MAX));
    let rare = order.iter().map(|i| *i as usize).find(|i| fitted[*i].observations < EXPLORATIONS);
    if let Some(rare) = rare {
        return arms[rare];
    }
    let mut best = (f64::NEG_INFINITY, arms[0]);
    for (arm, belief) in arms.iter().zip(&fitted) {
        let drawn = belief.mean + belief.deviation * generator.normal();
        if drawn > best.0 {
            best = (drawn, *arm);
        }
    }
    best.1
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates")]
fn whole_epochs(epochs: f64) -> u32 {
    epochs.floor() as u32
}
