//! The figures of a run, against the largest limit.

use serde::Serialize;

use crate::replay::Replayed;

/// A headroom under this many points is noise (`planning.md` §5).
const LEAST_HEADROOM: f64 = 0.1;

/// The result of a policy against the largest limit, in percent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Figures {
    /// Less carbon.
    pub carbon_reduction_pct: f64,
    /// More time; may be negative, where a lower limit is faster.
    pub time_increase_pct: f64,
    /// Less energy.
    pub energy_reduction_pct: f64,
    /// The part of the carbon reduction that the constant mix with the same time has.
    pub energy_effect_pct: f64,
    /// The rest of it: from following the grid.
    pub timing_effect_pct: f64,
}

impl Figures {
    pub(super) fn of(replayed: &Replayed) -> Self {
        let against = &replayed.against_max;
        Self {
            carbon_reduction_pct: against.carbon_reduction_pct,
            time_increase_pct: against.time_increase_pct,
            energy_reduction_pct: 100.0 * (1.0 - replayed.energy / against.energy_at_ceiling),
            energy_effect_pct: against.energy_effect_pct,
            timing_effect_pct: against.timing_effect_pct,
        }
    }

    /// Interpolates linearly: share 0 is these, 1 is those there.
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

/// Returns the captured part of the headroom; `None` where there was next to nothing to capture.
pub(super) fn captured(over_static: Option<f64>, headroom: Option<f64>) -> Option<f64> {
    let headroom = headroom.filter(|h| *h >= LEAST_HEADROOM)?;
    Some(over_static? / headroom)
}
