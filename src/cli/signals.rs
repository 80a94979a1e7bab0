//! Signal handling of a running daemon: every signal that a process can handle either ends the daemon with limits
//! restored, or is ignored.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// The numbers of signals for which tokio has no names, on Linux on x86, ARM and RISC-V.
mod number {
    pub(super) const TRAP: i32 = 5;
    pub(super) const ABRT: i32 = 6;
    pub(super) const STKFLT: i32 = 16;
    pub(super) const TSTP: i32 = 20;
    pub(super) const TTIN: i32 = 21;
    pub(super) const TTOU: i32 = 22;
    pub(super) const XCPU: i32 = 24;
    pub(super) const XFSZ: i32 = 25;
    pub(super) const VTALRM: i32 = 26;
    pub(super) const PROF: i32 = 27;
    pub(super) const PWR: i32 = 30;
    pub(super) const SYS: i32 = 31;
    /// The realtime signals, without those that the C library uses itself.
    pub(super) const REALTIME: std::ops::RangeInclusive<i32> = 34..=64;
}

/// Signals that end the daemon in addition to SIGTERM, SIGINT and SIGQUIT.
const TERMINATING: [i32; 5] = [number::XCPU, number::PWR, number::ABRT, number::TRAP, number::SYS];

/// Signals that would end or stop the process by default but have no meaning for a daemon.
const HARMLESS: [i32; 7] =
    [number::STKFLT, number::TSTP, number::TTIN, number::TTOU, number::XFSZ, number::VTALRM, number::PROF];

/// The effect of SIGHUP, which a closed terminal sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hangup {
    /// Ends the command, which belongs to the terminal.
    Ends,
    /// Ignored, so that a daemon outlives the terminal that started it.
    Ignored,
}

/// Handles signals from now on. The returned future completes with the first signal that ends the process: SIGTERM,
/// SIGINT, SIGQUIT, those of `TERMINATING`, and SIGHUP if `hangup` is [`Hangup::Ends`]. Needs a tokio runtime.
pub(super) fn stopped(hangup: Hangup) -> impl Future<Output = ()> {
    let ending = [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::quit()].into_iter();
    let ending = ending.chain(TERMINATING.map(SignalKind::from_raw));
    let ending = ending.chain((hangup == Hangup::Ends).then(SignalKind::hangup));
    let signals: io::Result<Vec<Signal>> = ending.map(signal).collect();
    if let Err(error) = &signals {
        tracing::error!("cannot listen for signals ({error}); stop the process with SIGKILL and run `wattune restore`");
    }
    ignore_harmless();
    if hangup == Hangup::Ignored {
        log_hangups();
    }
    async move {
        match signals {
            Ok(mut signals) => {
                let each = signals.iter_mut().map(|s| Box::pin(s.recv()));
                futures_util::future::select_all(each).await;
            }
            Err(_) => std::future::pending().await,
        }
    }
}

/// Ignores harmless signals: once tokio listens for a signal, its default effect is off for the life of the process.
fn ignore_harmless() {
    let named = [SignalKind::user_defined1(), SignalKind::user_defined2(), SignalKind::alarm(), SignalKind::io()];
    let numbered = HARMLESS.into_iter().chain(number::REALTIME).map(SignalKind::from_raw);
    for kind in named.into_iter().chain(numbered) {
        if let Err(error) = signal(kind) {
            tracing::debug!("signal {} cannot be ignored: {error}", kind.as_raw_value());
        }
    }
}

fn log_hangups() {
    let Ok(mut hangups) = signal(SignalKind::hangup()) else { return };
    tokio::spawn(async move {
        while hangups.recv().await.is_some() {
            tracing::info!(
                "SIGHUP is ignored: the configuration is read at the start only; restart the daemon for changes"
            );
        }
    });
}
