//! `wattune report verify`: checks that a ledger has not been changed.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use anyhow::Context;

use super::ledger::LedgerArgs;
use crate::cli::output::{Exit, Format, deliver};
use wattune_core::ledger::chain::Digest;
use wattune_core::ledger::verify::{Inconsistency, VerifiedLedger, Verifier};

/// Verifies an exported ledger, or the database, without a daemon: every digest, sum and settlement (computation of an
/// hour's emissions); for a database also that all figures in reports follow from the ledger.
///
/// Prints the latest digest, called the head. Keep the head: a later run with --head proves that no entry up to this
/// head has changed since. If a check fails, prints the first wrong line or row and exits with 1.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// A file written by `wattune report export`; the database in the state directory if absent.
    file: Option<PathBuf>,
    #[command(flatten)]
    ledger: LedgerArgs,
    /// A head from an earlier run, which the ledger must still contain.
    #[arg(long, value_name = "DIGEST")]
    head: Option<Digest>,
    /// The output format.
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
}

/// Verifies the ledger and prints the result.
pub(super) async fn run(args: Args) -> anyhow::Result<Exit> {
    let (what, found) = match &args.file {
        Some(path) => (path.display().to_string(), of_file(path, args.head)?),
        None => {
            let (store, _) = args.ledger.open().await?;
            let found = store.verify(Verifier::with_known_head(args.head)).await?;
            ("the database".to_owned(), found)
        }
    };
    let text = match (args.format, &found) {
        (Format::Table, Ok(verified)) => summary(&what, args.file.is_none(), verified),
        (Format::Table, Err(broken)) => format!("INVALID: {what}, {broken}\n"),
        (Format::Json, Ok(v)) => {
            let differences = v
                .differences
                .iter()
                .map(|(block, device, mj)| serde_json::json!({"block": block, "device": device, "difference_mj": mj}));
            let json = serde_json::json!({
                "in_order": true, "entries": v.entries, "intervals": v.intervals, "blocks": v.blocks,
                "rolled_up_blocks": v.rolled_up, "settlements": v.settlements, "energy_mj": v.energy.get(),
                "differences": differences.collect::<Vec<_>>(), "head": v.head.to_string(),
                "closed_at": v.closed_at, "open_intervals": v.open, "kept_head_entry": v.known_head,
            });
            format!("{json:#}\n")
        }
        (Format::Json, Err(broken)) => {
            let json = serde_json::json!({"in_order": false, "place": broken.place, "why": broken.why});
            format!("{json:#}\n")
        }
    };
    deliver(text.as_bytes(), None)?;
    Ok(if found.is_ok() { Exit::Done } else { Exit::Failed })
}

fn of_file(path: &Path, head: Option<Digest>) -> anyhow::Result<Result<VerifiedLedger, Inconsistency>> {
    let unreadable = || format!("cannot read {}", path.display());
    let mut file = BufReader::new(File::open(path).with_context(unreadable)?);
    let mut verifier = Verifier::with_known_head(head);
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

fn summary(what: &str, is_database: bool, found: &VerifiedLedger) -> String {
    let mut text = format!(
        "{what} is valid: {} entries, {} intervals in {} closed blocks and the open one ({} blocks rolled up), {} \
         settlements, {} mJ.\n",
        found.entries,
        found.intervals,
        found.blocks,
        found.rolled_up,
        found.settlements,
        found.energy.get()
    );
    text += "Checked: every digest follows from the one before; every close has its intervals' count, sums and last digest; \
             every device's balance follows from the sums; every settlement covers the recorded energy, with emissions that \
             are this energy times its intensities, in versions without a gap; every correction moves existing intervals.\n";
    if is_database {
        text += "Every row that reports read follows from these: daily totals, balances, the valid settlements and their \
                 changes, sums of rolled-up hours, the owners of intervals after corrections; every job's name, tags, GPUs \
                 and times, and its progress once it ended; every device's ledger against its counter. The schema is \
                 wattune's. The digests do not cover the progress of running jobs, open intervals (the seconds since the \
                 last checkpoint), profiles, forecasts and the sources' data (intensities before they are settled with, and \
                 the time up to which they are final), recurring jobs and their trials, announced events, owners of jobs, \
                 the audit log, and the list of the days on which a daemon ran.\n";
    }
    for (block, device, mj) in &found.differences {
        text += &format!("In block {block} the ledger of {device} differs from its counter by {mj} mJ.\n");
    }
    text += &match found.known_head {
        Some(0) => "The given head is that of an empty ledger: it proves nothing about later entries.\n".to_owned(),
        Some(entry) => {
            format!("The given head is the digest of entry {entry}: nothing up to it has changed since.\n")
        }
        None => String::new(),
    };
    text += &match found.closed_at {
        Some(at) => format!("The head covers the intervals of all blocks closed until {}", at.format("%F %TZ")),
        None => "The head covers no intervals yet".to_owned(),
    };
    text += &match found.open {
        0 => ".\n".to_owned(),
        open => format!("; {open} in the open block, covered once that is closed.\n"),
    };
    text + &format!("head {}\n", found.head)
}
