//! Whatever ends the daemon, GPUs get their found limits back, and the ledger lose no joule.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde_json::json;
use tokio_util::sync::CancellationToken;
use wattune::clock::{Clock, SystemClock};
use wattune::controller::{self, Caller, Controller, GpuRef, Handle, Parts};
use wattune::gpu::handle::Sampling;
use wattune::gpu::simulated::{Physics, SimulatedGpu};
use wattune::providers::FeedState;
use wattune_core::domain::{LimitRange, PowerLimit};
use wattune_core::time::Monotonic;
use wattune_core::units::{Seconds, Watts};

use crate::nvml::{CURVE, gpu};
use crate::support::{Daemon, FakeDriver, LedgerFile, Training, eventually, forecast_file, journal, output_text};

const LONG: Duration = Duration::from_secs(60);

/// The limit that [`gpu`] is found at.
const FOUND: Option<f64> = Some(280.0);

/// Where the counters of [`counting`] GPUs begin.
const START_MJ: i64 = 5_000_000;

/// A GPU that draws nothing yet, so that its counter's value at the daemon's first look is known.
fn counting() -> serde_json::Value {
    let mut gpu = gpu();
    let fields = json!({"demand_w": 0, "initial_energy_j": START_MJ / 1000});
    gpu.as_object_mut().expect("an object").extend(fields.as_object().expect("an object").clone());
    gpu
}

fn job(objective: serde_json::Value) -> serde_json::Value {
    json!({"name": "resnet50", "gpus": [0], "work": {"total_samples": 1_000_000}, "objective": objective, "lease_s": 60})
}

/// Waits for the first look at a [`counting`] GPU, then lets it work.
async fn begin_counting(ledger: &LedgerFile, driver: &FakeDriver, gpu: usize) {
    eventually("the first look", LONG, async || ledger.of(gpu).1).await;
    assert_eq!(ledger.of(gpu), (Vec::new(), Some(START_MJ)));
    driver.set(gpu, json!({"demand_w": 400}));
}

#[tokio::test]
async fn a_killed_daemon_is_taken_up_where_it_was() {
    let driver = Arc::new(FakeDriver::new(&[counting()]));
    let state = tempfile::tempdir().expect("a directory");
    let daemon = Daemon::start(Daemon::command(&driver, state.path()), state.path()).await;
    let ledger = LedgerFile::open(state.path());
    begin_counting(&ledger, &driver, 0).await;
    let id = daemon.register(&job(json!({}))).await;
    let training = Training::start(daemon.base(), &id, &driver, vec![(0, CURVE)], 0.0);
    eventually("the second rung", LONG, async || (!driver.limits_written(0).is_empty()).then_some(())).await;
    daemon.kill();
    assert_eq!(driver.limits_written(0), [230.0]);
    let (before, checkpoint) = ledger.of(0);
    assert!(before.iter().all(|r| r.source == "counter"), "{before:?}");
    tokio::time::sleep(Duration::from_secs(1)).await;

    let daemon = Daemon::start(Daemon::command(&driver, state.path()), state.path()).await;
    assert_eq!(driver.limit_w(0), FOUND, "given back before anything else");
    assert!(!journal(state.path()).contains("found_mw"));
    // The gap is one interval, known from the counter, and its job's: the lease was not over.
    let gap =
        eventually("the gap", LONG, async || ledger.of(0).0.into_iter().find(|r| r.source == "counter_gap")).await;
    assert_eq!(gap.job.as_deref(), Some(id.as_str()));
    // It begins where the rows end that the killed daemon wrote, or left open.
    let rows = ledger.of(0).0;
    let kept = rows.iter().rfind(|r| r.start_us < gap.start_us).expect("what the daemon had seen");
    assert_eq!((kept.end_us, kept.source.as_str()), (gap.start_us, "counter"), "{rows:#?}");
    assert!(gap.energy_mj > 230_000, "more than a second at 230 W: {gap:?}");
    assert!(checkpoint.is_some_and(|c| c >= START_MJ));
    // The job is waited for; what was measured is still known.
    let view = daemon.get(&format!("/v1/jobs/{id}")).await.expect(200);
    assert_eq!(view["phase"], "waiting");
    let profile = daemon.get(&format!("/v1/jobs/{id}/profile")).await.expect(200);
    assert!(profile["points"][0]["measured_s"].as_f64().expect("measured") >= 5.0, "{profile}");
    assert_eq!(profile["measuring_w"], json!([230.0]), "the sweep is not started over");
    training.report_to(daemon.base());
    let view = daemon.phase(&id, "profiling").await;
    assert_eq!(view["power_limit_w"], 230.0);
    eventually("the renewed lease", LONG, async || {
        let view = daemon.get(&format!("/v1/jobs/{id}")).await.expect(200);
        (view["lease_left_s"].as_f64()? > 59.0).then_some(())
    })
    .await;
    eventually("the rung again", LONG, async || (driver.limit_w(0) == Some(230.0)).then_some(())).await;
    let answers = training.stop().await;
    assert!(answers.iter().all(|a| a.get("phase").is_some()), "{:?}", answers.iter().find(|a| a["phase"].is_null()));
    assert!(daemon.stop("TERM").await.success());
    assert_eq!(driver.limit_w(0), FOUND);

    let (rows, checkpoint) = ledger.of(0);
    let recorded: i64 = rows.iter().map(|r| r.energy_mj).sum();
    assert_eq!(recorded, checkpoint.expect("there") - START_MJ, "{rows:#?}");
    assert_eq!(rows.iter().filter(|r| r.source == "counter_gap").count(), 1, "{rows:#?}");
    assert!(rows.iter().all(|r| ["counter", "counter_gap"].contains(&r.source.as_str())), "{rows:#?}");
    assert!(rows.windows(2).all(|w| w[1].start_us >= w[0].end_us), "{rows:#?}");
    assert!(recorded as f64 / 1e3 <= driver.counter_j(0) - START_MJ as f64 / 1e3);
}

#[tokio::test]
async fn restore_gives_back_what_a_killed_daemon_planned() {
    let driver = Arc::new(FakeDriver::new(&[gpu(), gpu()]));
    let state = tempfile::tempdir().expect("a directory");
    let carbon = forecast_file(&state, 60, 30, |_| 400.0);
    // Two rungs make a short sweep.
    let settings = format!("{}lowest_w = 230\n", Daemon::QUICK);
    let mut command = Daemon::command_set(&driver, state.path(), &settings);
    command.arg("--carbon-file").arg(carbon);
    let daemon = Daemon::start(command, state.path()).await;
    let id = daemon.register(&job(json!({"max_slowdown": 0.5}))).await;
    let training = Training::start(daemon.base(), &id, &driver, vec![(0, CURVE)], 0.0);
    daemon.phase(&id, "planned").await;
    daemon.hold(&driver, 1, 150.0).await;
    eventually("a planned limit", LONG, async || (driver.limit_w(0) == Some(230.0)).then_some(())).await;
    let refusal = output_text(&Daemon::restore(&driver, state.path()), 1);
    assert!(refusal.contains("another wattune owns the state directory"), "{refusal}");
    assert_eq!(driver.limit_w(0), Some(230.0), "a running daemon is left alone");
    daemon.kill();
    let said = output_text(&Daemon::restore(&driver, state.path()), 0);
    assert_eq!(said.matches(": restored to its original limit of 280 W\n").count(), 2, "{said}");
    assert_eq!((driver.limit_w(0), driver.limit_w(1)), (FOUND, FOUND));
    assert!(!journal(state.path()).contains("found_mw"));
    let said = output_text(&Daemon::restore(&driver, state.path()), 0);
    assert!(said.contains("nothing to restore"), "{said}");
    training.stop().await;
}

#[tokio::test]
async fn every_polite_end_gives_the_limits_back() {
    for signal in ["TERM", "INT", "QUIT"] {
        let driver = FakeDriver::new(&[gpu(), gpu()]);
        let state = tempfile::tempdir().expect("a directory");
        let daemon = Daemon::start(Daemon::command(&driver, state.path()), state.path()).await;
        daemon.hold(&driver, 0, 150.0).await;
        assert!(journal(state.path()).contains("\"found_mw\": 280000"));
        assert_eq!(daemon.stop(signal).await.code(), Some(0), "{signal}");
        assert_eq!(driver.limit_w(0), FOUND, "{signal}");
        assert!(!journal(state.path()).contains("found_mw"), "{signal}");
        assert!(driver.limits_written(1).is_empty());
    }
}

#[tokio::test]
async fn a_silent_job_loses_its_gpus() {
    let driver = Arc::new(FakeDriver::new(&[gpu()]));
    let state = tempfile::tempdir().expect("a directory");
    let daemon = Daemon::start(Daemon::command(&driver, state.path()), state.path()).await;
    let mut job = job(json!({}));
    job["lease_s"] = json!(5);
    let id = daemon.register(&job).await;
    let training = Training::start(daemon.base(), &id, &driver, vec![(0, CURVE)], 0.0);
    eventually("the second rung", LONG, async || (driver.limit_w(0) == Some(230.0)).then_some(())).await;
    training.stop().await;
    let ended = eventually("the lease's end", LONG, async || {
        let view = daemon.get(&format!("/v1/jobs/{id}")).await.expect(200);
        view["ended_at"].is_string().then_some(view)
    })
    .await;
    assert_eq!(ended["end_reason"], "lease expired");
    eventually("the found limit", LONG, async || (driver.limit_w(0) == FOUND).then_some(())).await;
    let late = daemon.post(&format!("/v1/jobs/{id}/progress"), &json!({"samples": 1e6})).await.expect(409);
    assert!(late["detail"].as_str().expect("a sentence").contains("lease expired"), "{late}");
    assert_eq!(daemon.gpu(0).await["state"], "free");
}

#[tokio::test]
async fn a_daemon_that_was_stopped_for_longer_than_a_lease_ends_no_living_job() {
    let driver = Arc::new(FakeDriver::new(&[gpu()]));
    let state = tempfile::tempdir().expect("a directory");
    let daemon = Daemon::start(Daemon::command(&driver, state.path()), state.path()).await;
    let mut job = job(json!({}));
    job["lease_s"] = json!(2);
    let id = daemon.register(&job).await;
    let training = Training::start(daemon.base(), &id, &driver, vec![(0, CURVE)], 0.0);
    daemon.signal("STOP");
    tokio::time::sleep(Duration::from_secs(5)).await;
    daemon.signal("CONT");
    tokio::time::sleep(Duration::from_secs(3)).await;
    let view = daemon.get(&format!("/v1/jobs/{id}")).await.expect(200);
    assert!(view["ended_at"].is_null(), "{view}");
    training.stop().await;
    eventually("the lease's end", LONG, async || {
        let view = daemon.get(&format!("/v1/jobs/{id}")).await.expect(200);
        view["ended_at"].is_string().then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_write_on_its_way_does_not_outlive_the_shutdown() {
    let driver = FakeDriver::new(&[gpu()]);
    let state = tempfile::tempdir().expect("a directory");
    let daemon = Daemon::start(Daemon::command(&driver, state.path()), state.path()).await;
    driver.set(0, json!({"slow_ms": 1500, "slow_calls": ["nvmlDeviceSetPowerManagementLimit"]}));
    tokio::time::sleep(Duration::from_millis(100)).await;
    let body = json!({"power_limit_w": 150, "ttl_s": 3600});
    daemon.put("/v1/gpus/0/power-limit", &body).await.expect(200);
    assert_eq!(daemon.stop("TERM").await.code(), Some(0));
    assert_eq!(driver.limit_w(0), FOUND);
    assert!(!journal(state.path()).contains("found_mw"));
}

#[tokio::test]
async fn a_gpu_that_hangs_at_the_end_holds_up_no_other() {
    let driver = FakeDriver::new(&[gpu(), gpu()]);
    let state = tempfile::tempdir().expect("a directory");
    let daemon = Daemon::start(Daemon::command(&driver, state.path()), state.path()).await;
    daemon.hold(&driver, 0, 150.0).await;
    daemon.hold(&driver, 1, 160.0).await;
    driver.set(0, json!({"slow_ms": 600_000}));
    eventually("silence", LONG, async || (daemon.gpu(0).await["state"] == "unresponsive").then_some(())).await;
    assert_eq!(daemon.stop("TERM").await.code(), Some(1), "one GPU is not back");
    assert_eq!((driver.limit_w(0), driver.limit_w(1)), (Some(150.0), FOUND));
    let left = journal(state.path());
    assert!(left.contains(&FakeDriver::uuid(0)) && !left.contains(&FakeDriver::uuid(1)), "{left}");
    driver.set(0, json!({"slow_ms": 0}));
    output_text(&Daemon::restore(&driver, state.path()), 0);
    assert_eq!(driver.limit_w(0), FOUND);
}

#[tokio::test]
async fn a_daemon_that_cannot_start_gives_back_all_the_same() {
    let driver = FakeDriver::new(&[gpu()]);
    let state = tempfile::tempdir().expect("a directory");
    let daemon = Daemon::start(Daemon::command(&driver, state.path()), state.path()).await;
    daemon.hold(&driver, 0, 150.0).await;
    daemon.kill();
    // Its address is in use now.
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("bound").to_string();
    let said = output_text(&Daemon::command_at(&driver, state.path(), &address).output().expect("runs"), 1);
    assert!(said.contains(&address), "{said}");
    assert_eq!(driver.limit_w(0), FOUND);

    let daemon = Daemon::start(Daemon::command(&driver, state.path()), state.path()).await;
    daemon.hold(&driver, 0, 150.0).await;
    daemon.kill();
    // Its ledger is beyond use.
    std::fs::remove_file(state.path().join("wattune.db-wal")).expect("removed");
    std::fs::write(state.path().join("wattune.db"), "this is no database ".repeat(500)).expect("written");
    let said = output_text(&Daemon::command(&driver, state.path()).output().expect("runs"), 1);
    assert!(said.contains("wattune.db") || said.contains("database"), "{said}");
    assert_eq!(driver.limit_w(0), FOUND);
}

/// The machine's clock, until it is armed: then the next thread that is not a GPU's panics, once.
struct Fragile {
    clock: SystemClock,
    armed: AtomicBool,
}

impl Clock for Fragile {
    fn utc(&self) -> DateTime<Utc> {
        self.clock.utc()
    }

    fn monotonic(&self) -> Monotonic {
        let gpu = std::thread::current().name().is_some_and(|n| n.starts_with("gpu"));
        assert!(gpu || !self.armed.swap(false, Ordering::Relaxed), "the clock broke, as it was told to");
        self.clock.monotonic()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bug_in_the_loop_gives_the_limits_back() {
    let watts = |w: u32| PowerLimit::from_milliwatts(w * 1000);
    let state = tempfile::tempdir().expect("a directory");
    let clock = Arc::new(Fragile { clock: SystemClock::start(), armed: AtomicBool::new(false) });
    let physics = Physics {
        range: LimitRange { min: watts(100), max: watts(350), default: watts(320) },
        original_limit: watts(280),
        idle: Watts::new(25.0),
        settling: Seconds::new(0.1),
        noise: 0.0,
        seed: 1,
    };
    let hardware = SimulatedGpu::new(physics, clock.clone());
    let feed = FeedState::starting(Vec::new(), crate::support::now());
    let (_feed, signal) = tokio::sync::watch::channel(feed);
    let parts = Parts {
        settings: controller::Settings { tick_s: Seconds::new(0.1), ..controller::Settings::default() },
        ..Parts::new(
            state.path(),
            clock.clone(),
            vec![Box::new(hardware.device(0, "Fragile"))],
            Sampling::Every(Seconds::new(0.05)),
            signal,
        )
    };
    let controller = Controller::start(parts).await.expect("starts");
    let (handle, requests) = Handle::queue();
    let running = tokio::spawn(controller::supervise(controller, requests, CancellationToken::new()));
    let asked = handle.ask(|controller| {
        Box::pin(async move {
            controller
                .set_override(&GpuRef::Index(0), Watts::new(150.0), Seconds::new(3600.0), Caller::Local)
                .await
                .map(drop)
        })
    });
    asked.await.expect("answered").expect("granted");
    eventually("the limit by hand", LONG, async || (hardware.limit() == watts(150)).then_some(())).await;
    clock.armed.store(true, Ordering::Relaxed);
    let ended = running.await.expect("the supervisor survives").expect("the journal is readable");
    assert!(ended.died.is_some_and(|why| why.contains("panic")));
    assert_eq!(hardware.limit(), watts(280));
    assert_eq!(ended.restored.len(), 1);
    assert!(!journal(state.path()).contains("found_mw"));
}
