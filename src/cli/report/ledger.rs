//! Arguments of the report commands: the ledger to read and the span of time.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use anyhow::bail;
use chrono::{DateTime, Utc};

use crate::cli::settings::Overrides;
use crate::clock::{Clock, SystemClock};
use crate::reports::span;
use crate::store::{FILE_NAME, Store};
use wattune_core::domain::{InvalidJob, Slot};

/// The arguments that select a ledger.
#[derive(Debug, clap::Args)]
pub(super) struct LedgerArgs {
    #[command(flatten)]
    pub(super) overrides: Overrides,
}

/// The span of time of a report. Emissions are computed by the hour, so the span is widened to full UTC hours.
#[derive(Debug, clap::Args)]
pub(super) struct Time {
    /// The start of the span: 2026-01-31, or 2026-01-31T12:00:00Z. Thirty days before --to if absent, and for a badge the
    /// ledger's start. Rounded down to a full UTC hour.
    #[arg(long, value_name = "TIME")]
    pub(super) from: Option<String>,
    /// The end of the span; a date includes that day. Now if absent. Rounded up to a full UTC hour.
    #[arg(long, value_name = "TIME")]
    to: Option<String>,
}

/// Ends the process with exit code 2 and an error that names the wrong flag, like clap for invalid arguments.
pub(super) fn wrong(error: InvalidJob) -> anyhow::Error {
    let flag = match error.field {
        "from" => "--from",
        "to" => "--to",
        "samples_per_epoch" => "--samples-per-epoch",
        _ => "--functional-unit",
    };
    clap::Error::raw(clap::error::ErrorKind::ValueValidation, format!("{flag}: {}\n", error.why)).exit()
}

impl LedgerArgs {
    /// Opens the database read-only, and returns the database with the current time.
    pub(super) async fn open(&self) -> anyhow::Result<(Store, DateTime<Utc>)> {
        let settings = self.overrides.settings()?;
        let store = Store::open_read_only(&settings.state_dir()).await?;
        Ok((store, SystemClock::start().utc()))
    }

    /// Fails if an output file lies in the daemon's state directory, where it could overwrite the daemon's files.
    pub(super) fn check_output(&self, flag: &str, path: Option<&Path>) -> anyhow::Result<()> {
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

/// Returns true if two paths lead to the same file.
fn is_same_file(a: &Path, b: &Path) -> bool {
    let of = |path: &Path| path.metadata().ok().map(|m| (m.dev(), m.ino()));
    of(a).is_some() && of(a) == of(b)
}

impl Time {
    pub(super) fn span(&self, now: DateTime<Utc>) -> anyhow::Result<Slot> {
        span(self.from.as_deref(), self.to.as_deref(), now).map_err(wrong)
    }
}
