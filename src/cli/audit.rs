//! `wattune audit`: prints a running daemon's audit log.

use std::time::Duration;

use anyhow::{Context, anyhow};
use chrono::{DateTime, Utc};
use clap::ValueEnum;
use reqwest::{Method, Url};
use serde::{Deserialize, Serialize};

use super::ask::DaemonFlags;
use super::daemon::{Daemon, Failure};
use super::output::{deliver, say, to_json};
use super::values;
use crate::clock::{Clock as _, SystemClock};
use crate::reports::{AuditEntry, audit_csv, audit_table};

/// Longest time to wait for one page of the log.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum number of records on one page.
const PAGE: u32 = 10_000;

/// Shows who changed what on which GPU, job or cap: the audit log of a running daemon, oldest record first.
///
/// Only root and the daemon's own user may read the log, over the daemon's Unix socket, and holders of a token with the
/// scope admin (WATTUNE_TOKEN, or the file WATTUNE_TOKEN_FILE).
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Show only records of this GPU: an index, a UUID or a PCI bus id.
    #[arg(long, value_name = "GPU")]
    gpu: Option<String>,
    /// Show only records of the job with this id.
    #[arg(long, value_name = "ID")]
    job: Option<String>,
    /// Show only records since this time: 2026-01-31, 2026-01-31T12:00:00Z, or 24h for the last 24 hours.
    #[arg(long, value_name = "TIME", value_parser = since)]
    since: Option<Since>,
    /// Show only records after the one with this number.
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(..=i64::MAX as u64))]
    after: Option<u64>,
    /// The maximum number of records.
    #[arg(long, value_name = "N", default_value_t = PAGE, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    limit: u32,
    /// The output format.
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
    #[command(flatten)]
    daemon: DaemonFlags,
}

/// The output format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// A table for people.
    Table,
    /// JSON for programs, as `GET /v1/audit` returns it.
    Json,
    /// CSV for spreadsheets.
    Csv,
}

/// The earliest time of the records.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Since {
    At(DateTime<Utc>),
    /// This long before now.
    Ago(chrono::TimeDelta),
}

fn since(text: &str) -> Result<Since, String> {
    if let Ok(time) = values::begin(text) {
        return Ok(Since::At(time));
    }
    let ago = values::duration(text).map(|ago| Since::Ago(ago.to_delta()));
    ago.map_err(|_| "give a date like 2026-01-31, a time like 2026-01-31T12:00:00Z, or a duration like 24h".into())
}

/// A part of the log, in the form of the API's pages.
#[derive(Deserialize, Serialize)]
struct Page {
    records: Vec<AuditEntry>,
    next_after: Option<u64>,
}

/// Prints the log.
pub(super) async fn run(args: Args) -> anyhow::Result<()> {
    let daemon = Daemon::at(args.daemon.addresses().map_err(anyhow::Error::msg)?)?;
    let since = args.since.map(|since| match since {
        Since::At(time) => time,
        Since::Ago(ago) => SystemClock::start().utc() - ago,
    });
    let mut found = Page { records: Vec::new(), next_after: args.after };
    loop {
        let left = args.limit - u32::try_from(found.records.len())?;
        let mut parameters = vec![("limit", left.min(PAGE).to_string())];
        parameters.extend(found.next_after.map(|after| ("after", after.to_string())));
        parameters.extend(args.gpu.clone().map(|gpu| ("gpu", gpu)));
        parameters.extend(args.job.clone().map(|job| ("job", job)));
        parameters.extend(since.map(|since| ("since", since.format("%FT%T%.fZ").to_string())));
        let next = page(&daemon, &parameters).await?;
        found.records.extend(next.records);
        found.next_after = next.next_after;
        if found.next_after.is_none() || found.records.len() >= args.limit as usize {
            break;
        }
    }
    let next_after = found.next_after;
    let text = match args.format {
        Format::Table => audit_table(&found.records).into_bytes(),
        Format::Json => to_json(&found)?,
        Format::Csv => audit_csv(found.records)?,
    };
    deliver(&text, None)?;
    if let Some(last) = next_after {
        say("audit", &format!("there are more records; --after {last} shows the next ones, --limit more at once"));
    }
    Ok(())
}

async fn page(daemon: &Daemon, parameters: &[(&str, String)]) -> anyhow::Result<Page> {
    let url = Url::parse_with_params("http://localhost/v1/audit", parameters)?;
    let path = format!("{}?{}", url.path(), url.query().unwrap_or_default());
    let answer = daemon.call(Method::GET, &path, None, TIMEOUT).await.map_err(|failure| match failure {
        Failure::Refused { status: 401 | 403, detail, .. } => anyhow!(
            "this user may not read the audit log: {detail}; run this as root or as the daemon's user, or set \
             WATTUNE_TOKEN or WATTUNE_TOKEN_FILE"
        ),
        Failure::Refused { status: 404, detail, .. } => anyhow!("--gpu: {detail}"),
        Failure::Refused { detail, .. } => anyhow!("the daemon refused the request: {detail}"),
        Failure::NoAnswer(why) => anyhow!("{why}; is `wattune serve` running, and does it listen there?"),
    })?;
    serde_json::from_value(answer.0).context("the daemon's audit log cannot be read; is it of another version?")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_dates_times_or_ages() {
        let at = |text: &str| Since::At(text.parse().expect("a time"));
        let table = [
            ("2026-01-31", at("2026-01-31T00:00:00Z")),
            ("2026-01-31T13:00:00+01:00", at("2026-01-31T12:00:00Z")),
            ("24h", Since::Ago(chrono::TimeDelta::hours(24))),
            ("1d12h", Since::Ago(chrono::TimeDelta::hours(36))),
        ];
        for (text, expected) in table {
            assert_eq!(since(text), Ok(expected), "{text}");
        }
        for wrong in ["", "yesterday", "-1h", "2026-13-01"] {
            assert!(since(wrong).is_err_and(|why| why.contains("24h")), "{wrong}");
        }
    }
}
