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

//!
//! A job that a Zeus client registered ([`Spec::zeus`]) sets the number of rounds, the prior and the minimum number of
//! rewards. Its arms use the rewards of Zeus's server, in its order, so that equal seeds give equal choices.

use std::fmt;

use super::{Belief, Choice, Cost, Generator, Kind, NoneConverges, Spec, Trial, ZeusRefused};

/// Default number of pruning rounds.
const ROUNDS: i64 = 2;
/// Default minimum number of rewards for the belief about an arm (a remaining batch size): arms with fewer are chosen
/// first.
const EXPLORATIONS: usize = 2;

/// Choice of a batch size, and the random values that led to it.
#[derive(Clone, Debug, PartialEq)]
pub struct Draw {
    /// Chosen batch size.
    pub choice: Choice,
    /// Arms, ascending, if the choice is the first one by Thompson sampling; else empty.
    pub new_arms: Vec<u64>,
    /// Values drawn for each arm; empty unless the choice is by Thompson sampling.
    pub samples: Vec<Sample>,
}

/// Value that was drawn for an arm. Its text is that of the log of Zeus's server.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    batch_size: u64,
    belief: Arm,
    value: f64,
}

impl fmt::Display for Sample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { batch_size, belief, value } = self;
        let variance = 1.0 / belief.precision;
        write!(f, "Arm {batch_size}: mu ~ N({:.2}, {variance:.2}) -> {value:.2}", belief.mean)
    }
}

enum Stage {
    /// Pruning: the next run explores this batch size.
    Explore(u64),
    /// Pruning: the run of the explored batch size is still in progress.
    Waiting,
    /// Thompson sampling among the batch sizes that pruning left.
    Arms(Vec<u64>),
    /// Pruning: the next batch size is below 1, which no run can have.
    Impossible(i64),
}

/// Chooses the batch size of the next run ([`super::next`]).
pub(super) fn next(spec: &Spec, trials: &[Trial], generator: &mut Generator) -> Result<Choice, NoneConverges> {
    draw(spec, trials, generator).map(|draw| draw.choice).map_err(|_| NoneConverges)
}

/// Chooses the batch size of the next run, and returns the random values that led to it.
///
/// # Errors
/// If no batch size is left to try, or the next one is below 1.
pub fn draw(spec: &Spec, trials: &[Trial], generator: &mut Generator) -> Result<Draw, ZeusRefused> {
    let chosen =
        |batch_size, kind| Draw { choice: Choice { batch_size, kind }, new_arms: Vec::new(), samples: Vec::new() };
    match stage(spec, trials) {
        Stage::Explore(batch_size) => Ok(chosen(batch_size, Kind::Exploration)),
        Stage::Waiting => Ok(chosen(best_known(spec, trials), Kind::Concurrent)),
        Stage::Impossible(batch_size) => Err(ZeusRefused::Impossible(batch_size)),
        Stage::Arms(arms) if arms.is_empty() => Err(ZeusRefused::NoneConverges),
        Stage::Arms(arms) => {
            let (batch_size, samples) = sample(spec, trials, &arms, generator);
            let is_first = !trials.iter().any(|t| t.kind == Kind::Regular);
            let new_arms = if is_first { arms } else { Vec::new() };
            Ok(Draw { new_arms, samples, ..chosen(batch_size, Kind::Regular) })
        }
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
    let mean = |batch_size: &u64| {
        let arm = fit(spec, trials, *batch_size);
        if arm.observations > 0 { arm.mean } else { f64::NEG_INFINITY }
    };
    arms.iter().copied().max_by(|a, b| mean(a).total_cmp(&mean(b))).unwrap_or(spec.default_batch_size)
}

/// Returns the estimated cost of a run for each batch size ([`super::beliefs`]); `None` for batch sizes without
/// results.
pub(super) fn beliefs(spec: &Spec, trials: &[Trial]) -> Vec<Option<Belief>> {
    let belief = |batch_size: &u64| {
        let arm = fit(spec, trials, *batch_size);
        let known = Belief { mean: Cost::new(-arm.mean), deviation: Cost::new(arm.deviation) };
        (arm.observations > 0).then_some(known)
    };
    spec.batch_sizes.iter().map(belief).collect()
}

fn best_known(spec: &Spec, trials: &[Trial]) -> u64 {
    cheapest(trials).map_or(spec.default_batch_size, |(_, batch_size)| batch_size)
}

/// Returns the cost (first) and the batch size (second) of the cheapest run that reached its target; `None` if no run
/// has. Of equal costs the one that ended first counts, and of those that ended at the same time the one that began
/// first.
pub(super) fn cheapest<'a>(trials: impl IntoIterator<Item = &'a Trial>) -> Option<(Cost, u64)> {
    let reached = trials.into_iter().filter(|t| t.reached());
    let end = |t: &Trial| (t.ended_at, t.number);
    let least = reached.min_by(|a, b| a.cost.get().total_cmp(&b.cost.get()).then_with(|| end(a).cmp(&end(b))));
    least.map(|t| (t.cost, t.batch_size))
}

fn stage(spec: &Spec, trials: &[Trial]) -> Stage {
    let (mut left, mut default) = (spec.batch_sizes.clone(), spec.default_batch_size);
    let rounds = spec.zeus.as_ref().map_or(ROUNDS, |zeus| zeus.num_pruning_rounds);
    for round in 0..usize::try_from(rounds).unwrap_or(0) {
        if left.is_empty() {
            break;
        }
        let (mut good, mut best) = (Vec::new(), (Cost::INFINITE, default));
        let down = left.iter().rev().copied().filter(|b| *b <= default);
        let up = left.iter().copied().filter(|b| *b > default);
        for (direction, batch_sizes) in [down.collect::<Vec<_>>(), up.collect()].into_iter().enumerate() {
            let mut has_ended = false;
            for batch_size in batch_sizes {
                let counts = |t: &&Trial| t.batch_size == batch_size && t.kind == Kind::Exploration && !t.is_void();
                let Some(trial) = trials.iter().filter(counts).nth(round) else { return Stage::Explore(batch_size) };
                if trial.is_running() {
                    return Stage::Waiting;
                }
                if !trial.reached() {
                    has_ended = true;
                    break;
                }
                good.push(batch_size);
                if trial.cost < best.0 {
                    best = (trial.cost, batch_size);
                }
            }
            let impossible = spec.zeus.as_ref().and_then(|zeus| zeus.impossible());
            if let Some(batch_size) = impossible.filter(|_| round == 0 && direction == 0 && !has_ended) {
                return Stage::Impossible(batch_size);
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
    /// Precision of the belief about that mean: one by its variance.
    pub precision: f64,
    /// Standard deviation of the belief about that mean, in joules.
    pub deviation: f64,
    /// Number of rewards that the belief is fitted to.
    pub observations: usize,
}

impl Arm {
    /// Returns the belief after `rewards`, from a flat prior and with the population variance of the rewards as noise.
    pub fn fit(rewards: &[f64]) -> Self {
        Self::fit_from(0.0, 0.0, rewards)
    }

    /// Returns the belief after `rewards`, from a prior with this mean and precision.
    #[expect(clippy::cast_precision_loss, reason = "a count of runs")]
    pub fn fit_from(prior_mean: f64, prior_precision: f64, rewards: &[f64]) -> Self {
        let (n, observations) = (rewards.len() as f64, rewards.len());
        // The order of operations is that of the reference implementation, for equal rounding.
        let mean = sum(rewards) / n;
        let variance = sum(&rewards.iter().map(|r| (r - mean) * (r - mean)).collect::<Vec<_>>()) / n;
        if variance == 0.0 {
            return Self { mean, precision: f64::INFINITY, deviation: 0.0, observations };
        }
        let of_reward = 1.0 / variance;
        let precision = prior_precision + n * of_reward;
        let mean = (prior_precision * prior_mean + of_reward * sum(rewards)) / precision;
        Self { mean, precision, deviation: (1.0 / precision).sqrt(), observations }
    }
}

/// Returns the sum of the numbers, rounded as by NumPy: it sums blocks of up to 128 numbers in eight parts each.
fn sum(numbers: &[f64]) -> f64 {
    const PARTS: usize = 8;
    match numbers.len() {
        0..PARTS => numbers.iter().sum(),
        PARTS..=128 => {
            let mut parts = [0.0; PARTS];
            let whole = numbers.chunks_exact(PARTS);
            let rest = whole.remainder();
            for block in whole {
                parts.iter_mut().zip(block).for_each(|(part, number)| *part += number);
            }
            let [a, b, c, d, e, f, g, h] = parts;
            rest.iter().fold(((a + b) + (c + d)) + ((e + f) + (g + h)), |sum, number| sum + number)
        }
        n => {
            let half = n / 2 - n / 2 % PARTS;
            sum(&numbers[..half]) + sum(&numbers[half..])
        }
    }
}

/// Returns the belief about an arm. For jobs of Zeus clients, `observations` counts all rewards, also those before the
/// window.
fn fit(spec: &Spec, trials: &[Trial], batch_size: u64) -> Arm {
    match &spec.zeus {
        None => Arm::fit(&rewards(spec, trials, batch_size)),
        Some(zeus) => {
            let (rewards, observations) = server_rewards(trials, batch_size, zeus.window());
            let fitted = Arm::fit_from(zeus.mab_prior_mean, zeus.mab_prior_precision, &rewards);
            Arm { observations, ..fitted }
        }
    }
}

/// Returns first the rewards that Zeus's server would have fitted an arm to, in its order, and second their number
/// without the window. Until the first result that Thompson sampling asked for, they are those of the explorations.
/// Each such result fits the arm anew: to the other results that are known by then, and to itself as the last.
fn server_rewards(trials: &[Trial], batch_size: u64, window: usize) -> (Vec<f64>, usize) {
    let reward = |t: &Trial| -t.cost.get();
    let results: Vec<&Trial> = trials.iter().filter(|t| t.batch_size == batch_size && t.has_result()).collect();
    let end = |t: &Trial| (t.ended_at, t.number);
    let latest = results.iter().filter(|t| t.kind == Kind::Regular).max_by_key(|t| end(t));
    let Some(latest) = latest else {
        let explored = results.iter().filter(|t| t.kind == Kind::Exploration);
        let rewards: Vec<f64> = explored.map(|t| reward(t)).collect();
        let count = rewards.len();
        return (rewards, count);
    };
    let others = results.iter().rev().filter(|t| t.number != latest.number && end(t) <= end(latest));
    let mut rewards: Vec<f64> = others.map(|t| reward(t)).collect();
    let count = rewards.len() + 1;
    if window > 0 && rewards.len() >= window {
        rewards.truncate(window - 1);
        rewards.reverse();
    }
    rewards.push(reward(latest));
    (rewards, count)
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

/// Chooses an arm; returns it, and the values drawn for the arms.
fn sample(spec: &Spec, trials: &[Trial], arms: &[u64], generator: &mut Generator) -> (u64, Vec<Sample>) {
    let fitted: Vec<Arm> = arms.iter().map(|arm| fit(spec, trials, *arm)).collect();
    // An arm without a reward has no belief that could be sampled.
    let least = spec.zeus.as_ref().map_or(EXPLORATIONS, |zeus| zeus.explorations().max(1));
    let order = generator.shuffled(u32::try_from(arms.len()).unwrap_or(u32::MAX));
    let rare = order.iter().map(|i| *i as usize).find(|i| fitted[*i].observations < least);
    if let Some(rare) = rare {
        return (arms[rare], Vec::new());
    }
    let (mut best, mut samples) = ((f64::NEG_INFINITY, arms[0]), Vec::with_capacity(arms.len()));
    for (arm, belief) in arms.iter().zip(fitted) {
        let value = belief.mean + belief.deviation * generator.normal();
        if value > best.0 {
            best = (value, *arm);
        }
        samples.push(Sample { batch_size: *arm, belief, value });
    }
    (best.1, samples)
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates")]
fn whole_epochs(epochs: f64) -> u32 {
    epochs.floor() as u32
}
