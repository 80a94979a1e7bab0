//! `wattune report export`: writes the ledger as JSON lines that can be verified on any machine.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::PathBuf;

use anyhow::Context;

use super::ledger::LedgerArgs;
use crate::cli::output::{check_writable, unless_closed};

/// Writes the whole ledger as lines of JSON, which `wattune report verify` can check on any machine.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    ledger: LedgerArgs,
    /// Write to this file instead of standard output.
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// Writes the exported ledger.
pub(super) async fn run(args: Args) -> anyhow::Result<()> {
    args.ledger.check_output("--output", args.output.as_deref())?;
    check_writable("--output", args.output.as_deref())?;
    let (store, _) = args.ledger.open().await?;
    let mut out: Box<dyn Write> = match &args.output {
        Some(path) => {
            Box::new(BufWriter::new(File::create(path).with_context(|| format!("cannot write {}", path.display()))?))
        }
        None => Box::new(BufWriter::new(std::io::stdout())),
    };
    let written = store.export(|line| writeln!(out, "{line}").map_err(anyhow::Error::from)).await;
    let written = written.and_then(|_| Ok(out.flush()?));
    if args.output.is_none() { unless_closed(written) } else { written }
}
