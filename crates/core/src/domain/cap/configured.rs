//! The cap from the settings (a constant, weekly windows and single spans of time), and the types for levels and
//! sources of any cap.

use chrono::Weekday;
use serde::{Deserialize, Serialize};

use crate::domain::{EventId, InvalidJob, MOST_POWER_PER_NODE, Slot, check_power};
use crate::units::{Short, Watts};

/// Level of a power cap, as given by the user.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// Absolute level in watts.
    Watts(Watts),
    /// Fraction of the baseline, which is the sum of the GPUs' maximum limits: 0.7 is 70 %.
    Share(f64),
}

impl Level {
    /// Returns the level in watts for a node with this baseline, the sum of its GPUs' maximum limits.
    pub fn of(self, baseline: Watts) -> Watts {
        match self {
            Self::Watts(watts) => watts,
            Self::Share(share) => baseline * share,
        }
    }
}

/// Minimum level of a cap. No GPU accepts such a low limit, so a lower number is probably in another unit.
const LOWEST_LEVEL: Watts = Watts::new(1.0);

/// Share of the baseline up to which a number in percent was probably meant as a fraction: 0.6 for 60 %.
const LEAST_SHARE: f64 = 0.01;

/// Checks the level of a cap. `watts` and `percent` are the names, for the error message, of the fields in which a
/// request or the settings give an absolute level or a percentage.
pub fn check_level(watts: &'static str, percent: &'static str, level: Level) -> Result<Level, InvalidJob> {
    match level {
        Level::Watts(w) if w < LOWEST_LEVEL => {
            let (low, high) = (LOWEST_LEVEL.get(), MOST_POWER_PER_NODE.get());
            let meant = if w > Watts::ZERO { "; was it given in kilowatts?" } else { "" };
            let why = format!("is {}; it must be from {low} to {high} watts{meant}", Short(w.get()));
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

/// A window of time in UTC that repeats every week, with its cap; it may cross midnight.
#[derive(Clone, Debug, PartialEq)]
pub struct Window {
    /// Days on which the window starts; empty means every day.
    pub days: Vec<Weekday>,
    /// Start in seconds since midnight, below 86,400.
    pub from: u32,
    /// End in seconds since midnight. If it is at or before `from`, the window ends on the next day: it lasts at most
    /// 24 hours.
    pub to: u32,
    /// Cap within the window.
    pub level: Level,
}

/// Power cap from the settings.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ConfiguredCap {
    /// Cap at all times.
    pub constant: Option<Level>,
    /// Caps in windows that repeat every week.
    pub windows: Vec<Window>,
    /// Caps for single spans of time.
    pub spans: Vec<(Slot, Level)>,
}

impl ConfiguredCap {
    /// Returns true if the settings set no cap.
    pub fn is_empty(&self) -> bool {
        self.constant.is_none() && self.windows.is_empty() && self.spans.is_empty()
    }
}

/// Kind of rule that determines the cap at a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CapSource {
    /// The constant cap of the settings.
    Constant,
    /// A weekly window of the settings.
    Window,
    /// A cap that the settings give for a single span of time.
    Span,
    /// A demand-response event, including its ramps.
    Event(EventId),
    /// The rebound limit, which applies after a demand-response event.
    Rebound(EventId),
}

impl std::fmt::Display for CapSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Constant => f.write_str("the constant cap"),
            Self::Window => f.write_str("a weekly window"),
            Self::Span => f.write_str("a span of the settings"),
            Self::Event(id) => write!(f, "demand-response event {id}"),
            Self::Rebound(id) => write!(f, "the rebound limit of demand-response event {id}"),
        }
    }
}
