//! Identity of a process, put together from all that is known about the process.

use super::cgroup::{Container, Groups};
use super::environ::Environment;

/// Login UID of a process that belongs to no login.
const NO_LOGIN: u32 = u32::MAX;

/// Source of a part of an identity, the most reliable first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// Path of the process's control group, as the kernel reports it.
    Cgroup,
    /// Ancestors of the process, as the kernel reports them.
    ProcessTree,
    /// Job-mapping folder (a file per GPU with the ids of the GPU's jobs), which a scheduler's scripts write.
    JobMapping,
    /// The kubelet's list of the pods on this node and the GPUs that each pod received.
    Kubelet,
    /// Environment of the process, which its user can set to anything.
    Environment,
    /// User id of the process, as the kernel reports it.
    Uid,
}

impl Origin {
    /// Returns the origin's name in tags.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Cgroup => "cgroup",
            Self::ProcessTree => "process_tree",
            Self::JobMapping => "job_mapping",
            Self::Kubelet => "kubelet",
            Self::Environment => "environment",
            Self::Uid => "uid",
        }
    }
}

/// User of a process.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct User {
    /// User id.
    pub uid: u32,
    /// Name; `None` if the machine's list of users does not have it.
    pub name: Option<String>,
}

impl User {
    /// Returns the user's name, otherwise the number.
    pub fn label(&self) -> String {
        self.name.clone().unwrap_or_else(|| self.uid.to_string())
    }
}

/// Evidence about a process, from which its identity is derived.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Evidence {
    /// Jobs, pods and containers that the process's control groups name.
    pub groups: Groups,
    /// Slurm job of the step daemon (`slurmstepd`) among the process's ancestors.
    pub slurmstepd_job: Option<u32>,
    /// Slurm job that the job-mapping folder names for the process's GPU.
    pub mapped_job: Option<u32>,
    /// Pod to which the kubelet gave the process's GPU; absent if several pods share the GPU.
    pub pod: Option<Pod>,
    /// Environment of the process; empty if it cannot be read.
    pub environment: Environment,
    /// Real user id.
    pub uid: Option<u32>,
    /// User id with which the process's user logged in (`/proc/<pid>/loginuid`); `sudo` does not change it.
    pub login_uid: Option<u32>,
}

/// A Kubernetes pod with one of its containers, as the kubelet names them.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Pod {
    /// Namespace of the pod.
    pub namespace: String,
    /// Name of the pod.
    pub name: String,
    /// Name of the container.
    pub container: String,
}

/// A Slurm job that a process belongs to, with the source of that knowledge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlurmJob {
    /// Number of the job.
    pub number: u32,
    /// Source of the number.
    pub origin: Origin,
    /// Variables of the environment that describe the job, if the environment names the same job number; otherwise
    /// empty.
    pub claimed: Environment,
}

/// Identity of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// Slurm job.
    pub slurm: Option<SlurmJob>,
    /// UID of the Kubernetes pod, which its control group names.
    pub pod_uid: Option<String>,
    /// Kubernetes pod to which the kubelet gave the GPU.
    pub pod: Option<Pod>,
    /// Container.
    pub container: Option<Container>,
    /// User id with which the process's user logged in; without a login, the process's real user id.
    pub uid: Option<u32>,
}

impl Identity {
    /// Derives the identity from the evidence. What the kernel reports outranks what a user can set.
    pub fn from_evidence(evidence: Evidence) -> Self {
        let Evidence { groups, slurmstepd_job, mapped_job, pod, environment, uid, login_uid } = evidence;
        let sources = [
            (groups.slurm_job, Origin::Cgroup),
            (slurmstepd_job, Origin::ProcessTree),
            (mapped_job, Origin::JobMapping),
            (environment.slurm_job(), Origin::Environment),
        ];
        let slurm = sources.into_iter().find_map(|(number, origin)| Some((number?, origin)));
        let slurm = slurm.map(|(number, origin)| {
            let is_same = environment.slurm_job() == Some(number);
            let claimed = if is_same { environment } else { Environment::default() };
            SlurmJob { number, origin, claimed }
        });
        // A login of root says less than the user that root's command became.
        let login = login_uid.filter(|login| *login != NO_LOGIN && *login != 0);
        Self { slurm, pod_uid: groups.pod_uid, pod, container: groups.container, uid: login.or(uid) }
    }
}

/// Returns the real user id from the text of `/proc/<pid>/status`.
pub fn real_uid(status: &str) -> Option<u32> {
    status.lines().find_map(|line| line.strip_prefix("Uid:")?.split_whitespace().next()?.parse().ok())
}
