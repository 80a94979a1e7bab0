//! `wattune restore`: restores the original power limit of every GPU in the journal, without a daemon, and drops GPUs
//! that do not come back from the journal (`--forget`).

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, anyhow, bail};
use chrono::{DateTime, Utc};

use super::devices::handles;
use super::output::{Exit, Format};
use super::settings::ShowFlags;
use super::state_dir::Lock;
use crate::clock::{Clock, SystemClock};
use crate::config::{Backend, Settings, is_root};
use crate::controller::of_restored;
use crate::files;
use crate::gpu::handle::GpuHandle;
use crate::gpu::journal::{self, Journal, boot_id};
use crate::gpu::restore::{Clocks, Restored, forget_absent, restore_all};
use crate::store::{self, AuditAction, AuditOutcome, AuditRecord, Store};
use wattune_core::domain::{GpuId, PowerLimit, SIMULATED_GPU};
use wattune_core::units::Seconds;

/// Restores the original power limit of every GPU that a daemon has changed. For use after a daemon was killed and will
/// not start again; a starting daemon does the same.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    show: ShowFlags,
    /// Forget the original limit of a GPU that was removed for good, by its UUID as in wattune's messages. Refused if
    /// the GPU is present. May be repeated. All other GPUs in the journal are restored.
    #[arg(long, value_name = "GPU", value_parser = gpu_id)]
    forget: Vec<GpuId>,
}

fn gpu_id(text: &str) -> Result<GpuId, String> {
    GpuId::new(text.trim()).map_err(|error| error.to_string())
}

/// The outcome of the restore for one GPU.
#[derive(serde::Serialize)]
pub(super) struct Line {
    /// The UUID of the GPU.
    pub(super) gpu: String,
    /// The outcome as one word for programs, such as `restored`.
    outcome: &'static str,
    /// The outcome as one sentence for people.
    pub(super) detail: String,
}

/// The beginning of each message that refuses to forget a GPU.
const UNCHANGED: &str = "nothing was forgotten or restored";

/// Restores the GPUs and prints the outcomes.
pub(super) fn run(args: Args) -> anyhow::Result<Exit> {
    let settings = args.show.overrides.settings()?;
    settings.log.init();
    let state_dir = settings.state_dir();
    if !is_there(&state_dir)? {
        bail!(
            "there is no state directory {}, so nothing was restored; give the daemon's with --state-dir, WATTUNE_STATE_DIR or \
             --config{}",
            state_dir.display(),
            if is_root() { "" } else { ", or run this as root like the daemon" }
        );
    }
    let mut is_a_daemons = false;
    for file in [journal::FILE_NAME, store::FILE_NAME] {
        is_a_daemons |= is_there(&state_dir.join(file))?;
    }
    if !is_a_daemons && !args.forget.is_empty() {
        bail!("{UNCHANGED}: {} has no daemon's state; is it the daemon's directory?", state_dir.display());
    }
    // A directory without a daemon's files stays untouched.
    let lines = if is_a_daemons { forget_and_restore(&settings, &args.forget)? } else { Vec::new() };
    if let Err(error) = print(&lines, args.show.format, (!is_a_daemons).then_some(&*state_dir)) {
        tracing::warn!("cannot write the result: {error:#}; the exit code reports success or failure");
    }
    Ok(if lines.iter().any(|l| l.outcome == "failed") { Exit::Failed } else { Exit::Done })
}

/// Returns true if a file or directory exists. Fails if this cannot be determined, so that nothing is overlooked.
fn is_there(path: &Path) -> anyhow::Result<bool> {
    path.try_exists().with_context(|| {
        format!("cannot read {}, so nothing was restored; run this as root or as the daemon's user", path.display())
    })
}

/// Prints the outcomes. `unused_state_dir` is the state directory if it has no daemon's files; `None` if it has some.
fn print(lines: &[Line], format: Format, unused_state_dir: Option<&Path>) -> anyhow::Result<()> {
    format.print(&lines, || match unused_state_dir {
        Some(dir) => {
            format!("nothing to restore: {} has no daemon's state; is it the daemon's directory?\n", dir.display())
        }
        None if lines.is_empty() => "nothing to restore: all GPUs have their original limits\n".to_owned(),
        None => lines.iter().map(|l| format!("GPU {}: {}\n", l.gpu, l.detail)).collect(),
    })
}

/// Describes a GPU that was forgotten, as [`Restored`] does those that were not.
fn describe_forgotten(original: PowerLimit) -> String {
    format!("forgotten on request: its original limit of {original} is not restored any more")
}

/// Records what was forgotten and restored in the daemon's audit log, if there is a database. Restoring works without
/// one.
fn record(
    state_dir: &Path,
    forgotten: &BTreeMap<GpuId, PowerLimit>,
    restored: &[(GpuId, Restored)],
    before: &[(GpuId, Option<PowerLimit>)],
    at: DateTime<Utc>,
) -> anyhow::Result<()> {
    if (forgotten.is_empty() && restored.is_empty()) || !is_there(&state_dir.join(store::FILE_NAME))? {
        return Ok(());
    }
    let who = format!("wattune restore, user {}", files::user());
    let new_record = || AuditRecord::new(at, &who, AuditAction::RestorePowerLimit);
    let for_forgotten = forgotten.iter().map(|(id, original)| AuditRecord {
        gpu: Some(id.to_string()),
        ..new_record().with_outcome(AuditOutcome::NotEnforced, describe_forgotten(*original))
    });
    let for_restored = restored.iter().map(|(id, outcome)| {
        let before = before.iter().find(|(gpu, _)| gpu == id).and_then(|(_, limit)| *limit);
        of_restored(new_record(), id, outcome, before)
    });
    let records: Vec<AuditRecord> = for_forgotten.chain(for_restored).collect();
    let write = async || {
        let store = Store::open_with_wait(state_dir).await?;
        records.into_iter().for_each(|record| store.audit().record(record));
        let stored = store.audit().flush().await;
        store.close().await;
        anyhow::Ok(stored?)
    };
    // A thread of its own, since a daemon that cannot start calls this from within its runtime.
    let on_runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(write());
    let done = std::thread::scope(|scope| scope.spawn(on_runtime).join());
    done.unwrap_or_else(|_| Err(anyhow!("writing it failed")))
}

/// Restores every GPU whose original limit the journal records. If it records none, the driver is not opened.
pub(super) fn restore_journalled(settings: &Settings) -> anyhow::Result<Vec<Line>> {
    forget_and_restore(settings, &[])
}

/// Returns the reason why a GPU to forget may be present although the search did not find it, if there is one. `notes`
/// are those of the search.
fn why_unknown(settings: &Settings, forget: &[GpuId], notes: &[String]) -> Option<String> {
    match settings.gpus.backend {
        // Each note is on a GPU that cannot be opened, and whose UUID is therefore unknown.
        Backend::Nvml if forget.is_empty() => None,
        Backend::Nvml => {
            notes.first().map(|note| format!("one of the GPUs may be the one whose UUID is unknown now: {note}"))
        }
        Backend::Simulated => {
            let gpu = forget.iter().find(|gpu| !gpu.as_str().starts_with(SIMULATED_GPU))?;
            Some(format!("GPU {gpu} is not simulated, and with `gpus.backend = \"simulated\"` the driver is not asked"))
        }
    }
}

/// Drops the GPUs `forget` from the journal, which must be absent, and restores every other GPU whose original limit
/// the journal records. If one of the GPUs cannot be forgotten, changes nothing.
fn forget_and_restore(settings: &Settings, forget: &[GpuId]) -> anyhow::Result<Vec<Line>> {
    let state_dir = settings.state_dir();
    if !is_there(&state_dir)? {
        return Ok(Vec::new());
    }
    let _lock = Lock::take(&state_dir)?;
    let mut journal = Journal::open(&state_dir, boot_id())?;
    if journal.is_empty() && forget.is_empty() {
        return Ok(Vec::new());
    }
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::start());
    let (handles, notes) = handles(settings, &clock)?;
    if let Some(why) = why_unknown(settings, forget, &notes) {
        bail!("{UNCHANGED}: {why}");
    }
    let forgotten = forget_absent(&mut journal, forget, &handles).context(UNCHANGED)?;
    let limit = |handle: &GpuHandle| (handle.identity().id.clone(), handle.observe().reading.requested);
    let before: Vec<_> = handles.iter().map(limit).collect();
    let restored = restore_all(&mut journal, &handles, Seconds::new(5.0));
    if let Err(error) = record(&state_dir, &forgotten, &restored, &before, clock.now().utc) {
        tracing::warn!("the audit log has no record of what was restored: {error:#}");
    }
    let forgotten = forgotten.iter().map(|(gpu, original)| Line {
        gpu: gpu.to_string(),
        outcome: "forgotten",
        detail: describe_forgotten(*original),
    });
    let line = |(gpu, outcome): &(_, Restored)| Line {
        gpu: format!("{gpu}"),
        outcome: match outcome {
            Restored::AlreadyRestored(_, Clocks::Untouched) => "already_there",
            Restored::AlreadyRestored(_, Clocks::Unlocked | Clocks::Unverified) | Restored::Written(..) => "restored",
            Restored::LeftExternal(..) => "left_to_others",
            Restored::HeldByCap { .. } => "held_by_cap",
            Restored::Failed { .. } => "failed",
        },
        detail: outcome.to_string(),
    };
    Ok(forgotten.chain(restored.iter().map(line)).collect())
}
