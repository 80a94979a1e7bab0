//! Resources that a run shares with its command: variables in the command's environment, and standard error.

use std::io::Write as _;
use std::os::unix::fs::MetadataExt as _;

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

/// Returns the inode number of this process's namespace of process ids; `None` if unknown.
pub(super) fn pid_namespace() -> Option<u64> {
    std::fs::metadata("/proc/self/ns/pid").ok().map(|file| file.ino())
}
