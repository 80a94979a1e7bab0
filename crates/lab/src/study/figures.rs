//! The figures of a replay, compared with a replay at the largest power limit.

use serde::Serialize;

use crate::replay::Replayed;

/// Smallest headroom, in percentage points, that is more than noise (`planning.md` §5). Headroom is the carbon
/// reduction of the policy clairvoyant beyond that of static.
const LEAST_HEADROOM: f64 = 0.1;

/// Result of a policy, in percent of the result at the largest power limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Figures {
    /// Reduction of emissions.
    pub carbon_reduction_pct: f64,
    /// Increase of time; may be negative, because a lower limit can be faster.
    pub time_increase_pct: f64,
    /// Reduction of energy.
    pub energy_reduction_pct: f64,
    /// Reduction of emissions that the best constant mix of power limits with the same time would have.
    pub energy_effect_pct: f64,
    /// Rest of the reduction of emissions, which comes from following the carbon intensity over time.
    pub timing_effect_pct: f64,
}

impl Figures {
    pub(super) fn of(replayed: &Replayed) -> Self {
        let against = &replayed.against_max;
        Self {
            carbon_reduction_pct: against.carbon_reduction_pct,
            time_increase_pct: against.time_increase_pct,
            energy_reduction_pct: 100.0 * (1.0 - replayed.energy / against.energy_at_reference),
            energy_effect_pct: against.energy_effect_pct,
            timing_effect_pct: against.timing_effect_pct,
        }
    }

    /// Returns the linear interpolation between two results: `self` for a share of 0, `there` for a share of 1.
    pub(super) fn towards(&self, there: &Self, share: f64) -> Self {
        let between = |here: f64, there: f64| here + (there - here) * share;
        Self {
            carbon_reduction_pct: between(self.carbon_reduction_pct, there.carbon_reduction_pct),
            time_increase_pct: between(self.time_increase_pct, there.time_increase_pct),
            energy_reduction_pct: between(self.energy_reduction_pct, there.energy_reduction_pct),
            energy_effect_pct: between(self.energy_effect_pct, there.energy_effect_pct),
            timing_effect_pct: between(self.timing_effect_pct, there.timing_effect_pct),
        }
    }
}

/// Returns the carbon reduction beyond static as a fraction of the headroom; `None` if the headroom is only noise.
pub(super) fn captured(over_static: Option<f64>, headroom: Option<f64>) -> Option<f64> {
    let headroom = headroom.filter(|h| *h >= LEAST_HEADROOM)?;
    Some(over_static? / headroom)
}
