//! Identities of processes that have a GPU open: read from `/proc`, the kubelet and the job-mapping folder.
//!
//! A [`Scout`] reads on a thread of its own, because these files and sockets can block. The control loop sets the
//! processes to identify, and reads the latest results.

mod evidence;
mod kubelet;
mod mapping;
mod pod_resources;
mod scout;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

pub use scout::{Candidate, Scout, Sighting, Sightings};

use wattune_core::units::Seconds;

/// Settings of the discovery of jobs, the table `[discovery]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// True to record processes on GPUs that no job has registered as jobs of their own.
    pub enabled: bool,
    /// The interval between two readings of the processes on GPUs.
    pub poll_s: Seconds,
    /// The time for which a process must have a GPU open before it becomes a job.
    pub after_s: Seconds,
    /// The socket on which the kubelet lists the devices of pods.
    pub kubelet_socket: PathBuf,
    /// The job-mapping folder of dcgm-exporter; not used if absent.
    pub job_mapping_dir: Option<PathBuf>,
    /// True to write the job-mapping folder instead of reading it.
    pub write_job_mapping: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            enabled: true,
            poll_s: Seconds::new(2.0),
            after_s: Seconds::new(10.0),
            kubelet_socket: "/var/lib/kubelet/pod-resources/kubelet.sock".into(),
            job_mapping_dir: None,
            write_job_mapping: false,
        }
    }
}

impl Settings {
    /// Checks the ranges of times, that paths are absolute, and that there is a folder to write.
    pub fn check(&self) -> Result<(), String> {
        self.poll_s.check("poll_s", 0.1, 60.0)?;
        self.after_s.check("after_s", 0.0, 3600.0)?;
        let paths =
            [("kubelet_socket", Some(&self.kubelet_socket)), ("job_mapping_dir", self.job_mapping_dir.as_ref())];
        for (key, path) in paths {
            if let Some(path) = path.filter(|path| !path.is_absolute()) {
                return Err(format!("{key} = {:?} must be an absolute path", path.display().to_string()));
            }
        }
        if self.write_job_mapping && self.job_mapping_dir.is_none() {
            return Err("write_job_mapping = true needs job_mapping_dir, the folder to write".to_owned());
        }
        Ok(())
    }
}
