//! Ledger entries: one line of JSON each, written once, chained by digests.
//!
//! The intervals between two closes form a block. A block has its own chain, which begins at the digest of the previous
//! close; the close that ends the block holds the chain's last digest and the block's sums. The minutes of a block may
//! therefore be rolled up later: the rest of the ledger remains chained and consistent.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use super::chain::Digest;
use super::savings_entries::{Counterfactual, Outcome};
use super::{Interval, Share};
use crate::domain::{DeviceId, EnergySource, JobId, Origin, Provenance, SignalKind, SignalScope, Slot, Zone};
use crate::units::{GramsPerKwh, Micrograms, Millijoules};

/// Version of the rules by which energy is recorded, attributed and converted to emissions. Each row names it.
pub const METHOD: u16 = 1;

/// A line of the ledger.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Entry {
    /// A daemon started recording, or its terms changed.
    Terms(Terms),
    /// A block of intervals ended.
    Close(Close),
    /// Emissions of an hour with the intensities known at a time.
    Settlement(Settlement),
    /// Intervals were attributed to another share.
    Correction(Correction),
    /// Minutes were rolled up to hours.
    RollUp(RollUp),
    /// A power limit change was requested.
    Control(Control),
    /// A device used an unknown amount of energy.
    Lost(Lost),
    /// A job was registered.
    Registered(JobFacts),
    /// A job ended.
    Ended(JobFacts),
    /// A job was planned; the references that it will be compared with.
    Counterfactual(Box<Counterfactual>),
    /// A job ended; its savings.
    Outcome(Box<Outcome>),
}

impl Entry {
    /// Returns its name in the database.
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
        }
    }

    /// Returns the time that it refers to.
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
        }
    }
}

/// Terms under which the ledger is kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Terms {
    /// Start of these terms.
    pub at: DateTime<Utc>,
    /// Name of the node.
    pub node: String,
    /// Version of wattune.
    pub software: String,
    /// Version of the rules.
    pub method: u16,
    /// SHA-256 of the settings in force, as JSON.
    pub settings: Digest,
    /// Clocks in use: durations come from the monotonic clock, keys from the wall clock in UTC. The wall clock has no
    /// leap seconds; a repeated or skipped second moves keys, not durations.
    pub clock: String,
    /// Accounting boundary beyond the devices.
    pub boundary: Boundary,
}

/// Accounting boundary beyond the energy that the devices' own meters measure.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Boundary {
    /// Ratio of the node's energy to the devices' energy; 1 where it was not declared.
    pub node_factor: f64,
    /// Source of the node factor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_factor_source: Option<String>,
    /// Power usage effectiveness: ratio of the facility's energy to the node's; 1 where it was not declared.
    pub pue: f64,
    /// Source of the PUE.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pue_source: Option<String>,
    /// Date since which the PUE holds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pue_date: Option<String>,
    /// Emission factor of an electricity contract, for market-based emissions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub contract_g_per_kwh: Option<GramsPerKwh>,
    /// Name of the contract.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub contract_source: Option<String>,
    /// Embodied emissions of the hardware; absent where they were not declared.
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

/// Embodied emissions of a GPU and the lifetime that they are spread over (SCI, ISO/IEC 21031: `M = TE · TiR/EL ·
/// RR/ToR`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Embodied {
    /// Total embodied emissions of one GPU with its part of the node, in grams of CO2 equivalent.
    pub per_gpu_g: f64,
    /// Expected lifetime, in seconds.
    pub life_s: f64,
    /// Source of the figures.
    pub source: String,
}

/// An interval as it is chained and exported.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Device that used the energy.
    pub device: DeviceId,
    /// Owner of the energy.
    pub share: Share,
    /// Start.
    pub start: DateTime<Utc>,
    /// End.
    pub end: DateTime<Utc>,
    /// Energy, in millijoules.
    pub energy_mj: Millijoules,
    /// Method of measurement.
    pub source: EnergySource,
    /// Relative uncertainty, in percent.
    pub uncertainty_pct: f64,
    /// Version of the rules.
    pub method: u16,
}

impl Row {
    /// Returns the line that is chained.
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

    /// Returns the interval; `None` if it does not end after its start.
    pub fn interval(&self) -> Option<Interval> {
        let slot = Slot::new(self.start, self.end)?;
        let (device, share) = (self.device.clone(), self.share.clone());
        Some(Interval { device, share, slot, energy: self.energy_mj, source: self.source })
    }
}

/// End of a block of intervals.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Close {
    /// Number of the block, from 1.
    pub block: u64,
    /// Time of the close.
    pub at: DateTime<Utc>,
    /// Number of intervals.
    pub rows: u64,
    /// Last digest of the intervals' chain.
    pub details: Digest,
    /// Sums of the intervals.
    pub cells: Vec<Cell>,
    /// Recorded energy of each device compared with its counter.
    pub balances: Vec<Balance>,
}

/// Energy of one share of a device in one hour, by method of measurement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cell {
    /// Start of the hour.
    pub hour: DateTime<Utc>,
    /// Device that used the energy.
    pub device: DeviceId,
    /// Owner of the energy.
    pub share: Share,
    /// Method of measurement.
    pub source: EnergySource,
    /// Energy, in millijoules.
    pub energy_mj: Millijoules,
}

/// Recorded energy of a device in a block compared with its counter: `jobs + idle + unattributed = counter +
/// integrated`, where `counter` is the increase of the hardware counter without resets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Balance {
    /// Device.
    pub device: DeviceId,
    /// Increase of its counter in the block; absent if it has none.
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

/// Finality of an intensity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Finality {
    /// Published before the time began, or filled in.
    Forecast,
    /// Published afterwards and subject to revision, or synthetic.
    Provisional,
    /// Published afterwards and declared final by the source.
    Final,
}

impl Finality {
    /// Returns the finality of a past value; `settled` is true if its source declared it final. A synthetic value
    /// belongs to no real grid and never becomes final.
    pub fn of(origin: Origin, settled: bool) -> Self {
        match origin {
            Origin::Fallback | Origin::Forecast => Self::Forecast,
            Origin::Estimated | Origin::Measured if settled => Self::Final,
            Origin::Synthetic | Origin::Estimated | Origin::Measured => Self::Provisional,
        }
    }
}

/// An intensity with its provenance.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Factor {
    /// Start.
    pub start: DateTime<Utc>,
    /// End.
    pub end: DateTime<Utc>,
    /// Intensity.
    pub g_per_kwh: GramsPerKwh,
    /// Number as received, in the unit that `provenance` names; absent where it is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub received: Option<f64>,
    /// Origin of the value.
    pub origin: Origin,
    /// Finality of the value.
    pub state: Finality,
    /// Source that published it.
    pub source: String,
    /// Grid zone.
    pub zone: Zone,
    /// Lifecycle or operational.
    pub scope: SignalScope,
    /// Time of publication.
    pub issued_at: DateTime<Utc>,
    /// Time of retrieval.
    pub retrieved_at: DateTime<Utc>,
    /// Data that the value was read from.
    #[serde(default)]
    pub provenance: Provenance,
}

/// Emissions of an hour with the intensities known at a time. Later data leads to a new version; earlier versions
/// remain.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Settlement {
    /// Start of the hour.
    pub hour: DateTime<Utc>,
    /// Kind of intensity: average intensities give the inventory, marginal ones the impact. The two are separate
    /// accounts.
    #[serde(rename = "book")]
    pub kind: SignalKind,
    /// Version, from 1 for each hour and kind.
    pub version: u32,
    /// Time of computation.
    pub at: DateTime<Utc>,
    /// Reason for this version.
    pub reason: String,
    /// Last block that it includes.
    pub through_block: u64,
    /// Intensities, oldest first.
    pub factors: Vec<Factor>,
    /// Energy and emissions of the hour.
    pub parts: Vec<Part>,
}

/// Energy of one share of a device in an hour, by intensity, and its emissions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// Device that used the energy.
    pub device: DeviceId,
    /// Owner of the energy.
    pub share: Share,
    /// Method of measurement.
    pub source: EnergySource,
    /// Energy within each factor's time, in millijoules.
    pub energy_mj: Vec<Millijoules>,
    /// Energy without a known intensity, in millijoules.
    pub unknown_mj: Millijoules,
    /// Emissions of the energy with a known intensity, in micrograms of CO2 equivalent.
    pub carbon_ug: Micrograms,
}

/// Attribution of intervals to another share than the recorded one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Correction {
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
    /// Corrected rows.
    pub rows: Vec<Corrected>,
}

/// A corrected row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Corrected {
    /// Number of the row in the ledger.
    pub row: u64,
    /// Device that used the energy.
    pub device: DeviceId,
    /// Start of its hour.
    pub hour: DateTime<Utc>,
    /// Method of measurement.
    pub source: EnergySource,
    /// Energy, in millijoules.
    pub energy_mj: Millijoules,
}

/// Blocks whose intervals were deleted; their closes hold the sums.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RollUp {
    /// Time of the roll-up.
    pub at: DateTime<Utc>,
    /// First block.
    pub first_block: u64,
    /// Last block.
    pub last_block: u64,
    /// Number of intervals that were deleted.
    pub rows: u64,
}

/// A time in which a device used energy that is in no row because its amount is unknown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lost {
    /// Time of detection.
    pub at: DateTime<Utc>,
    /// Device that used the energy.
    pub device: DeviceId,
    /// Start.
    pub from: DateTime<Utc>,
    /// End.
    pub until: DateTime<Utc>,
    /// Reason why the amount is unknown.
    pub why: String,
}

/// Digest of a job's data in the database, which is not part of the ledger.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobFacts {
    /// Time of registration, or of the end.
    pub at: DateTime<Utc>,
    /// Job.
    pub job: JobId,
    /// SHA-256 of the registered data (name, GPUs, labels and all else), or of the progress and the reason for the end.
    pub facts: Digest,
}

/// A requested change of a power limit, and the result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Control {
    /// Time of the request.
    pub at: DateTime<Utc>,
    /// Requester: a job, a person by token, wattune's planner, the power cap, or an external writer.
    pub who: String,
    /// Description of the request.
    pub what: String,
    /// Device.
    pub device: DeviceId,
    /// Limit before, in milliwatts.
    pub before_mw: Option<u32>,
    /// Requested limit, in milliwatts.
    pub asked_mw: Option<u32>,
    /// Limit in force afterwards, in milliwatts.
    pub enforced_mw: Option<u32>,
}
