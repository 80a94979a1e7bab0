//! CPU packages and memory: their energy, and each job's share of the node's CPU time.
//!
//! [`Node`] is the device trait: [`linux::LinuxNode`] reads RAPL through the kernel's powercap files, `/proc` and
//! control groups; [`simulated::SimulatedNode`] has no hardware and follows simulated GPUs. [`watch::CpuHandle`] reads
//! a node on a thread of its own, since kernel files can block, and meters the readings.
//!
//! Zones are CPU packages and their memory. Cores and uncore are parts of packages, and `psys` contains them: neither
//! is counted in addition.

mod forest;
pub mod linux;
mod powercap;
pub mod simulated;
#[cfg(test)]
mod tests;
mod usage;
pub mod watch;

use std::collections::BTreeMap;
use std::path::PathBuf;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use wattune_core::domain::{DeviceId, InvalidJob, JobId, ProcessSelector, Processes};
use wattune_core::units::Seconds;

/// `[cpu]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Enables reading and recording the energy of CPU packages and memory. The CPU time of jobs' processes is read in
    /// any case: it splits the energy of GPUs with several jobs.
    pub enabled: bool,
    /// The interval between readings.
    pub sample_s: Seconds,
    /// The directory of the kernel's powercap zones.
    pub powercap_root: PathBuf,
    /// The directory of the kernel's processes.
    pub proc_root: PathBuf,
    /// The directory of the control groups (v2).
    pub cgroup_root: PathBuf,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            enabled: true,
            sample_s: Seconds::new(1.0),
            powercap_root: "/sys/class/powercap".into(),
            proc_root: "/proc".into(),
            cgroup_root: "/sys/fs/cgroup".into(),
        }
    }
}

impl Settings {
    /// Checks ranges and paths.
    pub fn check(&self) -> Result<(), String> {
        self.sample_s.check("sample_s", 0.05, 5.0)?;
        for (key, path) in
            [("powercap_root", &self.powercap_root), ("proc_root", &self.proc_root), ("cgroup_root", &self.cgroup_root)]
        {
            if !path.is_absolute() {
                return Err(format!("{key} = {:?} must be an absolute path", path.display().to_string()));
            }
        }
        Ok(())
    }
}

/// A reading of one zone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZoneReading {
    /// The measured device.
    pub device: DeviceId,
    /// The zone's directory, or a name in its place.
    pub path: String,
    /// The counter in microjoules, or the reason why there is none, with the remedy.
    pub counter_uj: Result<u64, String>,
    /// The value in microjoules at which the counter wraps to zero, if known.
    pub range_uj: Option<u64>,
}

/// A reading of all zones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Zones {
    /// The readings by name.
    pub readings: Vec<ZoneReading>,
    /// The reasons why other zones cannot be read, with the remedies.
    pub problems: Vec<String>,
}

/// A reading of CPU time. Counters are in microseconds; only differences have a meaning.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// The number of logical CPUs, if known.
    pub cores: Option<u32>,
    /// The CPU time of all processes since the machine started, if known.
    pub busy_us: Option<u64>,
    /// The CPU time of each followed job's processes since the job is followed.
    pub jobs: BTreeMap<JobId, JobUsage>,
    /// The job of each process.
    pub owners: BTreeMap<u32, JobId>,
    /// The start of the machine.
    pub booted: Option<DateTime<Utc>>,
    /// The reason why a part is unknown.
    pub problem: Option<String>,
}

/// The CPU time of a job's processes since the job is followed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobUsage {
    /// CPU time in microseconds.
    pub used_us: u64,
    /// The number of running processes.
    pub running: u32,
    /// The reason why the CPU time is no longer known.
    pub problem: Option<String>,
}

/// Source of the CPUs' energy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum CpuSource {
    /// The kernel's powercap zones.
    Rapl,
    /// A simulation.
    Simulated,
}

impl CpuSource {
    /// Returns its name in labels.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Rapl => "rapl",
            Self::Simulated => "simulated",
        }
    }
}

/// A node's CPUs. Calls may block for as long as the kernel likes.
pub trait Node: Send {
    /// Returns where its energy comes from.
    fn source(&self) -> CpuSource;

    /// Reads the zones.
    fn zones(&mut self) -> Zones;

    /// Reads CPU time.
    fn usage(&mut self) -> Usage;

    /// Finds the processes that a job names.
    fn resolve(&self, claim: &ProcessSelector) -> Result<Processes, InvalidJob>;

    /// Counts a job's CPU time from now on, without earlier use by its processes.
    fn follow(&mut self, job: &JobId, processes: &Processes);

    /// Stops counting a job's CPU time.
    fn unfollow(&mut self, job: &JobId);
}
