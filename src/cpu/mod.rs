//! CPU packages and memory: what they use, and how much of the node's CPU time each job's processes have.
//!
//! [`Node`] is the seam: [`linux::LinuxNode`] reads RAPL through the kernel's powercap files, `/proc` and control groups;
//! [`simulated::SimulatedNode`] has no hardware and follows simulated boards. [`watch::CpuHandle`] reads a node on a
//! thread of its own, since files of the kernel can block, and meters what it says.
//!
//! Zones are CPU packages and their memory. Cores and uncore are parts of packages, and `psys` contains them: none of
//! these is counted beside them.

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

use wattune_core::domain::{Claim, DeviceId, InvalidJob, JobId, Processes};
use wattune_core::units::Seconds;

/// `[cpu]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Whether energy of CPU packages and memory is read and booked. Jobs' processes are followed in any case: boards
    /// with several jobs are split by them.
    pub enabled: bool,
    /// Time between two readings.
    pub sample_s: Seconds,
    /// Where the kernel's powercap zones are.
    pub powercap_root: PathBuf,
    /// Where the kernel's processes are.
    pub proc_root: PathBuf,
    /// Where the control groups (v2) are.
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
    /// # Errors
    /// For the first value out of range.
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

/// One zone at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZoneReading {
    /// What it measures.
    pub device: DeviceId,
    /// Where it is read: a directory, or what stands for one.
    pub path: String,
    /// Its counter in microjoules, or why there is none, in words a person can act on.
    pub counter_uj: Result<u64, String>,
    /// Where the counter starts again from zero, in microjoules; absent where that cannot be told.
    pub range_uj: Option<u64>,
}

/// All zones at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Zones {
    /// Those that are there, by name.
    pub readings: Vec<ZoneReading>,
    /// What keeps others from being read, in words a person can act on.
    pub problems: Vec<String>,
}

/// CPU time at one moment. Counters in microseconds; only differences mean something.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// How many logical CPUs there are; absent where that cannot be told.
    pub cores: Option<u32>,
    /// What all processes have used since the machine started; absent where that cannot be told.
    pub busy_us: Option<u64>,
    /// What each followed job's processes have used since it is followed.
    pub jobs: BTreeMap<JobId, JobUsage>,
    /// Whose each process is.
    pub owners: BTreeMap<u32, JobId>,
    /// When the machine started.
    pub booted: Option<DateTime<Utc>>,
    /// Why something of it cannot be told.
    pub problem: Option<String>,
}

/// What a job's processes have used since it is followed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobUsage {
    /// CPU time in microseconds.
    pub used_us: u64,
    /// How many processes there are now.
    pub running: u32,
    /// Why it cannot be told any more.
    pub problem: Option<String>,
}

/// A node's CPUs. Calls may block for as long as the kernel likes.
pub trait Node: Send {
    /// `rapl`, or `simulated`.
    fn source(&self) -> &'static str;

    /// The zones as they are now.
    fn zones(&mut self) -> Zones;

    /// CPU time as it is now.
    fn usage(&mut self) -> Usage;

    /// Finds the processes that a job claims.
    ///
    /// # Errors
    /// If there is no such process, or no such group; the message says what would be right.
    fn resolve(&self, claim: &Claim) -> Result<Processes, InvalidJob>;

    /// Counts a job's CPU time from now on; what its processes used before is not its own.
    fn follow(&mut self, job: &JobId, processes: &Processes);

    /// Counts it no longer.
    fn unfollow(&mut self, job: &JobId);
}
