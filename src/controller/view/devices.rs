//! GPUs, CPU packages and memory.

use chrono::{DateTime, Utc};
use serde::Serialize;
use utoipa::ToSchema;

/// One board.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct GpuView {
    /// Index at this boot.
    pub index: u32,
    /// Its identity.
    pub uuid: String,
    /// PCI bus id.
    pub pci_bus_id: String,
    /// Product name.
    pub model: String,
    /// Whether it is no hardware at all.
    pub simulated: bool,
    /// `free`, `job`, `override`, `foreign`, `observed`, `lost` or `unresponsive`.
    pub state: &'static str,
    /// What somebody should look at, of `answer`, `energy`, `power`, `limit`, `clocks` and `persistence`; `detail` says why.
    pub problems: Vec<&'static str>,
    /// What is the matter, in words a person can act on.
    pub detail: Option<String>,
    /// The job that controls it.
    pub owner: Option<String>,
    /// Jobs that are booked on it without controlling it.
    pub booked_jobs: Vec<String>,
    /// Limit asked for at the hardware, whoever asked.
    pub power_limit_requested_w: Option<f64>,
    /// Limit in force.
    pub power_limit_enforced_w: Option<f64>,
    /// Limit that wattune wants now.
    pub power_limit_wanted_w: Option<f64>,
    /// Limit before wattune touched it; it will be restored.
    pub power_limit_found_w: Option<f64>,
    /// The board's default.
    pub power_limit_default_w: Option<f64>,
    /// The lowest it takes.
    pub power_limit_min_w: Option<f64>,
    /// The highest it takes.
    pub power_limit_max_w: Option<f64>,
    /// What wattune has locked its clocks to; absent while it has not. No driver tells of locks by others.
    pub clock_limit_mhz: Option<u32>,
    /// What wattune wants its clocks locked to now.
    pub clock_limit_wanted_mhz: Option<u32>,
    /// The lowest clock it can be locked to.
    pub clock_limit_min_mhz: Option<u32>,
    /// The highest clock it can be locked to, which is its highest.
    pub clock_limit_max_mhz: Option<u32>,
    /// Why its clocks are left alone; absent where they may be locked.
    pub clocks_left_alone: Option<String>,
    /// How often wattune has left it alone because somebody else set its limit, since the daemon started.
    pub foreign_limits: u32,
    /// Whether the found limit was refused when it was to come back, and has not come back since.
    pub restore_failed: bool,
    /// How often that happened since the daemon started.
    pub restore_failures: u32,
    /// An out-of-band cap below the requested limit.
    pub out_of_band_cap_w: Option<f64>,
    /// A manual override's end.
    pub override_until: Option<DateTime<Utc>>,
    /// Draw.
    pub power_w: Option<f64>,
    /// Energy since the daemon started.
    pub energy_j: f64,
    /// `counter` or `integrated_power`: what its energy is read from.
    pub energy_source: &'static str,
    /// How often its energy counter was reset since the daemon started.
    pub counter_resets: u32,
    /// Counter over integrated power in the last minute; far from 1 one of them is wrong.
    pub counter_over_power: Option<f64>,
    /// Core temperature.
    pub temperature_c: Option<f64>,
    /// Clock of the multiprocessors.
    pub sm_clock_mhz: Option<u32>,
    /// Why clocks are lowered; absent where the board does not say.
    pub event_reasons: Option<Vec<&'static str>>,
    /// Persistence mode.
    pub persistence: Option<bool>,
    /// The driver's version.
    pub driver: String,
}

/// A time in which a board's limit stayed the same, five minutes at most.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct LimitSpanView {
    /// First moment.
    pub start: DateTime<Utc>,
    /// First moment after.
    pub end: DateTime<Utc>,
    /// Limit in force; absent where the board did not tell it.
    pub power_limit_enforced_w: Option<f64>,
    /// Limit that wattune wanted; absent where it wanted none.
    pub power_limit_wanted_w: Option<f64>,
    /// Mean draw.
    pub power_w: Option<f64>,
    /// The job that controlled the board.
    pub job_id: Option<String>,
}

/// The node's CPUs.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct CpuView {
    /// `rapl`: the kernel's powercap zones; or `simulated`.
    pub source: &'static str,
    /// Whether it is no hardware at all.
    pub simulated: bool,
    /// Logical CPUs; absent where that cannot be told.
    pub cores: Option<u32>,
    /// CPU packages and their memory that are or were there; empty where none can be found.
    pub zones: Vec<CpuZoneView>,
    /// What keeps zones or CPU time from being read, and what to do about it.
    pub problems: Vec<String>,
}

/// A CPU package or its memory.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct CpuZoneView {
    /// Its name in the books: `cpu:package-0`, `dram:package-0`.
    pub device: String,
    /// Its short name: `package-0`, `dram-0`.
    pub zone: String,
    /// `package` or `dram`.
    pub kind: &'static str,
    /// Where it is read.
    pub path: String,
    /// Draw between the last two readings; absent while it is not read.
    pub power_w: Option<f64>,
    /// Energy since the daemon started; absent before the first reading.
    pub energy_j: Option<f64>,
    /// The part of it over times in which nobody looked, or in which the counter may have turned more than once.
    pub energy_in_gaps_j: f64,
    /// How often its counter began again at zero since the daemon started.
    pub counter_turns: u32,
    /// How often it was reset.
    pub counter_resets: u32,
    /// How often it went ahead by more than any package can use; that energy counts as in gaps.
    pub counter_jumps: u32,
    /// How often another counter was read than before, after which what was used in between is not known.
    pub counter_changes: u32,
    /// Why it is not read now, and what to do about it.
    pub problem: Option<String>,
}
