//! Control groups of a process: which Slurm job, pod and container their paths name.

/// Length of a container's full id, in hexadecimal digits.
const ID_LEN: usize = 64;

/// Jobs, pods and containers that the control groups of a process name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Groups {
    /// Number of the Slurm job.
    pub slurm_job: Option<u32>,
    /// UID of the Kubernetes pod, with dashes.
    pub pod_uid: Option<String>,
    /// Container, the innermost one if several are nested.
    pub container: Option<Container>,
}

/// A container.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Container {
    /// Program that runs the container; `None` if the path does not show it.
    pub runtime: Option<Runtime>,
    /// Full id of the container.
    pub id: String,
}

/// A program that runs containers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Runtime {
    /// Docker.
    Docker,
    /// Podman.
    Podman,
    /// containerd.
    Containerd,
    /// CRI-O.
    CriO,
}

impl Runtime {
    /// Returns the program's name in tags.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Docker => "docker",
            Self::Podman => "podman",
            Self::Containerd => "containerd",
            Self::CriO => "cri-o",
        }
    }

    /// Returns the runtime that begins the names of its control groups with this word.
    fn of_prefix(prefix: &str) -> Option<Self> {
        Some(match prefix {
            "docker" => Self::Docker,
            "libpod" | "libpod_parent" => Self::Podman,
            "cri-containerd" | "nerdctl" | "containerd" => Self::Containerd,
            "crio" => Self::CriO,
            _ => return None,
        })
    }
}

impl Groups {
    /// Parses the text of `/proc/<pid>/cgroup`, of version 1 (one line per hierarchy) or 2 (the line `0::<path>`).
    /// Ignores lines of any other form.
    pub fn parse(text: &str) -> Self {
        let mut found = Self::default();
        for path in text.lines().filter_map(|line| line.splitn(3, ':').nth(2)) {
            let of_path = Self::of_path(path);
            found.slurm_job = found.slurm_job.or(of_path.slurm_job);
            found.pod_uid = found.pod_uid.or(of_path.pod_uid);
            found.container = found.container.or(of_path.container);
        }
        found
    }

    fn of_path(path: &str) -> Self {
        // containerd with the wrong cgroup driver joins slice, prefix and id of a container by colons.
        let parts: Vec<&str> = path.split(['/', ':']).filter(|part| !part.is_empty()).collect();
        Self { slurm_job: slurm_job(&parts), pod_uid: pod_uid(&parts), container: container(&parts) }
    }
}

/// Returns the Slurm job of a path: `…/slurmstepd.scope/job_<n>/…` in version 2, where the scope's name may begin with
/// the node's, and `…/slurm[_<node>]/uid_<uid>/job_<n>/…` in version 1.
fn slurm_job(parts: &[&str]) -> Option<u32> {
    let number = |part: &str| part.strip_prefix("job_")?.parse().ok().filter(|number| *number > 0);
    let scope = parts.windows(2).position(|w| is_slurm_scope(w[0]) && number(w[1]).is_some()).map(|at| (at, at + 1));
    let slice = parts
        .windows(3)
        .position(|w| is_slurm_slice(w[0]) && w[1].starts_with("uid_") && number(w[2]).is_some())
        .map(|at| (at, at + 2));
    let (begin, job) = scope.or(slice)?;
    // Users can make groups of any name below their own slice.
    let is_users = |part: &&str| part.starts_with("user.") || part.starts_with("user-") || part.starts_with("user@");
    if parts[..begin].iter().any(is_users) { None } else { number(parts[job]) }
}

fn is_slurm_scope(part: &str) -> bool {
    part == "slurmstepd.scope" || part.ends_with("_slurmstepd.scope")
}

fn is_slurm_slice(part: &str) -> bool {
    part == "slurm" || part.starts_with("slurm_")
}

/// Returns the UID of the pod of a path: a part `pod<uid>` below a `kubepods` part, or one that ends with
/// `kubepods…-pod<uid>.slice`, where underscores stand for dashes.
fn pod_uid(parts: &[&str]) -> Option<String> {
    let first = parts.iter().position(|part| part.contains("kubepods"))?;
    parts[first..].iter().find_map(|part| {
        let name = part.strip_suffix(".slice").unwrap_or(part);
        let uid = match name.rsplit_once("-pod") {
            Some((_, uid)) => uid,
            None => name.strip_prefix("pod")?,
        };
        let uid = uid.replace('_', "-");
        let hex = uid.chars().filter(char::is_ascii_hexdigit).count();
        (hex == 32 && uid.chars().all(|c| c.is_ascii_hexdigit() || c == '-')).then_some(uid)
    })
}

/// Returns the innermost container of a path: a part that is a full id, with the runtime as its prefix or as the part
/// before.
fn container(parts: &[&str]) -> Option<Container> {
    parts.iter().enumerate().rev().find_map(|(at, part)| {
        let name = part.strip_suffix(".scope").unwrap_or(part);
        let (prefix, id) = match name.rsplit_once('-') {
            Some((prefix, id)) => (Some(prefix), id),
            None => (None, name),
        };
        if id.len() != ID_LEN || !id.chars().all(|c| c.is_ascii_hexdigit()) {
            return None;
        }
        let before = at.checked_sub(1).map(|before| parts[before]);
        let runtime = prefix.or(before).and_then(Runtime::of_prefix);
        Some(Container { runtime, id: id.to_ascii_lowercase() })
    })
}
