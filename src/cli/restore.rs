//! `wattune restore`: gives every journalled GPU its found limit back, with no daemon running.

use std::io::Write;
use std::sync::Arc;

use super::{Exit, Format, Overrides};
use crate::clock::{Clock, SystemClock};
use crate::controller::restore_all;
use crate::gpu::journal::{Journal, Restored, boot_id};
use crate::units::Seconds;

/// Gives every GPU that a daemon left set its found limit back. For when the daemon was killed and will not start again;
/// a starting daemon does the same.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    overrides: Overrides,
    /// How the result is written.
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
}

#[derive(serde::Serialize)]
struct Line {
    gpu: String,
    outcome: &'static str,
    detail: String,
}

/// Restores.
///
/// # Errors
/// If a daemon owns the state directory, or the driver or the journal cannot be used.
pub(super) fn run(args: Args) -> anyhow::Result<Exit> {
    let settings = args.overrides.settings()?;
    settings.log.init();
    let state_dir = settings.state_dir();
    let mut out = std::io::stdout().lock();
    if !state_dir.exists() {
        writeln!(out, "nothing to restore: there is no state directory {}", state_dir.display())?;
        return Ok(Exit::Done);
    }
    let _lock = super::serve::Lock::take(&state_dir)?;
    let mut journal = Journal::open(&state_dir, boot_id())?;
    if journal.entries().next().is_none() {
        match args.format {
            Format::Table => writeln!(out, "nothing to restore: no GPU is away from its found limit")?,
            Format::Json => writeln!(out, "[]")?,
        }
        return Ok(Exit::Done);
    }
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::start());
    let (handles, _) = super::serve::handles(&settings, &clock)?;
    let restored = restore_all(&mut journal, &handles, Seconds::new(5.0));
    let line = |(gpu, outcome): &(_, Restored)| Line {
        gpu: format!("{gpu}"),
        outcome: match outcome {
            Restored::AlreadyThere(_) => "already_there",
            Restored::Written(_) => "restored",
            Restored::LeftToOthers(_) => "left_to_others",
            Restored::Failed { .. } => "failed",
        },
        detail: outcome.to_string(),
    };
    let mut lines: Vec<Line> = restored.iter().map(line).collect();
    let done: Vec<String> = lines.iter().map(|l| l.gpu.clone()).collect();
    lines.extend(journal.entries().filter(|(gpu, _)| !done.contains(&gpu.to_string())).map(|(gpu, entry)| Line {
        gpu: gpu.to_string(),
        outcome: "failed",
        detail: format!("NOT restored to {}: the GPU is not there; run this again once it is back", entry.found),
    }));
    match args.format {
        Format::Table => lines.iter().try_for_each(|l| writeln!(out, "GPU {}: {}", l.gpu, l.detail))?,
        Format::Json => writeln!(out, "{}", serde_json::to_string_pretty(&lines)?)?,
    }
    Ok(if lines.iter().any(|l| l.outcome == "failed") { Exit::Failed } else { Exit::Done })
}
