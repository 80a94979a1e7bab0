//! `wattune report`: energy and emissions with their uncertainty, and the verification of the ledger.

mod badge;
mod correct;
mod export;
mod verify;

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::bail;
use clap::{Subcommand, ValueEnum};

use super::simulate::{check_writable, deliver};
use super::{Exit, Overrides};
use crate::clock::{Clock, SystemClock};
use crate::reports::{self, RESTATED_BY_PCT, ReportView, functional_unit, span};
use crate::store::{FILE_NAME, Store};
use wattune_core::domain::InvalidJob;
use wattune_core::ledger::report::{Grouping, ReportRequest};

/// Shows energy and emissions by job, name, GPU, label, day or month.
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
    place: Place,
    #[command(flatten)]
    time: Time,
    /// The grouping of rows: job, name, gpu, day, month, or tag:KEY with a label's key.
    #[arg(long, value_name = "BY", default_value = "job")]
    by: Grouping,
    /// The output format.
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
    /// Write to this file.
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    #[command(flatten)]
    unit: Unit,
    /// List hours whose emissions changed by more than this, in percent, when they were settled again.
    #[arg(long, value_name = "PERCENT", default_value_t = RESTATED_BY_PCT, value_parser = percent)]
    restated_by: f64,
}

/// The place of the ledger.
#[derive(Debug, clap::Args)]
struct Place {
    #[command(flatten)]
    overrides: Overrides,
}

/// The span of time. Hours are the grain of the settled ledger, so the span is widened to full UTC hours.
#[derive(Debug, clap::Args)]
struct Time {
    /// The start: 2026-01-31, or 2026-01-31T12:00:00Z. Thirty days before --to if absent. Rounded down to a full UTC
    /// hour.
    #[arg(long, value_name = "TIME")]
    from: Option<String>,
    /// The end; a date includes that day. Now if absent. Rounded up to a full UTC hour.
    #[arg(long, value_name = "TIME")]
    to: Option<String>,
}

#[derive(Debug, clap::Args)]
struct Unit {
    /// The functional unit of SCI (ISO/IEC 21031); without one there is no score.
    #[arg(long, value_enum, value_name = "UNIT")]
    functional_unit: Option<UnitName>,
    /// Samples per epoch; from each job's label samples_per_epoch if absent.
    #[arg(long, value_name = "SAMPLES")]
    samples_per_epoch: Option<f64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum UnitName {
    /// A training run.
    #[value(name = "run")]
    Run,
    /// An epoch.
    #[value(name = "epoch")]
    Epoch,
    /// A million samples.
    #[value(name = "1e6-samples")]
    MillionSamples,
}

/// The output format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// For people.
    Table,
    /// Everything, for programs.
    Json,
    /// The rows, for spreadsheets.
    Csv,
    /// For documents.
    Markdown,
    /// A self-contained page with plots, for viewing or printing.
    Html,
}

fn percent(text: &str) -> Result<f64, String> {
    super::simulate::within(text, 0.0, 1e6, "a number of percent, 0 to 1000000")
}

/// Runs the subcommand.
///
/// # Errors
/// An error for people.
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
    args.place.check_output("--output", args.output.as_deref())?;
    check_writable(args.output.as_deref())?;
    let (store, now) = args.place.look().await?;
    let unit = args.unit.functional_unit.and_then(|u| u.to_possible_value()).map(|v| v.get_name().to_owned());
    let unit = functional_unit(unit.as_deref(), args.unit.samples_per_epoch).map_err(wrong)?;
    let span = args.time.span(now)?;
    let request = ReportRequest { by: args.by, span, unit, restated_by_pct: args.restated_by, now };
    let view = ReportView::of(&store.report(request).await?);
    let bytes = match args.format {
        Format::Table => reports::table(&view).into_bytes(),
        Format::Json => {
            let mut text = serde_json::to_vec_pretty(&view)?;
            text.push(b'\n');
            text
        }
        Format::Csv => reports::csv(&view)?,
        Format::Markdown => reports::markdown(&view).into_bytes(),
        Format::Html => reports::html(&view).into_bytes(),
    };
    deliver(&bytes, args.output.as_deref())
}

/// Ends with code 2, like clap's own refusals.
fn wrong(error: InvalidJob) -> anyhow::Error {
    let flag = match error.field {
        "from" => "--from",
        "to" => "--to",
        "samples_per_epoch" => "--samples-per-epoch",
        _ => "--functional-unit",
    };
    clap::Error::raw(clap::error::ErrorKind::ValueValidation, format!("{flag}: {}\n", error.why)).exit()
}

impl Place {
    /// Opens the database read-only, and returns the current time.
    async fn look(&self) -> anyhow::Result<(Store, chrono::DateTime<chrono::Utc>)> {
        let settings = self.overrides.settings()?;
        let store = Store::open_read_only(&settings.state_dir()).await?;
        Ok((store, SystemClock::start().utc()))
    }
}

impl Place {
    /// Refuses to write to a file of the state directory.
    fn check_output(&self, flag: &str, path: Option<&Path>) -> anyhow::Result<()> {
        let Some(path) = path else { return Ok(()) };
        let Ok(dir) = self.overrides.settings()?.state_dir().canonicalize() else { return Ok(()) };
        let is_own = match path.canonicalize() {
            Ok(found) => found.starts_with(&dir) || is_same_file(&found, &dir.join(FILE_NAME)),
            Err(_) => {
                let within = path.parent().map(|p| if p.as_os_str().is_empty() { Path::new(".") } else { p });
                let is_named =
                    path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(FILE_NAME.as_bytes()));
                is_named && within.and_then(|p| p.canonicalize().ok()).is_some_and(|p| p == dir)
            }
        };
        if is_own {
            bail!("{flag}: {} is a file of the state directory {}; write elsewhere", path.display(), dir.display());
        }
        Ok(())
    }
}

/// Returns true if two paths are links to one file.
fn is_same_file(a: &Path, b: &Path) -> bool {
    let of = |path: &Path| path.metadata().ok().map(|m| (m.dev(), m.ino()));
    of(a).is_some() && of(a) == of(b)
}

impl Time {
    fn span(&self, now: chrono::DateTime<chrono::Utc>) -> anyhow::Result<wattune_core::domain::Slot> {
        span(self.from.as_deref(), self.to.as_deref(), now).map_err(wrong)
    }
}
