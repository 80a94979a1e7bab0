//! What signals do to a running daemon: none ends it without giving limits back, but those that no process can handle.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Numbers that tokio has no name for, as Linux numbers them on x86, ARM and RISC-V.
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
    /// What the C library leaves of the realtime signals.
    pub(super) const REALTIME: std::ops::RangeInclusive<i32> = 34..=64;
}

/// What somebody or the system sends to have a process end.
const ENDING: [i32; 5] = [number::XCPU, number::PWR, number::ABRT, number::TRAP, number::SYS];

/// What means nothing to a daemon and ends, or stops, a process that does not handle it.
const HARMLESS: [i32; 7] =
    [number::STKFLT, number::TSTP, number::TTIN, number::TTOU, number::XFSZ, number::VTALRM, number::PROF];

/// What a closed terminal means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hangup {
    /// The end: what runs in a terminal ends with it.
    Ends,
    /// Nothing: a daemon outlives the terminal that it was started from.
    Ignored,
}

/// Handles signals from now on. The answer waits for the first that asks for the end: SIGTERM, SIGINT, SIGQUIT, and those
/// by which the system ends processes. Needs a runtime.
pub(super) fn stopped(hangup: Hangup) -> impl Future<Output = ()> {
    let ending = [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::quit()].into_iter();
    let ending = ending.chain(ENDING.map(SignalKind::from_raw));
    let ending = ending.chain((hangup == Hangup::Ends).then(SignalKind::hangup));
    let signals: io::Result<Vec<Signal>> = ending.map(signal).collect();
    if let Err(error) = &signals {
        tracing::error!("cannot listen for signals ({error}); stop the process with SIGKILL and run `wattune restore`");
    }
    ignore_harmless();
    if hangup == Hangup::Ignored {
        tell_hangups();
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

/// A signal that was listened for once never has its usual effect again.
fn ignore_harmless() {
    let named = [SignalKind::user_defined1(), SignalKind::user_defined2(), SignalKind::alarm(), SignalKind::io()];
    let numbered = HARMLESS.into_iter().chain(number::REALTIME).map(SignalKind::from_raw);
    for kind in named.into_iter().chain(numbered) {
        if let Err(error) = signal(kind) {
            tracing::debug!("signal {} cannot be ignored: {error}", kind.as_raw_value());
        }
    }
}

fn tell_hangups() {
    let Ok(mut hangups) = signal(SignalKind::hangup()) else { return };
    tokio::spawn(async move {
        while hangups.recv().await.is_some() {
            tracing::info!(
                "SIGHUP is ignored: the configuration is read at the start only; restart the daemon for changes"
            );
        }
    });
}
