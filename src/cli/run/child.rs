//! Runs the command: passes signals on, waits for its end, and gives the exit code that a shell would give.
//!
//! The command stays in this process's group. So the terminal's signals (Ctrl-C, Ctrl-\, Ctrl-Z, a lost connection)
//! reach both directly from the kernel, and job control of the shell works. Only signals that another process sent to
//! this one are passed on.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::process::Command;

use rustix::process::{Pid, Signal, WaitOptions, kill_process, wait};
use signal_hook::consts::{SIGALRM, SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGWINCH};
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::origin::{Origin, WithOrigin};
use signal_hook::low_level::siginfo::{Cause, Sent};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc::{self, UnboundedReceiver};

use crate::cpu::stat_of;

/// Signals that are passed on.
const PASSED: [i32; 9] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGALRM, SIGCONT, SIGWINCH];

/// Directory with the kernel's records of processes.
const PROC: &str = "/proc";

/// Exit code of a command that was not found.
const NOT_FOUND: u8 = 127;
/// Exit code of a command that cannot be executed.
const NOT_EXECUTABLE: u8 = 126;

/// Signals to this process, from the call of [`Signals::catch`] on.
pub(super) struct Signals {
    received: UnboundedReceiver<Origin>,
    /// Signals that were received and are still to be handled, oldest first.
    kept: VecDeque<Origin>,
}

impl Signals {
    /// Catches signals from now on. Signals that this process ignores (for example under `nohup`) stay ignored, also by
    /// the command.
    pub(super) fn catch() -> io::Result<Self> {
        let caught = PASSED.into_iter().filter(|number| !is_ignored(*number));
        let mut signals = SignalsInfo::<WithOrigin>::new(caught)?;
        let (to, received) = mpsc::unbounded_channel();
        let body = move || {
            for origin in signals.forever() {
                if to.send(origin).is_err() {
                    return;
                }
            }
        };
        std::thread::Builder::new().name("signals".into()).spawn(body)?;
        Ok(Self { received, kept: VecDeque::new() })
    }

    /// Waits for the next signal.
    pub(super) async fn next(&mut self) -> Origin {
        if let Some(origin) = self.kept.pop_front() {
            return origin;
        }
        match self.received.recv().await {
            Some(origin) => origin,
            None => std::future::pending().await,
        }
    }

    /// Drops the signals with this number that were received and are still to be handled.
    pub(super) fn discard(&mut self, number: i32) {
        self.keep_received();
        self.kept.retain(|origin| origin.signal != number);
    }

    fn keep_received(&mut self) {
        self.kept.extend(std::iter::from_fn(|| self.received.try_recv().ok()));
    }

    /// Returns the exit code that belongs to a signal that has asked this process to end; `None` if none has.
    pub(super) fn has_ended(&mut self) -> Option<u8> {
        self.keep_received();
        self.kept.iter().map(|origin| origin.signal).find(|number| is_ending(*number)).map(of_signal)
    }

    /// Waits for a signal that asks this process to end, and returns the exit code that belongs to it.
    pub(super) async fn ending(&mut self) -> u8 {
        loop {
            let number = self.next().await.signal;
            if is_ending(number) {
                return of_signal(number);
            }
        }
    }
}

/// Returns whether this process ignores the signal, by its inherited disposition.
fn is_ignored(number: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).map(str::trim);
    let mask = mask.and_then(|mask| u64::from_str_radix(mask, 16).ok()).unwrap_or_default();
    mask >> (number - 1) & 1 == 1
}

/// Returns the exit code with which a shell reports a program that cannot be started, and the reason.
pub(super) fn describe_failed_start(program: &OsStr, error: &io::Error) -> (u8, String) {
    let is_missing = error.kind() == io::ErrorKind::NotFound;
    let code = if is_missing { NOT_FOUND } else { NOT_EXECUTABLE };
    // A whole command line in quotes, as a shell takes it.
    let is_line = is_missing && program.as_encoded_bytes().iter().any(u8::is_ascii_whitespace);
    let hint = if is_line { "; a command line in one word needs a shell: wattune run -- sh -c '…'" } else { "" };
    (code, format!("cannot run {}: {error}{hint}", program.display()))
}

/// The running command.
pub(super) struct Child {
    pid: Pid,
    ended: tokio::signal::unix::Signal,
}

impl Child {
    /// Starts the command.
    ///
    /// # Errors
    /// The exit code that a shell would give, and the reason, if the command cannot be started.
    pub(super) fn start(mut command: Command) -> Result<Self, (u8, String)> {
        let failed = |command: &Command, error| describe_failed_start(command.get_program(), &error);
        let ended = signal(SignalKind::child()).map_err(|error| failed(&command, error))?;
        let started = command.spawn();
        let child = started.map_err(|error| failed(&command, error))?;
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).expect("a process id is positive");
        Ok(Self { pid, ended })
    }

    /// Waits for the command's end and returns its exit code: 128 + n if signal n ended it. As process 1 of a
    /// container, also collects the exit status of orphaned processes.
    pub(super) async fn ended(&mut self) -> u8 {
        loop {
            while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
                if pid != self.pid {
                    continue;
                }
                if let Some(code) = status.exit_status() {
                    return u8::try_from(code).unwrap_or(u8::MAX);
                }
                if let Some(number) = status.terminating_signal() {
                    return of_signal(number);
                }
            }
            let _ = self.ended.recv().await;
        }
    }

    /// Sends the command a signal.
    pub(super) fn send(&self, number: i32) {
        if let Some(signal) = Signal::from_named_raw(number) {
            let _ = kill_process(self.pid, signal);
        }
    }

    /// Passes a signal on to the command if another process sent it. The terminal's signals are not passed on, because
    /// the kernel sends them to the command, too.
    pub(super) fn forward(&self, origin: &Origin) {
        let is_sent = matches!(origin.cause, Cause::Sent(Sent::User | Sent::TKill | Sent::Queue));
        // The command's own signals to its group arrive here, too; they are for its group and have reached it.
        let is_own = origin.process.as_ref().is_some_and(|sender| sender.pid == self.pid.as_raw_nonzero().get());
        if let Some(signal) = Signal::from_named_raw(origin.signal).filter(|_| is_sent && !is_own) {
            let _ = kill_process(self.pid, signal);
        }
    }
}

/// Makes this process the parent of processes that outlive the command, until this process ends.
pub(super) fn adopt_orphans() {
    // On a failure, such processes are not known, as without it.
    let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
}

/// Returns the children of this process.
pub(super) fn children() -> Vec<i32> {
    let own = std::process::id();
    let parent = |stat: &str| stat.rsplit(')').next()?.split_whitespace().nth(1)?.parse::<u32>().ok();
    let processes = std::fs::read_dir(PROC).into_iter().flatten().flatten();
    let found = processes.filter_map(|entry| {
        let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
        let stat = stat_of(Path::new(PROC), pid)?;
        (parent(&stat) == Some(own) && !is_dead(&stat)).then_some(pid)
    });
    found.collect()
}

/// Returns whether a process runs. A zombie (a process that has ended and was not collected) does not run.
pub(super) fn is_running(pid: u64) -> bool {
    stat_of(Path::new(PROC), pid).is_some_and(|stat| !is_dead(&stat))
}

/// Returns whether a process is a zombie.
pub(super) fn is_zombie(pid: u64) -> bool {
    stat_of(Path::new(PROC), pid).is_some_and(|stat| is_dead(&stat))
}

fn is_dead(stat: &str) -> bool {
    stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('Z'))
}

/// Collects the exit status of children that have ended.
pub(super) fn collect() {
    while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
}

/// Sends a signal to a process. Returns false if that failed.
pub(super) fn send(pid: i32, number: i32) -> bool {
    let target = Pid::from_raw(pid).zip(Signal::from_named_raw(number));
    target.is_some_and(|(pid, signal)| kill_process(pid, signal).is_ok())
}

/// Returns true if a signal asks this process to end.
pub(super) fn is_ending(number: i32) -> bool {
    [SIGHUP, SIGINT, SIGQUIT, SIGTERM].contains(&number)
}

/// Returns the exit code of a process that a signal ended.
pub(super) fn of_signal(number: i32) -> u8 {
    u8::try_from(128 + number).unwrap_or(u8::MAX)
}
