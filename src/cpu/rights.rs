//! Users of processes: whether those that a job names are the caller's own.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use super::slurm::SlurmScan;
use super::usage;
use wattune_core::domain::CgroupPath;
use wattune_core::identity::real_uid;

/// Number of the user root.
const ROOT: u32 = 0;
/// Name of the server process of CUDA's multi-process service, as the kernel shortens it.
const MPS_SERVER: &str = "nvidia-cuda-mps";

/// User of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessUser {
    /// Process id.
    pub pid: u32,
    /// Number of the user.
    pub user: u32,
    /// True for root's server of CUDA's multi-process service, which works for several users.
    pub serves_others: bool,
}

/// Returns the user of a process; `None` if there is no such process.
pub(super) fn user_of(proc: &Path, pid: u32) -> Option<ProcessUser> {
    let dir = proc.join(pid.to_string());
    let status = std::fs::read_to_string(dir.join("status")).unwrap_or_default();
    // Where the status cannot be read, the directory belongs to the process's effective user.
    let user = real_uid(&status).or_else(|| Some(std::fs::metadata(&dir).ok()?.uid()))?;
    let name = status.lines().find_map(|line| line.strip_prefix("Name:")).unwrap_or_default();
    Some(ProcessUser { pid, user, serves_others: user == ROOT && name.trim().starts_with(MPS_SERVER) })
}

/// Checks that each of these processes is the user's.
pub(super) fn check_pids(proc: &Path, pids: impl Iterator<Item = u32>, user: u32) -> Result<(), String> {
    for pid in pids {
        match user_of(proc, pid) {
            Some(found) if found.user == user => {}
            Some(found) => return Err(format!("process {pid} is one of user {}", found.user)),
            None => return Err(format!("process {pid} has ended")),
        }
    }
    Ok(())
}

/// Checks that a control group is the user's: some of its processes are, and none is one of a user other than root, who
/// starts containers and steps of Slurm. A group without processes is the user's if its directory is.
pub(super) fn check_group(proc: &Path, dir: &Path, path: &CgroupPath, user: u32) -> Result<(), String> {
    let pids = usage::group_processes(dir);
    if pids.is_empty() && std::fs::metadata(dir).is_ok_and(|dir| dir.uid() == user) {
        return Ok(());
    }
    check_some(proc, pids, user).map_err(|why| format!("in {:?} {why}", path.as_str()))
}

/// Checks that a Slurm job is the user's, by the same rule as for control groups.
pub(super) fn check_slurm_job(proc: &Path, number: u32, user: u32) -> Result<(), String> {
    let all = usage::processes(proc);
    let of_job = SlurmScan::default().find(proc, &all).into_iter().filter(|(found, _)| *found == number);
    let roots: BTreeSet<u32> = of_job.map(|(_, process)| process.pid).collect();
    let parents: BTreeMap<u32, u32> =
        all.iter().filter_map(|pid| Some((*pid, usage::process(proc, *pid)?.parent))).collect();
    // Without control groups, only the step daemon is found, and the job's processes are its descendants.
    let is_of_job = |pid: &u32| {
        let mut above = std::iter::successors(Some(*pid), |pid| parents.get(pid).copied()).take(64);
        above.any(|pid| roots.contains(&pid))
    };
    check_some(proc, all.iter().copied().filter(is_of_job), user).map_err(|why| format!("of Slurm job {number} {why}"))
}

fn check_some(proc: &Path, pids: impl IntoIterator<Item = u32>, user: u32) -> Result<(), String> {
    let mut is_own = false;
    for found in pids.into_iter().filter_map(|pid| user_of(proc, pid)) {
        is_own |= found.user == user;
        if ![user, ROOT].contains(&found.user) {
            return Err(format!("process {} is one of user {}", found.pid, found.user));
        }
    }
    if is_own { Ok(()) } else { Err(format!("no process is one of user {user}")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADA: u32 = 1000;
    const BOB: u32 = 1001;

    struct Machine(tempfile::TempDir);

    impl Machine {
        fn write(&self, path: &str, text: &str) {
            let path = self.0.path().join(path);
            std::fs::create_dir_all(path.parent().expect("below")).expect("made");
            std::fs::write(path, text).expect("written");
        }

        fn process(&self, pid: u32, parent: u32, user: u32, name: &str) {
            let stat = format!("{pid} ({name}) S {parent} 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 5 0");
            self.write(&format!("proc/{pid}/stat"), &stat);
            self.write(&format!("proc/{pid}/comm"), &format!("{name}\n"));
            self.write(&format!("proc/{pid}/status"), &format!("Name:\t{name}\nUid:\t{user}\t0\t0\t0\n"));
        }

        fn proc(&self) -> std::path::PathBuf {
            self.0.path().join("proc")
        }
    }

    #[test]
    fn only_own_processes_pass() {
        let machine = Machine(tempfile::tempdir().expect("a directory"));
        machine.process(10, 1, ADA, "python");
        machine.process(11, 1, BOB, "python");
        machine.process(12, 1, 0, "nvidia-cuda-mps-server");
        let check = |pids: &[u32]| check_pids(&machine.proc(), pids.iter().copied(), ADA);
        assert_eq!(check(&[10]), Ok(()));
        assert_eq!(check(&[10, 11]), Err("process 11 is one of user 1001".into()));
        assert_eq!(check(&[12]), Err("process 12 is one of user 0".into()));
        assert_eq!(check(&[13]), Err("process 13 has ended".into()));
        let serves = |pid| user_of(&machine.proc(), pid).map(|found| found.serves_others);
        assert_eq!((serves(12), serves(10), serves(13)), (Some(true), Some(false), None));
    }

    #[test]
    fn groups_and_slurm_jobs_need_one_own_process_and_none_of_others() {
        let machine = Machine(tempfile::tempdir().expect("a directory"));
        let dir = machine.0.path().join("cgroup/a");
        let path = CgroupPath::new("/a").expect("a path");
        let group = |pids: &str| {
            machine.write("cgroup/a/cgroup.procs", pids);
            check_group(&machine.proc(), &dir, &path, ADA)
        };
        machine.process(10, 1, ADA, "python");
        machine.process(11, 1, BOB, "python");
        machine.process(12, 1, 0, "containerd-shim");
        assert_eq!(group("10\n12\n"), Ok(()));
        assert_eq!(group("10\n11\n"), Err("in \"/a\" process 11 is one of user 1001".into()));
        assert_eq!(group("12\n"), Err("in \"/a\" no process is one of user 1000".into()));
        assert_eq!(group("").is_ok(), crate::files::user() == ADA, "the directory decides");
        // Job 7 by a control group, job 8 by its step daemon.
        machine.write("proc/10/cgroup", "0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_0\n");
        machine.write("proc/11/cgroup", "0::/system.slice/slurmstepd.scope/job_8/step_0/user/task_0\n");
        let job = |number| check_slurm_job(&machine.proc(), number, ADA);
        assert_eq!(job(7), Ok(()));
        assert_eq!(job(8), Err("of Slurm job 8 process 11 is one of user 1001".into()));
        assert_eq!(job(9), Err("of Slurm job 9 no process is one of user 1000".into()));
        machine.process(13, 10, ADA, "worker");
        assert_eq!(job(7), Ok(()));
        machine.process(14, 13, BOB, "worker");
        assert_eq!(job(7), Err("of Slurm job 7 process 14 is one of user 1001".into()));
    }
}
