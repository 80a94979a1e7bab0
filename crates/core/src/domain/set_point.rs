//! Set point of a GPU: its power limit and its locked clock.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::PowerLimit;

/// Maximum clock of a GPU's streaming multiprocessors in megahertz, NVML's unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ClockLimit {
    megahertz: u32,
}

impl ClockLimit {
    /// Creates a limit in megahertz.
    pub const fn from_megahertz(megahertz: u32) -> Self {
        Self { megahertz }
    }

    /// Returns the limit in megahertz.
    pub const fn megahertz(self) -> u32 {
        self.megahertz
    }
}

impl fmt::Display for ClockLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} MHz", self.megahertz)
    }
}

/// Clocks that a GPU can be locked to. Never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClockRange {
    steps: Vec<ClockLimit>,
}

impl ClockRange {
    /// Creates a range from clocks in any order, without duplicates; `None` if there are no clocks, or one is 0 MHz.
    pub fn new(mut steps: Vec<ClockLimit>) -> Option<Self> {
        steps.sort_unstable();
        steps.dedup();
        (steps.first()?.megahertz() > 0).then_some(Self { steps })
    }

    /// Returns the lowest clock.
    pub fn min(&self) -> ClockLimit {
        self.steps[0]
    }

    /// Returns the highest clock.
    pub fn max(&self) -> ClockLimit {
        self.steps[self.steps.len() - 1]
    }

    /// Returns all clocks in ascending order.
    pub fn steps(&self) -> &[ClockLimit] {
        &self.steps
    }
}

/// Set point of one GPU: its power limit and, where the power limit has no effect, a locked clock.
///
/// A set point without a locked clock is serialised as a bare number of milliwatts, as before clocks were supported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(from = "StoredSetPoint", into = "StoredSetPoint")]
pub struct SetPoint {
    /// Power limit. Power caps count this limit, not the power drawn.
    pub limit: PowerLimit,
    /// Locked clock; `None` if clocks are not locked.
    pub clock: Option<ClockLimit>,
}

impl SetPoint {
    /// Returns true if both are the same setting, up to the rounding of power limits by some GPUs.
    pub fn same_as(self, other: Self) -> bool {
        self.clock == other.clock && self.limit.same_as(other.limit)
    }
}

impl From<PowerLimit> for SetPoint {
    fn from(limit: PowerLimit) -> Self {
        Self { limit, clock: None }
    }
}

impl fmt::Display for SetPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.clock {
            Some(clock) => write!(f, "{} at {clock}", self.limit),
            None => self.limit.fmt(f),
        }
    }
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum StoredSetPoint {
    Limit(PowerLimit),
    Both {
        #[serde(rename = "limit_mw")]
        limit: PowerLimit,
        #[serde(rename = "clock_mhz")]
        clock: ClockLimit,
    },
}

impl From<StoredSetPoint> for SetPoint {
    fn from(stored: StoredSetPoint) -> Self {
        match stored {
            StoredSetPoint::Limit(limit) => limit.into(),
            StoredSetPoint::Both { limit, clock } => Self { limit, clock: Some(clock) },
        }
    }
}

impl From<SetPoint> for StoredSetPoint {
    fn from(set: SetPoint) -> Self {
        match set.clock {
            None => Self::Limit(set.limit),
            Some(clock) => Self::Both { limit: set.limit, clock },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_point_without_a_clock_is_stored_as_its_bare_limit() {
        let plain = SetPoint::from(PowerLimit::from_milliwatts(250_000));
        let locked = SetPoint { clock: Some(ClockLimit::from_megahertz(1_200)), ..plain };
        let text = serde_json::to_string(&[plain, locked]).expect("serialises");
        assert_eq!(text, r#"[250000,{"limit_mw":250000,"clock_mhz":1200}]"#);
        assert_eq!(serde_json::from_str::<Vec<SetPoint>>(&text).expect("reads back"), [plain, locked]);
        assert_eq!((plain.to_string(), locked.to_string()), ("250 W".into(), "250 W at 1200 MHz".into()));
        assert!(!plain.same_as(locked) && plain.same_as(PowerLimit::from_milliwatts(250_100).into()));
    }

    #[test]
    fn a_range_is_its_steps_in_order() {
        let range = |steps: &[u32]| ClockRange::new(steps.iter().copied().map(ClockLimit::from_megahertz).collect());
        let known = range(&[1_740, 1_725, 210, 1_740]).expect("has steps");
        assert_eq!((known.min().megahertz(), known.max().megahertz(), known.steps().len()), (210, 1_740, 3));
        assert_eq!((range(&[]), range(&[0, 210])), (None, None));
    }
}
