//! Ledger data of a span that a report is made from.

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
    /// One job.
    Job(JobId),
    /// All jobs.
    Jobs,
    /// No owner.
    Idle,
    /// Unknown owner.
    Unattributed,
}

/// Energy and emissions of one device, or of all devices of its kind, within a span.
#[derive(Clone, Debug, PartialEq)]
pub struct Sum {
    /// Start of the UTC day, where days are separate.
    pub day: DateTime<Utc>,
    /// Device; any of them where the sum covers all devices of its kind.
    pub device: DeviceId,
    /// Owner.
    pub owner: Owner,
    /// Total with average intensities: the inventory.
    pub average: Total,
    /// Total with marginal intensities: the impact, where a source provides them.
    pub marginal: Total,
}

impl Sum {
    /// Returns the sum of one share of a device in an hour, for one kind of intensity.
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
    /// Returns the sums of its parts.
    pub fn sums(&self) -> impl Iterator<Item = Sum> + '_ {
        self.totals().map(|(part, total)| Sum::of(self.hour, part.device.clone(), &part.share, self.kind, total))
    }
}

/// Sums of a time with one accounting boundary.
#[derive(Clone, Debug, PartialEq)]
pub struct BoundaryPeriod {
    /// Time.
    pub span: Slot,
    /// Accounting boundary.
    pub boundary: Boundary,
    /// Energy and emissions.
    pub sums: Vec<Sum>,
}

/// Time without monitoring of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gap {
    /// Device.
    pub device: DeviceId,
    /// Time. If the hour was rolled up, the gap lies somewhere within it.
    pub slot: Slot,
    /// True if all or part of it was rolled up.
    pub is_rolled_up: bool,
    /// Increase of the counter, recorded for this time; or the reason why the energy is unknown and not recorded.
    pub energy: Result<Millijoules, String>,
}

impl Gap {
    /// Returns true if energy of these GPUs within a span is unknown because of this gap.
    pub fn is_hole_of(&self, gpus: &[GpuId], span: &Slot) -> bool {
        let meets = || self.slot.intersection(span).is_some();
        self.energy.is_err() && meets() && gpus.iter().any(|gpu| DeviceId::from(gpu) == self.device)
    }
}

/// Later version of an hour's emissions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restatement {
    /// Start of the hour.
    pub hour: DateTime<Utc>,
    /// Kind of intensity.
    pub kind: SignalKind,
    /// New version.
    pub version: u32,
    /// Time of the new version.
    pub at: DateTime<Utc>,
    /// Reason for it.
    pub reason: String,
    /// Emissions before.
    pub before: Micrograms,
    /// Emissions of the same energy afterwards.
    pub after: Micrograms,
}

/// Version of the settlements that a report shows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Version {
    /// Highest version of any hour; 0 before the first settlement.
    pub highest: u32,
    /// Number of settlements of all hours; grows with each new version.
    pub settlements: u64,
    /// Number of hours with more than one version.
    pub resettled_hours: u64,
    /// Time of the last later version.
    pub last_restated_at: Option<DateTime<Utc>>,
    /// Hours whose emissions changed by more than the threshold, newest first.
    pub restatements: Vec<Restatement>,
    /// Number of further restatements that are not listed.
    pub restatements_left_out: u64,
}

/// Correction of intervals in a span to another share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Correction {
    /// Number of its entry in the ledger.
    pub entry: u64,
    /// Time of the correction.
    pub at: DateTime<Utc>,
    /// Author.
    pub who: String,
    /// Reason.
    pub why: String,
    /// Previous share.
    pub from: Share,
    /// New share.
    pub to: Share,
    /// Number of corrected intervals that begin in the span.
    pub intervals: u64,
    /// Their energy.
    pub energy: Millijoules,
}

/// Ledger data of a span, with its context.
#[derive(Clone, Debug, PartialEq)]
pub struct LedgerData {
    /// Sums, separate for each accounting boundary.
    pub periods: Vec<BoundaryPeriod>,
    /// Jobs that overlap the span or have energy in it.
    pub jobs: Vec<JobFacts>,
    /// Jobs that have energy in the span.
    pub holders: BTreeSet<JobId>,
    /// Balances of the recorded devices.
    pub devices: Vec<DeviceBalance>,
    /// Times without monitoring, oldest first.
    pub gaps: Vec<Gap>,
    /// Terms in force, oldest first.
    pub terms: Vec<Terms>,
    /// Sources of intensities, with their numbers of hours.
    pub sources: Vec<(String, u64)>,
    /// True if some of the intensities are synthetic.
    pub synthetic: bool,
    /// Time of the first reading of each device; absent if it was never read.
    pub first_seen: BTreeMap<DeviceId, DateTime<Utc>>,
    /// Time from the first to the last hour with energy.
    pub recorded_span: Option<Slot>,
    /// Number of hours in the span that have energy.
    pub hours_with_energy: u64,
    /// Energy in `periods` that is in no settlement yet.
    pub unsettled: Millijoules,
    /// Version of the settlements.
    pub version: Version,
    /// Corrections of intervals, oldest first.
    pub corrections: Vec<Correction>,
}
