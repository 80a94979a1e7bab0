//! Closed energy intervals: energy of one device over at most a minute, in integer millijoules, written once.

use chrono::{DateTime, SubsecRound, Utc};
use serde::{Deserialize, Serialize};

use crate::domain::{DeviceId, EnergySource, JobId, Slot};
use crate::units::Millijoules;

/// Owner of energy.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Share {
    /// The energy belongs to a registered job.
    Job(JobId),
    /// The energy has no owner: no job was registered on the GPU and no process ran. For CPU packages and memory, it is
    /// the part of the energy that corresponds to idle CPU time.
    Idle,
    /// The energy's owner is unknown: a process that belongs to no registered job used the device, or the time was not
    /// monitored.
    Unattributed,
}

/// A row of the ledger: energy of one share (owner) of a device over a short time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interval {
    /// Device that used the energy.
    pub device: DeviceId,
    /// Owner of the energy: a job, idle or unattributed.
    pub share: Share,
    /// Time in which the energy was used.
    pub slot: Slot,
    /// Energy that the device used for this owner.
    pub energy: Millijoules,
    /// Method of measurement.
    pub source: EnergySource,
}

/// Returns the parts of intervals that lie within `span`. Power is assumed to be constant within an interval, so the
/// energy of a part is an estimate, which is never recorded as an interval of the ledger.
pub fn within(intervals: &[Interval], span: &Slot) -> Vec<Interval> {
    let part = |row: &Interval| {
        let slot = row.slot.intersection(span)?;
        let energy = row.energy.to_joules() * (slot.duration() / row.slot.duration());
        Some(Interval { slot, energy: Millijoules::from_joules(energy), ..row.clone() })
    };
    intervals.iter().filter_map(part).collect()
}

/// Truncates a time to microseconds, the resolution of the ledger.
pub(super) fn to_micros(t: DateTime<Utc>) -> DateTime<Utc> {
    t.trunc_subsecs(6)
}
