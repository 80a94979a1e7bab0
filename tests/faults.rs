//! One fault of hardware, driver or neighbours each: the daemon stays up and says what is wrong, other GPUs are
//! served, totals stay right or are marked.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use crate::nvml::{CURVE, gpu};
use crate::support::{Daemon, FakeDriver, LedgerFile, Training, eventually, forecast_file, journal};

const LONG: Duration = Duration::from_secs(60);
const DEFAULT_LIMIT: &str = "nvmlDeviceGetPowerManagementDefaultLimit";

struct Case {
    driver: Arc<FakeDriver>,
    state: tempfile::TempDir,
    daemon: Daemon,
}

impl Case {
    async fn start(gpus: &[Value]) -> Self {
        Self::start_with(gpus, Daemon::QUICK, &[]).await
    }

    /// With a driver that lacks `symbols`.
    async fn start_with(gpus: &[Value], settings: &str, symbols: &[&str]) -> Self {
        let driver = Arc::new(FakeDriver::new(gpus));
        let state = tempfile::tempdir().expect("a directory");
        let library = if symbols.is_empty() { FakeDriver::library() } else { driver.library_without(symbols) };
        let command = Daemon::command_with(&driver, state.path(), &library, settings);
        let daemon = Daemon::start(command, state.path()).await;
        Self { driver, state, daemon }
    }

    async fn register(&self, gpu: usize) -> String {
        let job = json!({"name": "resnet50", "gpus": [gpu], "work": {"total_samples": 1_000_000}, "lease_s": 60});
        self.daemon.register(&job).await
    }

    fn train(&self, id: &str, gpu: usize) -> Training {
        Training::start(self.daemon.base(), id, &self.driver, vec![(gpu, CURVE)], 0.0)
    }

    /// Waits until a GPU's view satisfies `when`, and answers with it.
    async fn gpu(&self, what: &str, gpu: usize, when: impl Fn(&Value) -> bool) -> Value {
        eventually(what, LONG, async || Some(self.daemon.gpu(gpu).await).filter(|view| when(view))).await
    }

    async fn state(&self, gpu: usize, wanted: &str) -> Value {
        self.gpu(wanted, gpu, |view| view["state"] == wanted).await
    }

    async fn limit(&self, gpu: usize, watts: f64) {
        eventually("the limit", LONG, async || (self.driver.limit_w(gpu) == Some(watts)).then_some(())).await;
    }

    /// The next daemon.
    async fn again(driver: Arc<FakeDriver>, state: tempfile::TempDir) -> Self {
        let command = Daemon::command_with(&driver, state.path(), &FakeDriver::library(), Daemon::QUICK);
        let daemon = Daemon::start(command, state.path()).await;
        Self { driver, state, daemon }
    }

    fn journal(&self) -> String {
        journal(self.state.path())
    }

    /// Ends the daemon in order: GPUs must have `limits` then, and nothing is left to restore.
    async fn stop(self, limits: &[f64]) -> tempfile::TempDir {
        assert_eq!(self.daemon.stop("TERM").await.code(), Some(0));
        let now: Vec<_> = (0..limits.len()).map(|b| self.driver.limit_w(b).expect("known")).collect();
        assert_eq!(now, limits);
        let left = journal(self.state.path());
        assert!(!left.contains("found_mw"), "{left}");
        self.state
    }
}

fn text(view: &Value, field: &str) -> String {
    view[field].as_str().unwrap_or_default().to_owned()
}

fn close(a: f64, b: f64) -> bool {
    (a / b - 1.0).abs() < 0.02
}

/// GPU 0's whole energy in the ledger against GPU 1's, which draws the same and is fine.
async fn recorded_alike(state: &tempfile::TempDir) -> LedgerFile {
    let ledger = LedgerFile::open(state.path());
    let (odd, sound) = (ledger.total_j(0), ledger.total_j(1));
    assert!(close(odd, sound), "{odd} J, {sound} J");
    ledger
}

#[tokio::test]
async fn a_counter_that_starts_again_loses_no_energy() {
    let same = json!({"demand_w": 200, "initial_energy_j": 90_000});
    let case = Case::start(&[same.clone(), same]).await;
    let energy = async |least: f64| {
        case.gpu("energy", 0, |view| view["energy_j"].as_f64().is_some_and(|e| e > least)).await;
    };
    energy(400.0).await;
    case.driver.set(0, json!({"energy_resets": 1}));
    let view = case.gpu("the reset", 0, |view| view["counter_resets"] == 1).await;
    assert_eq!(view["state"], "free");
    energy(1200.0).await;
    let state = case.stop(&[300.0, 300.0]).await;
    let ledger = recorded_alike(&state).await;
    let (rows, checkpoint) = ledger.of(0);
    let estimated: i64 = rows.iter().filter(|r| r.source == "integrated_power").map(|r| r.energy_mj).sum();
    assert!(estimated > 0 && checkpoint.is_some_and(|c| c < 90_000_000), "{rows:#?}");
}

#[tokio::test]
async fn a_counter_that_jumps_forward_is_not_believed() {
    let same = json!({"demand_w": 200, "initial_energy_j": 90_000});
    let case = Case::start(&[same.clone(), same]).await;
    let energy = async |least: f64| {
        case.gpu("energy", 0, |view| view["energy_j"].as_f64().is_some_and(|e| e > least)).await;
    };
    energy(400.0).await;
    case.driver.jump_counter(0, 10_000_000);
    eventually("the problem", LONG, async || {
        case.daemon.problems().await.contains("but the GPU can have used").then_some(())
    })
    .await;
    let metrics = case.daemon.get("/metrics").await.text;
    let line = |l: &&str| l.starts_with("wattune_gpu_problem{") && l.contains("kind=\"energy\"") && l.ends_with(" 1.0");
    assert!(metrics.lines().any(|l| line(&l)), "{metrics}");
    energy(1200.0).await;
    let state = case.stop(&[300.0, 300.0]).await;
    let ledger = recorded_alike(&state).await;
    let estimated: i64 = ledger.of(0).0.iter().filter(|r| r.source == "integrated_power").map(|r| r.energy_mj).sum();
    assert!(estimated > 0, "marked as estimated");
}

#[tokio::test]
async fn a_counter_that_jumps_while_no_daemon_runs_is_not_believed_either() {
    let case = Case::start(&[json!({"demand_w": 200})]).await;
    case.gpu("energy", 0, |view| view["energy_j"].as_f64().is_some_and(|e| e > 400.0)).await;
    let Case { driver, state, daemon } = case;
    assert!(daemon.stop("TERM").await.success());
    driver.jump_counter(0, 10_000_000);
    let case = Case::again(driver, state).await;
    case.gpu("energy", 0, |view| view["energy_j"].as_f64().is_some_and(|e| e > 400.0)).await;
    let state = case.stop(&[300.0]).await;
    let recorded = LedgerFile::open(state.path()).total_j(0);
    // A daemon shows energy from its first reading on; the first row of a new ledger begins at its first tick, up to half a
    // second later on a busy machine.
    assert!((700.0..5_000.0).contains(&recorded), "{recorded} J");
}

#[tokio::test]
async fn a_counter_that_disagrees_with_the_power_readings_is_a_problem_with_both_figures() {
    let case = Case::start(&[json!({"demand_w": 100})]).await;
    // Twice what is drawn, which is still below what the GPU could draw.
    let problems = eventually("the problem", LONG, async || {
        case.driver.jump_counter(0, 100);
        tokio::time::sleep(Duration::from_secs(1)).await;
        Some(case.daemon.problems().await).filter(|problems| problems.contains("one of the two is wrong"))
    })
    .await;
    assert!(problems.contains("and by its power readings 100 W"), "{problems}");
    let view = case.daemon.gpu(0).await;
    assert!(view["counter_over_power"].as_f64().is_some_and(|ratio| ratio > 1.5), "{view}");
    case.stop(&[300.0]).await;
}

#[tokio::test]
async fn a_lost_gpu_comes_back_to_its_job() {
    let case = Case::start(&[gpu(), gpu()]).await;
    let id = case.register(0).await;
    let training = case.train(&id, 0);
    case.limit(0, 230.0).await;
    case.driver.set(0, json!({"lost": true}));
    let view = case.state(0, "lost").await;
    assert!(text(&view, "detail").contains("the GPU is lost"), "{view}");
    assert!(view["power_w"].is_null() && view["power_limit_requested_w"].is_null(), "absent is not zero: {view}");
    assert_eq!(view["power_limit_original_w"], 280.0);
    let job = case.daemon.phase(&id, "observing").await;
    assert!(text(&job, "reason").contains("GPU 0") && text(&job, "reason").contains("lost"), "{job}");
    assert!(case.daemon.problems().await.contains("GPU 0: "));
    let refused = json!({"power_limit_w": 150, "ttl_s": 3600});
    let refused = case.daemon.put("/v1/gpus/0/power-limit", &refused).await.expect(403);
    assert!(text(&refused, "detail").contains("lost"), "{refused}");
    case.daemon.hold(&case.driver, 1, 150.0).await;
    assert!(case.journal().contains(&FakeDriver::uuid(0)), "its found limit is still owed");
    case.driver.set(0, json!({"lost": false}));
    case.daemon.phase(&id, "profiling").await;
    case.state(0, "job").await;
    assert_eq!(case.daemon.problems().await, "");
    training.stop().await;
    case.daemon.delete(&format!("/v1/jobs/{id}")).await.expect(200);
    case.limit(0, 280.0).await;
    case.stop(&[280.0, 280.0]).await;
}

#[tokio::test]
async fn a_job_that_ends_while_its_gpu_is_lost_still_gives_it_back() {
    let case = Case::start(&[gpu()]).await;
    let id = case.register(0).await;
    let training = case.train(&id, 0);
    case.limit(0, 230.0).await;
    training.stop().await;
    case.driver.set(0, json!({"lost": true, "back_with_default_limit": true}));
    case.state(0, "lost").await;
    case.daemon.delete(&format!("/v1/jobs/{id}")).await.expect(200);
    case.driver.set(0, json!({"lost": false}));
    case.limit(0, 280.0).await;
    case.state(0, "free").await;
    case.stop(&[280.0]).await;
}

#[tokio::test]
async fn without_permission_a_job_is_only_observed() {
    let mut denied = gpu();
    denied["deny_set_limit"] = json!(true);
    let case = Case::start(&[denied, gpu()]).await;
    let id = case.register(0).await;
    let training = case.train(&id, 0);
    let job = case.daemon.phase(&id, "observing").await;
    let why = "nvmlDeviceSetPowerManagementLimit: no permission";
    assert!(text(&job, "reason").contains(why), "{job}");
    let view = case.state(0, "observed").await;
    assert!(text(&view, "detail").contains(why) && text(&view, "detail").contains("root"), "{view}");
    assert!(case.daemon.problems().await.contains(why));
    assert!(case.driver.writes().iter().all(|w| w.code == 4), "{:?}", case.driver.writes());
    eventually("an empty journal", LONG, async || (!case.journal().contains("found_mw")).then_some(())).await;
    case.daemon.hold(&case.driver, 1, 150.0).await;
    training.stop().await;
    case.stop(&[280.0, 280.0]).await;
}

#[tokio::test]
async fn without_a_counter_power_is_integrated_and_marked() {
    let same = json!({"demand_w": 200});
    let case = Case::start(&[json!({"demand_w": 200, "energy_supported": false}), same]).await;
    let id = case.register(0).await;
    let training = case.train(&id, 0);
    let view = case.gpu("energy", 0, |view| view["energy_j"].as_f64().is_some_and(|energy| energy > 1200.0)).await;
    assert_eq!((view["state"].as_str(), view["energy_source"].as_str()), (Some("job"), Some("integrated_power")));
    assert!(text(&view, "detail").contains("nvmlDeviceGetTotalEnergyConsumption"), "{view}");
    assert!(case.daemon.problems().await.contains("its energy is integrated from power"));
    training.stop().await;
    let account = case.daemon.delete(&format!("/v1/jobs/{id}")).await.expect(200);
    assert_eq!(account["energy_estimated_j"], account["energy_j"]);
    assert!(account["energy_j"].as_f64().is_some_and(|energy| energy > 0.0), "{account}");
    let state = case.stop(&[300.0, 300.0]).await;
    let (rows, checkpoint) = recorded_alike(&state).await.of(0);
    assert!(rows.iter().all(|r| r.source == "integrated_power") && checkpoint.is_none(), "{rows:#?}");
}

#[tokio::test]
async fn plans_stay_under_an_out_of_band_cap_until_it_lifts() {
    let driver = Arc::new(FakeDriver::new(&[gpu()]));
    let state = tempfile::tempdir().expect("a directory");
    let carbon = forecast_file(&state, 6, 100, |_| 300.0);
    // Two rungs, 280 and 230 W, make a short sweep.
    let mut command = Daemon::command_set(&driver, state.path(), &format!("{}lowest_w = 230\n", Daemon::QUICK));
    command.arg("--carbon-file").arg(carbon);
    let daemon = Daemon::start(command, state.path()).await;
    let case = Case { driver, state, daemon };
    // Time alone: as fast as it may.
    let job = json!({"name": "resnet50", "gpus": [0], "work": {"total_samples": 1_000_000}, "objective": {"eta": 0},
                     "lease_s": 60});
    let id = case.daemon.register(&job).await;
    let training = case.train(&id, 0);
    case.daemon.phase(&id, "planned").await;
    case.limit(0, 280.0).await;
    case.driver.set(0, json!({"oob_cap_w": 250}));
    case.limit(0, 230.0).await;
    let view = case.gpu("the cap", 0, |view| view["out_of_band_cap_w"] == 250.0).await;
    assert_eq!(view["state"], "job");
    assert!(text(&view, "detail").contains("out-of-band cap holds the GPU at 250 W"), "{view}");
    assert_eq!(case.daemon.problems().await, "", "a cap is a state and no problem");
    assert_eq!(case.daemon.phase(&id, "planned").await["phase"], "planned");
    case.driver.set(0, json!({"oob_cap_w": null}));
    case.gpu("the lift", 0, |v| v["out_of_band_cap_w"].is_null() && v["power_limit_enforced_w"] == 280.0).await;
    case.driver.set(0, json!({"oob_cap_w": 250}));
    training.stop().await;
    case.daemon.delete(&format!("/v1/jobs/{id}")).await.expect(200);
    // Back to what was found, under the cap too.
    case.stop(&[280.0]).await;
}

#[tokio::test]
async fn somebody_elses_limit_is_left_alone_until_the_job_ends() {
    let case = Case::start(&[gpu(), gpu()]).await;
    let id = case.register(0).await;
    let training = case.train(&id, 0);
    case.limit(0, 230.0).await;
    let before = case.driver.limits_written(0).len();
    case.driver.set_limit_as_somebody_else(0, 200);
    let view = case.state(0, "external").await;
    assert!(text(&view, "detail").contains("an external writer set it to 200 W"), "{view}");
    let job = case.daemon.phase(&id, "observing").await;
    assert!(text(&job, "reason").contains("an external writer set it to 200 W"), "{job}");
    assert!(case.daemon.problems().await.contains("GPU 0: an external writer set it to 200 W"));
    assert!(!case.journal().contains("found_mw"), "nothing is to be restored over it");
    case.daemon.hold(&case.driver, 1, 150.0).await;
    training.stop().await;
    // The next daemon leaves it alone as well.
    let mut case = case;
    for (how, theirs) in [("KILL", 200), ("TERM", 210), ("KILL", 200)] {
        // Whoever has the GPU may change it again, also while nobody looks.
        if how == "TERM" {
            case.driver.set_limit_as_somebody_else(0, theirs);
            case.gpu("the change", 0, |view| text(view, "detail").contains("set it to 210 W")).await;
        }
        let Case { driver, state, daemon } = case;
        daemon.stop(how).await;
        driver.set_limit_as_somebody_else(0, theirs);
        case = Case::again(driver, state).await;
        let view = case.state(0, "external").await;
        assert!(text(&view, "detail").contains(&format!("an external writer set it to {theirs} W")), "{view}");
        let training = case.train(&id, 0);
        case.daemon.phase(&id, "observing").await;
        tokio::time::sleep(std::time::Duration::from_millis(300)).await;
        training.stop().await;
        let limits = (case.driver.limit_w(0), case.driver.limits_written(0).len());
        assert_eq!(limits, (Some(f64::from(theirs)), before), "{how}");
    }
    case.daemon.delete(&format!("/v1/jobs/{id}")).await.expect(200);
    case.state(0, "free").await;
    assert_eq!((case.driver.limit_w(0), case.driver.limits_written(0).len()), (Some(200.0), before));
    // The next owner finds that limit, and goes no higher.
    let id = case.register(0).await;
    let training = case.train(&id, 0);
    case.daemon.phase(&id, "profiling").await;
    training.stop().await;
    case.stop(&[200.0, 280.0]).await;
}

#[tokio::test]
async fn a_refused_override_takes_no_limit_from_an_external_writer() {
    let case = Case::start(&[gpu()]).await;
    let id = case.register(0).await;
    let training = case.train(&id, 0);
    case.limit(0, 230.0).await;
    case.driver.set_limit_as_somebody_else(0, 200);
    case.state(0, "external").await;
    case.driver.set(0, json!({"deny_set_limit": true}));
    let body = json!({"power_limit_w": 150, "ttl_s": 1});
    case.daemon.put("/v1/gpus/0/power-limit", &body).await.expect(403);
    case.driver.set(0, json!({"deny_set_limit": false}));
    // Longer than the override would have lasted.
    tokio::time::sleep(std::time::Duration::from_secs(3)).await;
    case.state(0, "external").await;
    assert_eq!(case.driver.limit_w(0), Some(200.0));
    training.stop().await;
    case.stop(&[200.0]).await;
}

#[tokio::test]
async fn a_limit_that_needed_no_writing_is_not_taken_from_others_either() {
    let case = Case::start(&[gpu()]).await;
    let id = case.register(0).await;
    let training = case.train(&id, 0);
    // The first rung is the found limit.
    case.daemon.phase(&id, "profiling").await;
    case.driver.set_limit_as_somebody_else(0, 330);
    case.state(0, "external").await;
    training.stop().await;
    assert!(case.driver.writes().is_empty());
    case.stop(&[330.0]).await;
}

#[tokio::test]
async fn a_slow_gpu_slows_nothing_else() {
    let case = Case::start(&[gpu(), gpu()]).await;
    let (slow, sound) = (case.register(0).await, case.register(1).await);
    let (training, other) = (case.train(&slow, 0), case.train(&sound, 1));
    case.limit(0, 230.0).await;
    case.driver.set(0, json!({"slow_ms": 2000, "slow_calls": ["nvmlDeviceGetTotalEnergyConsumption"]}));
    let view = case.state(0, "unresponsive").await;
    assert!(text(&view, "detail").contains("no answer from the driver"), "{view}");
    // One answer that waited for the GPU would take two seconds.
    let answers = async {
        for _ in 0..30 {
            case.daemon.get("/v1/status").await.expect(200);
        }
    };
    tokio::time::timeout(Duration::from_secs(50), answers).await.expect("the API waits for no GPU");
    case.limit(1, 230.0).await;
    case.driver.set(0, json!({"slow_ms": 0}));
    case.state(0, "job").await;
    case.daemon.phase(&slow, "profiling").await;
    training.stop().await;
    other.stop().await;
    case.stop(&[280.0, 280.0]).await;
}

#[tokio::test]
async fn a_gpu_that_is_silent_for_seconds_changes_no_limit_of_its_jobs_other_gpus() {
    let case = Case::start(&[gpu(), gpu()]).await;
    let job = json!({"name": "resnet50", "gpus": [0, 1], "work": {"total_samples": 1_000_000}, "lease_s": 60});
    let id = case.daemon.register(&job).await;
    let training = Training::start(case.daemon.base(), &id, &case.driver, vec![(0, CURVE), (1, CURVE)], 0.0);
    case.limit(0, 230.0).await;
    case.driver.set(1, json!({"slow_ms": 2500, "slow_calls": ["nvmlDeviceGetTotalEnergyConsumption"]}));
    case.state(1, "unresponsive").await;
    case.driver.set(1, json!({"slow_ms": 0}));
    for _ in 0..20 {
        let (phase, limit) =
            (case.daemon.get(&format!("/v1/jobs/{id}")).await.expect(200)["phase"].clone(), case.driver.limit_w(0));
        assert!(phase != "observing" && limit != Some(280.0), "{phase}, {limit:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    case.state(1, "job").await;
    training.stop().await;
    case.stop(&[280.0, 280.0]).await;
}

#[tokio::test]
async fn an_old_driver_does_what_it_can() {
    let lacking = [
        "nvmlDeviceGetTotalEnergyConsumption",
        "nvmlDeviceGetCurrentClocksThrottleReasons",
        "nvmlDeviceGetPersistenceMode",
        "nvmlDeviceGetEnforcedPowerLimit",
        "nvmlDeviceGetFieldValues",
        "nvmlDeviceGetMigMode",
        "nvmlDeviceGetComputeRunningProcesses_v3",
    ];
    let settings = Daemon::QUICK.replace("[profile]", "enable_persistence = true\n[profile]");
    let case = Case::start_with(&[gpu()], &settings, &lacking).await;
    let problems = case.daemon.problems().await;
    assert!(problems.contains("nvmlDeviceGetTotalEnergyConsumption: not in this driver's library"), "{problems}");
    assert!(problems.contains("newer driver"), "{problems}");
    let view = case.daemon.gpu(0).await;
    assert!(view["persistence"].is_null() && view["power_limit_enforced_w"].is_null(), "{view}");
    case.daemon.hold(&case.driver, 0, 150.0).await;
    let view = case.gpu("energy", 0, |view| view["energy_j"].as_f64().is_some_and(|energy| energy > 150.0)).await;
    assert_eq!(view["energy_source"], "integrated_power");
    case.stop(&[280.0]).await;
}

#[tokio::test]
async fn a_driver_without_limits_is_only_observed() {
    for (symbol, reported) in [
        ("nvmlDeviceSetPowerManagementLimit", "nvmlDeviceSetPowerManagementLimit: not in this driver's library"),
        ("nvmlDeviceGetPowerManagementLimit", "nvmlDeviceGetPowerManagementLimit"),
        ("nvmlDeviceGetPowerManagementLimitConstraints", "nvmlDeviceGetPowerManagementLimitConstraints: not in"),
    ] {
        let case = Case::start_with(&[gpu()], Daemon::QUICK, &[symbol]).await;
        let id = case.register(0).await;
        let training = case.train(&id, 0);
        let job = case.daemon.phase(&id, "observing").await;
        assert!(text(&job, "reason").contains(reported), "{job}");
        assert!(case.daemon.problems().await.contains(reported), "{symbol}");
        assert_eq!(case.daemon.gpu(0).await["state"], "observed");
        training.stop().await;
        case.stop(&[280.0]).await;
    }
}

#[tokio::test]
async fn a_gpu_without_limits_is_recorded() {
    let case = Case::start(&[json!({"limit_supported": false, "demand_w": 200}), gpu()]).await;
    let id = case.register(0).await;
    let training = case.train(&id, 0);
    let job = case.daemon.phase(&id, "observing").await;
    let reported = "nvmlDeviceGetPowerManagementLimitConstraints: not supported by this GPU";
    assert!(text(&job, "reason").contains(reported), "{job}");
    let refused = json!({"power_limit_w": 150, "ttl_s": 3600});
    let refused = case.daemon.put("/v1/gpus/0/power-limit", &refused).await.expect(403);
    assert!(text(&refused, "detail").contains(reported), "{refused}");
    case.daemon.hold(&case.driver, 1, 150.0).await;
    case.gpu("energy", 0, |view| view["energy_j"].as_f64().is_some_and(|energy| energy > 200.0)).await;
    training.stop().await;
    let account = case.daemon.delete(&format!("/v1/jobs/{id}")).await.expect(200);
    assert!(account["energy_j"].as_f64().is_some_and(|energy| energy > 0.0), "{account}");
    let driver = case.driver.clone();
    assert_eq!(case.daemon.stop("TERM").await.code(), Some(0));
    assert_eq!(driver.limit_w(1), Some(280.0));
    assert!(driver.limits_written(0).is_empty());
}

fn persistence_writes(driver: &FakeDriver, gpu: usize) -> Vec<(String, i32)> {
    let of_gpu =
        |w: &crate::support::Write| w.uuid == FakeDriver::uuid(gpu) && w.call == "nvmlDeviceSetPersistenceMode";
    driver.writes().into_iter().filter(of_gpu).map(|w| (w.argument, w.code)).collect()
}

#[tokio::test]
async fn persistence_mode_is_turned_on_for_the_time_of_control() {
    let mut off = gpu();
    off["persistence"] = json!(false);
    let mut denied = off.clone();
    denied["deny_persistence"] = json!(true);
    let settings = Daemon::QUICK.replace("[profile]", "enable_persistence = true\n[profile]");
    let case = Case::start_with(&[off, denied], &settings, &[]).await;
    assert!(case.driver.writes().is_empty());
    case.daemon.hold(&case.driver, 0, 150.0).await;
    case.gpu("persistence", 0, |view| view["persistence"] == true).await;
    assert!(case.journal().contains("\"found_persistence\": false"), "{}", case.journal());
    // Not to be allowed that is no reason to leave the limit alone.
    case.daemon.hold(&case.driver, 1, 150.0).await;
    let view = case.daemon.gpu(1).await;
    assert!(text(&view, "detail").contains("nvmlDeviceSetPersistenceMode: no permission"), "{view}");
    assert!(case.daemon.problems().await.contains("GPU 1: persistence mode could not be changed"));
    let driver = case.driver.clone();
    case.stop(&[280.0, 280.0]).await;
    assert_eq!(persistence_writes(&driver, 0), [("1".to_owned(), 0), ("0".to_owned(), 0)]);
    assert_eq!(persistence_writes(&driver, 1), [("1".to_owned(), 4)]);
}

#[tokio::test]
async fn the_default_after_a_reload_is_nobodys_wish() {
    let mut counting = gpu();
    // Far enough for a counter that starts again not to have caught up when it is read.
    counting["initial_energy_j"] = json!(90_000);
    let case = Case::start(&[counting, gpu()]).await;
    case.daemon.hold(&case.driver, 0, 150.0).await;
    let reload = json!({"lost": true, "energy_resets": 1, "back_with_default_limit": true});
    case.driver.set(0, reload);
    case.state(0, "lost").await;
    case.driver.set(0, json!({"lost": false}));
    eventually("the limit again", LONG, async || (case.driver.limits_written(0) == [150.0, 150.0]).then_some(())).await;
    let view = case.state(0, "override").await;
    assert_eq!(view["counter_resets"], 1);
    assert_eq!(case.daemon.problems().await, "");
    case.daemon.delete("/v1/gpus/0/power-limit").await.expect(200);
    case.limit(0, 280.0).await;
    case.stop(&[280.0, 280.0]).await;
}

#[tokio::test]
async fn an_unreported_default_is_no_external_limit_either() {
    let case = Case::start(&[gpu()]).await;
    case.daemon.hold(&case.driver, 0, 150.0).await;
    case.driver.set(0, json!({"lost": true, "back_with_default_limit": true, "fail_calls": {DEFAULT_LIMIT: 999}}));
    case.state(0, "lost").await;
    case.driver.set(0, json!({"lost": false}));
    case.gpu("the default limit", 0, |view| view["power_limit_requested_w"] == 320.0).await;
    // Several ticks, in which the limit could be taken for an external one.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let view = case.daemon.gpu(0).await;
    assert!(view["state"] == "observed" && view["power_limit_original_w"] == 280.0, "{view}");
    case.driver.set(0, json!({"fail_calls": {}}));
    eventually("the limit again", LONG, async || (case.driver.limits_written(0) == [150.0, 150.0]).then_some(())).await;
    case.state(0, "override").await;
    case.daemon.delete("/v1/gpus/0/power-limit").await.expect(200);
    case.limit(0, 280.0).await;
    case.stop(&[280.0]).await;
}

#[tokio::test]
async fn long_after_a_restart_the_default_is_an_external_limit() {
    let case = Case::start(&[gpu()]).await;
    // It reports no progress, so that its GPU keeps the original limit.
    let id = case.register(0).await;
    case.state(0, "job").await;
    case.driver.set(0, json!({"lost": true}));
    case.state(0, "lost").await;
    case.driver.set(0, json!({"lost": false}));
    case.state(0, "job").await;
    // Several ticks, in which the daemon sees that the limit is the original one still.
    tokio::time::sleep(Duration::from_millis(500)).await;
    case.driver.set_limit_as_somebody_else(0, 320);
    let view = case.state(0, "external").await;
    assert!(text(&view, "detail").contains("an external writer set it to 320 W"), "{view}");
    case.daemon.delete(&format!("/v1/jobs/{id}")).await.expect(200);
    case.state(0, "free").await;
    assert!(case.driver.writes().is_empty(), "{:?}", case.driver.writes());
    case.stop(&[320.0]).await;
}

#[tokio::test]
async fn a_gpu_that_is_not_there_at_the_start_holds_up_no_other() {
    let mut lost = gpu();
    lost["lost"] = json!(true);
    let case = Case::start(&[lost, gpu()]).await;
    let problems = case.daemon.problems().await;
    assert!(problems.contains("GPU 0 cannot be used") && problems.contains("uses it once it answers"), "{problems}");
    case.daemon.hold(&case.driver, 1, 150.0).await;
    case.stop(&[280.0, 280.0]).await;
}

#[tokio::test]
async fn a_gpu_that_hangs_at_the_start_holds_up_no_other() {
    let mut hanging = gpu();
    hanging["slow_ms"] = json!(600_000);
    let case = Case::start(&[hanging, gpu()]).await;
    let problems = case.daemon.problems().await;
    assert!(problems.contains("GPU 0 cannot be used") && problems.contains("no answer from the driver"), "{problems}");
    case.daemon.hold(&case.driver, 1, 150.0).await;
    case.stop(&[280.0, 280.0]).await;
}
