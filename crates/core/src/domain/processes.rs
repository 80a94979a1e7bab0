//! Which processes are a job's: a list of them with all they start, or a control group.

use serde::{Deserialize, Serialize};

use super::InvalidJob;

/// A process that cannot be confused with a later one of the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Process {
    /// Its number.
    pub pid: u32,
    /// When it started, in the kernel's ticks since the machine did.
    pub start: u64,
}

/// The path of a control group (cgroup v2) from the root of their hierarchy: `/` and names.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct CgroupPath(String);

impl CgroupPath {
    /// Checks the path once; it cannot lead out of the hierarchy afterwards.
    ///
    /// # Errors
    /// If it does not begin with `/`, names the root, or has empty, `.` or `..` parts.
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

    /// The path, without a slash at its end.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether one of the two contains the other, or they are the same.
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

/// What a job says of its processes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claim {
    /// These, and all that they start.
    Pids(Vec<u32>),
    /// All of a control group and of those below it.
    Cgroup(CgroupPath),
}

impl Claim {
    /// No job names more processes than this; the ones that they start need no mention.
    pub const MOST_PIDS: usize = 256;

    /// From what was asked for; `None` if nothing was.
    ///
    /// # Errors
    /// For both at once, an empty or too long list, a number twice, and what [`CgroupPath::new`] refuses.
    pub fn new(pids: Option<Vec<u32>>, cgroup: Option<String>) -> Result<Option<Self>, InvalidJob> {
        let invalid = |field, why: String| Err(InvalidJob { field, why });
        match (pids, cgroup) {
            (None, None) => Ok(None),
            (Some(_), Some(_)) => {
                invalid("cgroup", "stands beside pids; give one of the two, or CPU time would count twice".into())
            }
            (None, Some(path)) => Ok(Some(Self::Cgroup(CgroupPath::new(path)?))),
            (Some(pids), None) => {
                if pids.is_empty() || pids.len() > Self::MOST_PIDS {
                    let why = format!(
                        "names {} processes; give 1 to {}, or leave it out; what they start counts by itself",
                        pids.len(),
                        Self::MOST_PIDS
                    );
                    return invalid("pids", why);
                }
                if let Some(wrong) = pids.iter().find(|pid| **pid == 0 || **pid > i32::MAX.unsigned_abs()) {
                    return invalid("pids", format!("names {wrong}, which is no process's number"));
                }
                if pids.contains(&1) {
                    let why = "names 1, the process that all others come from: all of the node would be this job's; give \
                               the training's own processes";
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

/// The processes of a job, found to be there when it registered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Processes {
    /// These, and all that they start.
    Pids(Vec<Process>),
    /// All of a control group and of those below it.
    Cgroup(CgroupPath),
}

impl Processes {
    /// What two jobs would both have, in words; `None` if nothing. A process of one within a group of the other is not
    /// noticed here.
    pub fn shared_with(&self, other: &Self) -> Option<String> {
        match (self, other) {
            (Self::Pids(own), Self::Pids(others)) => {
                own.iter().find(|p| others.contains(p)).map(|p| format!("process {}", p.pid))
            }
            (Self::Cgroup(own), Self::Cgroup(others)) => {
                own.overlaps(others).then(|| format!("what is in both {:?} and {:?}", own.as_str(), others.as_str()))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_stays_below_the_root() {
        for right in ["/a", "/system.slice/docker-0f.scope/", "/kubepods.slice/a b"] {
            assert!(CgroupPath::new(right).is_ok(), "{right}");
        }
        for (wrong, told) in [
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
            assert!(error.as_ref().is_err_and(|e| e.contains(told)), "{wrong}: {error:?}");
        }
    }

    #[test]
    fn groups_overlap_where_one_contains_the_other() {
        let path = |p: &str| CgroupPath::new(p).expect("right");
        assert!(path("/a").overlaps(&path("/a/b")) && path("/a/b").overlaps(&path("/a")));
        assert!(!path("/a").overlaps(&path("/ab")) && !path("/a/b").overlaps(&path("/a/c")));
    }

    #[test]
    fn claims_are_one_of_two() {
        let field = |pids: Option<&[u32]>, cgroup: Option<&str>| {
            Claim::new(pids.map(<[u32]>::to_vec), cgroup.map(str::to_owned)).map_err(|e| e.field)
        };
        assert_eq!(field(None, None), Ok(None));
        assert_eq!(field(Some(&[7, 8]), None), Ok(Some(Claim::Pids(vec![7, 8]))));
        assert_eq!(field(Some(&[7]), Some("/a")), Err("cgroup"));
        for wrong in [&[][..], &[0], &[1], &[7, 1], &[7, 7], &[u32::MAX], &[5; 257]] {
            assert_eq!(field(Some(wrong), None), Err("pids"));
        }
    }
}
