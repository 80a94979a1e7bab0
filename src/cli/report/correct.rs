//! `wattune report correct`: assigns recorded intervals of energy to another owner by a new entry of the ledger.

use chrono::{DateTime, TimeDelta, Utc};

use super::ledger::{LedgerArgs, wrong};
use crate::cli::output::print;
use crate::cli::state_dir::{Lock, LockError};
use crate::clock::{Clock, SystemClock};
use crate::reports::exact_span;
use crate::store::{CorrectionRequest, CorrectionResult, SettlementInput, Store};
use wattune_core::domain::{DeviceId, JobId, SignalKind, Slot};
use wattune_core::ledger::Share;
use wattune_core::ledger::apportion::hour_of;

/// Assigns recorded intervals of energy to another owner. The original records stay in the ledger; the correction is a
/// new entry with its author and reason. The emissions of the corrected hours are then computed again: by a running
/// daemon within a minute, otherwise at once.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    ledger: LedgerArgs,
    /// The start of the corrected time: 2026-01-31, or 2026-01-31T12:00:30Z. Intervals that begin earlier do not
    /// change.
    #[arg(long, value_name = "TIME")]
    from: String,
    /// The end of the corrected time; a date includes that day. Now if absent. Intervals that end later do not change.
    #[arg(long, value_name = "TIME")]
    to: Option<String>,
    /// Only this device, by GPU UUID or by its name in the report by gpu; all devices if absent.
    #[arg(long, value_name = "DEVICE")]
    device: Option<String>,
    /// The current owner: job:ID, idle or unattributed. Only intervals of this owner change.
    #[arg(long, value_name = "SHARE", value_parser = share)]
    of: Share,
    /// The new owner: job:ID, idle or unattributed.
    #[arg(long, value_name = "SHARE", value_parser = share)]
    give_to: Share,
    /// The name of the correction's author.
    #[arg(long, value_name = "NAME", value_parser = words)]
    who: String,
    /// The reason for the correction.
    #[arg(long, value_name = "TEXT", value_parser = words)]
    why: String,
}

fn share(text: &str) -> Result<Share, String> {
    match text.split_once(':') {
        None if text == "idle" => Ok(Share::Idle),
        None if text == "unattributed" => Ok(Share::Unattributed),
        Some(("job", id)) => JobId::new(id).map(Share::Job).map_err(|e| e.to_string()),
        _ => Err("give job:ID, idle or unattributed".into()),
    }
}

fn words(text: &str) -> Result<String, String> {
    let text = text.trim();
    let fits = (1..=500).contains(&text.chars().count()) && !text.chars().any(char::is_control);
    if fits { Ok(text.to_owned()) } else { Err("give 1 to 500 characters, none of them a control character".into()) }
}

/// Writes the correction, and computes the hourly emissions again if no daemon is running.
pub(super) async fn run(args: Args) -> anyhow::Result<()> {
    let settings = args.ledger.overrides.settings()?;
    let state_dir = settings.state_dir();
    let now = SystemClock::start().utc();
    let span = exact_span(&args.from, args.to.as_deref(), now).map_err(wrong)?;
    // Opened read-only first: a missing database, or one of another version, must not be created or changed.
    Store::open_read_only(&state_dir).await?.close().await;
    let lock = match Lock::take(&state_dir) {
        Ok(lock) => Some(lock),
        Err(LockError::Taken(_)) => None,
        Err(error) => return Err(error.into()),
    };
    let store = Store::open_with_wait(&state_dir).await?;
    if lock.is_some() {
        // No daemon runs that would close the ledger block that an earlier daemon left open.
        store.close_block(now).await?;
    }
    let device = args.device.map(DeviceId::new).transpose()?;
    let wish =
        CorrectionRequest { device, span, from: args.of, to: args.give_to, who: args.who, why: args.why, at: now };
    let done = store.correct(&wish).await?;
    let upkeep = match lock {
        Some(_lock) => {
            compute_due_hours(&store, now).await?;
            "emissions computed again"
        }
        None => "the daemon computes the emissions again within a minute",
    };
    store.close().await;
    print(describe(&done, &span, upkeep, now).as_bytes())
}

/// Describes a correction that was made at `now`, in a line.
fn describe(done: &CorrectionResult, span: &Slot, upkeep: &str, now: DateTime<Utc>) -> String {
    let open = (done.open_rows > 0).then(|| {
        format!(
            "; {} more intervals with {:.3} J of the current hour did not change; correct them after {}",
            done.open_rows,
            done.open_energy.to_joules().get(),
            (hour_of(now) + TimeDelta::hours(1)).format("%H:%MZ")
        )
    });
    format!(
        "entry {}: {} intervals with {:.3} J of {} between {} and {}, in {} hour(s); {upkeep}{}\n",
        done.entry,
        done.rows,
        done.energy.to_joules().get(),
        done.devices.iter().map(DeviceId::as_str).collect::<Vec<_>>().join(", "),
        span.start().format("%FT%TZ"),
        span.end().format("%FT%TZ"),
        done.hours.len(),
        open.unwrap_or_default()
    )
}

/// Computes the emissions of all hours that are due for it, as a running daemon would.
async fn compute_due_hours(store: &Store, now: DateTime<Utc>) -> anyhow::Result<()> {
    let marginal = store.latest_sources(SignalKind::Marginal).await?;
    let average = store.latest_sources(SignalKind::Average).await?;
    for (hour, why) in store.due_hours().await? {
        for (kind, sources) in [(SignalKind::Marginal, &marginal), (SignalKind::Average, &average)] {
            // The second of these two calls removes the hour from the list of due hours.
            store.settle_hour(hour, &SettlementInput { kind, sources, silent: &[], at: now, why }).await?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use wattune_core::units::Millijoules;

    use super::*;

    #[test]
    fn the_part_of_the_current_hour_is_named() {
        let now: DateTime<Utc> = "2026-03-01T23:10:00Z".parse().expect("a time");
        let span = Slot::new(now - TimeDelta::hours(2), now).expect("two hours");
        let done = CorrectionResult {
            entry: 9,
            rows: 2,
            energy: Millijoules::new(5_000),
            devices: [DeviceId::new("GPU-0").expect("an id")].into(),
            hours: vec![hour_of(span.start()), hour_of(now) - TimeDelta::hours(1)],
            open_rows: 0,
            open_energy: Millijoules::ZERO,
        };
        let whole = "entry 9: 2 intervals with 5.000 J of GPU-0 between 2026-03-01T21:10:00Z and 2026-03-01T23:10:00Z, \
                     in 2 hour(s); done";
        assert_eq!(describe(&done, &span, "done", now), format!("{whole}\n"));
        let part = CorrectionResult { open_rows: 3, open_energy: Millijoules::new(1_500), ..done };
        let open = "3 more intervals with 1.500 J of the current hour did not change; correct them after 00:00Z";
        assert_eq!(describe(&part, &span, "done", now), format!("{whole}; {open}\n"));
    }
}
