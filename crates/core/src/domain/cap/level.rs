//! Level of a cap, in watts or as a fraction of the baseline.

use serde::{Deserialize, Serialize};

use crate::domain::{InvalidJob, MOST_POWER_PER_NODE, check_power};
use crate::units::{Short, Watts};

/// Level of a cap.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// Watts.
    Watts(Watts),
    /// Fraction of the baseline, which is the sum of the GPUs' maximum limits: 0.7 is 70 %.
    Share(f64),
}

impl Level {
    /// Returns watts for a node with this baseline.
    pub fn of(self, baseline: Watts) -> Watts {
        match self {
            Self::Watts(watts) => watts,
            Self::Share(share) => baseline * share,
        }
    }
}

/// Minimum level; no GPU accepts less, so lower ones are mistakes of units.
const LOWEST_LEVEL: Watts = Watts::new(1.0);

/// Level up to which a percentage was probably given as a fraction: 0.6 for 60 %.
const LEAST_SHARE: f64 = 0.01;

/// Checks a level given as watts in one field or percent in another.
///
/// # Errors
/// Names the field and what would be right.
pub fn check_level(watts: &'static str, percent: &'static str, level: Level) -> Result<Level, InvalidJob> {
    match level {
        Level::Watts(w) if w < LOWEST_LEVEL => {
            let (low, high) = (LOWEST_LEVEL.get(), MOST_POWER_PER_NODE.get());
            let meant = if w > Watts::ZERO { "; was it given in kilowatts?" } else { "" };
            let why = format!("is {}; it must be within {low} to {high} watts{meant}", Short(w.get()));
            Err(InvalidJob { field: watts, why })
        }
        Level::Watts(w) => match check_power(w, None) {
            Ok(()) => Ok(level),
            Err(why) => Err(InvalidJob { field: watts, why: format!("is {why}") }),
        },
        Level::Share(share) if share > 0.0 && share <= LEAST_SHARE => {
            let why = format!(
                "is {}; it is in percent, and no GPU can be limited to 1 % of its maximum: for {} % write {}",
                Short((1e11 * share).round() / 1e9),
                Short((1e13 * share).round() / 1e9),
                Short((1e13 * share).round() / 1e9)
            );
            Err(InvalidJob { field: percent, why })
        }
        Level::Share(share) if !(share > 0.0 && share <= 1.0) => {
            let why = format!(
                "is {}; it must be more than 0 and at most 100 percent of the sum of the GPUs' maximum limits",
                Short((1e11 * share).round() / 1e9)
            );
            Err(InvalidJob { field: percent, why })
        }
        Level::Share(_) => Ok(level),
    }
}
