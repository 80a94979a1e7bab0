//! Name and labels of a job that was found by its processes.

use std::collections::BTreeMap;

use super::key::{Key, Kind};
use super::process::{Identity, Origin, User};
use crate::domain::{JobName, legible};

/// Longest name in characters, and longest value of a label in bytes.
const LONGEST_NAME: usize = 128;
const LONGEST_VALUE: usize = 256;
/// Digits of a container's id that are enough to tell containers apart.
const SHORT_ID: usize = 12;

/// Labels of the variables that only the environment of a Slurm job's process has.
const CLAIMED: [(&str, &str); 6] = [
    ("SLURM_JOB_ACCOUNT", "account"),
    ("SLURM_JOB_PARTITION", "slurm_partition"),
    ("SLURM_ARRAY_JOB_ID", "slurm_array_job_id"),
    ("SLURM_ARRAY_TASK_ID", "slurm_array_task_id"),
    ("SLURM_RESTART_COUNT", "slurm_restart_count"),
    ("SLURM_CLUSTER_NAME", "slurm_cluster"),
];

/// Name and labels of a found job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Labels {
    /// Key of the identity that the job's processes share.
    pub key: Key,
    /// Name of the job.
    pub name: JobName,
    /// Labels of the job. `identity_from` names the source of the key; `claimed` lists the labels that only the
    /// environment supports.
    pub tags: BTreeMap<String, String>,
}

/// Returns the key, the name and the labels of a job with this identity, whose processes run as `user`; `None` if
/// nothing is known.
pub fn labels(identity: &Identity, user: Option<&User>) -> Option<Labels> {
    let (key, origin) = Key::of(identity)?;
    let mut tags = key.tags();
    let mut add = |label: &str, value: &str| {
        let mut value = legible(value);
        while value.len() > LONGEST_VALUE {
            value.pop();
        }
        if !value.trim().is_empty() {
            tags.insert(label.to_owned(), value);
        }
    };
    add("identity_from", origin.as_str());
    if let Some(user) = user {
        add("user", &user.label());
    }
    let name = match key.kind {
        Kind::Slurm => {
            let claims = identity.slurm.as_ref().map(|job| &job.claimed);
            let claim = |variable: &str| claims.and_then(|claims| claims.get(variable));
            let mut claimed = Vec::new();
            for (label, value) in CLAIMED.iter().filter_map(|(variable, label)| Some((*label, claim(variable)?))) {
                add(label, value);
                claimed.push(label);
            }
            let name = claim("SLURM_JOB_NAME");
            claimed.extend(name.map(|_| "name"));
            claimed.extend((origin == Origin::Environment).then_some(key.kind.tag()));
            add("claimed", &claimed.join(","));
            name.map_or_else(|| format!("slurm-{}", key.id), str::to_owned)
        }
        Kind::Kubernetes => match &identity.pod {
            Some(pod) => {
                add("namespace", &pod.namespace);
                add("pod", &pod.name);
                add("container", &pod.container);
                format!("{}/{}", pod.namespace, pod.name)
            }
            None => format!("pod-{}", key.id),
        },
        Kind::Container => {
            let runtime = identity.container.as_ref().and_then(|container| container.runtime);
            let runtime = runtime.map_or("container", |runtime| runtime.as_str());
            add("runtime", runtime);
            format!("{runtime}-{}", key.id.chars().take(SHORT_ID).collect::<String>())
        }
        Kind::User => format!("user {}", user.map_or_else(|| key.id.clone(), User::label)),
    };
    if let (Kind::Kubernetes, Some(container)) = (key.kind, &identity.container) {
        add("container_id", &container.id);
    }
    let name: String = legible(&name).trim().chars().take(LONGEST_NAME).collect();
    let name = JobName::new(name.trim()).and_then(JobName::require_visible);
    let name = name.or_else(|_| JobName::new(format!("{}-{}", key.kind.as_str(), key.id.replace('/', "-")))).ok()?;
    Some(Labels { key, name, tags })
}
