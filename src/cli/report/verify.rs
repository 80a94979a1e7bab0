//! `wattune report verify`: whether a ledger is as it was written.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;

use super::super::Format;
use super::{Exit, Place};
use wattune_core::ledger::chain::Digest;
use wattune_core::ledger::verify::{Broken, Verified, Verifier};

/// Checks an exported ledger, or the database, without a daemon: every digest, every sum, every settlement; of a database
/// also that all that reports read follows from the ledger.
///
/// Prints the last digest, the head: who has kept it tells later with --head that nothing before it was changed since.
/// Names the first line or row that is wrong and exits with 1.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// An export, as `wattune report export` writes it; the database in the state directory if absent.
    file: Option<PathBuf>,
    #[command(flatten)]
    place: Place,
    /// A head that was kept: it must be in the chain.
    #[arg(long, value_name = "DIGEST")]
    head: Option<Digest>,
    /// How the result is written.
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
}

/// Checks and says what was found.
///
/// # Errors
/// If there is nothing to check.
pub(super) async fn run(args: Args) -> anyhow::Result<Exit> {
    let (what, found) = match &args.file {
        Some(path) => (path.display().to_string(), of_file(path, args.head)?),
        None => {
            let (store, _) = args.place.look().await?;
            let found = store.verify(Verifier::with_kept(args.head)).await?;
            ("the database".to_owned(), found)
        }
    };
    let mut out = std::io::stdout().lock();
    match (args.format, &found) {
        (Format::Table, Ok(verified)) => out.write_all(in_order(&what, args.file.is_none(), verified).as_bytes())?,
        (Format::Table, Err(broken)) => writeln!(out, "NOT in order: {what}, {broken}")?,
        (Format::Json, Ok(v)) => {
            let differences = v
                .differences
                .iter()
                .map(|(block, device, mj)| serde_json::json!({"block": block, "device": device, "difference_mj": mj}));
            let json = serde_json::json!({
                "in_order": true, "entries": v.entries, "intervals": v.intervals, "blocks": v.blocks,
                "rolled_up_blocks": v.rolled_up, "settlements": v.settlements, "energy_mj": v.energy.get(),
                "differences": differences.collect::<Vec<_>>(), "head": v.head.to_string(),
                "closed_at": v.closed_at, "open_intervals": v.open, "kept_head_entry": v.kept,
            });
            writeln!(out, "{json:#}")?;
        }
        (Format::Json, Err(broken)) => {
            let json = serde_json::json!({"in_order": false, "place": broken.place, "why": broken.why});
            writeln!(out, "{json:#}")?;
        }
    }
    Ok(if found.is_ok() { Exit::Done } else { Exit::Failed })
}

fn of_file(path: &Path, head: Option<Digest>) -> anyhow::Result<Result<Verified, Broken>> {
    let unreadable = || format!("cannot read {}", path.display());
    let mut file = BufReader::new(File::open(path).with_context(unreadable)?);
    let mut verifier = Verifier::with_kept(head);
    loop {
        let bytes = file.fill_buf().with_context(unreadable)?;
        if bytes.is_empty() {
            return Ok(verifier.finish());
        }
        let read = bytes.len();
        if let Err(broken) = verifier.feed(bytes) {
            return Ok(Err(broken));
        }
        file.consume(read);
    }
}

fn in_order(what: &str, is_database: bool, found: &Verified) -> String {
    let mut text = format!(
        "{what} is in order: {} entries, {} intervals in {} closed blocks and the open one ({} blocks rolled up), {} \
         settlements, {} mJ.\n",
        found.entries,
        found.intervals,
        found.blocks,
        found.rolled_up,
        found.settlements,
        found.energy.get()
    );
    text += "Checked: each line's digest follows from the one before; each close has its intervals' count, sums and last \
             digest; each device's balance follows from the sums; each settlement settles what was booked, with emissions \
             that are its energy times its intensities, in versions without a gap; each correction moves what was there.\n";
    if is_database {
        text += "Each row that reports read follows from these: totals of days, balances, which settlements hold and what \
                 they changed, sums of rolled-up hours, whose intervals are since corrections; each job's name, labels, GPUs \
                 and times, and its progress once it ended; where each device's books stand against its counter. The schema \
                 is wattune's. No digest covers the progress of running jobs, what is open (the seconds since the last \
                 checkpoint), profiles, forecasts and what sources said: intensities before they are settled with, and up to \
                 when they are final; nor recurring jobs and their trials, and announced events.\n";
    }
    for (block, device, mj) in &found.differences {
        text += &format!("In block {block} the books of {device} are {mj} mJ off its counter.\n");
    }
    text += &match found.kept {
        Some(0) => {
            "The head that was kept is that of an empty ledger: it tells nothing of what came later.\n".to_owned()
        }
        Some(entry) => {
            format!("The head that was kept is the digest of entry {entry}: nothing up to it was changed since.\n")
        }
        None => String::new(),
    };
    text += &match found.closed_at {
        Some(at) => format!("The head covers the intervals closed until {}", at.format("%F %TZ")),
        None => "The head covers no intervals yet".to_owned(),
    };
    text += &match found.open {
        0 => ".\n".to_owned(),
        open => format!("; {open} in the open block, booked since, only once that is closed.\n"),
    };
    text + &format!("head {}\n", found.head)
}
