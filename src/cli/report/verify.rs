//! `wattune report verify`: whether a ledger is as it was written.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;

use super::super::Format;
use super::{Exit, Place};
use crate::ledger::verify::{Broken, Verified, Verifier};
use crate::store::StoreError;

/// Checks an exported ledger, or the database's, without a daemon: every digest, every sum, every settlement.
///
/// Prints the last digest: who has kept it knows that nothing before it was changed since. Names the first line that is
/// wrong and exits with 1.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// An export, as `wattune report export` writes it; the database in the state directory if absent.
    file: Option<PathBuf>,
    #[command(flatten)]
    place: Place,
    /// How the result is written.
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
}

/// Why a ledger could not be gone through, or is not in order.
enum Failed {
    Broken(Broken),
    Store(StoreError),
}

impl From<StoreError> for Failed {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

/// Checks and says what was found.
///
/// # Errors
/// If there is nothing to check.
pub(super) async fn run(args: Args) -> anyhow::Result<Exit> {
    let (what, found) = match &args.file {
        Some(path) => (path.display().to_string(), of_file(path)?),
        None => {
            let (store, _) = args.place.look().await?;
            let mut verifier = Verifier::default();
            let gone_through = store.export(|line| verifier.take(line.as_bytes()).map_err(Failed::Broken)).await;
            let found = match gone_through {
                Ok(()) => verifier.finish(),
                Err(Failed::Broken(broken)) => Err(broken),
                // A digest that is none, or an interval without an end, is as broken as a wrong one.
                Err(Failed::Store(StoreError::Damaged { what, why })) => Err(Broken { place: what.to_owned(), why }),
                Err(Failed::Store(error)) => return Err(error.into()),
            };
            ("the database".to_owned(), found)
        }
    };
    let mut out = std::io::stdout().lock();
    match (args.format, &found) {
        (Format::Table, Ok(verified)) => out.write_all(in_order(&what, verified).as_bytes())?,
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

fn of_file(path: &Path) -> anyhow::Result<Result<Verified, Broken>> {
    let unreadable = || format!("cannot read {}", path.display());
    let mut file = BufReader::new(File::open(path).with_context(unreadable)?);
    let mut verifier = Verifier::default();
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

fn in_order(what: &str, found: &Verified) -> String {
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
    for (block, device, mj) in &found.differences {
        text += &format!("In block {block} the books of {device} are {mj} mJ off its counter.\n");
    }
    text + &format!("head {}\n", found.head)
}
