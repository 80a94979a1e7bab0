//! `wattune serve`: runs the daemon.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, bail};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::devices::find_devices;
use super::output::Exit;
use super::privileges;
use super::settings::{OddVariables, Overrides};
use super::signals::{Hangup, stopped};
use super::state_dir::Lock;
use crate::clock::{AcceleratedClock, Clock, SystemClock};
use crate::config::Settings;
use crate::controller::{Controller, Ended, Handle, LedgerTerms, OnExit, Parts, PriceSignal, Requests, supervise};
use crate::cpu;
use crate::cpu::linux::LinuxNode;
use crate::cpu::watch::CpuHandle;
use crate::discovery::Scout;
use crate::gpu::handle::Sampling;
use crate::gpu::journal::JournalError;
use crate::gpu::restore::Restored;
use crate::http;
use crate::providers::{self, Feed, FeedHandle, FeedOptions};
use crate::recurring::Recurring;
use wattune_core::domain::GpuId;
use wattune_core::ledger::chain::Digest;
use wattune_core::units::Seconds;

/// Runs the daemon until SIGTERM, SIGINT or SIGQUIT; SIGHUP and other signals are ignored. When the daemon ends, it
/// restores the GPUs' original limits, under a cap as far as the cap allows; after a kill, the next start or
/// `wattune restore` does.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    overrides: Overrides,
}

/// The longest duration of a shutdown, restores included.
const SHUTDOWN_LIMIT: Seconds = Seconds::new(20.0);

/// Runs the daemon.
pub(super) fn run(args: Args) -> anyhow::Result<Exit> {
    let settings = args.overrides.settings()?;
    let renounced = privileges::renounce_others();
    settings.log.init();
    if let Some(odd) = OddVariables::present().describe_unknown() {
        tracing::warn!("{odd}");
    }
    // The addresses belong to this runtime, which has no threads of its own, until they are moved to the daemon's.
    let starting = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let opened = starting.block_on(open(&settings));
    if let Err(error) = renounced.and_then(|()| privileges::drop_unneeded()) {
        tracing::warn!("capabilities that the daemon does not need cannot be dropped: {error}");
    }
    let exit = opened.and_then(|opened| {
        let runtime = runtime()?;
        let exit = runtime.block_on(serve(settings.clone(), opened));
        // Threads that hang in a driver call must not keep the process alive.
        runtime.shutdown_background();
        exit
    });
    if exit.is_err() {
        restore_abandoned(&settings);
    }
    exit
}

/// Resources that the daemon opens before it drops the rights with which it was started.
struct Opened {
    server: http::Server,
    requests: Requests,
    ready: http::Ready,
    _lock: Lock,
}

/// Opens the state directory and the addresses. The rights that only this needs are dropped afterwards, before the
/// process starts a thread other than the log's, which drops its own.
async fn open(settings: &Settings) -> anyhow::Result<Opened> {
    let lock = Lock::take(&settings.state_dir())?;
    let (handle, requests) = Handle::queue();
    let ready = http::Ready::default();
    let server = http::Server::bind(&settings.http, handle, ready.clone()).await?;
    Ok(Opened { server, requests, ready, _lock: lock })
}

/// Creates the async runtime. One thread is enough, because the daemon mostly waits, and work that takes long has
/// threads of its own, or leaves the thread to the other tasks ([`blocking::in_place`](crate::blocking::in_place)).
/// With two threads on two processors, the 99th percentile of readings for 16 clients that ask without a pause was ten
/// times as long (`benches/zeusd.py`).
pub(super) fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()
}

/// Restores limits that an earlier daemon left behind, because this daemon cannot run.
fn restore_abandoned(settings: &Settings) {
    if !settings.cap.is_empty() && settings.cap.on_exit == OnExit::Keep {
        tracing::warn!(
            "limits that an earlier daemon set stay in force, because the node has a cap and cap.on_exit is \"keep\"; `wattune \
             restore` ignores the cap and restores all original limits"
        );
        return;
    }
    match super::restore::restore_journalled(settings) {
        Ok(lines) => lines.iter().for_each(|l| tracing::warn!(gpu.uuid = l.gpu, "GPU {}: {}", l.gpu, l.detail)),
        Err(error) => tracing::debug!("cannot restore limits of an earlier daemon: {error:#}"),
    }
}

/// Returns what the ledger records about the daemon that writes it: host, settings of the ledger, and a digest of all
/// settings. The settings contain the locations of secrets, never secrets.
fn ledger_terms(settings: &Settings) -> LedgerTerms {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let digest = serde_json::to_string(settings).map(|json| Digest::of(&json)).unwrap_or_default();
    LedgerTerms { settings: settings.ledger.clone(), host: host.trim().to_owned(), digest }
}

async fn serve(settings: Settings, opened: Opened) -> anyhow::Result<Exit> {
    let state_dir = settings.state_dir();
    // From here on, every signal that ends the daemon leads to an orderly shutdown.
    let stopped = stopped(Hangup::Ignored);
    let Opened { server, requests, ready, _lock } = opened;
    let server = server.into_this_runtime()?;
    let clock = clock(&settings)?;
    let (devices, mut problems, arrivals) = find_devices(&settings, &clock)?;
    tracing::info!(
        "wattune {} with {} GPU(s), state in {}",
        env!("CARGO_PKG_VERSION"),
        devices.len(),
        state_dir.display()
    );
    let stop_feeds = CancellationToken::new();
    let feed = carbon_feed(&settings, &state_dir, &clock, &stop_feeds, &mut problems).await?;
    let price = price(&settings, &state_dir, &clock, &stop_feeds).await?;
    let ledger = ledger_terms(&settings);
    let speed = settings.gpus.simulated.clock_speed;
    // On another clock than the machine's, its CPUs' power has no meaning, and simulated GPUs are read at each tick.
    let is_real_time = speed == 1;
    if !is_real_time {
        problems.push(format!("the clock is simulated: it runs {speed} times as fast as the machine's"));
    }
    let every = |period| if is_real_time { Sampling::Every(period) } else { Sampling::OnRequest };
    let cpu_settings = cpu::Settings { enabled: settings.cpu.enabled && is_real_time, ..settings.cpu.clone() };
    let parts = Parts {
        sampling: every(settings.control.sample_s),
        scout: settings.discovery.enabled.then(|| Scout::start(settings.discovery, settings.cpu.proc_root.clone())),
        cpu: Some(cpu(&cpu_settings, every(settings.cpu.sample_s), &clock)),
        settings: settings.control,
        profiling: settings.profile,
        planning: settings.plan,
        carbon: settings.carbon,
        cap: settings.cap,
        carbon_budget: settings.carbon_budget,
        ledger,
        state_dir: &state_dir,
        clock: clock.clone(),
        devices,
        signal: feed.state.clone(),
        ranks: feed.ranks(),
        price,
        problems,
    };
    let mut controller = Controller::start(parts).await?;
    if let Some(arrivals) = arrivals {
        controller.await_arrivals(arrivals);
    }
    announce(&server);
    let (stop_serving, stop_control) = (CancellationToken::new(), CancellationToken::new());
    let recurring = Recurring::new(controller.store(), clock.clone()).with(settings.recurring.clone());
    let devices = controller.devices();
    let tasks = Tasks {
        serving: tokio::spawn(server.serve(recurring, devices, settings.zeus, stop_serving.clone())),
        controlling: tokio::spawn(supervise(controller, requests, stop_control.clone())),
        ready,
        stop_serving,
        stop_control,
        stop_feeds,
    };
    tasks.run_until(stopped).await
}

/// Starts the feed of the carbon signal. Adds advice on its sources to `problems`.
async fn carbon_feed(
    settings: &Settings,
    state_dir: &Path,
    clock: &Arc<dyn Clock>,
    cancel: &CancellationToken,
    problems: &mut Vec<String>,
) -> anyhow::Result<FeedHandle> {
    let sources = providers::build(&settings.carbon, Some(state_dir))?;
    // Without a zone, the configured constant is intended and needs no advice.
    if let Some(advice) = providers::advice(&settings.carbon).filter(|_| settings.carbon.zone.is_some()) {
        tracing::warn!("carbon signal: {advice}");
        problems.push(format!("carbon signal: {advice}"));
    }
    let options = FeedOptions {
        signal: "carbon",
        cache_dir: Some(state_dir.to_path_buf()),
        jump_factor: settings.carbon.jump_factor,
        fetch_actuals: true,
    };
    Ok(Feed::spawn(sources, options, clock.clone(), cancel.child_token()).await)
}

/// Logs the addresses at which the daemon listens.
fn announce(server: &http::Server) {
    if let Some(address) = server.tcp_address() {
        tracing::info!("listening on http://{address}");
        match (address.ip().is_loopback(), server.has_tls()) {
            (false, false) => tracing::warn!(
                "{address} can be reached from other machines without TLS: they can only read, and their tokens can be \
                 intercepted; set http.tls_cert and http.tls_key"
            ),
            (_, true) => tracing::info!("TLS on https://{address}"),
            (true, false) => {}
        }
    }
    if let Some(path) = server.socket_path() {
        tracing::info!("listening on {}", path.display());
    }
}

/// The daemon's tasks, and what stops them.
struct Tasks {
    serving: JoinHandle<()>,
    controlling: JoinHandle<Result<Ended, JournalError>>,
    ready: http::Ready,
    stop_serving: CancellationToken,
    stop_control: CancellationToken,
    stop_feeds: CancellationToken,
}

impl Tasks {
    /// Runs the daemon until a signal stops it. Each task runs until it is stopped; if one ends earlier, the daemon ends.
    async fn run_until(mut self, stopped: impl Future<Output = ()>) -> anyhow::Result<Exit> {
        self.ready.set(true);
        let is_signalled = tokio::select! {
            () = stopped => true,
            _ = &mut self.serving => false,
            outcome = &mut self.controlling => {
                self.stop_serving.cancel();
                self.stop_feeds.cancel();
                outcome.context("the control loop's supervisor died")??;
                return Ok(Exit::Failed);
            }
        };
        if is_signalled {
            tracing::info!("stopping: restoring the GPUs' original limits");
        } else {
            tracing::error!("the API ended unexpectedly; stopping");
        }
        self.shut_down(is_signalled).await
    }

    /// Stops all tasks, and waits until the control loop has restored the GPUs' original limits.
    async fn shut_down(self, is_signalled: bool) -> anyhow::Result<Exit> {
        self.ready.set(false);
        self.stop_serving.cancel();
        self.stop_control.cancel();
        self.stop_feeds.cancel();
        let Ok(outcome) = tokio::time::timeout(SHUTDOWN_LIMIT.to_std(), self.controlling).await else {
            bail!("the shutdown exceeded {SHUTDOWN_LIMIT}; `wattune restore` restores the remaining GPUs");
        };
        let outcome = outcome.context("the control loop's supervisor died")??;
        Ok(if is_signalled && outcome.died.is_none() { exit_of(&outcome.restored) } else { Exit::Failed })
    }
}

/// Returns the daemon's clock: the machine's, unless simulated GPUs have a faster one.
///
/// # Errors
/// If the faster clock is to start later than now: it would show a time long past until then.
pub(super) fn clock(settings: &Settings) -> anyhow::Result<Arc<dyn Clock>> {
    let simulated = &settings.gpus.simulated;
    let machine = SystemClock::start();
    match simulated.clock_start.filter(|_| simulated.clock_speed > 1) {
        Some(start) if start > machine.utc() => {
            let start = start.format("%FT%TZ");
            bail!("gpus.simulated.clock_start = \"{start}\" is in the future; give the present time")
        }
        Some(start) => Ok(Arc::new(AcceleratedClock::since(start, simulated.clock_speed))),
        None => Ok(Arc::new(machine)),
    }
}

/// Returns the CPUs of this machine.
fn cpu(settings: &cpu::Settings, sampling: Sampling, clock: &Arc<dyn Clock>) -> CpuHandle {
    let node = LinuxNode::new(settings, clock.clone());
    CpuHandle::start(Box::new(node), clock.clone(), sampling)
}

/// Returns the price feed, if a price source is configured.
async fn price(
    settings: &Settings,
    state_dir: &Path,
    clock: &Arc<dyn Clock>,
    cancel: &CancellationToken,
) -> anyhow::Result<Option<PriceSignal>> {
    let sources = providers::build_price(&settings.price, &settings.carbon, Some(state_dir))?;
    if sources.is_empty() {
        return Ok(None);
    }
    let options = FeedOptions {
        signal: "price",
        cache_dir: Some(state_dir.to_path_buf()),
        // Auction prices may jump and are correct nevertheless, so no price is quarantined (ignored until confirmed).
        jump_factor: f64::INFINITY,
        fetch_actuals: false,
    };
    let feed = Feed::spawn(sources, options, clock.clone(), cancel.child_token()).await;
    Ok(Some(PriceSignal { state: feed.state, currency: settings.price.counted_in() }))
}

fn exit_of(restored: &[(GpuId, Restored)]) -> Exit {
    let failed = restored.iter().any(|(_, outcome)| matches!(outcome, Restored::Failed { .. }));
    if failed { Exit::Failed } else { Exit::Done }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_faster_clock_may_not_start_in_the_future() {
        let with = |start: &str| {
            let mut settings = Settings::default();
            settings.gpus.simulated.clock_speed = 240;
            settings.gpus.simulated.clock_start = Some(start.parse().expect("a time"));
            clock(&settings).map(|clock| clock.utc())
        };
        let why = with("9999-01-01T00:00:00Z").expect_err("in the future").to_string();
        assert!(why.contains("clock_start = \"9999-01-01T00:00:00Z\" is in the future"), "{why}");
        assert!(with("2026-01-01T00:00:00Z").is_ok_and(|now| now > SystemClock::start().utc()));
    }
}
