//! Closed intervals: energy of one device over at most a minute, in whole millijoules, written once.

use chrono::{DateTime, SubsecRound, Utc};
use serde::{Deserialize, Serialize};

use crate::domain::{DeviceId, EnergySource, JobId, Slot};
use crate::units::Millijoules;

/// Whose energy it is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Share {
    /// A registered job's.
    Job(JobId),
    /// Nobody's: no job was registered and no process ran.
    Idle,
    /// Somebody's who cannot be named: an unregistered process, or a time in which nobody looked.
    Unattributed,
}

/// One row of the books.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interval {
    /// What used it.
    pub device: DeviceId,
    /// Whose energy it is.
    pub share: Share,
    /// When it was used.
    pub slot: Slot,
    /// How much.
    pub energy: Millijoules,
    /// How it was found.
    pub source: EnergySource,
}

/// The part of the books that lies in `span`. Within an interval power is taken as even: for views, not for the books.
pub fn within(intervals: &[Interval], span: &Slot) -> Vec<Interval> {
    let part = |row: &Interval| {
        let slot = row.slot.intersection(span)?;
        let energy = row.energy.to_joules() * (slot.duration() / row.slot.duration());
        Some(Interval { slot, energy: Millijoules::from_joules(energy), ..row.clone() })
    };
    intervals.iter().filter_map(part).collect()
}

/// The books' times are whole microseconds.
pub(super) fn to_micros(t: DateTime<Utc>) -> DateTime<Utc> {
    t.trunc_subsecs(6)
}
