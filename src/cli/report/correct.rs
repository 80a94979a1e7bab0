//! `wattune report correct`: gives intervals to whom they belong, in a new entry of the ledger.

use std::io::Write;

use super::super::state_dir::{Lock, LockError};
use super::Place;
use crate::clock::{Clock, SystemClock};
use crate::http::wire::ledger::exact_span;
use crate::store::{Settling, Store, ToCorrect};
use wattune_core::domain::{DeviceId, JobId, SignalKind};
use wattune_core::ledger::Share;

/// Gives intervals to somebody else than they were booked to. What was booked stays in the ledger; the correction is a new
/// entry with its author and reason, and the hours are settled anew: by the daemon within a minute if it runs, else here.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    place: Place,
    /// From when: 2026-01-31, or 2026-01-31T12:00:30Z. Intervals that begin earlier stay as they are.
    #[arg(long, value_name = "TIME")]
    from: String,
    /// Until when; a date is meant with its day. Now if absent. Intervals that end later stay as they are.
    #[arg(long, value_name = "TIME")]
    to: Option<String>,
    /// Only this device's, by GPU UUID or as the report by gpu names it; all devices' if absent.
    #[arg(long, value_name = "DEVICE")]
    device: Option<String>,
    /// Whose they are now: job:ID, idle or unattributed.
    #[arg(long, value_name = "SHARE", value_parser = share)]
    of: Share,
    /// Whose they should be: job:ID, idle or unattributed.
    #[arg(long, value_name = "SHARE", value_parser = share)]
    give_to: Share,
    /// Who says so.
    #[arg(long, value_name = "NAME", value_parser = words)]
    who: String,
    /// Why.
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

/// Corrects.
///
/// # Errors
/// If that makes no sense or cannot be done.
pub(super) async fn run(args: Args) -> anyhow::Result<()> {
    let settings = args.place.overrides.settings()?;
    let state_dir = settings.state_dir();
    let now = SystemClock::start().utc();
    let span = exact_span(&args.from, args.to.as_deref(), now).map_err(super::wrong)?;
    // Looks first: what is not there, or of another version, is not to be made or changed.
    Store::look(&state_dir).await?.close().await;
    let lock = match Lock::take(&state_dir) {
        Ok(lock) => Some(lock),
        Err(LockError::Taken(_)) => None,
        Err(error) => return Err(error.into()),
    };
    let store = Store::open_patiently(&state_dir).await?;
    if lock.is_some() {
        // Nobody else will end the block that a daemon left open.
        store.close_block(now).await?;
    }
    let device = args.device.map(DeviceId::new).transpose()?;
    let wish = ToCorrect { device, span, from: args.of, to: args.give_to, who: args.who, why: args.why, at: now };
    let done = store.correct(&wish).await?;
    let settled = match lock {
        Some(_lock) => {
            settle(&store, now).await?;
            "settled anew"
        }
        None => "settled anew by the daemon within a minute",
    };
    store.close().await;
    let mut out = std::io::stdout().lock();
    writeln!(
        out,
        "entry {}: {} intervals with {:.3} J of {} between {} and {}, in {} hour(s), {settled}",
        done.entry,
        done.rows,
        done.energy.to_joules().get(),
        done.devices.iter().map(DeviceId::as_str).collect::<Vec<_>>().join(", "),
        span.start().format("%FT%TZ"),
        span.end().format("%FT%TZ"),
        done.hours.len()
    )?;
    Ok(())
}

/// Settles what is due as a daemon would.
async fn settle(store: &Store, now: chrono::DateTime<chrono::Utc>) -> anyhow::Result<()> {
    let marginal = store.latest_sources(SignalKind::Marginal).await?;
    let average = store.latest_sources(SignalKind::Average).await?;
    for (hour, why) in store.due_hours().await? {
        for (book, sources) in [(SignalKind::Marginal, &marginal), (SignalKind::Average, &average)] {
            // The last one takes the hour off the list.
            store.settle_hour(hour, &Settling { book, sources, silent: &[], at: now, why }).await?;
        }
    }
    Ok(())
}
