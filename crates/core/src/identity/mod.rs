//! Identity of a process: the Slurm job, the Kubernetes pod, the container or the user that it belongs to, read from
//! what the kernel reports about it.
//!
//! Each part of an identity has an [`Origin`]. A control group and a parent are the kernel's statements, which the
//! process's user cannot choose; an environment is the user's claim.

mod cgroup;
mod environ;
mod key;
mod labels;
mod process;
mod slurm;
#[cfg(test)]
mod tests;

pub use cgroup::{Container, Groups, Runtime};
pub use environ::Environment;
pub use key::{Key, Kind};
pub use labels::{Labels, labels};
pub use process::{Evidence, Identity, Origin, Pod, SlurmJob, User, real_uid};
pub use slurm::slurmstepd_job;
