//! Energy that a job would have used in its own pauses (such as evaluation and checkpoints) at a reference (another
//! power limit).

use crate::profile::ProgressAccount;
use crate::units::{Joules, Seconds, Watts};

/// Minimum total duration of measured pauses from which the power in other pauses is estimated.
const MIN_PAUSE: Seconds = Seconds::new(10.0);
/// Minimum total duration of measured pauses, as a fraction of the duration of the pauses that are estimated from them.
const MIN_PAUSE_FRACTION: f64 = 0.1;
/// Assumed error of energy that is estimated from other pauses, as a fraction of the difference between the estimate
/// and its lower bound.
const POWER_ERROR: f64 = 0.25;

/// Energy of a job's own pauses at a reference, with its range of error.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PauseEnergy {
    /// Estimated energy.
    pub mean: Joules,
    /// Half the width of the range of error.
    pub half: Joules,
}

/// Returns the energy that a job would have used in its own pauses with power limits that sum to `limit` over its GPUs.
/// Pauses whose energy was metered count as measured. For pauses whose power was reduced by a limit below the maximum
/// usable limit, and for pauses that were not metered, the mean power of the other pauses is assumed; if those are too
/// short, any power up to `limit` is possible, and the middle of that range is assumed.
///
/// # Errors
/// Returns the reason if pauses cannot be distinguished from training, or their power has no bounds.
pub fn pause_energy(account: &ProgressAccount, limit: Option<Watts>) -> Result<PauseEnergy, String> {
    let ProgressAccount { stalled, stalled_energy, metered, bound, bound_energy, .. } = *account;
    if account.is_unclear() {
        return Err(
            "progress reports are too far apart, or too irregular, to distinguish the job's own pauses from training"
                .into(),
        );
    }
    let free = (metered - bound).max(Seconds::ZERO);
    let free_energy = (stalled_energy - bound_energy).max(Joules::ZERO);
    let (mut mean, mut half) = (free_energy, Joules::ZERO);
    for (time, least) in [(bound, bound_energy), ((stalled - metered).max(Seconds::ZERO), Joules::ZERO)] {
        if time <= Seconds::ZERO {
            continue;
        }
        let seen = (free >= MIN_PAUSE.max(time * MIN_PAUSE_FRACTION)).then(|| free_energy / free * time);
        let most = limit.map(|limit| (limit * time).max(least));
        let (estimate, range) = match (seen, most) {
            (Some(seen), most) => {
                let seen = seen.max(least).min(most.unwrap_or(seen.max(least)));
                (seen, (seen - least) * POWER_ERROR)
            }
            (None, Some(most)) => ((least + most) * 0.5, (most - least) * 0.5),
            (None, None) => return Err("the power in the job's own pauses is unknown".into()),
        };
        mean += estimate;
        half += range;
    }
    // No pause draws more than the limit allows.
    let mean = limit.map_or(mean, |limit| mean.min(limit * stalled));
    Ok(PauseEnergy { mean, half })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account(stalled: f64, metered: f64, energy: f64, bound: f64, bound_energy: f64) -> ProgressAccount {
        ProgressAccount {
            active: Seconds::new(1000.0),
            stalled: Seconds::new(stalled),
            metered: Seconds::new(metered),
            stalled_energy: Joules::new(energy),
            bound: Seconds::new(bound),
            bound_energy: Joules::new(bound_energy),
            ..ProgressAccount::default()
        }
    }

    fn of(account: &ProgressAccount, limit: f64) -> (f64, f64) {
        let pause_energy = pause_energy(account, Some(Watts::new(limit))).expect("known");
        (pause_energy.mean.get(), pause_energy.half.get())
    }

    #[test]
    fn metered_pauses_count_as_measured() {
        assert_eq!(of(&account(100.0, 100.0, 6000.0, 0.0, 0.0), 300.0), (6000.0, 0.0));
        assert_eq!(of(&account(0.0, 0.0, 0.0, 0.0, 0.0), 300.0), (0.0, 0.0));
        assert_eq!(of(&account(100.0, 100.0, 25_000.0, 0.0, 0.0), 200.0), (20_000.0, 0.0), "no more than the limit");
    }

    #[test]
    fn a_limit_that_reduced_the_power_leaves_a_range_unless_other_pauses_show_it() {
        // 100 s at 200 W under a limit of 200 W: without that limit, up to 300 W.
        assert_eq!(of(&account(100.0, 100.0, 20_000.0, 100.0, 20_000.0), 300.0), (25_000.0, 5_000.0));
        // Other pauses drew 280 W.
        let others = account(150.0, 150.0, 34_000.0, 100.0, 20_000.0);
        assert_eq!(of(&others, 300.0), (42_000.0, 2_000.0));
    }

    #[test]
    fn unmetered_pauses_are_like_the_rest_or_have_a_range() {
        assert_eq!(of(&account(100.0, 50.0, 3000.0, 0.0, 0.0), 300.0), (6000.0, 750.0));
        assert_eq!(of(&account(100.0, 0.0, 0.0, 0.0, 0.0), 300.0), (15_000.0, 15_000.0));
        assert!(pause_energy(&account(100.0, 0.0, 0.0, 0.0, 0.0), None).is_err());
        let unclear = ProgressAccount { unclear: Seconds::new(120.0), ..account(100.0, 100.0, 6000.0, 0.0, 0.0) };
        assert!(pause_energy(&unclear, None).is_err_and(|why| why.contains("too far apart")));
    }
}

#[cfg(test)]
#[path = "pauses_tests.rs"]
mod simulated;
