//! Resources that a run shares with its command: variables in the command's environment, and standard error.

use std::io::Write as _;
use std::os::unix::fs::MetadataExt as _;

use serde_json::Value;
use wattune_core::domain::legible;

/// Variable with the path of the socket for progress messages.
pub(super) const PROGRESS_SOCKET: &str = "WATTUNE_PROGRESS_SOCKET";
/// Variable with the id of the command's job.
pub(super) const JOB_ID: &str = "WATTUNE_JOB_ID";
/// Variable with the number of times that the command has been started again after a suspension; absent at its first
/// start.
pub(super) const RESUMED: &str = "WATTUNE_RESUMED";
/// Variable with the number of the Slurm job in which the run takes place; empty outside of Slurm.
pub(super) const RUN_SLURM_JOB: &str = "WATTUNE_RUN_SLURM_JOB";
/// Variables that describe the run to the command.
pub(in crate::cli) const VARIABLES: [&str; 4] = [PROGRESS_SOCKET, JOB_ID, RESUMED, RUN_SLURM_JOB];

/// Writes a message to standard error, where it does not mix with the command's results.
pub(super) fn say(message: &str) {
    let _ = writeln!(std::io::stderr(), "wattune: {}", legible(message));
}

/// Writes a message of several lines to standard error, such as that of a parser, which marks a place in a line.
pub(super) fn say_lines(message: &str) {
    let lines: Vec<String> = message.lines().map(legible).collect();
    let _ = writeln!(std::io::stderr(), "wattune: {}", lines.join("\n"));
}

/// Returns a variable of this process's environment; `None` if it is absent or empty.
pub(super) fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Returns true if the variables of a run in this environment come from a run to which this Slurm job does not belong.
///
/// `sbatch` passes the environment on to a job for which the command does not wait; `srun` starts a part of the
/// command, also where the run itself takes place outside of Slurm. The Python client and the hook for Python follow
/// the same rule.
pub(super) fn is_of_another_slurm_job(get: impl Fn(&str) -> Option<String>) -> bool {
    let own = get("SLURM_JOB_ID").filter(|own| !own.is_empty());
    let (Some(own), Some(of_run)) = (own, get(RUN_SLURM_JOB)) else { return false };
    own != of_run && (!of_run.is_empty() || get("ENVIRONMENT").as_deref() == Some("BATCH"))
}

/// Returns true if the daemon with this status knows processes by the same ids as this process.
pub(super) fn has_same_pids(status: &Value) -> bool {
    status["pid_namespace"].as_u64().is_some_and(|there| Some(there) == pid_namespace())
}

/// Returns the inode number of this process's namespace of process ids; `None` if unknown.
pub(super) fn pid_namespace() -> Option<u64> {
    std::fs::metadata("/proc/self/ns/pid").ok().map(|file| file.ino())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_submitted_slurm_job_is_no_part_of_the_run() {
        let batch = ("ENVIRONMENT", "BATCH");
        let table: [(&[(&str, &str)], bool); 7] = [
            (&[], false),
            (&[(RUN_SLURM_JOB, "7")], false),
            (&[(RUN_SLURM_JOB, "7"), ("SLURM_JOB_ID", "7"), batch], false),
            (&[(RUN_SLURM_JOB, "7"), ("SLURM_JOB_ID", "8")], true),
            (&[(RUN_SLURM_JOB, ""), ("SLURM_JOB_ID", "8")], false),
            (&[(RUN_SLURM_JOB, ""), ("SLURM_JOB_ID", "8"), batch], true),
            // A run of an earlier version.
            (&[("SLURM_JOB_ID", "8"), batch], false),
        ];
        for (variables, expected) in table {
            let get = |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
            assert_eq!(is_of_another_slurm_job(get), expected, "{variables:?}");
        }
    }
}
