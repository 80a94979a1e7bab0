//! Ledger entries: one line of JSON each, written once, chained by digests.
//!
//! The energy intervals that are recorded between two [`Close`] entries form a block. The digests of a block's
//! intervals are a chain of their own, which starts from the digest of the previous close. The close that ends the
//! block holds the last digest of this chain and the energy sums of the block. The intervals of an old block can
//! therefore be deleted (rolled up to hours) while the rest of the ledger remains chained.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use super::chain::Digest;
use super::presence_entries::{PresenceChange, StartRequest};
use super::savings_entries::{Counterfactual, Outcome};
use super::{Interval, Share};
use crate::domain::{DeviceId, EnergySource, JobId, Origin, Provenance, SignalKind, SignalScope, Slot, Zone};
use crate::units::{GramsPerKwh, Micrograms, Millijoules};

/// Version of the rules by which energy is recorded, attributed and converted to emissions, as stated in each interval.
pub const METHOD: u16 = 1;

/// A line of the ledger.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Entry {
    /// A daemon started recording, or the settings of the ledger changed.
    Terms(Terms),
    /// A block (the energy intervals since the last close, usually of an hour) ended.
    Close(Close),
    /// Emissions of an hour, computed from the carbon intensities known at the time of the computation.
    Settlement(Settlement),
    /// A person attributed intervals to another share (owner of the energy).
    Correction(Correction),
    /// Intervals of old blocks were deleted; the [`Close`] entries of these blocks keep the energy sums.
    RollUp(RollUp),
    /// A change of a power limit was requested.
    Control(Control),
    /// A device used an unknown amount of energy.
    Lost(Lost),
    /// A job was registered.
    Registered(JobFacts),
    /// A job ended.
    Ended(JobFacts),
    /// A job was planned for the first time, or after a new profile; holds the references (the same work at fixed power
    /// limits) that the job will be compared with.
    Counterfactual(Box<Counterfactual>),
    /// A job ended, or the savings of an ended job changed; holds the savings.
    Outcome(Box<Outcome>),
    /// A job was registered that offers to be held or suspended, or that continues an earlier job; holds the reference
    /// "started when asked".
    StartRequest(Box<StartRequest>),
    /// A job began, was suspended or was resumed.
    Presence(PresenceChange),
}

impl Entry {
    /// Returns the name of the entry's kind in the database.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Terms(_) => "terms",
            Self::Close(_) => "close",
            Self::Settlement(_) => "settlement",
            Self::Correction(_) => "correction",
            Self::RollUp(_) => "roll_up",
            Self::Control(_) => "control",
            Self::Lost(_) => "lost",
            Self::Registered(_) => "registered",
            Self::Ended(_) => "ended",
            Self::Counterfactual(_) => "counterfactual",
            Self::Outcome(_) => "outcome",
            Self::StartRequest(_) => "start_request",
            Self::Presence(_) => "presence",
        }
    }

    /// Returns the time that the entry refers to.
    pub fn about(&self) -> DateTime<Utc> {
        match self {
            Self::Terms(e) => e.at,
            Self::Close(e) => e.at,
            Self::Settlement(e) => e.hour,
            Self::Correction(e) => e.at,
            Self::RollUp(e) => e.at,
            Self::Control(e) => e.at,
            Self::Lost(e) => e.from,
            Self::Registered(e) | Self::Ended(e) => e.at,
            Self::Counterfactual(e) => e.at,
            Self::Outcome(e) => e.at,
            Self::StartRequest(e) => e.at,
            Self::Presence(e) => e.at,
        }
    }
}

/// Conditions under which the ledger is kept: node, software version, settings and accounting boundary.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Terms {
    /// Time from which the conditions apply.
    pub at: DateTime<Utc>,
    /// Name of the node.
    pub node: String,
    /// Version of wattune.
    pub software: String,
    /// Version of the rules by which energy is recorded, [`METHOD`].
    pub method: u16,
    /// SHA-256 of all settings of the daemon that are in force, serialised as JSON.
    pub settings: Digest,
    /// Clocks in use: durations come from the monotonic clock, start and end times from the wall clock in UTC. The wall
    /// clock has no leap seconds; a repeated or skipped second moves start and end times, not durations.
    pub clock: String,
    /// Accounting boundary: what is counted beyond the energy that the devices' own meters measure.
    pub boundary: Boundary,
}

/// Accounting boundary: factors and figures for what the devices' own energy meters do not measure (the rest of the
/// node, the facility, an electricity contract, embodied emissions).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Boundary {
    /// Ratio of the node's energy to the devices' energy; 1 if the settings do not declare one.
    pub node_factor: f64,
    /// Source of the node factor, as stated in the settings; absent if no node factor is declared.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_factor_source: Option<String>,
    /// Power usage effectiveness: ratio of the facility's energy to the node's; 1 if the settings do not declare one.
    pub pue: f64,
    /// Source of the PUE, as stated in the settings; absent if no PUE is declared.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pue_source: Option<String>,
    /// Date from which the PUE is valid; absent if no PUE is declared.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pue_date: Option<String>,
    /// Emission factor of an electricity contract, for market-based emissions; absent without a declared contract.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub contract_g_per_kwh: Option<GramsPerKwh>,
    /// Name of the electricity contract; absent without a declared contract.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub contract_source: Option<String>,
    /// Embodied emissions of the hardware; absent if the settings declare none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub embodied: Option<Embodied>,
}

impl Default for Boundary {
    fn default() -> Self {
        Self {
            node_factor: 1.0,
            node_factor_source: None,
            pue: 1.0,
            pue_source: None,
            pue_date: None,
            contract_g_per_kwh: None,
            contract_source: None,
            embodied: None,
        }
    }
}

/// Embodied emissions of a GPU, and the lifetime over which they are spread. SCI (ISO/IEC 21031) counts
/// `M = TE · TiR/EL · RR/ToR`: total emissions TE, by the time reserved TiR of the lifetime EL and the part RR reserved
/// of all resources ToR.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Embodied {
    /// Total embodied emissions of one GPU, including those of the GPU's part of the node, in grams of CO2 equivalent.
    pub per_gpu_g: f64,
    /// Expected lifetime, in seconds.
    pub life_s: f64,
    /// Source of the emissions and the lifetime, as stated in the settings.
    pub source: String,
}

/// An interval in the form in which it is chained and exported.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Device that used the energy.
    pub device: DeviceId,
    /// Owner of the energy: a job, idle or unattributed.
    pub share: Share,
    /// Start of the interval.
    pub start: DateTime<Utc>,
    /// End of the interval.
    pub end: DateTime<Utc>,
    /// Energy that the device used for this owner, in millijoules.
    pub energy_mj: Millijoules,
    /// Method of measurement.
    pub source: EnergySource,
    /// Relative uncertainty of the energy, in percent.
    pub uncertainty_pct: f64,
    /// Version of the rules by which energy is recorded, [`METHOD`].
    pub method: u16,
}

impl Row {
    /// Returns the interval as the line of JSON whose digest is chained.
    pub fn line(interval: &Interval) -> String {
        let row = Self {
            device: interval.device.clone(),
            share: interval.share.clone(),
            start: interval.slot.start(),
            end: interval.slot.end(),
            energy_mj: interval.energy,
            source: interval.source,
            uncertainty_pct: interval.source.uncertainty_pct(),
            method: METHOD,
        };
        serde_json::to_string(&row).expect("plain data")
    }

    /// Returns the row as an interval; `None` unless the row ends after its start.
    pub fn interval(&self) -> Option<Interval> {
        let slot = Slot::new(self.start, self.end)?;
        let (device, share) = (self.device.clone(), self.share.clone());
        Some(Interval { device, share, slot, energy: self.energy_mj, source: self.source })
    }
}

/// Entry that ends a block (the intervals since the last close, usually of an hour).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Close {
    /// Number of the ended block, from 1.
    pub block: u64,
    /// Time of the close.
    pub at: DateTime<Utc>,
    /// Number of intervals in the ended block.
    pub rows: u64,
    /// Last digest in the hash chain of the ended block's intervals.
    pub details: Digest,
    /// Energy of the intervals, summed by hour, device, share and method of measurement.
    pub cells: Vec<Cell>,
    /// Recorded energy of each device compared with the device's energy counter.
    pub balances: Vec<Balance>,
}

/// Energy of one device in one hour that belongs to one share (owner) and was measured by one method.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cell {
    /// Start of the hour.
    pub hour: DateTime<Utc>,
    /// Device that used the energy.
    pub device: DeviceId,
    /// Owner of the energy: a job, idle or unattributed.
    pub share: Share,
    /// Method of measurement.
    pub source: EnergySource,
    /// Energy, in millijoules.
    pub energy_mj: Millijoules,
}

/// Energy recorded for a device in a block (intervals of about an hour), compared with the device's energy counter:
/// `jobs + idle + unattributed = counter + integrated`, where `counter` is the increase of the hardware counter without
/// resets and `integrated` is energy integrated from power readings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Balance {
    /// Device whose energy is compared.
    pub device: DeviceId,
    /// Increase of the device's counter during the block; absent if the device has no counter.
    pub counter_mj: Option<i64>,
    /// Energy recorded for jobs.
    pub jobs_mj: Millijoules,
    /// Energy recorded as idle.
    pub idle_mj: Millijoules,
    /// Energy recorded as unattributed.
    pub unattributed_mj: Millijoules,
    /// Part of the recorded energy that was integrated from power instead of read from the counter.
    pub integrated_mj: Millijoules,
    /// `jobs + idle + unattributed − integrated − counter`: zero unless the ledger is wrong.
    pub difference_mj: i64,
}

/// Degree to which a carbon intensity may still change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Finality {
    /// Published before the time to which the intensity refers, or filled in by wattune where the source has no value.
    Forecast,
    /// Published after the time to which the intensity refers but still subject to revision, or synthetic (generated).
    Provisional,
    /// Published after the time to which the intensity refers, and declared final by the source.
    Final,
}

impl Finality {
    /// Returns the finality of a carbon intensity for a past time; `settled` is true if the source declared the value
    /// final. A synthetic value belongs to no real grid and never becomes final.
    pub fn of(origin: Origin, settled: bool) -> Self {
        match origin {
            Origin::Fallback | Origin::Forecast => Self::Forecast,
            Origin::Estimated | Origin::Measured if settled => Self::Final,
            Origin::Synthetic | Origin::Estimated | Origin::Measured => Self::Provisional,
        }
    }
}

/// Carbon intensity of a span of time, with its provenance.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Factor {
    /// Start of the time to which the carbon intensity applies.
    pub start: DateTime<Utc>,
    /// End of the time to which the carbon intensity applies.
    pub end: DateTime<Utc>,
    /// Carbon intensity from `start` to `end`.
    pub g_per_kwh: GramsPerKwh,
    /// Number as the source published it, in the unit that `provenance` names; absent if this unit is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub received: Option<f64>,
    /// Origin of the value: for example forecast or measured.
    pub origin: Origin,
    /// Finality of the value.
    pub state: Finality,
    /// Name of the source that published the value.
    pub source: String,
    /// Grid zone of the value.
    pub zone: Zone,
    /// Emissions that the value includes: lifecycle or operational.
    pub scope: SignalScope,
    /// Time at which the source published the value.
    pub issued_at: DateTime<Utc>,
    /// Time at which wattune fetched the value.
    pub retrieved_at: DateTime<Utc>,
    /// Unit, model and responses of the source from which the value was read.
    #[serde(default)]
    pub provenance: Provenance,
}

/// Settlement: emissions of an hour's recorded energy, computed from the carbon intensities known at the time `at`. If
/// energy or intensities change later, a new version replaces the settlement; earlier versions remain in the ledger.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Settlement {
    /// Start of the hour.
    pub hour: DateTime<Utc>,
    /// Kind of carbon intensity. Average intensities give the inventory, marginal intensities the impact; inventory and
    /// impact are accounted separately.
    #[serde(rename = "book")]
    pub kind: SignalKind,
    /// Number of this version, counted from 1 for each hour and kind of carbon intensity.
    pub version: u32,
    /// Time at which the emissions were computed.
    pub at: DateTime<Utc>,
    /// Reason for this version, for people.
    pub reason: String,
    /// Number of the last block (intervals of about an hour) whose energy is included.
    pub through_block: u64,
    /// Carbon intensities that were used, oldest first.
    pub factors: Vec<Factor>,
    /// Energy and emissions of the hour by device, share (owner of the energy) and method of measurement.
    pub parts: Vec<Part>,
}

/// Energy of one share (owner) of a device in an hour, split over the times of the hour's carbon intensities, and the
/// emissions of that energy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// Device that used the energy.
    pub device: DeviceId,
    /// Owner of the energy: a job, idle or unattributed.
    pub share: Share,
    /// Method of measurement.
    pub source: EnergySource,
    /// Energy used during the time of each of [`Settlement::factors`], in their order, in millijoules.
    pub energy_mj: Vec<Millijoules>,
    /// Energy without a known carbon intensity, in millijoules.
    pub unknown_mj: Millijoules,
    /// Emissions of the energy with a known carbon intensity, in micrograms of CO2 equivalent.
    pub carbon_ug: Micrograms,
}

/// Correction by a person: intervals are attributed to another share (owner of the energy) than the recorded one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Correction {
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
    /// Intervals that were attributed anew.
    pub rows: Vec<Corrected>,
}

/// An interval that a correction attributed anew.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Corrected {
    /// Number of the interval in the ledger.
    pub row: u64,
    /// Device that used the energy.
    pub device: DeviceId,
    /// Start of the UTC hour in which the interval lies.
    pub hour: DateTime<Utc>,
    /// Method of measurement.
    pub source: EnergySource,
    /// Energy, in millijoules.
    pub energy_mj: Millijoules,
}

/// Deletion of the intervals of old blocks; the [`Close`] entries of these blocks keep the energy sums.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RollUp {
    /// Time at which the intervals were deleted.
    pub at: DateTime<Utc>,
    /// Number of the first block whose intervals were deleted.
    pub first_block: u64,
    /// Number of the last block whose intervals were deleted.
    pub last_block: u64,
    /// Number of intervals that were deleted.
    pub rows: u64,
}

/// A time in which a device used an unknown amount of energy, which no interval contains.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lost {
    /// Time at which the daemon detected the loss.
    pub at: DateTime<Utc>,
    /// Device that used the energy.
    pub device: DeviceId,
    /// Start of the time with unknown energy.
    pub from: DateTime<Utc>,
    /// End of the time with unknown energy.
    pub until: DateTime<Utc>,
    /// Reason why the amount is unknown.
    pub why: String,
}

/// Digest of a job's data; the data itself is stored in the database outside the ledger.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobFacts {
    /// Time of the job's registration, or of the job's end.
    pub at: DateTime<Utc>,
    /// Job whose data the digest covers.
    pub job: JobId,
    /// SHA-256 of the job's data at registration (name, GPUs, labels, all else), or of the job's progress and the
    /// reason for the job's end.
    pub facts: Digest,
}

/// A change of a GPU's power limit that was requested, and the limit that resulted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Control {
    /// Time of the request.
    pub at: DateTime<Utc>,
    /// Originator, for people: an external writer, a manual override and its author, the plan of a job, or wattune when
    /// it restores the original limit.
    pub who: String,
    /// Description of the request, for people.
    pub what: String,
    /// GPU whose limit was to be changed.
    pub device: DeviceId,
    /// Power limit before the request, in milliwatts; absent if unknown, as for a change by an external writer.
    pub before_mw: Option<u32>,
    /// Requested power limit, in milliwatts; absent for a change by an external writer.
    pub asked_mw: Option<u32>,
    /// Power limit in force after the request, in milliwatts; absent if unknown.
    pub enforced_mw: Option<u32>,
}
