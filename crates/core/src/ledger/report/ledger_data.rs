//! Ledger data of a span, from which a report is made.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, Utc};

use super::job::JobFacts;
use crate::domain::{DeviceId, GpuId, JobId, SignalKind, Slot};
use crate::ledger::apportion::day_of;
use crate::ledger::block::DeviceBalance;
use crate::ledger::entry::{Boundary, Settlement, Terms};
use crate::ledger::{Share, Total};
use crate::units::{Micrograms, Millijoules};

/// Owner of a sum of energy.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Owner {
    /// The energy belongs to one job.
    Job(JobId),
    /// All jobs together, where the report's rows do not separate them.
    Jobs,
    /// No owner: no job was registered and no process ran.
    Idle,
    /// Unknown owner: an unregistered process ran, or the time was not monitored.
    Unattributed,
}

/// Energy and emissions of one device, or of all devices of one kind, that belong to one owner within the report's span
/// of time.
#[derive(Clone, Debug, PartialEq)]
pub struct Sum {
    /// Start of the UTC day, in reports that separate days; otherwise any day of the report's span.
    pub day: DateTime<Utc>,
    /// Device; where the sum covers all devices of a kind, any one of them.
    pub device: DeviceId,
    /// Owner of the energy.
    pub owner: Owner,
    /// Energy and emissions with average carbon intensities: the inventory.
    pub average: Total,
    /// Energy and emissions with marginal carbon intensities: the impact; zero where no source provides such
    /// intensities.
    pub marginal: Total,
}

impl Sum {
    /// Returns the sum of one share (owner) of a device in an hour, for one kind of carbon intensity.
    pub fn of(hour: DateTime<Utc>, device: DeviceId, share: &Share, kind: SignalKind, total: Total) -> Self {
        let owner = match share {
            Share::Job(id) => Owner::Job(id.clone()),
            Share::Idle => Owner::Idle,
            Share::Unattributed => Owner::Unattributed,
        };
        let (average, marginal) =
            if kind == SignalKind::Marginal { (Total::default(), total) } else { (total, Total::default()) };
        Self { day: day_of(hour), device, owner, average, marginal }
    }
}

impl Settlement {
    /// Returns the sum of each part of the settlement.
    pub fn sums(&self) -> impl Iterator<Item = Sum> + '_ {
        self.totals().map(|(part, total)| Sum::of(self.hour, part.device.clone(), &part.share, self.kind, total))
    }
}

/// Energy and emissions of a time in which one accounting boundary (factors for what devices do not measure) applied.
#[derive(Clone, Debug, PartialEq)]
pub struct BoundaryPeriod {
    /// Time in which the boundary applied.
    pub span: Slot,
    /// Accounting boundary: node factor, PUE, contract and embodied emissions.
    pub boundary: Boundary,
    /// Energy and emissions by device and owner.
    pub sums: Vec<Sum>,
}

/// Time in which a device was not monitored, or in which the device's energy is unknown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gap {
    /// Device that was not monitored, or whose energy is unknown.
    pub device: DeviceId,
    /// Time of the gap. If the gap was rolled up to hours, the gap lies somewhere within this time.
    pub slot: Slot,
    /// True if all or part of the gap was rolled up to hours.
    pub is_rolled_up: bool,
    /// Energy recorded for the gap from the increase of the device's counter, or the reason why the energy is unknown.
    pub energy: Result<Millijoules, String>,
}

impl Gap {
    /// Returns true if energy of these GPUs within a span is unknown because of this gap.
    pub fn is_hole_of(&self, gpus: &[GpuId], span: &Slot) -> bool {
        let meets = || self.slot.intersection(span).is_some();
        self.energy.is_err() && meets() && gpus.iter().any(|gpu| DeviceId::from(gpu) == self.device)
    }
}

/// Change of an hour's published emissions because they were computed again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restatement {
    /// Start of the hour.
    pub hour: DateTime<Utc>,
    /// Kind of carbon intensity.
    pub kind: SignalKind,
    /// Number of the later version.
    pub version: u32,
    /// Time at which the later version was computed.
    pub at: DateTime<Utc>,
    /// Reason for the later version, for people.
    pub reason: String,
    /// Emissions in the previous version.
    pub before: Micrograms,
    /// Emissions of the same energy in the later version.
    pub after: Micrograms,
}

/// Versions of the hourly emissions that a report shows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Version {
    /// Highest version of any hour; 0 if no emissions were computed yet.
    pub highest: u32,
    /// Number of versions of all hours together; each new version increases this number.
    pub settlements: u64,
    /// Number of hours with more than one version.
    pub resettled_hours: u64,
    /// Time at which the hourly emissions of some hour were last computed again; absent if this never happened.
    pub last_restated_at: Option<DateTime<Utc>>,
    /// Hours whose emissions changed by more than the requested percentage, newest first.
    pub restatements: Vec<Restatement>,
    /// Number of restatements beyond those in `restatements`, which are not listed.
    pub restatements_left_out: u64,
}

/// Correction in which a person attributed intervals of the report's span to another share (owner of the energy).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Correction {
    /// Number of the correction's entry in the ledger.
    pub entry: u64,
    /// Time of the correction.
    pub at: DateTime<Utc>,
    /// Person who made the correction.
    pub who: String,
    /// Reason that the person stated.
    pub why: String,
    /// Share to which the intervals belonged before.
    pub from: Share,
    /// Share to which the intervals belong now.
    pub to: Share,
    /// Number of corrected intervals that begin in the report's span.
    pub intervals: u64,
    /// Energy of the intervals that `intervals` counts.
    pub energy: Millijoules,
}

/// Ledger data of the report's span of time, with the context that the report states.
#[derive(Clone, Debug, PartialEq)]
pub struct LedgerData {
    /// Energy and emissions, separate for each accounting boundary.
    pub periods: Vec<BoundaryPeriod>,
    /// Jobs that overlap the report's span or have energy in it, and all other parts of these jobs: the earlier and
    /// later jobs with the same key that continue each other.
    pub jobs: Vec<JobFacts>,
    /// Jobs that have energy in the report's span.
    pub holders: BTreeSet<JobId>,
    /// Recorded energy of each device compared with the device's counter.
    pub devices: Vec<DeviceBalance>,
    /// Times without monitoring or with unknown energy, oldest first.
    pub gaps: Vec<Gap>,
    /// Settings of the ledger that applied in the report's span, oldest first.
    pub terms: Vec<Terms>,
    /// Combinations of sources of carbon intensities, each followed by the number of hours that used it.
    pub sources: Vec<(String, u64)>,
    /// True if some of the carbon intensities are synthetic.
    pub synthetic: bool,
    /// Time of the first reading of each device; devices that were never read are missing.
    pub first_seen: BTreeMap<DeviceId, DateTime<Utc>>,
    /// End of the last hour in which each device used energy, at any time; devices that never used any are missing.
    pub last_seen: BTreeMap<DeviceId, DateTime<Utc>>,
    /// Time from the start of the first to the end of the last hour with energy; absent without energy.
    pub recorded_span: Option<Slot>,
    /// Number of hours in the report's span that have energy.
    pub hours_with_energy: u64,
    /// Energy in `periods` for which no emissions are stored yet, so that the report computes them.
    pub unsettled: Millijoules,
    /// Versions of the hourly emissions.
    pub version: Version,
    /// Corrections of intervals, oldest first.
    pub corrections: Vec<Correction>,
}
