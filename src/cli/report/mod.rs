//! `wattune report`: energy and emissions with their uncertainty, and the verification of the ledger.

mod badge;
mod correct;
mod export;
mod ledger;
mod verify;

use std::path::PathBuf;

use clap::{Subcommand, ValueEnum};

use self::ledger::{LedgerArgs, Time, wrong};
use super::output::{Exit, check_writable, deliver, to_json};
use super::values::{one_of, within};
use crate::reports::{self, RESTATED_BY_PCT, ReportView, functional_unit};
use wattune_core::ledger::report::{Grouping, ReportRequest};

/// Shows energy and emissions by job, name, GPU, tag, day or month.
///
/// Reads the database in the state directory. No daemon is needed, and a running one is not disturbed.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(super) struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    show: ShowArgs,
}

#[derive(Debug, Subcommand)]
enum Command {
    Verify(verify::Args),
    Export(export::Args),
    Correct(correct::Args),
    Badge(badge::Args),
}

#[derive(Debug, clap::Args)]
struct ShowArgs {
    #[command(flatten)]
    ledger: LedgerArgs,
    #[command(flatten)]
    time: Time,
    /// The grouping of rows: job, name, gpu, day, month, or tag:KEY with a tag's key.
    #[arg(long, value_name = "BY", default_value = "job")]
    by: Grouping,
    /// The output format.
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
    /// Write to this file instead of standard output.
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    #[command(flatten)]
    unit: Unit,
    /// List hours whose emissions changed by more than this percentage when they were computed again.
    #[arg(long, value_name = "PERCENT", default_value_t = RESTATED_BY_PCT, value_parser = percent)]
    restated_by: f64,
}

#[derive(Debug, clap::Args)]
struct Unit {
    /// The functional unit of the SCI score (ISO/IEC 21031); without one, no score is computed.
    #[arg(long, value_name = "UNIT", value_parser = one_of(UNITS.into_iter()))]
    functional_unit: Option<String>,
    /// Samples per epoch, for the functional unit epoch; if absent, each job's tag samples_per_epoch gives them.
    #[arg(long, value_name = "SAMPLES")]
    samples_per_epoch: Option<f64>,
}

/// The functional units that `--functional-unit` accepts, with their help.
const UNITS: [(&str, &str); 3] =
    [("run", "A training run"), ("epoch", "An epoch"), ("1e6-samples", "A million samples")];

/// The output format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// A table for people.
    Table,
    /// JSON for programs, with all details.
    Json,
    /// CSV for spreadsheets, with the rows.
    Csv,
    /// Markdown for documents.
    Markdown,
    /// A self-contained HTML page with plots, for viewing or printing.
    Html,
}

fn percent(text: &str) -> Result<f64, String> {
    within(text, 0.0, 1e6, "a number of percent, 0 to 1000000")
}

/// Runs the subcommand.
pub(super) async fn run(args: Args) -> anyhow::Result<Exit> {
    match args.command {
        None => show(args.show).await.map(|()| Exit::Done),
        Some(Command::Verify(args)) => verify::run(args).await,
        Some(Command::Export(args)) => export::run(args).await.map(|()| Exit::Done),
        Some(Command::Correct(args)) => correct::run(args).await.map(|()| Exit::Done),
        Some(Command::Badge(args)) => badge::run(args).await.map(|()| Exit::Done),
    }
}

async fn show(args: ShowArgs) -> anyhow::Result<()> {
    args.ledger.check_output("--output", args.output.as_deref())?;
    check_writable("--output", args.output.as_deref())?;
    let (store, now) = args.ledger.open().await?;
    let unit = functional_unit(args.unit.functional_unit.as_deref(), args.unit.samples_per_epoch).map_err(wrong)?;
    let span = args.time.span(now)?;
    let request = ReportRequest { by: args.by, span, unit, restated_by_pct: args.restated_by, now };
    let view = ReportView::of(&store.report(request).await?);
    let bytes = match args.format {
        Format::Table => reports::table(&view).into_bytes(),
        Format::Json => to_json(&view)?,
        Format::Csv => reports::csv(&view)?,
        Format::Markdown => reports::markdown(&view).into_bytes(),
        Format::Html => reports::html(&view).into_bytes(),
    };
    deliver(&bytes, args.output.as_deref())
}
