//! The CPUs of this Linux machine, read from the kernel's files.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::sync::Arc;

use super::forest::Forest;
use super::powercap::Powercap;
use super::rights::{self, ProcessUser};
use super::slurm::SlurmScan;
use super::usage::{self, TICK_US};
use super::{CpuSource, JobUsage, Node, Settings, Usage, Zones};
use crate::clock::Clock;
use wattune_core::domain::{InvalidJob, JobId, Process, ProcessSelector, Processes};

/// The RAPL zones, processes and control groups below the configured directories.
pub struct LinuxNode {
    clock: Arc<dyn Clock>,
    proc: PathBuf,
    cgroups: PathBuf,
    powercap: Option<Powercap>,
    forest: Forest,
    slurm: SlurmScan,
    jobs: BTreeMap<JobId, Followed>,
}

/// The way in which a job's CPU time is measured.
enum Followed {
    /// By the sum over the job's processes in the forest, the record of all followed processes.
    Pids,
    /// By the CPU-time counter of the job's control group.
    Group(Group),
    /// By the sum over the processes of a Slurm job in the forest. `is_known` once one was found.
    SlurmJob { number: u32, is_known: bool },
}

struct Group {
    dir: PathBuf,
    last: Option<u64>,
    used: u64,
}

impl LinuxNode {
    /// Creates the node; reads no files yet.
    pub fn new(settings: &Settings, clock: Arc<dyn Clock>) -> Self {
        Self {
            clock,
            proc: settings.proc_root.clone(),
            cgroups: settings.cgroup_root.clone(),
            powercap: settings.enabled.then(|| Powercap::at(settings.powercap_root.clone())),
            forest: Forest::default(),
            slurm: SlurmScan::default(),
            jobs: BTreeMap::new(),
        }
    }
}

impl LinuxNode {
    /// Adds the processes that Slurm has started for followed Slurm jobs. CPU time that they used before counts if
    /// `is_new`.
    fn find_slurm_processes(&mut self, all: &[u32], is_new: bool) {
        let wanted: BTreeMap<u32, JobId> = self
            .jobs
            .iter()
            .filter_map(|(job, followed)| match followed {
                Followed::SlurmJob { number, .. } => Some((*number, job.clone())),
                _ => None,
            })
            .collect();
        if wanted.is_empty() {
            return;
        }
        let proc = &self.proc;
        for (number, process) in self.slurm.find(proc, all) {
            if let Some(job) = wanted.get(&number) {
                self.forest.extend(job, &[process], is_new, |pid| usage::process(proc, pid));
            }
        }
    }
}

impl Group {
    fn update(&mut self) -> Result<(), String> {
        let now = usage::group_usage(&self.dir)?;
        if let Some(last) = self.last {
            // If the control group was recreated, its counter starts at zero.
            self.used += now.checked_sub(last).unwrap_or(now);
        }
        self.last = Some(now);
        Ok(())
    }
}

impl Node for LinuxNode {
    fn source(&self) -> CpuSource {
        CpuSource::Rapl
    }

    fn pid_namespace(&self) -> Option<u64> {
        // Process 1 belongs to the namespace that the mounted process files show; only root may see its namespace.
        let first = ["1/ns/pid", "self/ns/pid"].map(|name| std::fs::metadata(self.proc.join(name)));
        first.into_iter().find_map(Result::ok).map(|file| file.ino())
    }

    fn zones(&mut self) -> Zones {
        let now = self.clock.monotonic();
        self.powercap.as_mut().map(|powercap| powercap.read(now)).unwrap_or_default()
    }

    fn usage(&mut self) -> Usage {
        let mut found = Usage::default();
        match usage::node(&self.proc) {
            Ok(node) => {
                (found.cores, found.busy_us, found.booted) = (Some(node.cores), Some(node.busy_us), node.booted);
            }
            Err(problem) => found.problem = Some(problem),
        }
        if !self.forest.is_empty() {
            let all = usage::processes(&self.proc);
            self.find_slurm_processes(&all, true);
            let proc = &self.proc;
            self.forest.update(&all, |pid| usage::process(proc, pid));
        }
        found.owners = self.forest.owners().map(|(pid, job)| (pid, job.clone())).collect();
        for (job, followed) in &mut self.jobs {
            let (used_us, problem) = match followed {
                Followed::Pids | Followed::SlurmJob { .. } => (self.forest.used(job) * TICK_US, None),
                Followed::Group(group) => {
                    let problem = group.update().err();
                    let processes = usage::group_processes(&group.dir);
                    found.owners.extend(processes.into_iter().map(|pid| (pid, job.clone())));
                    (group.used, problem)
                }
            };
            let running =
                u32::try_from(found.owners.values().filter(|owner| *owner == job).count()).unwrap_or(u32::MAX);
            let ended = running == 0
                && match followed {
                    Followed::Pids => true,
                    Followed::SlurmJob { is_known, .. } => *is_known,
                    Followed::Group(_) => false,
                };
            if let Followed::SlurmJob { is_known, .. } = followed {
                *is_known |= running > 0;
            }
            let problem = problem.or_else(|| ended.then(|| "all its processes have ended".to_owned()));
            found.jobs.insert(job.clone(), JobUsage { used_us, running, problem });
        }
        found
    }

    fn resolve(&self, selector: &ProcessSelector) -> Result<Processes, InvalidJob> {
        match selector {
            ProcessSelector::Pids(pids) => usage::find(&self.proc, pids).map(Processes::Pids),
            ProcessSelector::Cgroup(path) => {
                usage::find_group(&self.cgroups, path).map(|_| Processes::Cgroup(path.clone()))
            }
            ProcessSelector::SlurmJob(number) => Ok(Processes::SlurmJob(*number)),
        }
    }

    fn check_user(&self, processes: &Processes, user: u32) -> Result<(), String> {
        let proc = &self.proc;
        match processes {
            Processes::Pids(all) | Processes::Found(all) => {
                rights::check_pids(proc, all.iter().map(|process| process.pid), user)
            }
            Processes::Cgroup(path) => rights::check_group(proc, &usage::group_dir(&self.cgroups, path), path, user),
            Processes::SlurmJob(number) => rights::check_slurm_job(proc, *number, user),
        }
    }

    fn users(&self, pids: &[u32]) -> Vec<ProcessUser> {
        pids.iter().filter_map(|pid| rights::user_of(&self.proc, *pid)).collect()
    }

    fn follow(&mut self, job: &JobId, processes: &Processes) {
        let followed = match processes {
            Processes::Pids(roots) => {
                let proc = &self.proc;
                self.forest.follow(job, roots, &usage::processes(proc), |pid| usage::process(proc, pid));
                Followed::Pids
            }
            Processes::Found(found) => {
                self.forest.follow(job, &[], &[], |_| None);
                self.jobs.insert(job.clone(), Followed::Pids);
                return self.extend(job, found);
            }
            Processes::SlurmJob(number) => {
                self.forest.follow(job, &[], &[], |_| None);
                self.jobs.insert(job.clone(), Followed::SlurmJob { number: *number, is_known: false });
                // Processes that other jobs did not claim may be this one's.
                self.slurm = SlurmScan::default();
                let all = usage::processes(&self.proc);
                return self.find_slurm_processes(&all, false);
            }
            Processes::Cgroup(path) => {
                let mut group = Group { dir: usage::group_dir(&self.cgroups, path), last: None, used: 0 };
                // If the first reading fails, the next one reports the error again.
                let _ = group.update();
                Followed::Group(group)
            }
        };
        self.jobs.insert(job.clone(), followed);
    }

    fn extend(&mut self, job: &JobId, found: &[Process]) {
        if self.jobs.contains_key(job) {
            let proc = &self.proc;
            self.forest.extend(job, found, false, |pid| usage::process(proc, pid));
        }
    }

    fn unfollow(&mut self, job: &JobId) {
        self.jobs.remove(job);
        self.forest.unfollow(job);
    }
}
