//! Processes of a job: a list of root processes, a control group, or a job of Slurm.

use serde::{Deserialize, Serialize};

use super::InvalidJob;

/// A process, identified by number and start time, because the system reuses the numbers of ended processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Process {
    /// Process id (PID).
    pub pid: u32,
    /// Start time in clock ticks since boot.
    pub start: u64,
}

/// Path of a control group (cgroup v2) from the root of the cgroup hierarchy.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct CgroupPath(String);

impl CgroupPath {
    /// Validates a path, so that it cannot lead out of the hierarchy.
    ///
    /// # Errors
    /// Returns an error if the path does not start with `/`, is the root, or has empty, `.` or `..` parts.
    pub fn new(path: impl Into<String>) -> Result<Self, InvalidJob> {
        let path = path.into();
        let invalid = |why: String| Err(InvalidJob { field: "cgroup", why });
        let shown: String = path.chars().take(120).collect();
        if let Some(line) = path.strip_prefix("0::") {
            return invalid(format!("is a line of /proc/PID/cgroup; give what follows \"0::\": {line:?}"));
        }
        if !path.starts_with('/') {
            return invalid(format!(
                "is {shown:?}; give the path of a cgroup v2 group from the root of the hierarchy, such as \
                 \"/system.slice/training.service\""
            ));
        }
        let path = path.strip_suffix('/').unwrap_or(&path);
        if path.is_empty() {
            return invalid(
                "is \"/\", which is the whole node; a process in a container sees its own group as \"/\": give the \
                 group's path as the host sees it"
                    .to_owned(),
            );
        }
        let wrong = |part: &str| part.is_empty() || part == "." || part == "..";
        if path.len() > 4096 || path.chars().any(char::is_control) || path[1..].split('/').any(wrong) {
            return invalid(format!("is {shown:?}; its parts must be names, not empty, \".\" or \"..\""));
        }
        Ok(Self(path.to_owned()))
    }

    /// Returns the path without a trailing slash.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns true if the groups are the same, or if one contains the other.
    pub fn overlaps(&self, other: &Self) -> bool {
        let contains =
            |outer: &str, inner: &str| inner.strip_prefix(outer).is_some_and(|r| r.is_empty() || r.starts_with('/'));
        contains(&self.0, &other.0) || contains(&other.0, &self.0)
    }
}

impl TryFrom<String> for CgroupPath {
    type Error = InvalidJob;
    fn try_from(path: String) -> Result<Self, InvalidJob> {
        Self::new(path)
    }
}

impl From<CgroupPath> for String {
    fn from(path: CgroupPath) -> Self {
        path.0
    }
}

/// Selection of a job's processes, from its registration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProcessSelector {
    /// These processes and all their descendants.
    Pids(Vec<u32>),
    /// All processes of a control group and its descendants.
    Cgroup(CgroupPath),
    /// All processes that Slurm runs on this machine for the job with this number (`SLURM_JOB_ID`).
    SlurmJob(u32),
}

impl ProcessSelector {
    /// Maximum number of processes that a job may list; descendants need not be listed.
    pub const MOST_PIDS: usize = 256;

    /// Validates the fields `pids`, `cgroup` and `slurm_job_id` of a request; `None` if all are absent.
    ///
    /// # Errors
    /// Returns an error if more than one field is given, if the list of process ids is empty, too long, or has invalid
    /// numbers or duplicates, if [`CgroupPath::new`] rejects the path, or if the number of the Slurm job is 0.
    pub fn new(
        pids: Option<Vec<u32>>,
        cgroup: Option<String>,
        slurm_job_id: Option<u32>,
    ) -> Result<Option<Self>, InvalidJob> {
        let invalid = |field, why: String| Err(InvalidJob { field, why });
        let conflicts = |field, with| {
            invalid(field, format!("conflicts with {with}; give only one of the two, or CPU time would count twice"))
        };
        match (pids, cgroup, slurm_job_id) {
            (None, None, None) => Ok(None),
            (Some(_), Some(_), _) => conflicts("cgroup", "pids"),
            (Some(_), None, Some(_)) => conflicts("slurm_job_id", "pids"),
            (None, Some(_), Some(_)) => conflicts("slurm_job_id", "cgroup"),
            (None, None, Some(0)) => {
                invalid("slurm_job_id", "is 0; Slurm counts its jobs from 1: give the value of SLURM_JOB_ID".into())
            }
            (None, None, Some(number)) => Ok(Some(Self::SlurmJob(number))),
            (None, Some(path), None) => Ok(Some(Self::Cgroup(CgroupPath::new(path)?))),
            (Some(pids), None, None) => {
                if pids.is_empty() || pids.len() > Self::MOST_PIDS {
                    let why = format!(
                        "names {} processes; give 1 to {}, or leave it out; child processes need not be listed",
                        pids.len(),
                        Self::MOST_PIDS
                    );
                    return invalid("pids", why);
                }
                if let Some(wrong) = pids.iter().find(|pid| **pid == 0 || **pid > i32::MAX.unsigned_abs()) {
                    return invalid("pids", format!("names {wrong}, which is not a process id"));
                }
                if pids.contains(&1) {
                    let why = "names 1, the parent of all processes, which would select the whole node; give the \
                               training's own processes";
                    return invalid("pids", why.into());
                }
                if let Some((_, twice)) = pids.iter().enumerate().find(|(i, pid)| pids[..*i].contains(pid)) {
                    return invalid("pids", format!("names {twice} twice"));
                }
                Ok(Some(Self::Pids(pids)))
            }
        }
    }
}

/// Processes of a job as found at its registration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Processes {
    /// These processes and all their descendants.
    Pids(Vec<Process>),
    /// All processes of a control group and its descendants.
    Cgroup(CgroupPath),
    /// All processes that Slurm runs on this machine for the job with this number (`SLURM_JOB_ID`). They come and go
    /// while the job runs; at its registration there may be none.
    SlurmJob(u32),
    /// These processes and all their descendants, of a job that the daemon found without a registration. If one of them
    /// is registered later, it no longer belongs to the found job.
    Found(Vec<Process>),
}

impl Processes {
    /// Returns whether the job counts as alive, without reports, while its processes run.
    pub fn show_life(&self) -> bool {
        matches!(self, Self::SlurmJob(_))
    }

    /// Describes processes that belong to both selections; `None` if none are found. Does not detect a listed process
    /// that runs inside a control group or a Slurm job of the other selection.
    pub fn shared_with(&self, other: &Self) -> Option<String> {
        match (self, other) {
            (Self::Pids(own), Self::Pids(others)) => {
                own.iter().find(|p| others.contains(p)).map(|p| format!("process {}", p.pid))
            }
            (Self::Cgroup(own), Self::Cgroup(others)) => {
                own.overlaps(others).then(|| format!("processes in both {:?} and {:?}", own.as_str(), others.as_str()))
            }
            (Self::SlurmJob(own), Self::SlurmJob(other)) => (own == other).then(|| format!("Slurm job {own}")),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_cannot_leave_the_hierarchy() {
        for right in ["/a", "/system.slice/docker-0f.scope/", "/kubepods.slice/a b"] {
            assert!(CgroupPath::new(right).is_ok(), "{right}");
        }
        for (wrong, expected) in [
            ("", "from the root"),
            ("a/b", "from the root"),
            ("/", "whole node"),
            ("//", "not empty"),
            ("/a/../b", "\"..\""),
            ("/a//b", "not empty"),
            ("/./a", "\".\""),
            ("/a\nb", "must be names"),
            ("0::/a", "what follows"),
        ] {
            let error = CgroupPath::new(wrong).map_err(|e| e.to_string());
            assert!(error.as_ref().is_err_and(|e| e.contains(expected)), "{wrong}: {error:?}");
        }
    }

    #[test]
    fn groups_overlap_where_one_contains_the_other() {
        let path = |p: &str| CgroupPath::new(p).expect("right");
        assert!(path("/a").overlaps(&path("/a/b")) && path("/a/b").overlaps(&path("/a")));
        assert!(!path("/a").overlaps(&path("/ab")) && !path("/a/b").overlaps(&path("/a/c")));
    }

    #[test]
    fn a_selection_has_one_kind() {
        let of = |pids: Option<&[u32]>, cgroup: Option<&str>, slurm_job_id| {
            ProcessSelector::new(pids.map(<[u32]>::to_vec), cgroup.map(str::to_owned), slurm_job_id)
                .map_err(|e| e.field)
        };
        let field = |pids, cgroup| of(pids, cgroup, None);
        assert_eq!(of(None, None, Some(7)), Ok(Some(ProcessSelector::SlurmJob(7))));
        for (pids, cgroup, number) in [(None, None, 0), (Some(&[7][..]), None, 7), (None, Some("/a"), 7)] {
            assert_eq!(of(pids, cgroup, Some(number)), Err("slurm_job_id"));
        }
        assert_eq!(field(None, None), Ok(None));
        assert_eq!(field(Some(&[7, 8]), None), Ok(Some(ProcessSelector::Pids(vec![7, 8]))));
        assert_eq!(field(Some(&[7]), Some("/a")), Err("cgroup"));
        for wrong in [&[][..], &[0], &[1], &[7, 1], &[7, 7], &[u32::MAX], &[5; 257]] {
            assert_eq!(field(Some(wrong), None), Err("pids"));
        }
    }
}
