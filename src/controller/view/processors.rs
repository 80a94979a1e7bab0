//! CPU packages and memory, and the processes of jobs.

use serde::Serialize;
use utoipa::ToSchema;

use wattune_core::domain::Processes;

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

/// A job's processes.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ProcessesView {
    /// The processes that it named; what they start counts too.
    pub pids: Option<Vec<u32>>,
    /// The control group that it named.
    pub cgroup: Option<String>,
    /// How many run now; absent where nobody looks.
    pub running: Option<u32>,
    /// CPU time that they used since the job was registered, or taken up again by a new daemon.
    pub cpu_time_s: Option<f64>,
    /// Why it cannot be counted now.
    pub problem: Option<String>,
}

impl ProcessesView {
    /// What was named, of a job that nobody follows.
    pub fn of(processes: &Processes) -> Self {
        let (pids, cgroup) = match processes {
            Processes::Pids(list) => (Some(list.iter().map(|process| process.pid).collect()), None),
            Processes::Cgroup(path) => (None, Some(path.as_str().to_owned())),
        };
        Self { pids, cgroup, running: None, cpu_time_s: None, problem: None }
    }
}
