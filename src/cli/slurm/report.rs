//! Messages of Slurm's scripts, whose output Slurm mostly discards: to standard error and to the system log.

use std::io::Write as _;
use std::os::unix::net::UnixDatagram;

/// The system log's socket.
const SYSTEM_LOG: &str = "/dev/log";
/// Priorities of the system log: facility daemon (3) with severity warning (4) or informational (6).
const WARNING: u8 = 3 * 8 + 4;
const INFORMATIONAL: u8 = 3 * 8 + 6;

/// Reports a completed action.
pub(super) fn success(what: &str, text: &str) {
    say(INFORMATIONAL, what, text);
}

/// Reports a failure.
pub(super) fn problem(what: &str, text: &str) {
    say(WARNING, what, text);
}

fn say(priority: u8, what: &str, text: &str) {
    // If neither place can be written, the failure stays unknown; the job must not suffer.
    let _ = writeln!(std::io::stderr(), "wattune slurm {what}: {text}");
    let line = format!("<{priority}>wattune[{}]: slurm {what}: {text}", std::process::id());
    let _ = UnixDatagram::unbound().and_then(|socket| {
        socket.set_nonblocking(true)?;
        socket.send_to(line.as_bytes(), SYSTEM_LOG)
    });
}
