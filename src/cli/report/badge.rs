//! `wattune report badge`: energy and emissions of a trained model, for its model card.

use std::path::PathBuf;

use anyhow::bail;

use super::ledger::{LedgerArgs, Time};
use crate::cli::output::deliver;
use crate::reports::{RESTATED_BY_PCT, ReportRow, ReportView, RowKind, badge, summary};
use wattune_core::domain::JobName;
use wattune_core::ledger::report::{Grouping, ReportRequest};

/// Writes a small SVG badge and a Markdown summary for model cards: energy, emissions, whether the emissions are
/// final or provisional, and the method.
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("what").required(true))]
pub(super) struct Args {
    #[command(flatten)]
    ledger: LedgerArgs,
    #[command(flatten)]
    time: Time,
    /// One training run, by its job id.
    #[arg(long, value_name = "ID", group = "what")]
    job: Option<String>,
    /// All training runs of this name.
    #[arg(long, value_name = "NAME", group = "what", value_parser = job_name)]
    name: Option<JobName>,
    /// Write the badge to this file.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Write the summary to this file instead of standard output.
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
}

fn job_name(text: &str) -> Result<JobName, String> {
    JobName::new(text).map_err(|e| e.to_string())
}

/// Writes the badge and the summary.
pub(super) async fn run(args: Args) -> anyhow::Result<()> {
    args.ledger.check_output("--svg", args.svg.as_deref())?;
    args.ledger.check_output("--markdown", args.markdown.as_deref())?;
    let (store, now) = args.ledger.open().await?;
    let mut span = args.time.span(now)?;
    if args.time.from.is_none() {
        // Without --from, all runs count, even the oldest ones.
        span = wattune_core::domain::Slot::new(chrono::DateTime::UNIX_EPOCH, span.end()).unwrap_or(span);
    }
    let by = if args.job.is_some() { Grouping::Job } else { Grouping::Name };
    let request = ReportRequest { by, span, unit: None, restated_by_pct: RESTATED_BY_PCT, now };
    let report = store.report(request).await?;
    let view = ReportView::of(&report);
    // The row of a job that was continued by its key has the id of the first part.
    let jobs = &report.data.jobs;
    let first = args.job.as_deref().map(|id| {
        let job = jobs.iter().find(|job| job.id.as_str() == id);
        job.map_or(id, |job| job.first().as_str())
    });
    let parts = jobs.iter().filter(|job| Some(job.first().as_str()) == first).count();
    let meant = |row: &&ReportRow| match (first, &args.name) {
        (Some(id), _) => row.job_id.as_deref() == Some(id),
        (None, Some(name)) => row.kind == RowKind::Name && row.key == name.as_str(),
        (None, None) => false,
    };
    let Some(row) = view.rows.iter().find(meant) else {
        bail!(
            "the ledger has no energy of {} from {} to {}; `wattune report --by job` lists jobs",
            args.job.as_deref().or(args.name.as_ref().map(JobName::as_str)).unwrap_or_default(),
            view.from.format("%FT%RZ"),
            view.to.format("%FT%RZ")
        );
    };
    if args.svg.is_some() {
        deliver(badge(row, &view).as_bytes(), args.svg.as_deref())?;
    }
    deliver(summary(row, parts, &view, args.svg.as_deref()).as_bytes(), args.markdown.as_deref())
}
