//! The node's cap in a job's sweep: the ceiling that it goes up to, or the room that it waits for.

use chrono::{DateTime, Utc};

use wattune_core::domain::PowerLimit;
use wattune_core::units::Watts;

/// What the node's cap makes of a job's sweep.
#[derive(Clone, Debug, Default, PartialEq)]
pub(in crate::controller) enum SweepCeiling {
    /// Nothing.
    #[default]
    Whole,
    /// It waits for room.
    Waits {
        /// When there will be some, as far as that is known.
        until: Option<DateTime<Utc>>,
        /// What is to be measured, summed over its boards.
        wanted: Watts,
        /// What there is for them now.
        room: Watts,
    },
    /// It is measured up to lower limits than its boards allow.
    Lowered {
        /// Of each group of equal boards.
        to: Vec<PowerLimit>,
    },
}

impl SweepCeiling {
    /// Returns what the cap keeps from the sweep, in one sentence.
    pub(in crate::controller) fn describe(&self) -> Option<String> {
        match self {
            Self::Whole => None,
            Self::Waits { until, wanted, room } => {
                let until = until.map_or("until there is room".into(), |at| format!("until {}", at.format("%FT%TZ")));
                Some(format!(
                    "measuring waits {until}: the node's cap leaves its boards {:.0} W of the {:.0} W to be measured",
                    room.get().max(0.0),
                    wanted.get()
                ))
            }
            Self::Lowered { to } => {
                let to: Vec<String> = to.iter().map(ToString::to_string).collect();
                Some(format!(
                    "the node's cap keeps it from its highest limits for long: it is measured up to {} and its slowdown is \
                     reckoned from there until there is room for more",
                    to.join(" + ")
                ))
            }
        }
    }
}
