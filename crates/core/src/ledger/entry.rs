//! What stands in the ledger beside the intervals: one line of JSON each, written once, chained by digests.
//!
//! The intervals between two closes are a block, with a chain of their own that begins at the digest of the close
//! before; the close that ends it holds their last digest and their sums. So the minutes of a block may be rolled up
//! later, and all that is left is still chained and adds up.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use super::chain::Digest;
use super::frozen::{Counterfactual, Outcome};
use super::{Interval, Share};
use crate::domain::{DeviceId, EnergySource, JobId, Origin, Provenance, SignalKind, SignalScope, Slot, Zone};
use crate::units::{GramsPerKwh, Micrograms, Millijoules};

/// The version of the rules by which energy is booked, shared out and settled. Each row names it.
pub const METHOD: u16 = 1;

/// One line of the ledger.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Entry {
    /// A daemon began to keep these books, or its terms changed.
    Terms(Terms),
    /// A block of intervals ended.
    Close(Close),
    /// What an hour emitted, by what is known of the grid at a time.
    Settlement(Settlement),
    /// Intervals were given to somebody else.
    Correction(Correction),
    /// Minutes were rolled up to hours.
    RollUp(RollUp),
    /// Somebody wanted a limit changed.
    Control(Control),
    /// Energy was used of which nothing tells how much.
    Lost(Lost),
    /// A job was registered.
    Registered(JobFacts),
    /// A job ended.
    Ended(JobFacts),
    /// A job was planned: against what it will be compared.
    Counterfactual(Box<Counterfactual>),
    /// A job ended: what came of it.
    Outcome(Box<Outcome>),
}

impl Entry {
    /// Its name in the store.
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

    /// The time that it speaks of.
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

/// Under which terms books are kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Terms {
    /// When they began.
    pub at: DateTime<Utc>,
    /// The node.
    pub node: String,
    /// wattune's version.
    pub software: String,
    /// The version of the rules.
    pub method: u16,
    /// SHA-256 of the settings in force, as JSON.
    pub settings: Digest,
    /// Where time comes from: durations from the monotonic clock, keys from the wall clock in UTC. The wall clock has
    /// no leap seconds; a second that it repeats or leaves out moves keys, not durations.
    pub clock: String,
    /// What is counted beside the devices.
    pub boundary: Boundary,
}

/// What is counted beside what the devices' own meters tell.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Boundary {
    /// The devices' energy times this is the node's; 1 where it was not declared.
    pub node_factor: f64,
    /// Where that comes from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_factor_source: Option<String>,
    /// The node's energy times this is the facility's (power usage effectiveness); 1 where it was not declared.
    pub pue: f64,
    /// Where that comes from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pue_source: Option<String>,
    /// Since when it is said to hold.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pue_date: Option<String>,
    /// The factor of a contract for electricity, for the market-based column.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub contract_g_per_kwh: Option<GramsPerKwh>,
    /// Which contract.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub contract_source: Option<String>,
    /// What making the hardware emitted; absent where it was not declared.
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

/// What making a board emitted, and over which life that is spread (SCI, ISO/IEC 21031: `M = TE · TiR/EL · RR/ToR`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Embodied {
    /// Total embodied emissions of one board with its part of the node, in grams of CO2 equivalent.
    pub per_gpu_g: f64,
    /// The expected life, in seconds.
    pub life_s: f64,
    /// Where the figures come from.
    pub source: String,
}

/// One row of the intervals, as it is chained and exported.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// What used it.
    pub device: DeviceId,
    /// Whose it is.
    pub share: Share,
    /// From when.
    pub start: DateTime<Utc>,
    /// Until when.
    pub end: DateTime<Utc>,
    /// How much, in millijoules.
    pub energy_mj: Millijoules,
    /// How it was found.
    pub source: EnergySource,
    /// Its relative uncertainty in percent.
    pub uncertainty_pct: f64,
    /// The version of the rules.
    pub method: u16,
}

impl Row {
    /// The line that is chained.
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

    /// The interval; `None` if it does not end after it began.
    pub fn interval(&self) -> Option<Interval> {
        let slot = Slot::new(self.start, self.end)?;
        let (device, share) = (self.device.clone(), self.share.clone());
        Some(Interval { device, share, slot, energy: self.energy_mj, source: self.source })
    }
}

/// The end of a block of intervals.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Close {
    /// Blocks are numbered from 1.
    pub block: u64,
    /// When it was closed.
    pub at: DateTime<Utc>,
    /// How many intervals it has.
    pub rows: u64,
    /// The last digest of their chain.
    pub details: Digest,
    /// Their sums.
    pub cells: Vec<Cell>,
    /// Each device's books against its counter.
    pub balances: Vec<Balance>,
}

/// Energy of one share of a device in one hour, found in one way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cell {
    /// The hour's beginning.
    pub hour: DateTime<Utc>,
    /// What used it.
    pub device: DeviceId,
    /// Whose it is.
    pub share: Share,
    /// How it was found.
    pub source: EnergySource,
    /// How much, in millijoules.
    pub energy_mj: Millijoules,
}

/// What was booked of a device in a block against what its counter gained. `jobs + idle + unattributed` is
/// `counter + integrated`; `counter` is what the hardware's counter gained, less what resets moved it by.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Balance {
    /// The device.
    pub device: DeviceId,
    /// What its counter gained in the block; absent if it has none.
    pub counter_mj: Option<i64>,
    /// Booked to jobs.
    pub jobs_mj: Millijoules,
    /// Booked as idle.
    pub idle_mj: Millijoules,
    /// Booked as nobody's who can be named.
    pub unattributed_mj: Millijoules,
    /// Of all of that, what was integrated from power and not read off the counter.
    pub integrated_mj: Millijoules,
    /// `jobs + idle + unattributed − integrated − counter`: zero, or the books are wrong.
    pub difference_mj: i64,
}

/// How good the knowledge of an intensity is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Said before the time came, or filled in.
    Forecast,
    /// Said afterwards, and may still be revised; or generated.
    Provisional,
    /// Said afterwards, and the source says that it changes no more.
    Final,
}

impl State {
    /// How good a value of a time that has passed is; `settled` says that its source changes it no more. What a generator
    /// made belongs to no real grid: it stands as told, but nothing makes it final.
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
    /// From when.
    pub start: DateTime<Utc>,
    /// Until when.
    pub end: DateTime<Utc>,
    /// The intensity.
    pub g_per_kwh: GramsPerKwh,
    /// The number as it was received, in the unit that `provenance` names; absent where that is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub received: Option<f64>,
    /// Where it comes from.
    pub origin: Origin,
    /// How good that is.
    pub state: State,
    /// Who said it.
    pub source: String,
    /// Of which part of the grid.
    pub zone: Zone,
    /// Lifecycle or operational.
    pub scope: SignalScope,
    /// When it was said.
    pub issued_at: DateTime<Utc>,
    /// When it was fetched.
    pub retrieved_at: DateTime<Utc>,
    /// From what it was read.
    #[serde(default)]
    pub provenance: Provenance,
}

/// What an hour's energy emitted, by the intensities known at a time. Later knowledge makes a new version; earlier ones
/// stay.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Settlement {
    /// The hour's beginning.
    pub hour: DateTime<Utc>,
    /// Average intensities make the inventory, marginal ones the impact; they are two books.
    pub book: SignalKind,
    /// From 1 for each hour and book.
    pub version: u32,
    /// When it was settled.
    pub at: DateTime<Utc>,
    /// Why again.
    pub reason: String,
    /// The blocks up to this one are in it.
    pub through_block: u64,
    /// The intensities, oldest first.
    pub factors: Vec<Factor>,
    /// The hour's energy.
    pub parts: Vec<Part>,
}

/// One share of a device in an hour: its energy by intensity, and what that emitted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// What used it.
    pub device: DeviceId,
    /// Whose it is.
    pub share: Share,
    /// How it was found.
    pub source: EnergySource,
    /// The energy of each factor's time, in millijoules.
    pub energy_mj: Vec<Millijoules>,
    /// The energy for whose time no intensity is known, in millijoules.
    pub unknown_mj: Millijoules,
    /// What the known part emitted, in micrograms of CO2 equivalent.
    pub carbon_ug: Micrograms,
}

/// Intervals that belong to somebody else than was booked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Correction {
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
    /// The rows.
    pub rows: Vec<Corrected>,
}

/// A row that was corrected.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Corrected {
    /// The row's number in the books.
    pub row: u64,
    /// What used it.
    pub device: DeviceId,
    /// When.
    pub hour: DateTime<Utc>,
    /// How it was found.
    pub source: EnergySource,
    /// How much, in millijoules.
    pub energy_mj: Millijoules,
}

/// Blocks whose intervals are gone; their closes hold the sums.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RollUp {
    /// When.
    pub at: DateTime<Utc>,
    /// The first block.
    pub first_block: u64,
    /// The last block.
    pub last_block: u64,
    /// How many intervals there were.
    pub rows: u64,
}

/// A time in which a device used energy that is in no row, because nothing tells how much it was.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lost {
    /// When that was found.
    pub at: DateTime<Utc>,
    /// What used it.
    pub device: DeviceId,
    /// From when.
    pub from: DateTime<Utc>,
    /// Until when.
    pub until: DateTime<Utc>,
    /// Why nothing tells of it.
    pub why: String,
}

/// What the database holds of a job, as a digest: its row is no line of the ledger.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobFacts {
    /// When it was registered, or ended.
    pub at: DateTime<Utc>,
    /// The job.
    pub job: JobId,
    /// SHA-256 of what was registered (name, GPUs, labels and all else), or of its progress and the reason of its end.
    pub facts: Digest,
}

/// Somebody wanted a limit changed, and what came of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Control {
    /// When.
    pub at: DateTime<Utc>,
    /// Who: a job, a person by token, wattune's planner, the cap, somebody outside.
    pub who: String,
    /// What: in words.
    pub what: String,
    /// On which device.
    pub device: DeviceId,
    /// The limit before, in milliwatts.
    pub before_mw: Option<u32>,
    /// The limit asked for, in milliwatts.
    pub asked_mw: Option<u32>,
    /// The limit that the device shows afterwards, in milliwatts.
    pub enforced_mw: Option<u32>,
}
