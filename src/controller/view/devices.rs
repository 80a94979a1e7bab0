//! GPUs, CPU packages and memory.

use chrono::{DateTime, Utc};
use serde::Serialize;
use utoipa::ToSchema;

use super::states::{Concern, CpuZoneKind, EnergyMethod, GpuState};
use crate::cpu::CpuSource;

/// A GPU.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct GpuView {
    /// Index at this boot.
    pub index: u32,
    /// Identity.
    pub uuid: String,
    /// PCI bus id.
    pub pci_bus_id: String,
    /// Product name.
    pub model: String,
    /// True if it is simulated.
    pub simulated: bool,
    /// State of its limit: who determines it, or why nobody can.
    pub state: GpuState,
    /// Subjects of its problems; `detail` states the reasons.
    pub problems: Vec<Concern>,
    /// Problems and restrictions, in one sentence each.
    pub detail: Option<String>,
    /// Job that controls it.
    pub owner: Option<String>,
    /// Jobs that use it without controlling it.
    pub observed_jobs: Vec<String>,
    /// Limit requested at the hardware, by any writer.
    pub power_limit_requested_w: Option<f64>,
    /// Limit in force.
    pub power_limit_enforced_w: Option<f64>,
    /// Limit that wattune wants now.
    pub power_limit_wanted_w: Option<f64>,
    /// Original limit: in force before wattune's first write; it will be restored.
    pub power_limit_original_w: Option<f64>,
    /// Default limit.
    pub power_limit_default_w: Option<f64>,
    /// Lowest accepted limit.
    pub power_limit_min_w: Option<f64>,
    /// Highest accepted limit.
    pub power_limit_max_w: Option<f64>,
    /// Clock that wattune has locked; absent while it has not. No driver reports locks of others.
    pub clock_limit_mhz: Option<u32>,
    /// Locked clock that wattune wants now.
    pub clock_limit_wanted_mhz: Option<u32>,
    /// Lowest lockable clock.
    pub clock_limit_min_mhz: Option<u32>,
    /// Highest lockable clock, which is its highest.
    pub clock_limit_max_mhz: Option<u32>,
    /// Reason why its clocks are left alone; absent where they may be locked.
    pub clocks_left_alone: Option<String>,
    /// Number of times since the daemon started that wattune yielded to an external writer's limit.
    pub external_limits: u32,
    /// True if the original limit did not come back when it was restored, and has not since.
    pub restore_failed: bool,
    /// Number of times that this happened since the daemon started.
    pub restore_failures: u32,
    /// An out-of-band cap below the requested limit.
    pub out_of_band_cap_w: Option<f64>,
    /// End of a manual override.
    pub override_until: Option<DateTime<Utc>>,
    /// Power.
    pub power_w: Option<f64>,
    /// Energy since the daemon started.
    pub energy_j: f64,
    /// Present method of measuring its energy.
    pub energy_source: EnergyMethod,
    /// Number of resets of its energy counter since the daemon started.
    pub counter_resets: u32,
    /// Ratio of counter to integrated power in the last ten seconds; far from 1, one of them is wrong.
    pub counter_over_power: Option<f64>,
    /// Core temperature.
    pub temperature_c: Option<f64>,
    /// Clock of the multiprocessors.
    pub sm_clock_mhz: Option<u32>,
    /// Reasons for lowered clocks; absent where the GPU reports none.
    pub event_reasons: Option<Vec<&'static str>>,
    /// Persistence mode.
    pub persistence: Option<bool>,
    /// Version of the driver.
    pub driver: String,
}

/// Span of at most five minutes in which a GPU's limit stayed the same.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct LimitSpanView {
    /// Start.
    pub start: DateTime<Utc>,
    /// End.
    pub end: DateTime<Utc>,
    /// Limit in force; absent where the GPU did not report it.
    pub power_limit_enforced_w: Option<f64>,
    /// Limit that wattune wanted; absent where it wanted none.
    pub power_limit_wanted_w: Option<f64>,
    /// Mean power.
    pub power_w: Option<f64>,
    /// Job that controlled the GPU.
    pub job_id: Option<String>,
}

/// CPUs of the node.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct CpuView {
    /// Source of their energy.
    pub source: CpuSource,
    /// True if it is simulated.
    pub simulated: bool,
    /// Number of logical CPUs; absent where unknown.
    pub cores: Option<u32>,
    /// CPU packages and their memory, present or earlier; empty where there are none.
    pub zones: Vec<CpuZoneView>,
    /// Problems of reading zones or CPU time, with their remedies.
    pub problems: Vec<String>,
}

/// A CPU package or its memory.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct CpuZoneView {
    /// Name in the ledger: `cpu:package-0`, `dram:package-0`.
    pub device: String,
    /// Short name: `package-0`, `dram-0`.
    pub zone: String,
    /// Kind.
    pub kind: CpuZoneKind,
    /// Path of its readings.
    pub path: String,
    /// Power between the last two readings; absent while it is not read.
    pub power_w: Option<f64>,
    /// Energy since the daemon started; absent before the first reading.
    pub energy_j: Option<f64>,
    /// Part of it over unmonitored times, or in which the counter may have wrapped more than once.
    pub energy_in_gaps_j: f64,
    /// Number of wraps of its counter since the daemon started.
    pub counter_turns: u32,
    /// Number of resets.
    pub counter_resets: u32,
    /// Number of increases beyond what any package can use; that energy counts as in gaps.
    pub counter_jumps: u32,
    /// Number of changes to another counter; the energy in between is unknown.
    pub counter_changes: u32,
    /// Problem of reading it now, with its remedy.
    pub problem: Option<String>,
}
