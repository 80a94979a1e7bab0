//! Spending rules: what may be lost on batch sizes other than the best, and when a run is stopped.
//!
//! *Stopping.* Any run is stopped when it has cost more than `beta` times the expected cost of the best batch size. A
//! run with another batch size than the best is also stopped when two conditions hold: even an optimistic estimate of
//! its final cost (1.5 standard deviations below the mean) exceeds the cost of the best, and stopping is cheaper than
//! going on, although what was spent is lost. A run also stops when its loss after a further epoch, weighted with the
//! probability that this epoch misses the target too, exceeds the rest of the allowance. Without a cost limit (`beta`)
//! no run is stopped.
//!
//! *Allowance.* The allowance for all such losses is 0.65 of a run per batch size other than the default, plus, for each
//! successful run, what the best batch size saves compared with the default. When the allowance is used up, a tenth of
//! the best cost for each successful run is available for an untried batch size, which runs when this covers a whole run
//! of the best one: one expensive failure does not end the search. A batch size whose runs since a change of the job
//! were all stopped may have been stopped only because the change was not known yet. Such a batch size may use what is
//! set aside for untried ones, too; it runs once that covers twice the cost of its most expensive stopped run.

use super::gaussian_belief::{hazard, survival};
use super::job_belief::{BestArm, JobBelief};
use super::observation::Observation;
use crate::bandit::{Cost, Spec, Trial};

/// Number of standard deviations by which an optimistic estimate lies below the mean.
const OPTIMISTIC_DEVIATIONS: f64 = 1.5;
/// Maximum loss on stopped runs per batch size other than the default, as a fraction of a run with the default.
const LOSS_PER_BATCH_SIZE: f64 = 0.65;
/// Fraction of the best batch size's cost below which the allowance for losses counts as used up: then no tried
/// batch size runs except the best.
const USED_UP_BELOW: f64 = 0.3;
/// Fraction of the best batch size's cost that each successful run sets aside for untried batch sizes, and after a change
/// of the job for those that were only stopped since.
const RESERVE_PER_SUCCESS: f64 = 0.1;
/// Factor on the cost limit (`beta`) in the first epoch of a run with a batch size that has reached the target. If its
/// epochs cost more than `beta` allows, the job has probably changed, which only a whole epoch shows. A cost beyond this
/// factor has other causes.
const KNOWN_SIZE_TOLERANCE: f64 = 5.0;
/// Minimum allowance for losses at which a batch size whose runs were all stopped runs again, as a multiple of the cost
/// of the most expensive of these runs.
const RETRY_MULTIPLE: f64 = 2.0;

/// Returns the allowance: the cost, in joules, that may still be lost on stopped runs.
fn allowance(belief: &JobBelief, best: BestArm) -> f64 {
    let default = belief.cost(belief.first_arm);
    #[expect(clippy::cast_precision_loss, reason = "a hundred batch sizes at the most")]
    let others = belief.tried.len() as f64 - 1.0;
    let reached = belief.observations.iter().filter(|s| s.reached);
    let gained: f64 = reached.map(|_| (default - best.cost).max(0.0)).sum();
    // Stopped runs of the first arm are no loss: they measured its cost, which had to be known.
    let stopped = belief.observations.iter().filter(|s| !s.reached && s.arm != belief.first_arm);
    let lost: f64 = stopped.map(Observation::cost).sum();
    LOSS_PER_BATCH_SIZE * others * default + gained - lost
}

/// Returns the maximum loss of a run with this batch size: the allowance for stopped runs and, if the allowance is used
/// up and the batch size was never tried, the cost that was set aside for such batch sizes. After a change of the job
/// the latter is also for a batch size that was only stopped since: perhaps because the change was not known yet.
fn allowance_of(belief: &JobBelief, arm: usize, best: BestArm) -> f64 {
    let allowance = allowance(belief, best);
    let is_untried = !belief.tried[arm] && allowance < USED_UP_BELOW * best.cost;
    if is_untried || (belief.has_changed && belief.is_only_stopped(arm)) {
        let reached = belief.observations.iter().filter(|s| s.reached);
        return allowance + reached.map(|_| RESERVE_PER_SUCCESS * best.cost).sum::<f64>();
    }
    allowance
}

/// Returns true if the allowance suffices for a run of `arm`, which is not the best arm.
pub(super) fn is_affordable(belief: &JobBelief, arm: usize, best: BestArm) -> bool {
    let of_arm = allowance_of(belief, arm, best);
    let most_expensive = belief.results(arm).filter(|s| !s.reached).map(Observation::cost).fold(0.0, f64::max);
    let is_only_stopped = belief.is_only_stopped(arm);
    if allowance(belief, best) < USED_UP_BELOW * best.cost && (!belief.tried[arm] || is_only_stopped) {
        return of_arm >= best.cost.max(RETRY_MULTIPLE * most_expensive);
    }
    (!is_only_stopped || of_arm >= RETRY_MULTIPLE * most_expensive) && of_arm >= USED_UP_BELOW * best.cost
}

/// Returns the number of epochs after which a run is stopped ([`crate::bandit::patience`]).
pub(in crate::bandit) fn patience(spec: &Spec, trials: &[Trial], batch_size: u64, epoch_cost: Cost) -> u32 {
    let (most, epoch_cost) = (spec.max_epochs, epoch_cost.get());
    let Some((belief, arm)) = JobBelief::new(spec, trials).zip(spec.place(batch_size)) else { return most };
    let (Some(best), Some(beta)) = (belief.best(), spec.beta) else { return most };
    let (mean, variance) = (belief.log_epochs.mean(arm), belief.log_epochs.variance(arm) + belief.noise_variance);
    let allowance = allowance_of(&belief, arm, best);
    let z_of = |epochs: f64| (epochs.ln() - mean) / variance.sqrt();
    let is_stopped_after = |epochs: &u32| {
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
        let optimistic = (mean - OPTIMISTIC_DEVIATIONS * variance.sqrt()).exp() * epoch_cost;
        let expected = (mean + 0.5 * variance).exp() * epoch_cost;
        risked > allowance || (optimistic > best.cost && expected - best.cost > spent)
    };
    (1..most).find(is_stopped_after).unwrap_or(most)
}

/// Returns whether `cost`, that of a run in its first epoch, exceeds β times the expected cost of a run with the best batch
/// size; [`KNOWN_SIZE_TOLERANCE`] times that for a batch size that has reached the target.
pub(in crate::bandit) fn exceeds_beta(spec: &Spec, trials: &[Trial], batch_size: u64, cost: Cost) -> bool {
    let is_known = trials.iter().any(|trial| trial.batch_size == batch_size && trial.reached());
    let best = JobBelief::new(spec, trials).and_then(|belief| belief.best());
    let times = if is_known { KNOWN_SIZE_TOLERANCE } else { 1.0 };
    best.zip(spec.beta).is_some_and(|(best, beta)| cost.get() > times * beta * best.cost)
}
