//! Finds the processes of Slurm jobs: by their control groups or, without those, as descendants of Slurm's step daemons.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use super::usage;
use wattune_core::domain::Process;
use wattune_core::identity::{Groups, slurmstepd_job};

/// Name of Slurm's step daemon in `/proc/<pid>/comm`.
const STEP_DAEMON: &str = "slurmstepd";
/// Name of Slurm's node daemon, and of a step daemon before it has become one.
const NODE_DAEMON: &str = "slurmd";

/// Finds new processes of Slurm jobs. Judges each process of the machine once in the process's lifetime.
#[derive(Debug, Default)]
pub(super) struct SlurmScan {
    judged: BTreeSet<u32>,
}

/// Result of examining a process.
enum Judged {
    /// The process belongs to the Slurm job with this number.
    Job(u32),
    /// The process is a step daemon that does not serve a job yet, or may become one.
    Undecided,
    /// The process belongs to no job, or is a descendant of a step daemon, with which it is counted.
    No,
}

impl SlurmScan {
    /// Returns the processes among `all` that belong to a Slurm job and were not returned before, with the job's
    /// number. Without Slurm's control groups, returns only the step daemons, whose descendants belong to the same job.
    pub(super) fn find(&mut self, proc: &Path, all: &[u32]) -> Vec<(u32, Process)> {
        self.judged.retain(|pid| all.binary_search(pid).is_ok());
        let mut found = Vec::new();
        for pid in all.iter().copied() {
            if self.judged.contains(&pid) {
                continue;
            }
            match judge(proc, pid) {
                Judged::Undecided => continue,
                Judged::Job(number) => {
                    let Some(stat) = usage::process(proc, pid) else { continue };
                    found.push((number, Process { pid, start: stat.start }));
                }
                Judged::No => {}
            }
            self.judged.insert(pid);
        }
        found
    }
}

/// Returns the number of the Slurm job whose step daemon a process is.
pub(super) fn step_daemon(proc: &Path, pid: u32) -> Option<u32> {
    let is_one = read(proc, pid, "comm").trim_ascii() == STEP_DAEMON.as_bytes() && is_trusted(proc, pid);
    if is_one { slurmstepd_job(&read(proc, pid, "cmdline")) } else { None }
}

fn read(proc: &Path, pid: u32, name: &str) -> Vec<u8> {
    std::fs::read(proc.join(format!("{pid}/{name}"))).unwrap_or_default()
}

fn judge(proc: &Path, pid: u32) -> Judged {
    let read = |name: &str| read(proc, pid, name);
    if let Some(number) = Groups::parse(&String::from_utf8_lossy(&read("cgroup"))).slurm_job {
        return Judged::Job(number);
    }
    let comm = read("comm");
    match std::str::from_utf8(comm.trim_ascii()) {
        Ok(NODE_DAEMON) => return Judged::Undecided,
        Ok(STEP_DAEMON) if is_trusted(proc, pid) => {}
        _ => return Judged::No,
    }
    slurmstepd_job(&read("cmdline")).map_or(Judged::Undecided, Judged::Job)
}

/// Returns whether a process runs as root or as this daemon's own user: any user can give a process any title.
fn is_trusted(proc: &Path, pid: u32) -> bool {
    let owner = |path: &Path| std::fs::metadata(path).ok().map(|entry| entry.uid());
    let owner_of_process = owner(&proc.join(pid.to_string()));
    owner_of_process == Some(0) || owner_of_process.is_some() && owner_of_process == owner(&proc.join("self"))
}
