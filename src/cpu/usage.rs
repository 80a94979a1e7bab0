//! Reads CPU time from the kernel's files: `/proc/stat`, `/proc/<pid>/stat`, and `cpu.stat` of control groups.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use chrono::{DateTime, Utc};

use super::forest::Stat;
use wattune_core::domain::{CgroupPath, InvalidJob, Process};

/// Microseconds per tick (`USER_HZ`): 100 ticks per second on every architecture with NVIDIA GPUs.
pub(super) const TICK_US: u64 = 10_000;

/// The depth to which nested control groups are searched for processes.
const MAX_DEPTH: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NodeStat {
    pub(super) cores: u32,
    pub(super) busy_us: u64,
    pub(super) booted: Option<DateTime<Utc>>,
}

pub(super) fn node(proc: &Path) -> Result<NodeStat, String> {
    let path = proc.join("stat");
    let text = std::fs::read_to_string(&path).map_err(|error| format!("{} cannot be read: {error}", path.display()))?;
    parse_node(&text).ok_or_else(|| format!("{} has no line of CPU times", path.display()))
}

/// Parses the machine's CPU times. User (with guests), nice, system, irq and softirq count as busy; idle, iowait and
/// time stolen by other virtual machines do not.
fn parse_node(text: &str) -> Option<NodeStat> {
    let line = text.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let times: Vec<u64> = line.split_whitespace().map(str::parse).collect::<Result<_, _>>().ok()?;
    let at = |i: usize| times.get(i).copied().unwrap_or_default();
    let busy = (times.len() >= 4).then(|| at(0) + at(1) + at(2) + at(5) + at(6))?;
    let numbered =
        |line: &&str| line.strip_prefix("cpu").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
    let cores = u32::try_from(text.lines().filter(numbered).count()).ok().filter(|cores| *cores > 0)?;
    let booted = text.lines().find_map(|line| line.strip_prefix("btime ")?.trim().parse().ok());
    Some(NodeStat { cores, busy_us: busy * TICK_US, booted: booted.and_then(|at| DateTime::from_timestamp(at, 0)) })
}

/// Returns the ids of all processes in ascending order.
pub(super) fn processes(proc: &Path) -> Vec<u32> {
    let Ok(entries) = std::fs::read_dir(proc) else { return Vec::new() };
    let mut pids: Vec<u32> = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect();
    pids.sort_unstable();
    pids
}

/// Reads the kernel's record of a process (`/proc/<pid>/stat`); `None` if there is no such process. The kernel cuts names
/// after 15 bytes, possibly inside of a character.
pub fn stat_of(proc: &Path, pid: impl std::fmt::Display) -> Option<String> {
    let bytes = std::fs::read(proc.join(format!("{pid}/stat"))).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// Reads the CPU time of one process; `None` if it does not exist.
pub(super) fn process(proc: &Path, pid: u32) -> Option<Stat> {
    parse_process(&stat_of(proc, pid)?)
}

/// Returns whether a process runs. A process that has ended and only waits for its parent does not run.
pub(super) fn is_running(proc: &Path, process: Process) -> bool {
    let Some(text) = stat_of(proc, process.pid) else { return false };
    let has_ended = text.rfind(')').is_some_and(|at| text[at + 1..].trim_start().starts_with(['Z', 'X']));
    !has_ended && parse_process(&text).is_some_and(|stat| stat.start == process.start)
}

/// Parses fields 4, 14 to 17 and 22 (`proc_pid_stat(5)`). The process name, field 2, may contain blanks and brackets,
/// so the last closing bracket ends it.
fn parse_process(text: &str) -> Option<Stat> {
    let fields: Vec<&str> = text.get(text.rfind(')')? + 1..)?.split_whitespace().collect();
    // `fields[0]` is field 3.
    let number = |field: usize| fields.get(field - 3)?.parse::<i64>().ok().map(|n| n.max(0).unsigned_abs());
    Some(Stat {
        start: number(22)?,
        parent: u32::try_from(number(4)?).ok()?,
        own_time: number(14)? + number(15)?,
        waited: number(16)? + number(17)?,
    })
}

pub(super) fn find(proc: &Path, pids: &[u32]) -> Result<Vec<Process>, InvalidJob> {
    let one = |pid: &u32| match process(proc, *pid) {
        Some(stat) => Ok(Process { pid: *pid, start: stat.start }),
        None => {
            let why = format!(
                "names {pid}, but there is no such process ({} cannot be read); give process ids of the host, \
                 which differ from those in a container",
                proc.join(format!("{pid}/stat")).display()
            );
            Err(InvalidJob { field: "pids", why })
        }
    };
    let found = pids.iter().map(one).collect::<Result<Vec<_>, _>>()?;
    let ours = ancestors(proc);
    if let Some(pid) = pids.iter().find(|pid| ours.contains(pid)) {
        let why = format!(
            "names {pid}, but wattune itself runs below it, so that wattune's energy would count as this job's; \
             give the training's own processes"
        );
        return Err(InvalidJob { field: "pids", why });
    }
    Ok(found)
}

/// Returns the ids of this process and its ancestors; empty if `proc` shows another machine's processes.
fn ancestors(proc: &Path) -> Vec<u32> {
    let own = std::fs::read_link(proc.join("self")).ok().and_then(|own| own.to_str()?.parse().ok());
    let above = std::iter::successors(own, |pid| Some(process(proc, *pid)?.parent).filter(|parent| *parent > 0));
    // A chain of more than 64 ancestors would be a loop through a reused process id.
    above.take(64).collect()
}

/// Returns the directory of a control group, after a check that it exists below `root` and does not contain wattune.
pub(super) fn find_group(root: &Path, path: &CgroupPath) -> Result<PathBuf, InvalidJob> {
    let invalid = |why: String| Err(InvalidJob { field: "cgroup", why });
    let shown = path.as_str();
    if !root.join("cgroup.controllers").exists() {
        return invalid(format!(
            "{} is not the root of cgroup v2 (it has no cgroup.controllers); set cpu.cgroup_root (where both versions are \
             mounted, often /sys/fs/cgroup/unified), or give pids",
            root.display()
        ));
    }
    let dir = group_dir(root, path);
    let (Ok(real), Ok(real_root)) = (dir.canonicalize(), root.canonicalize()) else {
        let doubled = root.to_str().filter(|root| shown.starts_with(root));
        let hint = match doubled {
            Some(root) => format!("; the path begins at {root}, so leave that out"),
            None => "; /proc/PID/cgroup has a process's own after \"0::\"".to_owned(),
        };
        return invalid(format!("there is no control group {shown:?} below {}{hint}", root.display()));
    };
    if real == real_root || !real.starts_with(&real_root) {
        return invalid(format!("{shown:?} leads out of {}", root.display()));
    }
    if group_processes(&dir).contains(&std::process::id()) {
        return invalid(format!(
            "{shown:?} contains wattune itself, so that wattune's energy would count as this job's; give the \
             training's own control group"
        ));
    }
    match group_usage(&dir) {
        Ok(_) => Ok(dir),
        Err(why) => invalid(why),
    }
}

pub(super) fn group_dir(root: &Path, path: &CgroupPath) -> PathBuf {
    root.join(&path.as_str()[1..])
}

/// Returns the CPU time in microseconds of a control group and all groups below, ended processes included.
pub(super) fn group_usage(dir: &Path) -> Result<u64, String> {
    let path = dir.join("cpu.stat");
    let text = std::fs::read_to_string(&path).map_err(|error| match error.kind() {
        ErrorKind::NotFound if dir.is_dir() => {
            format!("{} does not exist: this is not a cgroup v2 group", path.display())
        }
        ErrorKind::NotFound => format!("the group {} is gone", dir.display()),
        _ => format!("{} cannot be read: {error}", path.display()),
    })?;
    let usage = text.lines().find_map(|line| line.strip_prefix("usage_usec")?.trim().parse().ok());
    usage.ok_or_else(|| format!("{} has no usage_usec: this is not a cgroup v2 group", path.display()))
}

/// Returns the process ids of a control group and all groups below.
pub(super) fn group_processes(dir: &Path) -> Vec<u32> {
    let mut found = Vec::new();
    gather(dir, MAX_DEPTH, &mut found);
    found
}

fn gather(dir: &Path, depth: usize, found: &mut Vec<u32>) {
    if let Ok(text) = std::fs::read_to_string(dir.join("cgroup.procs")) {
        // Processes of another pid namespace are listed as 0.
        found.extend(text.lines().filter_map(|line| line.trim().parse().ok()).filter(|pid: &u32| *pid > 0));
    }
    let Some(entries) = std::fs::read_dir(dir).ok().filter(|_| depth > 0) else { return };
    for entry in entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
        gather(&entry.path(), depth - 1, found);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_time_excludes_idle_iowait_and_steal() {
        let text = "cpu  100 20 30 4000 50 6 7 8 90 10\ncpu0 1 2 3 4\ncpu1 1 2 3 4\nintr 5\nbtime 1700000000\n";
        let found = parse_node(text).expect("right");
        assert_eq!((found.cores, found.busy_us), (2, (100 + 20 + 30 + 6 + 7) * TICK_US));
        assert_eq!(found.booted, DateTime::from_timestamp(1_700_000_000, 0));
        for garbage in ["", "cpu  1 2\ncpu0 1 2\n", "cpu  a b c d\ncpu0 1\n", "cpu  1 2 3 4\n"] {
            assert_eq!(parse_node(garbage), None, "{garbage:?}");
        }
    }

    #[test]
    fn a_name_with_brackets_and_blanks_is_parsed() {
        let text = "42 (a) b (c d)) S 7 42 42 0 -1 4194304 1 2 3 4 11 22 33 44 20 0 9 0 555 1 2 3";
        let found = parse_process(text).expect("right");
        assert_eq!(found, Stat { start: 555, parent: 7, own_time: 33, waited: 77 });
        for garbage in ["", "42 (a", "42 (a) S", "42 (a) S x 42 42 0 -1 4194304 1 2 3 4 11 22 33 44 20 0 9 0 555"] {
            assert_eq!(parse_process(garbage), None, "{garbage:?}");
        }
    }
}
