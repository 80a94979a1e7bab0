//! wattune's policy for batch sizes. It uses data that Zeus's policy ignores, and therefore spends far less on
//! exploration. This file chooses the batch size of the next run, with the estimates of `job_belief.rs` and within the
//! allowance of `allowance.rs`, which also stops runs.
//!
//! *Exploration* tries a batch size an octave (a factor of 2) below the best one so far, then the middle between the
//! best and the nearest tried one below, until the neighbour below was tried; then it does the same above. It goes down
//! first, because a smaller batch size rarely needs more epochs: the cost of its first epoch already shows what the
//! whole run costs at most. After a change of the job, exploration begins again, but tries only batch sizes with a
//! lower estimate than the best.
//!
//! *After exploration* the costs of the tried batch sizes and of their neighbours are drawn from the belief, as in
//! Thompson sampling, and the cheapest is run. Draws deviate from the mean by only 0.6 of the belief's deviation,
//! because correlated errors cost less than independent ones; by 0.85 of it for a batch size with a single run, so that
//! one unlucky run does not decide. For a batch size whose runs, two or more, all needed the same number of epochs,
//! drawn log epochs deviate only 0.4 times as much: runs of few epochs repeat exactly, because the noise is smaller than
//! an epoch. No draw has less than one epoch.
//!
//! *After a run that missed its target* the best known batch size runs; *after an outlier* the same one again, at once.

mod allowance;
mod change_detection;
mod gaussian_belief;
mod job_belief;
mod observation;

use self::allowance::is_affordable;
pub(super) use self::allowance::{exceeds_beta, patience};
use self::job_belief::{JobBelief, has_failed};
use super::{Choice, Cost, Generator, Kind, NoneConverges, Outcome, Spec, State, Trial};

/// Largest step of exploration from the best batch size, in octaves.
const MAX_STEP: f64 = 1.0;
/// Factor by which draws multiply the belief's standard deviation.
const DRAW_SCALE: f64 = 0.6;
/// Factor that draws use instead of [`DRAW_SCALE`] for batch sizes with only one run.
const SINGLE_RUN_SCALE: f64 = 0.85;
/// Factor on the deviation of drawn log epochs, in addition to [`DRAW_SCALE`], for batch sizes whose runs, two or more,
/// all needed the same number of epochs.
const REPEATED_EPOCHS_SCALE: f64 = 0.4;

/// Chooses the batch size of the next run ([`super::next`]).
pub(super) fn next(spec: &Spec, trials: &[Trial], generator: &mut Generator) -> Result<Choice, NoneConverges> {
    let is_running = |batch_size| trials.iter().any(|t| t.is_running() && t.batch_size == batch_size);
    let Some(belief) = JobBelief::new(spec, trials) else {
        let from = spec.place(spec.default_batch_size).unwrap_or(0);
        let left = (0..spec.batch_sizes.len()).filter(|k| !has_failed(spec, trials, spec.batch_sizes[*k]));
        let Some(nearest) = left.min_by_key(|k| k.abs_diff(from)) else { return last_to_reach(trials) };
        let batch_size = spec.batch_sizes[nearest];
        let kind = if is_running(batch_size) { Kind::Concurrent } else { Kind::Exploration };
        return Ok(Choice { batch_size, kind });
    };
    let of_arm = |arm: usize, kind| Choice { batch_size: spec.batch_sizes[arm], kind };
    let Some(best) = belief.best() else {
        // No arm has reached the target: explore the untried arm that is nearest to the first one.
        let untried = (0..belief.tried.len()).filter(|k| !belief.tried[*k]);
        return match untried.min_by_key(|k| k.abs_diff(belief.first_arm)) {
            Some(nearest) => Ok(of_arm(nearest, Kind::Exploration)),
            None => last_to_reach(trials),
        };
    };
    if let Some(arm) = belief.unconfirmed_outlier.filter(|arm| !belief.failed[*arm]) {
        return Ok(of_arm(arm, Kind::Regular));
    }
    let last = trials.iter().rfind(|t| t.has_result());
    let has_missed = last.is_some_and(|t| t.state != State::Ended(Outcome::Reached));
    if has_missed {
        return Ok(of_arm(best.arm, Kind::Regular));
    }
    let (arm, kind) = match next_to_explore(&belief, best.arm) {
        Some(arm) => (arm, Kind::Exploration),
        None => (draw_cheapest(&belief, generator), Kind::Regular),
    };
    if arm != best.arm && !is_affordable(&belief, arm, best) {
        return Ok(of_arm(best.arm, Kind::Regular));
    }
    if kind == Kind::Exploration && is_running(spec.batch_sizes[arm]) {
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

/// Returns the next arm to explore, given the best arm so far; `None` if exploration has ended.
fn next_to_explore(belief: &JobBelief, best: usize) -> Option<usize> {
    let tried = &belief.tried;
    let down = || {
        let next = best.checked_sub(1).filter(|k| !tried[*k])?;
        let bound = (0..best).rev().find(|k| tried[*k]);
        Some(bound.map_or_else(|| farthest_step(belief, (0..best).rev(), best, next), |k| (best + k).div_ceil(2)))
    };
    let up = || {
        let next = Some(best + 1).filter(|k| *k < tried.len() && !tried[*k])?;
        let bound = (next..tried.len()).find(|k| tried[*k]);
        Some(bound.map_or_else(|| farthest_step(belief, next..tried.len(), best, next), |k| usize::midpoint(best, k)))
    };
    let is_promising = |k: &usize| !belief.has_changed || belief.cost(*k) < belief.cost(best);
    down().filter(is_promising).or_else(|| up().filter(is_promising))
}

/// Returns the last arm of `outwards` (arms in order of their distance from `from`) that is within [`MAX_STEP`] octaves
/// of the arm `from`; `next` if there is none.
fn farthest_step(belief: &JobBelief, outwards: impl Iterator<Item = usize>, from: usize, next: usize) -> usize {
    let is_near = |k: &usize| (belief.octaves[*k] - belief.octaves[from]).abs() <= MAX_STEP + 1e-9;
    outwards.take_while(is_near).last().unwrap_or(next)
}

/// Draws the costs of all arms jointly from the belief. Returns the arm with the least cost among the tried arms
/// and their neighbours.
fn draw_cheapest(belief: &JobBelief, generator: &mut Generator) -> usize {
    let n = belief.tried.len();
    let (log_epochs, log_epoch_cost) = (belief.log_epochs.draw(generator), belief.log_epoch_cost.draw(generator));
    // A batch size that fails, for instance for lack of memory, is no reason to try the next one.
    let works = |k: usize| belief.tried[k] && !belief.failed[k];
    let is_candidate = |k: usize| belief.tried[k] || (k > 0 && works(k - 1)) || (k + 1 < n && works(k + 1));
    let scale = |k: usize| if belief.results(k).count() == 1 { SINGLE_RUN_SCALE } else { DRAW_SCALE };
    let epochs_scale = |k: usize| scale(k) * if belief.repeats_exactly(k) { REPEATED_EPOCHS_SCALE } else { 1.0 };
    let drawn: Vec<f64> = (0..n)
        .map(|k| {
            let log_epochs = belief.log_epochs.mean(k) + epochs_scale(k) * log_epochs[k];
            log_epochs.max(0.0) + belief.log_epoch_cost.mean(k) + scale(k) * log_epoch_cost[k]
        })
        .collect();
    let candidates = (0..n).filter(|k| is_candidate(*k) && !belief.failed[*k]);
    candidates.min_by(|a, b| drawn[*a].total_cmp(&drawn[*b])).unwrap_or(belief.first_arm)
}

/// Returns the batch size that is best by current estimates.
pub fn favourite(spec: &Spec, trials: &[Trial]) -> u64 {
    let best = JobBelief::new(spec, trials).and_then(|belief| belief.best());
    best.map_or(spec.default_batch_size, |best| spec.batch_sizes[best.arm])
}

/// Returns the expected cost of a run (first value) and its relative standard deviation (second) for each batch size,
/// in the order of `spec.batch_sizes`. Empty before the first result.
pub fn posterior(spec: &Spec, trials: &[Trial]) -> Vec<(Cost, f64)> {
    let Some(belief) = JobBelief::new(spec, trials) else { return Vec::new() };
    let deviation = |k| (belief.log_epochs.variance(k) + belief.log_epoch_cost.variance(k)).sqrt();
    (0..belief.tried.len()).map(|k| (Cost::new(belief.cost(k)), deviation(k))).collect()
}

#[cfg(test)]
mod tests;
