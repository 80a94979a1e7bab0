//! `wattune restore`: gives every journalled GPU its found limit back, with no daemon running.

use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use anyhow::bail;

use super::{Exit, Format, Overrides};
use crate::clock::{Clock, SystemClock};
use crate::config::{Settings, is_root};
use crate::gpu::journal::{self, Journal, boot_id};
use crate::gpu::restore::{Clocks, Restored, restore_all};
use crate::store;
use wattune_core::units::Seconds;

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

/// What became of one GPU.
#[derive(serde::Serialize)]
pub(super) struct Line {
    /// Its UUID.
    pub(super) gpu: String,
    /// In one word.
    outcome: &'static str,
    /// In one sentence.
    pub(super) detail: String,
}

/// Restores.
///
/// # Errors
/// If there is no state directory, a daemon owns the state directory, or the driver or the journal cannot be used.
pub(super) fn run(args: Args) -> anyhow::Result<Exit> {
    let settings = args.overrides.settings()?;
    settings.log.init();
    let state_dir = settings.state_dir();
    if !state_dir.exists() {
        bail!(
            "there is no state directory {}, and nothing was restored: name the daemon's with --state-dir, WATTUNE_STATE_DIR or \
             --config{}",
            state_dir.display(),
            if is_root() { "" } else { ", or run this as root if the daemon does" }
        );
    }
    let is_a_daemons = [journal::FILE_NAME, store::FILE_NAME].iter().any(|file| state_dir.join(file).exists());
    // What is not a daemon's is not touched.
    let lines = if is_a_daemons { give_back(&settings)? } else { Vec::new() };
    if let Err(error) = tell(&lines, args.format, (!is_a_daemons).then_some(&*state_dir)) {
        tracing::warn!("cannot write what became of the GPUs ({error:#}); the exit code says it");
    }
    Ok(if lines.iter().any(|l| l.outcome == "failed") { Exit::Failed } else { Exit::Done })
}

/// `strange` is a state directory that no daemon seems to have used.
fn tell(lines: &[Line], format: Format, strange: Option<&Path>) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    match format {
        Format::Table if let Some(dir) = strange => {
            let dir = dir.display();
            writeln!(
                out,
                "nothing to restore: no daemon has kept its state in {dir}; is that the daemon's directory?"
            )?;
        }
        Format::Table if lines.is_empty() => {
            writeln!(out, "nothing to restore: no GPU is away from its found limit")?;
        }
        Format::Table => lines.iter().try_for_each(|l| writeln!(out, "GPU {}: {}", l.gpu, l.detail))?,
        Format::Json => writeln!(out, "{}", serde_json::to_string_pretty(lines)?)?,
    }
    Ok(())
}

/// Gives every journalled GPU its found limit back. Without a journal the driver is not even opened.
///
/// # Errors
/// If a daemon owns the state directory, or the driver or the journal cannot be used.
pub(super) fn give_back(settings: &Settings) -> anyhow::Result<Vec<Line>> {
    let state_dir = settings.state_dir();
    if !state_dir.exists() {
        return Ok(Vec::new());
    }
    let _lock = super::serve::Lock::take(&state_dir)?;
    let mut journal = Journal::open(&state_dir, boot_id())?;
    if journal.is_empty() {
        return Ok(Vec::new());
    }
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::start());
    let (handles, _) = super::serve::handles(settings, &clock)?;
    let restored = restore_all(&mut journal, &handles, Seconds::new(5.0));
    let line = |(gpu, outcome): &(_, Restored)| Line {
        gpu: format!("{gpu}"),
        outcome: match outcome {
            Restored::AlreadyRestored(_, Clocks::Untouched) => "already_there",
            Restored::AlreadyRestored(_, Clocks::Unlocked) | Restored::Written(..) => "restored",
            Restored::LeftExternal(..) => "left_to_others",
            Restored::HeldByCap { .. } => "held_by_cap",
            Restored::Failed { .. } => "failed",
        },
        detail: outcome.to_string(),
    };
    Ok(restored.iter().map(line).collect())
}
