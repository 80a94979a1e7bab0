//! Clients on the Unix socket: an override ends with the process that made it.

use std::collections::HashSet;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::controller::Handle;
use crate::cpu;
use wattune_core::domain::Process;

/// The interval at which a process is checked if the kernel cannot report its end.
const CHECK_EVERY: Duration = Duration::from_secs(1);
/// The pause before the end of a process is reported to the controller again.
const AGAIN: Duration = Duration::from_millis(100);
/// The kernel's files about processes; it names the peers of a socket by the same numbers.
const PROC: &str = "/proc";

/// Processes whose end the daemon awaits. Clones share them.
#[derive(Clone, Debug, Default)]
pub(super) struct Watched(Arc<Mutex<HashSet<Process>>>);

impl Watched {
    /// Waits for the end of a process, and then ends the process's overrides.
    pub(super) fn watch(&self, process: Process, handle: &Handle) {
        if !self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(process) {
            return;
        }
        let (watched, handle) = (self.clone(), handle.clone());
        tokio::spawn(async move {
            ended(process).await;
            // A process of the same number and start time cannot begin any more, so a late write is refused.
            while handle.ask(move |controller| Box::pin(controller.end_client(process))).await.is_err() {
                tokio::time::sleep(AGAIN).await;
            }
            watched.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&process);
        });
    }
}

/// Waits for the end of a process.
async fn ended(process: Process) {
    if let Ok(Some(fd)) = open(process)
        && fd.ready(Interest::READABLE).await.is_ok()
    {
        return;
    }
    while cpu::is_running(Path::new(PROC), process) {
        tokio::time::sleep(CHECK_EVERY).await;
    }
}

/// Opens the process, so that the kernel reports its end; `None` if it has ended already.
#[expect(deprecated, reason = "an owned descriptor stays what it is, and the replacement is unsafe code")]
fn open(process: Process) -> io::Result<Option<AsyncFd<std::os::fd::OwnedFd>>> {
    let Some(pid) = i32::try_from(process.pid).ok().and_then(Pid::from_raw) else { return Ok(None) };
    let fd = pidfd_open(pid, PidfdFlags::NONBLOCK)?;
    // Another process may have got the number meanwhile.
    if !cpu::is_running(Path::new(PROC), process) {
        return Ok(None);
    }
    Ok(Some(AsyncFd::with_interest(fd, Interest::READABLE)?))
}
