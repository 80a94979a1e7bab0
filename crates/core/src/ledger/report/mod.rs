//! Reports: what a span of time used and emitted, by job, name, device, label, day or month, with everything an auditor
//! needs beside it.
//!
//! All energy is in integer millijoules and all emissions in integer micrograms, so that every grouping adds up to the
//! same total. What is multiplied by declared factors (facility, contract, embodied) stands in columns of its own.

mod build;
mod held;
mod score;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

use chrono::{DateTime, Utc};

use super::entry::{Boundary, Embodied, State, Terms};
use super::sure::Sure;
use super::{Share, Total};
use crate::domain::{DeviceId, DeviceKind, GpuId, JobId, JobName, SignalKind, Slot};
use crate::units::{GramsCo2e, Joules, Micrograms, Millijoules, Samples, Seconds};

pub use build::build;

/// Stands behind the scope of a source of which a generator made values: they belong to no real grid.
pub const SYNTHETIC: &str = ", synthetic: of no real grid";

/// By what a report's rows are told apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum By {
    /// Training runs.
    Job,
    /// Names: runs of a recurring job share theirs.
    Name,
    /// GPUs and parts of processors.
    Device,
    /// The value of a label.
    Tag(String),
    /// UTC days.
    Day,
    /// UTC months.
    Month,
}

impl By {
    /// Whether rows belong to jobs, so that energy without a job needs rows of its own.
    pub const fn is_of_jobs(&self) -> bool {
        matches!(self, Self::Job | Self::Name | Self::Tag(_))
    }
}

impl fmt::Display for By {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Job => f.write_str("job"),
            Self::Name => f.write_str("name"),
            Self::Device => f.write_str("gpu"),
            Self::Tag(key) => write!(f, "tag:{key}"),
            Self::Day => f.write_str("day"),
            Self::Month => f.write_str("month"),
        }
    }
}

/// A text that names no grouping.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no grouping; give job, name, gpu, day, month, or tag:KEY with a label's key")]
pub struct NoGrouping(String);

impl FromStr for By {
    type Err = NoGrouping;

    fn from_str(text: &str) -> Result<Self, NoGrouping> {
        match text {
            "job" => Ok(Self::Job),
            "name" => Ok(Self::Name),
            "gpu" => Ok(Self::Device),
            "day" => Ok(Self::Day),
            "month" => Ok(Self::Month),
            other => match other.strip_prefix("tag:") {
                Some(key) if !key.is_empty() => Ok(Self::Tag(key.to_owned())),
                _ => Err(NoGrouping(other.chars().take(80).collect())),
            },
        }
    }
}

/// An epoch has so many samples at least.
pub const LEAST_PER_EPOCH: f64 = 1.0;

/// The R of SCI (ISO/IEC 21031): what emissions are counted per.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FunctionalUnit {
    /// A training run, from its registration to its end.
    Run,
    /// An epoch of so many samples; of a job's label `samples_per_epoch` where no number is given.
    Epoch(Option<Samples>),
    /// A million samples.
    MillionSamples,
}

impl FunctionalUnit {
    /// `run`, `epoch` or `1e6-samples`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Run => "run",
            Self::Epoch(_) => "epoch",
            Self::MillionSamples => "1e6-samples",
        }
    }
}

/// What a report is asked for.
#[derive(Clone, Debug, PartialEq)]
pub struct Wanted {
    /// What its rows are.
    pub by: By,
    /// Of which time, in whole UTC hours.
    pub span: Slot,
    /// What SCI is counted per; without one there is no score.
    pub unit: Option<FunctionalUnit>,
    /// An hour whose emissions changed by more than this, in percent, is listed as restated.
    pub restated_by_pct: f64,
    /// The present.
    pub now: DateTime<Utc>,
}

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

/// What a report needs to know of a job.
#[derive(Clone, Debug, PartialEq)]
pub struct JobFacts {
    /// Its id.
    pub id: JobId,
    /// Its name.
    pub name: JobName,
    /// Its labels.
    pub tags: BTreeMap<String, String>,
    /// Its boards.
    pub gpus: Vec<GpuId>,
    /// Samples done from its registration to its last report; from its first one where it began from a checkpoint.
    pub samples: Samples,
    /// When it was registered.
    pub registered_at: DateTime<Utc>,
    /// When it ended, if it has.
    pub ended_at: Option<DateTime<Utc>>,
    /// What it saved, as its newest outcome says; absent where that cannot be told, or not yet.
    pub saved: Option<Saved>,
}

impl JobFacts {
    /// Whether the job ended within a span: neighbouring spans do not both have it.
    pub fn ended_within(&self, span: &Slot) -> bool {
        self.ended_at.is_some_and(|end| span.start() < end && end <= span.end())
    }

    /// Whether some of its time lies in a span.
    pub fn ran_within(&self, span: &Slot) -> bool {
        self.registered_at < span.end() && self.ended_at.is_none_or(|end| end > span.start())
    }
}

/// Emissions that jobs saved against the limit found on their boards, as an interval; negative where they emitted more.
///
/// Of several jobs the means add up, and so do the ends, as if all errors went the same way: those of the sensors' gain
/// do, those of chance do not, for which the interval is wider than it would have to be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Saved {
    /// At the least.
    pub low: GramsCo2e,
    /// Most likely.
    pub mean: GramsCo2e,
    /// At the most.
    pub high: GramsCo2e,
}

impl From<Sure> for Saved {
    fn from(grams: Sure) -> Self {
        let Sure { low, mean, high } = grams;
        Self { low: GramsCo2e::new(low), mean: GramsCo2e::new(mean), high: GramsCo2e::new(high) }
    }
}

impl std::ops::Add for Saved {
    type Output = Self;

    fn add(self, more: Self) -> Self {
        Self { low: self.low + more.low, mean: self.mean + more.mean, high: self.high + more.high }
    }
}

/// A device's books against its counter, over the blocks that were closed within a span.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceBalance {
    /// The device.
    pub device: DeviceId,
    /// What its counter gained; absent if it has none.
    pub counter_mj: Option<i64>,
    /// Booked to jobs.
    pub jobs: Millijoules,
    /// Booked as idle.
    pub idle: Millijoules,
    /// Booked as nobody's who can be named.
    pub unattributed: Millijoules,
    /// Of all of that, what was integrated from power.
    pub integrated: Millijoules,
    /// Blocks whose books were not what the counter gained.
    pub unequal_blocks: u64,
    /// Booked less integrated less the counter's gain.
    pub difference_mj: i64,
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

/// What a row is about. Ordered as rows are.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Key {
    /// A UTC day or month.
    Time(DateTime<Utc>),
    /// A device.
    Device(DeviceId),
    /// A job.
    Job(JobName, JobId),
    /// A name.
    Name(JobName),
    /// A label's value.
    Tag(String),
    /// Jobs without the label.
    Untagged,
    /// Nobody's energy.
    Idle,
    /// Energy of somebody who cannot be named.
    Unattributed,
    /// Everything.
    Total,
}

/// Energy by the kind of hardware that used it, and by whose it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Split {
    /// GPUs.
    pub gpu: Millijoules,
    /// Processor packages.
    pub cpu: Millijoules,
    /// Memory.
    pub dram: Millijoules,
    /// Jobs.
    pub jobs: Millijoules,
    /// Nobody.
    pub idle: Millijoules,
    /// Somebody who cannot be named.
    pub unattributed: Millijoules,
    /// Simulated devices: no hardware used it.
    pub simulated: Millijoules,
}

impl Split {
    fn add(&mut self, device: &DeviceId, whose: &Whose, energy: Millijoules) {
        if device.is_simulated() {
            self.simulated += energy;
        }
        let of_kind = match device.kind() {
            DeviceKind::Gpu => &mut self.gpu,
            DeviceKind::Cpu => &mut self.cpu,
            DeviceKind::Dram => &mut self.dram,
        };
        *of_kind += energy;
        let of_holder = match whose {
            Whose::Job(_) | Whose::Jobs => &mut self.jobs,
            Whose::Idle => &mut self.idle,
            Whose::Unattributed => &mut self.unattributed,
        };
        *of_holder += energy;
    }
}

/// A row of a report.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// What it is about.
    pub key: Key,
    /// Energy and location-based emissions with average intensities.
    pub total: Total,
    /// The energy, split.
    pub split: Split,
    /// Emissions with marginal intensities, and the energy that has none; absent where the span has no such book.
    pub marginal: Option<(Micrograms, Millijoules)>,
    /// Emissions by a contract's factor; absent unless one was in force for all of the energy.
    pub market: Option<GramsCo2e>,
    /// The energy times node factor and PUE.
    pub facility_energy: Joules,
    /// The location-based emissions times the same.
    pub facility_carbon: GramsCo2e,
    /// Time in which boards were held: an hour of two boards is two hours; shared boards are split evenly.
    pub held: Seconds,
    /// The part of embodied emissions that falls on that time, by what was declared then; absent unless something was for all
    /// of it.
    pub embodied: Option<GramsCo2e>,
    /// The jobs in it; of a day or month those that ended then.
    pub jobs: u64,
    /// Of them, those that ended in the span.
    pub ended: u64,
    /// What its jobs saved, and of how many of them that is known. It is counted where the job ended.
    pub saved: Option<(Saved, u64)>,
    /// Grams per functional unit with the number of units, or why there is no score.
    pub score: Result<Score, String>,
}

/// SCI: `(E · I + M) / R`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Score {
    /// The score.
    pub per_unit: GramsCo2e,
    /// R.
    pub units: f64,
    /// The jobs that it is of: those that began and ended in the span.
    pub jobs: u64,
}

impl Row {
    /// The energy whose intensity is in a state.
    pub fn in_state(&self, state: State) -> Millijoules {
        match state {
            State::Forecast => self.total.forecast,
            State::Provisional => self.total.provisional,
            State::Final => self.total.final_,
        }
    }

    /// The energy as an interval: ±5 % of what was read off watched counters (the gain error of boards' sensors: Yang,
    /// Adámek, Armour, SC'24), ±10 % of the rest. Errors of gain do not average out, so they add up.
    pub fn energy_interval(&self) -> (Joules, Joules) {
        let energy = self.total.energy.to_joules();
        let error = energy * self.uncertainty();
        (energy - error, energy + error)
    }

    /// The emissions as an interval, by the uncertainty of the energy alone: sources of intensities state none.
    pub fn carbon_interval(&self) -> (GramsCo2e, GramsCo2e) {
        let carbon = self.total.carbon.to_grams();
        let error = carbon * self.uncertainty();
        (carbon - error, carbon + error)
    }

    /// The energy's relative uncertainty: 0.05 is 5 %.
    pub fn uncertainty(&self) -> f64 {
        let (energy, estimated) = (self.total.energy.to_joules(), self.total.estimated.to_joules());
        if energy > Joules::ZERO { 0.05 + 0.05 * (estimated / energy) } else { 0.0 }
    }

    /// Percent of the row's energy.
    pub fn pct(&self, part: Millijoules) -> f64 {
        let energy = self.total.energy.to_joules();
        if energy > Joules::ZERO { 100.0 * (part.to_joules() / energy) } else { 0.0 }
    }
}

/// A report.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// What was asked for.
    pub wanted: Wanted,
    /// Its rows: jobs and the like first, then idle and unattributed energy.
    pub rows: Vec<Row>,
    /// Their sum.
    pub total: Row,
    /// What making the hardware emitted, where it was declared; of the newest terms.
    pub embodied: Option<Embodied>,
    /// What it was made of.
    pub books: Books,
}

#[cfg(test)]
mod tests;
