//! Start of a controller: restores the limits and continues the jobs and the ledger that an earlier daemon left behind.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use chrono::{DateTime, Utc};
use tokio::sync::watch;

use super::accounting::{Accounting, Backlog, BudgetSettings, Downtime, LedgerTerms, ended_since};
use super::cap::{Cap, CapSettings, KEPT};
use super::gpus::{FULL_READING, Gpus};
use super::jobs::Jobs;
use super::planning::Planner;
use super::savings::{SavingsTracker, ended_lately};
use super::signal::{PriceSignal, SharedRanks, Signal};
use super::{Controller, Settings, StartError};
use crate::clock::Clock;
use crate::cpu::watch::CpuHandle;
use crate::discovery::Scout;
use crate::gpu::GpuDevice;
use crate::gpu::handle::{GpuHandle, Sampling};
use crate::gpu::journal::{self, Journal};
use crate::gpu::restore::{Restored, restore_all};
use crate::providers::{CarbonSettings, FeedState};
use crate::store::{RecoveredState, Store, StoreError, StoredJob};
use wattune_core::domain::{DeviceId, GpuId};
use wattune_core::plan::Settings as PlanSettings;
use wattune_core::profile::Settings as ProfileSettings;
use wattune_core::units::{Seconds, Watts};

/// Parts that a controller is started with.
pub struct Parts<'a> {
    /// Settings of the control loop.
    pub settings: Settings,
    /// Settings of the profiler.
    pub profiling: ProfileSettings,
    /// Settings of the planner.
    pub planning: PlanSettings,
    /// Settings of the carbon signal.
    pub carbon: CarbonSettings,
    /// Directory of the journal and the database.
    pub state_dir: &'a Path,
    /// Clock that the daemon reads.
    pub clock: Arc<dyn Clock>,
    /// Settings of the node's cap.
    pub cap: CapSettings,
    /// Settings of the carbon budget of all jobs.
    pub carbon_budget: BudgetSettings,
    /// Conditions under which the ledger is kept: its settings, the host's name and a digest of all settings.
    pub ledger: LedgerTerms,
    /// Opened devices of the GPUs.
    pub devices: Vec<Box<dyn GpuDevice>>,
    /// Times at which the GPUs are read.
    pub sampling: Sampling,
    /// Handle to the CPUs' energy readings; `None` if they are not read.
    pub cpu: Option<CpuHandle>,
    /// Handle for looking at the processes on GPUs; `None` if only registered jobs are recorded.
    pub scout: Option<Scout>,
    /// Receiver of the state of the carbon feed, which polls the sources of carbon intensity.
    pub signal: watch::Receiver<FeedState>,
    /// Ranks of the feed's sources by the skill of their recent forecasts, shared with the feed.
    pub ranks: SharedRanks,
    /// Day-ahead electricity price; `None` if the settings name no source.
    pub price: Option<PriceSignal>,
    /// Problems known before the start, such as GPUs that could not be opened.
    pub problems: Vec<String>,
}

impl<'a> Parts<'a> {
    /// Returns these parts with default settings and without CPUs, search for processes, price and known problems.
    pub fn new(
        state_dir: &'a Path,
        clock: Arc<dyn Clock>,
        devices: Vec<Box<dyn GpuDevice>>,
        sampling: Sampling,
        signal: watch::Receiver<FeedState>,
    ) -> Self {
        Self {
            settings: Settings::default(),
            profiling: ProfileSettings::default(),
            planning: PlanSettings::default(),
            carbon: CarbonSettings::default(),
            state_dir,
            clock,
            cap: CapSettings::default(),
            carbon_budget: BudgetSettings::default(),
            ledger: LedgerTerms::default(),
            devices,
            sampling,
            cpu: None,
            scout: None,
            signal,
            ranks: SharedRanks::default(),
            price: None,
            problems: Vec::new(),
        }
    }
}

/// Starts a handle for each device, through which the daemon reads and writes the GPU. In observe mode the daemon
/// writes only to restore what an earlier daemon left changed.
pub fn open_handles(
    devices: Vec<Box<dyn GpuDevice>>,
    clock: &Arc<dyn Clock>,
    sampling: Sampling,
    call_timeout: Seconds,
) -> Vec<GpuHandle> {
    let start = |device| GpuHandle::start(device, clock.clone(), sampling, FULL_READING, call_timeout);
    devices.into_iter().map(start).collect()
}

/// Waits until every GPU has responded, at most `patience`, so that the API's first answers contain readings.
fn await_answers(handles: &[GpuHandle], patience: Seconds) {
    let step = Seconds::new(0.01);
    let mut left = patience;
    let silent = |handle: &GpuHandle| {
        handle.refresh();
        let observed = handle.observe();
        observed.at.is_none() && observed.fault.is_none()
    };
    while left > Seconds::ZERO && handles.iter().any(silent) {
        std::thread::sleep(step.to_std());
        left -= step;
    }
}

/// Opens the database in `state_dir`, and returns it with the node's cap, which includes the demand-response events
/// that were announced to earlier daemons. Adds a problem for each event that cannot be read.
async fn read_caps(
    state_dir: &Path,
    settings: CapSettings,
    now: DateTime<Utc>,
    problems: &mut Vec<String>,
) -> Result<(Store, Cap), StartError> {
    let store = Store::open(state_dir).await?;
    store.set_changes_aside(now).await?;
    let (announced, unreadable) = store.events(now - KEPT).await?;
    problems.extend(unreadable);
    let caps = Cap::new(settings, announced).map_err(StartError::Cap)?;
    Ok((store, caps))
}

/// Raises the GPUs' energy counters in the journal to those of the stored checkpoints. A counter that is lower later
/// shows that the driver was reloaded since the checkpoint, and that the GPU has its default limit.
async fn update_counters(store: &Store, journal: &mut Journal) {
    for point in store.checkpoints().await.unwrap_or_default() {
        if let Ok(gpu) = GpuId::new(point.device.to_string()) {
            journal.update_counter(&gpu, point.counter);
        }
    }
}

/// Restores all original limits unless the node is `capped`, and waits until the GPUs have responded. Returns the
/// journal and the outcome for each GPU.
///
/// Under a cap, the ticks first lower GPUs and then restore the original limits that fit. The journal keeps the limits
/// that cannot be restored now, and every tick tries again.
async fn restore_limits(
    mut journal: Journal,
    handles: Vec<GpuHandle>,
    settings: &Settings,
    capped: bool,
    state_dir: &Path,
) -> Result<(Journal, Vec<(GpuId, Restored)>), StartError> {
    let (restore_timeout, patience) = (settings.restore_timeout(), settings.call_timeout_s);
    let restored = tokio::task::spawn_blocking(move || {
        let restored = if capped { Vec::new() } else { restore_all(&mut journal, &handles, restore_timeout) };
        await_answers(&handles, patience);
        (journal, restored)
    });
    match restored.await {
        Ok(done) => Ok(done),
        // If the closure panicked, the journal file still records what is to be restored.
        Err(_) => Ok((Journal::open(state_dir, journal::boot_id())?, Vec::new())),
    }
}

/// Reads the state that the last daemon left for the accounting.
async fn read_backlog(
    store: &Store,
    gpus: &Gpus,
    open_jobs: &[StoredJob],
    clock: &dyn Clock,
) -> Result<Backlog, StoreError> {
    // The earlier daemon's open intervals are recovered first, because everything below reads the ledger with them.
    let RecoveredState { last_seen, known_until } = store.recover_open_intervals().await?;
    let recovered = store.checkpoints().await?;
    let ended_occupancy = ended_since(store, &recovered).await?;
    let last_report =
        |job: &StoredJob| job.progress.last.map_or(job.registered_at, |last| last.received.max(job.registered_at));
    let last_reports = open_jobs.iter().map(|job| (job.id.clone(), last_report(job))).collect();
    let mut recorded_until = BTreeMap::new();
    for gpu in gpus.iter().filter(|gpu| gpu.handle.capabilities().energy_counter.is_err()) {
        let device = DeviceId::from(gpu.id());
        let known = known_until.get(&device).copied();
        if let Some(until) = store.recorded_until(&device).await?.max(known) {
            recorded_until.insert(device, until);
        }
    }
    let away = last_seen.map(|last_seen| Downtime::until_now(last_seen, clock));
    Ok(Backlog { recovered, recorded_until, last_reports, ended_occupancy, away, ..Backlog::default() })
}

impl Controller {
    /// Starts a controller: restores the original limits that an earlier daemon left changed, and continues that
    /// daemon's jobs and ledger.
    ///
    /// # Errors
    /// If the journal or the database is unusable. With an unusable database the original limits are restored first.
    pub async fn start(mut parts: Parts<'_>) -> Result<Self, StartError> {
        let mut journal = Journal::open(parts.state_dir, journal::boot_id())?;
        let handles = open_handles(parts.devices, &parts.clock, parts.sampling, parts.settings.call_timeout_s);
        let now = parts.clock.utc();
        let caps = read_caps(parts.state_dir, parts.cap, now, &mut parts.problems).await;
        if let Ok((store, _)) = &caps {
            update_counters(store, &mut journal).await;
        }
        let capped =
            !parts.settings.observe && caps.as_ref().is_ok_and(|(_, cap)| !cap.schedule(Watts::ZERO, now).is_empty());
        let left: Vec<_> = journal.entries().map(|(id, entry)| (id.clone(), entry.written.last().copied())).collect();
        // The limits are restored before any other step that could fail.
        let (journal, restored) =
            restore_limits(journal, handles.clone(), &parts.settings, capped, parts.state_dir).await?;
        let (store, cap) = caps?;
        let (open_jobs, unreadable) = store.open_jobs().await?;
        parts.problems.extend(unreadable);
        let gpus = Gpus::new(journal, handles, parts.sampling, parts.problems);
        let backlog = read_backlog(&store, &gpus, &open_jobs, &*parts.clock).await?;
        let fallback = parts.carbon.fallback_g_per_kwh;
        let signal = Signal::new(parts.signal, parts.price, fallback, parts.ranks, parts.clock.utc());
        let mut controller = Self {
            settings: parts.settings,
            profiling: parts.profiling,
            started_at: parts.clock.utc(),
            jobs: Jobs::new(parts.clock.now(), parts.scout),
            clock: parts.clock,
            store,
            gpus,
            cap,
            accounting: Accounting::new(parts.ledger, parts.carbon_budget, parts.cpu, backlog),
            savings: SavingsTracker::default(),
            planner: Planner::new(parts.planning),
            signal,
        };
        controller.record_restored(&restored, &left);
        controller.accounting.open_ledger(&controller.store, now).await?;
        controller.add_outcomes(now).await?;
        controller.gpus.observe();
        controller.continue_jobs(open_jobs).await;
        controller.accounting.recount_jobs(&mut node!(controller)).await;
        for problem in controller.cap.problems(&controller.snapshot().demand()) {
            tracing::warn!("{problem}");
        }
        Ok(controller)
    }

    /// Adds the outcomes of the jobs that ended lately to the savings.
    async fn add_outcomes(&mut self, now: DateTime<Utc>) -> Result<(), StoreError> {
        for stored in ended_lately(&self.store, now).await? {
            if let Some(outcome) = self.snapshot().outcome(&stored.id).await? {
                self.savings.add_outcome(&outcome);
            }
        }
        Ok(())
    }

    /// Continues the jobs that were open under the last daemon.
    async fn continue_jobs(&mut self, open_jobs: Vec<StoredJob>) {
        for job in open_jobs {
            let id = &job.id;
            match self.snapshot().make_job(&job).await {
                Ok(job) => {
                    tracing::info!(job.id = %id, "job {id} ({}) resumed after a restart; waiting for its next report", job.spec.name);
                    let controlled = if job.controls() { job.spec.gpus.clone() } else { Vec::new() };
                    if job.is_absent() {
                        self.jobs.add(job);
                        continue;
                    }
                    self.admit(job).await;
                    controlled.iter().for_each(|gpu| self.gpus.respect_external_limit(gpu));
                }
                Err(error) => tracing::error!(job.id = %id, "job {id} not resumed after a restart: {error}"),
            }
        }
    }
}
