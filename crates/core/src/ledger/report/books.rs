//! The contents of the books over a span, from which a report is made.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, Utc};

use super::job::JobFacts;
use crate::domain::{DeviceId, GpuId, JobId, SignalKind, Slot};
use crate::ledger::apportion::day_of;
use crate::ledger::block::DeviceBalance;
use crate::ledger::entry::{Boundary, Settlement, Terms};
use crate::ledger::{Share, Total};
use crate::units::{Micrograms, Millijoules};

/// Whose energy a sum is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Whose {
    /// One job's.
    Job(JobId),
    /// All jobs'.
    Jobs,
    /// Nobody's.
    Idle,
    /// Somebody's who cannot be named.
    Unattributed,
}

/// Energy and emissions of one device (or of all of its kind) within a span.
#[derive(Clone, Debug, PartialEq)]
pub struct Sum {
    /// The UTC day's beginning, where days are told apart.
    pub day: DateTime<Utc>,
    /// What used it; of sums over a kind's devices any of them.
    pub device: DeviceId,
    /// Whose it is.
    pub whose: Whose,
    /// With average intensities: the inventory.
    pub average: Total,
    /// With marginal ones: the impact, where a source gives them.
    pub marginal: Total,
}

impl Sum {
    /// Returns the sum of one share of a device in an hour of a book.
    pub fn of(hour: DateTime<Utc>, device: DeviceId, share: &Share, book: SignalKind, total: Total) -> Self {
        let whose = match share {
            Share::Job(id) => Whose::Job(id.clone()),
            Share::Idle => Whose::Idle,
            Share::Unattributed => Whose::Unattributed,
        };
        let (average, marginal) =
            if book == SignalKind::Marginal { (Total::default(), total) } else { (total, Total::default()) };
        Self { day: day_of(hour), device, whose, average, marginal }
    }
}

impl Settlement {
    /// Returns its sums, one for each part.
    pub fn sums(&self) -> impl Iterator<Item = Sum> + '_ {
        self.totals().map(|(part, total)| Sum::of(self.hour, part.device.clone(), &part.share, self.book, total))
    }
}

/// The sums of a time in which one boundary held.
#[derive(Clone, Debug, PartialEq)]
pub struct Piece {
    /// The time.
    pub span: Slot,
    /// What is counted beside the devices.
    pub boundary: Boundary,
    /// What they used.
    pub sums: Vec<Sum>,
}

/// A time in which nobody watched a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gap {
    /// The device.
    pub device: DeviceId,
    /// When; of hours that were rolled up, somewhere within.
    pub slot: Slot,
    /// Whether its minutes were rolled up, of all of it or of a part.
    pub is_rolled_up: bool,
    /// What the counter gained, booked over that time; or why nothing tells how much was used, which is in no book.
    pub energy: Result<Millijoules, String>,
}

impl Gap {
    /// Whether what one of these boards used within a span is in no book for it.
    pub fn is_hole_of(&self, gpus: &[GpuId], span: &Slot) -> bool {
        let meets = || self.slot.intersection(span).is_some();
        self.energy.is_err() && meets() && gpus.iter().any(|gpu| DeviceId::from(gpu) == self.device)
    }
}

/// An hour that was settled again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restatement {
    /// The hour's beginning.
    pub hour: DateTime<Utc>,
    /// In which book.
    pub book: SignalKind,
    /// The version that came of it.
    pub version: u32,
    /// When.
    pub at: DateTime<Utc>,
    /// Why.
    pub reason: String,
    /// Emissions before.
    pub before: Micrograms,
    /// Emissions of the same energy after.
    pub after: Micrograms,
}

/// Which version of the span's settlements a report shows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Version {
    /// The highest version of any of its hours; 0 before the first is settled.
    pub highest: u32,
    /// All settlements of all its hours: grows with each that is settled again.
    pub settlements: u64,
    /// Hours that were settled more than once.
    pub resettled_hours: u64,
    /// When the last one was settled again.
    pub last_restated_at: Option<DateTime<Utc>>,
    /// Hours that changed by more than the threshold, the newest first.
    pub restatements: Vec<Restatement>,
    /// How many more there are.
    pub restatements_left_out: u64,
}

/// Intervals of a span that were given to somebody else than they were booked to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Correction {
    /// Its number in the ledger.
    pub entry: u64,
    /// When it was made.
    pub at: DateTime<Utc>,
    /// Who made it.
    pub who: String,
    /// Why.
    pub why: String,
    /// Whose they were.
    pub from: Share,
    /// Whose they are.
    pub to: Share,
    /// How many of them begin in the span.
    pub intervals: u64,
    /// Their energy.
    pub energy: Millijoules,
}

/// What the books hold of a span, with all that stands beside it.
#[derive(Clone, Debug, PartialEq)]
pub struct Books {
    /// Sums, in pieces of one boundary each.
    pub pieces: Vec<Piece>,
    /// The jobs that the span touches, or that have energy in it.
    pub jobs: Vec<JobFacts>,
    /// Those that have energy in it.
    pub holders: BTreeSet<JobId>,
    /// The devices that books were kept of.
    pub devices: Vec<DeviceBalance>,
    /// Times in which nobody watched, oldest first.
    pub gaps: Vec<Gap>,
    /// The terms in force, oldest first.
    pub terms: Vec<Terms>,
    /// Whose intensities, and for how many hours.
    pub sources: Vec<(String, u64)>,
    /// Whether a generator made some of these intensities.
    pub synthetic: bool,
    /// When each device was read for the first time: before that nobody held it. One that is not here never was.
    pub first_seen: BTreeMap<DeviceId, DateTime<Utc>>,
    /// From the first hour with energy to the last one.
    pub kept: Option<Slot>,
    /// How many hours of the span have energy.
    pub hours_booked: u64,
    /// The energy in `pieces` that is in no settlement yet.
    pub unsettled: Millijoules,
    /// Which version of its settlements this is.
    pub version: Version,
    /// Corrections of its intervals, oldest first.
    pub corrections: Vec<Correction>,
}
