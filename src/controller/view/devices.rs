//! Views of GPUs, CPU packages and memory.

use chrono::{DateTime, Utc};
use serde::Serialize;
use utoipa::ToSchema;

use super::states::{Concern, CpuZoneKind, EnergyMethod, GpuState};
use crate::cpu::CpuSource;

/// State of a GPU.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct GpuView {
    /// Index of the GPU, which may differ after a reboot.
    pub index: u32,
    /// UUID of the GPU.
    pub uuid: String,
    /// PCI bus id of the GPU.
    pub pci_bus_id: String,
    /// GPU model: the product name.
    pub model: String,
    /// True if the GPU is simulated.
    pub simulated: bool,
    /// State of the GPU's limit: what determines it, or why wattune cannot set it.
    pub state: GpuState,
    /// Parts of the GPU's operation that have problems; `detail` states the reasons.
    pub problems: Vec<Concern>,
    /// Problems and restrictions of the GPU, in one sentence each.
    pub detail: Option<String>,
    /// Id of the job that controls the GPU; absent if no job does.
    pub owner: Option<String>,
    /// Ids of the jobs that use the GPU without controlling it.
    pub observed_jobs: Vec<String>,
    /// Power limit that the driver reports as requested, by wattune or another program.
    pub power_limit_requested_w: Option<f64>,
    /// Power limit that the driver reports as enforced.
    pub power_limit_enforced_w: Option<f64>,
    /// Power limit that wattune wants now; absent if it wants none.
    pub power_limit_wanted_w: Option<f64>,
    /// Original limit: the limit in force before wattune's first write. Absent if wattune has nothing to restore.
    pub power_limit_original_w: Option<f64>,
    /// Default power limit of the GPU.
    pub power_limit_default_w: Option<f64>,
    /// Lowest power limit that the GPU accepts.
    pub power_limit_min_w: Option<f64>,
    /// Highest power limit that the GPU accepts.
    pub power_limit_max_w: Option<f64>,
    /// Clock to which wattune has locked the GPU; absent if wattune has not locked it. Locks by other programs are
    /// unknown, because no driver reports them.
    pub clock_limit_mhz: Option<u32>,
    /// Clock to which wattune wants to lock the GPU now; absent if it wants no lock.
    pub clock_limit_wanted_mhz: Option<u32>,
    /// Lowest clock to which the GPU can be locked.
    pub clock_limit_min_mhz: Option<u32>,
    /// Highest clock to which the GPU can be locked: the highest clock of the GPU.
    pub clock_limit_max_mhz: Option<u32>,
    /// Reason why wattune does not lock the GPU's clocks; absent if wattune may lock them.
    pub clocks_left_alone: Option<String>,
    /// Number of times since the daemon's start that another program set the GPU's limit, and wattune left that limit
    /// in force.
    pub external_limits: u32,
    /// True if the last attempt to restore the original limit failed.
    pub restore_failed: bool,
    /// Number of failed attempts to restore the original limit since the daemon started.
    pub restore_failures: u32,
    /// Power cap that was set out of band, not by the host, and that holds the GPU below the requested limit; absent
    /// without such a cap.
    pub out_of_band_cap_w: Option<f64>,
    /// Time at which the manual override of the GPU's limit ends; absent without an override, and for an override that
    /// ends with its client.
    pub override_until: Option<DateTime<Utc>>,
    /// Owner of the manual override: `local`, or a Zeus client with its process or user; absent without an override.
    pub override_by: Option<String>,
    /// Present power of the GPU.
    pub power_w: Option<f64>,
    /// Energy of the GPU since the daemon started.
    pub energy_j: f64,
    /// Time since the reading up to which `energy_j` counts; absent before the first reading.
    pub energy_age_s: Option<f64>,
    /// Method by which the GPU's energy is measured now.
    pub energy_source: EnergyMethod,
    /// Number of resets of the GPU's energy counter since the daemon started.
    pub counter_resets: u32,
    /// Ratio of the energy that the GPU's counter shows to the energy integrated from power, over the last ten seconds;
    /// if the ratio is far from 1, the counter or the power is wrong.
    pub counter_over_power: Option<f64>,
    /// Temperature of the GPU core.
    pub temperature_c: Option<f64>,
    /// Clock of the GPU's multiprocessors.
    pub sm_clock_mhz: Option<u32>,
    /// Reasons for which the GPU lowers its clocks now; absent if the GPU reports no such reasons.
    pub event_reasons: Option<Vec<&'static str>>,
    /// True if the driver's persistence mode is on; absent if the driver does not report the mode.
    pub persistence: Option<bool>,
    /// Version of the GPU's driver.
    pub driver: String,
}

/// Span of at most five minutes in which a GPU's limit stayed the same.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct LimitSpanView {
    /// Start of the span.
    pub start: DateTime<Utc>,
    /// End of the span.
    pub end: DateTime<Utc>,
    /// Power limit in force; absent if the GPU did not report it.
    pub power_limit_enforced_w: Option<f64>,
    /// Power limit that wattune wanted; absent if wattune wanted none.
    pub power_limit_wanted_w: Option<f64>,
    /// Mean power over the span; absent if it is unknown.
    pub power_w: Option<f64>,
    /// Id of the job that controlled the GPU; absent if no job did.
    pub job_id: Option<String>,
}

/// State of the node's CPU packages and their memory.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct CpuView {
    /// Source of the energy readings.
    pub source: CpuSource,
    /// True if the readings are simulated.
    pub simulated: bool,
    /// Number of logical CPUs of the node; absent where unknown.
    pub cores: Option<u32>,
    /// CPU packages and their memory that are or once were present; empty if there never were any.
    pub zones: Vec<CpuZoneView>,
    /// Problems of reading zones (CPU packages or their memory) or CPU time, with their remedies.
    pub problems: Vec<String>,
}

/// Energy of a zone: a CPU package, or the memory of a package.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct CpuZoneView {
    /// Name of the zone in the ledger: `cpu:package-0`, `dram:package-0`.
    pub device: String,
    /// Short name of the zone: `package-0`, `dram-0`.
    pub zone: String,
    /// Kind of the zone: a package or its memory.
    pub kind: CpuZoneKind,
    /// Path from which the zone's energy counter is read.
    pub path: String,
    /// Power between the last two readings; absent while the zone is not read.
    pub power_w: Option<f64>,
    /// Energy of the zone since the daemon started; absent before the first reading.
    pub energy_j: Option<f64>,
    /// Time since the reading up to which `energy_j` counts; absent before the first reading.
    pub energy_age_s: Option<f64>,
    /// Part of `energy_j` that is less certain: from times in which the zone was not monitored, in which the zone's
    /// counter may have wrapped more than once, or in which the counter was reset or jumped.
    pub energy_in_gaps_j: f64,
    /// Number of times since the daemon's start that the zone's counter wrapped around to zero.
    pub counter_turns: u32,
    /// Number of resets of the zone's counter since the daemon started.
    pub counter_resets: u32,
    /// Number of increases of the counter by more than any package can use; the energy of these increases is part of
    /// `energy_in_gaps_j`.
    pub counter_jumps: u32,
    /// Number of times that the zone was read from another counter than before. The energy used at such a change is
    /// unknown until the earlier counter is back.
    pub counter_changes: u32,
    /// Reason why the zone cannot be read now, with the remedy; absent if it can be read.
    pub problem: Option<String>,
}
