//! Key of an identity, by which processes of one job are put together.

use std::collections::BTreeMap;

use super::process::{Identity, Origin};

/// Kind of the owner that processes belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A Slurm job.
    Slurm,
    /// A Kubernetes pod.
    Kubernetes,
    /// A container outside Kubernetes.
    Container,
    /// Nothing but its user.
    User,
}

impl Kind {
    const ALL: [Self; 4] = [Self::Slurm, Self::Kubernetes, Self::Container, Self::User];

    /// Returns the kind's name in tags.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Slurm => "slurm",
            Self::Kubernetes => "kubernetes",
            Self::Container => "container",
            Self::User => "user",
        }
    }

    /// Returns the tag that holds the owner's number or id, by which owners of the same kind differ.
    pub const fn tag(self) -> &'static str {
        match self {
            Self::Slurm => "slurm_job_id",
            Self::Kubernetes => "pod_uid",
            Self::Container => "container_id",
            Self::User => "uid",
        }
    }
}

/// Key of an identity: processes with the same key belong together.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// Kind of the owner that the processes belong to.
    pub kind: Kind,
    /// Number or id of the job, pod, container or user.
    pub id: String,
}

impl Key {
    /// Name of the tag by which found jobs are recognised. Its value is the kind of the key.
    pub const FOUND_LABEL: &'static str = "found";

    /// Returns the most reliable key of an identity, with the source of the key: the Slurm job, otherwise the pod, the
    /// container or the user. A Slurm job that only the environment names comes after pod and container, because a user
    /// can set any environment. `None` if not even the user is known.
    pub fn of(identity: &Identity) -> Option<(Self, Origin)> {
        let slurm = |is_claimed: bool| {
            let job = identity.slurm.as_ref().filter(|job| (job.origin == Origin::Environment) == is_claimed)?;
            Some((Kind::Slurm, job.number.to_string(), job.origin))
        };
        let pod = || Some((Kind::Kubernetes, identity.pod_uid.clone()?, Origin::Cgroup));
        let assigned = || {
            let pod = identity.pod.as_ref()?;
            Some((Kind::Kubernetes, format!("{}/{}", pod.namespace, pod.name), Origin::Kubelet))
        };
        let container = || Some((Kind::Container, identity.container.as_ref()?.id.clone(), Origin::Cgroup));
        let user = || Some((Kind::User, identity.uid?.to_string(), Origin::Uid));
        let found =
            slurm(false).or_else(pod).or_else(assigned).or_else(container).or_else(|| slurm(true)).or_else(user);
        found.map(|(kind, id, origin)| (Self { kind, id }, origin))
    }

    /// Returns the key of a found job from the job's tags; `None` if the tags are not those of a found job.
    pub fn of_tags(tags: &BTreeMap<String, String>) -> Option<Self> {
        let found = tags.get(Self::FOUND_LABEL)?;
        let kind = Kind::ALL.into_iter().find(|kind| kind.as_str() == found)?;
        Some(Self { kind, id: tags.get(kind.tag())?.clone() })
    }

    /// Returns the tags from which [`Self::of_tags`] reads the key.
    pub fn tags(&self) -> BTreeMap<String, String> {
        let kind = (Self::FOUND_LABEL.to_owned(), self.kind.as_str().to_owned());
        BTreeMap::from([kind, (self.kind.tag().to_owned(), self.id.clone())])
    }
}
