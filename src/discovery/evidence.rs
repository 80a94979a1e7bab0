//! Reads the kernel's files about a process.

use std::path::Path;

use crate::cpu;
use wattune_core::domain::{CgroupPath, Process};
use wattune_core::identity::{Environment, Evidence, Groups, User, real_uid};

/// Maximum number of ancestors that are read: a longer chain is a loop through a reused process id.
const MOST_ANCESTORS: usize = 64;

/// A process with the evidence about its identity.
#[derive(Debug)]
pub(super) struct Witness {
    pub(super) process: Process,
    /// Ids of the process's ancestors, the parent first, without init.
    pub(super) ancestors: Vec<u32>,
    /// The process's control group (version 2), if it is not the root group.
    pub(super) cgroup: Option<CgroupPath>,
    pub(super) evidence: Evidence,
}

/// Reads a process; `None` if there is no such process. Values that cannot be read are absent.
pub(super) fn read(proc: &Path, pid: u32) -> Option<Witness> {
    let (process, parent) = cpu::process_and_parent(proc, pid)?;
    let file = |name: &str| std::fs::read(proc.join(format!("{pid}/{name}"))).unwrap_or_default();
    let text = |name: &str| String::from_utf8_lossy(&file(name)).into_owned();
    let above = |pid: &u32| Some(cpu::process_and_parent(proc, *pid)?.1).filter(|parent| *parent > 1);
    let first = Some(parent).filter(|parent| *parent > 1);
    let ancestors: Vec<u32> = std::iter::successors(first, above).take(MOST_ANCESTORS).collect();
    let groups = text("cgroup");
    let cgroup = groups.lines().find_map(|line| line.strip_prefix("0::")).and_then(|path| CgroupPath::new(path).ok());
    let evidence = Evidence {
        groups: Groups::parse(&groups),
        slurmstepd_job: ancestors.iter().find_map(|pid| cpu::slurm_step_daemon(proc, *pid)),
        environment: Environment::parse(&file("environ")),
        uid: real_uid(&text("status")),
        login_uid: text("loginuid").trim().parse().ok(),
        ..Evidence::default()
    };
    // While the files were read, another process may have taken the id.
    (cpu::process_and_parent(proc, pid)?.0 == process).then_some(Witness { process, ancestors, cgroup, evidence })
}

/// Finds a user in the machine's list of users.
pub(super) fn user(uid: u32, list: &Path) -> User {
    let text = std::fs::read_to_string(list).unwrap_or_default();
    let name = text.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(uid)).then(|| name.to_owned())
    });
    User { uid, name }
}
