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
/// Variables that describe the run to the command.
pub(in crate::cli) const VARIABLES: [&str; 3] = [PROGRESS_SOCKET, JOB_ID, RESUMED];

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

/// Returns true if the daemon with this status knows processes by the same ids as this process.
pub(super) fn has_same_pids(status: &Value) -> bool {
    status["pid_namespace"].as_u64().is_some_and(|there| Some(there) == pid_namespace())
}

/// Returns the inode number of this process's namespace of process ids; `None` if unknown.
pub(super) fn pid_namespace() -> Option<u64> {
    std::fs::metadata("/proc/self/ns/pid").ok().map(|file| file.ino())
}
