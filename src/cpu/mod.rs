//! CPU packages and memory: their energy, and the part of the node's CPU time that each job uses.
//!
//! [`Node`] is the device trait: [`linux::LinuxNode`] reads RAPL through the kernel's powercap files, `/proc` and
//! control groups; [`simulated::SimulatedNode`] has no hardware and follows simulated GPUs. [`watch::CpuHandle`] reads
//! a node on its own thread, since kernel files can block, and turns counter values into energy and CPU time.
//!
//! The measured zones are CPU packages and their memory. The zones for cores and uncore are parts of packages, and
//! `psys` contains packages: adding any of these would count energy twice.

mod forest;
pub mod linux;
mod powercap;
mod rights;
pub mod simulated;
mod slurm;
#[cfg(test)]
mod tests;
mod usage;
pub mod watch;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use wattune_core::domain::{DeviceId, InvalidJob, JobId, Process, ProcessSelector, Processes};
use wattune_core::units::Seconds;

/// Settings of the CPU measurement, the table `[cpu]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// True to read and record the energy of CPU packages and memory. The CPU time of jobs' processes is read in any
    /// case, to split the energy of GPUs that several jobs share.
    pub enabled: bool,
    /// The interval between readings.
    pub sample_s: Seconds,
    /// The directory of the kernel's powercap zones (RAPL).
    pub powercap_root: PathBuf,
    /// The directory of the kernel's process files.
    pub proc_root: PathBuf,
    /// The root directory of the control groups (cgroup v2).
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
    /// Checks the range of `sample_s` and that the paths are absolute.
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

/// A reading of one RAPL zone: a CPU package or its memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZoneReading {
    /// The measured device.
    pub device: DeviceId,
    /// The zone's directory; for a simulated zone, a label.
    pub path: String,
    /// The energy counter in microjoules, or the reason why it cannot be read, with the remedy.
    pub counter_uj: Result<u64, String>,
    /// The value in microjoules at which the counter wraps to zero, if known.
    pub range_uj: Option<u64>,
}

/// A reading of all zones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Zones {
    /// The readings of CPU packages and memory, ordered by kind and name.
    pub readings: Vec<ZoneReading>,
    /// The reasons why zones that are not among `readings` cannot be read, with the remedies.
    pub problems: Vec<String>,
}

/// A reading of CPU time. Counters are in microseconds; only differences between two readings have a meaning.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// The number of logical CPUs, if known.
    pub cores: Option<u32>,
    /// The CPU time of all processes since the machine started, if known.
    pub busy_us: Option<u64>,
    /// The CPU time of each followed job's processes, counted from the call of [`Node::follow`] for the job.
    pub jobs: BTreeMap<JobId, JobUsage>,
    /// The job of each process whose CPU time is counted, by process id.
    pub owners: BTreeMap<u32, JobId>,
    /// The time at which the machine started, if known.
    pub booted: Option<DateTime<Utc>>,
    /// The reason why the node's CPU time is unknown, if so.
    pub problem: Option<String>,
}

/// The CPU time of a job's processes, counted from the call of [`Node::follow`] for the job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobUsage {
    /// CPU time in microseconds.
    pub used_us: u64,
    /// The number of the job's running processes.
    pub running: u32,
    /// The reason why the job's CPU time is no longer known, if so.
    pub problem: Option<String>,
}

/// The source of the CPU energy readings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum CpuSource {
    /// RAPL, through the kernel's powercap zones.
    Rapl,
    /// Simulated CPUs, not measured.
    Simulated,
}

impl CpuSource {
    /// Returns the source's name in labels.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Rapl => "rapl",
            Self::Simulated => "simulated",
        }
    }
}

/// Reads a process and the id of its parent from a directory of the kernel's process files; `None` if there is no such
/// process.
pub fn process_and_parent(proc: &Path, pid: u32) -> Option<(Process, u32)> {
    let stat = usage::process(proc, pid)?;
    Some((Process { pid, start: stat.start }, stat.parent))
}

/// Returns whether a process runs. A zombie (a process that has ended and waits for its parent) does not run.
pub fn is_running(proc: &Path, process: Process) -> bool {
    usage::is_running(proc, process)
}

/// Returns the number of the Slurm job that a step daemon (`slurmstepd`) serves. `None` for other processes, and for
/// those that belong to neither root nor this daemon's user: any user can give a process any title.
pub fn slurm_step_daemon(proc: &Path, pid: u32) -> Option<u32> {
    slurm::step_daemon(proc, pid)
}

pub use rights::ProcessUser;
pub use usage::stat_of;

/// The CPUs of a machine, with access to energy and CPU time. Calls may block for as long as the kernel blocks.
pub trait Node: Send {
    /// Returns the source of the energy readings.
    fn source(&self) -> CpuSource;

    /// Returns the inode number of the namespace of process ids in which jobs name their processes; `None` if unknown.
    fn pid_namespace(&self) -> Option<u64> {
        None
    }

    /// Reads the energy counters of all zones.
    fn zones(&mut self) -> Zones;

    /// Reads the CPU time of the node and of all followed jobs.
    fn usage(&mut self) -> Usage;

    /// Checks that the processes or the control group that a job named exist, and returns them.
    fn resolve(&self, selector: &ProcessSelector) -> Result<Processes, InvalidJob>;

    /// Checks that processes are those of a user. A node whose processes have no users accepts all.
    ///
    /// # Errors
    /// The reason why they are not, in words that follow a field's name.
    fn check_user(&self, _processes: &Processes, _user: u32) -> Result<(), String> {
        Ok(())
    }

    /// Returns the user of each process; those of which no user is known are left out.
    fn users(&self, _pids: &[u32]) -> Vec<ProcessUser> {
        Vec::new()
    }

    /// Starts to count a job's CPU time (to follow the job); earlier use by the job's processes does not count.
    fn follow(&mut self, job: &JobId, processes: &Processes);

    /// Counts the CPU time of further processes for a job with [`Processes::Found`], except those that belong to a job.
    fn extend(&mut self, job: &JobId, found: &[Process]);

    /// Stops counting a job's CPU time.
    fn unfollow(&mut self, job: &JobId);
}
