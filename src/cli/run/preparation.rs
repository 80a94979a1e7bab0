//! The preparation of a run on this machine, before its job is registered.

use std::time::Duration;

use super::advice::Stage;
use super::args::Args;
use super::child;
use super::due::{Due, Reading};
use super::environment::say;
use super::hold::local_with_date;
use super::key_lock::{KeyLock, KeyLockError};
use super::lifecycle::Stops;
use super::offers;
use super::request::Registration;
use crate::cli::ask::DaemonAddress;

/// Time that a command has to save and exit, as a multiple of the time that it takes to save, and at least.
const GRACES: f64 = 3.0;
const SHORTEST_GRACE_S: f64 = 60.0;
const LONGEST_GRACE_S: f64 = 86_400.0;
/// Time in seconds that a command is assumed to take to save, if no flag states it.
const CHECKPOINT_S: f64 = 120.0;

/// Prepared run.
pub(super) struct Preparation {
    /// Locks the key for as long as the run lasts.
    _lock: Option<KeyLock>,
    /// Stage in which the command begins.
    pub(super) stage: Stage,
    /// Latest start; `None` if the command does not wait, or if only the daemon can interpret the given time.
    pub(super) latest: Option<Due>,
    /// Offer to be suspended; `None` if the command makes none.
    pub(super) stops: Option<Stops>,
    /// True if the command offers to wait for its start or to be suspended.
    pub(super) has_offer: bool,
}

impl Preparation {
    /// Prepares the run of this registration with the daemon at these addresses: locks its key, and says which of its
    /// times have passed.
    ///
    /// # Errors
    /// The reason why the command is not to run: another process on this machine has the key.
    pub(super) fn of(args: &Args, addresses: &[DaemonAddress], registration: &Registration) -> Result<Self, String> {
        let lock = registration.key().map(|key| lock_key(key, addresses, args)).transpose()?;
        let stage = if registration.is_held() { Stage::Held } else { Stage::Running };
        let now = Reading::now();
        let latest = registration.latest(&now);
        if !args.quiet {
            say_what_has_passed(registration, latest.as_ref(), &now);
        }
        let stops = stops_of(registration);
        if stops.is_some() {
            child::adopt_orphans();
        }
        Ok(Self { _lock: lock.flatten(), stage, latest, stops, has_offer: registration.has_offer() })
    }
}

/// Locks the key on this machine. Returns `None` if that is impossible: the daemon alone then sees to it that the key
/// has one process.
///
/// # Errors
/// The reason why the command is not to run: another process on this machine has the key.
fn lock_key(key: &str, addresses: &[DaemonAddress], args: &Args) -> Result<Option<KeyLock>, String> {
    match KeyLock::take(key, addresses) {
        Ok(lock) => Ok(Some(lock)),
        Err(taken @ KeyLockError::Taken(holder)) => {
            // A command that runs already would get the signal itself.
            let start = holder.filter(|_| args.start.start_now).map(|pid| {
                format!("; if it is still waiting for its start, `kill -USR1 {pid}` starts it without the daemon")
            });
            Err(format!("{taken}, so the command does not start here{}", start.unwrap_or_default()))
        }
        Err(KeyLockError::Io(error)) => {
            if !args.quiet {
                say(&format!(
                    "the key is not locked on this machine ({error}): while no daemon answers, another process may \
                     run it, too"
                ));
            }
            Ok(None)
        }
    }
}

fn say_what_has_passed(registration: &Registration, latest: Option<&Due>, now: &Reading) {
    if registration.deadline().is_some_and(|deadline| deadline < now.wall) {
        say("the deadline has passed already, so the job runs as fast as it can");
    }
    if let Some(latest) = latest.filter(|latest| latest.left(now).get() < 0.0) {
        let latest = local_with_date(latest.wall());
        say(&format!("the latest start, {latest}, has passed, so the command starts at once"));
    }
}

/// Returns how the command is asked to save and exit; `None` if it does not offer to be suspended.
fn stops_of(registration: &Registration) -> Option<Stops> {
    let (signal, checkpoint_s) = registration.suspend()?;
    let grace = (checkpoint_s.unwrap_or(CHECKPOINT_S) * GRACES).clamp(SHORTEST_GRACE_S, LONGEST_GRACE_S);
    Some(Stops { signal: offers::number_of(signal).unwrap_or(15), grace: Duration::from_secs_f64(grace) })
}
