//! Memory-bound GPUs: power limits change nothing, locked clocks do, and whatever ends the daemon unlocks them.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::{Daemon, FakeDriver, Training, eventually, forecast_file, journal};

const LONG: Duration = Duration::from_secs(90);
const HIGHEST: f64 = 1740.0;

/// Two limits and three clocks make a short sweep.
const SETTINGS: &str = "[control]\ntick_s = 0.1\ninterval_s = 5\n[profile]\nstep_w = 100\nlowest_w = 200\nsettle_s = 0.3\n\
                        standard_error = 0.02\nreference_standard_error = 0.02\nclock_step_mhz = 240\n";

/// Samples per second: the memory sets the pace, the clock hardly.
fn rate(mhz: f64) -> f64 {
    100.0 / (0.9 + 0.1 * HIGHEST / mhz)
}

/// Watts: the clock makes most of the draw, which never comes near the limits of 200 and 300 W.
fn power(mhz: f64) -> f64 {
    60.0 + 90.0 * (mhz / HIGHEST).powi(2)
}

fn gpu() -> Value {
    let curve: Vec<Value> = (0..=51).map(|i| 210 + 30 * i).map(|mhz| json!([mhz, power(f64::from(mhz))])).collect();
    json!({"min_w": 100, "max_w": 300, "default_w": 300, "clock_curve": curve, "min_clock_mhz": 855,
           "processes": 1, "persistence": false})
}

fn clock(driver: &FakeDriver, gpu: usize) -> f64 {
    driver.lock_mhz(gpu).filter(|lock| *lock > 0.0).unwrap_or(HIGHEST)
}

fn train(daemon: &Daemon, id: &str, driver: &Arc<FakeDriver>, gpu: usize) -> Training {
    Training::start_at(daemon.base(), id, driver, move |driver| rate(clock(driver, gpu)), 0.0)
}

fn job(gpu: usize) -> Value {
    json!({"name": "gnn", "gpus": [gpu], "work": {"total_samples": 1_000_000}, "objective": {"max_slowdown": 0.03},
           "lease_s": 60})
}

async fn start(driver: &FakeDriver, state: &tempfile::TempDir) -> Daemon {
    let carbon = forecast_file(state, 3600, 30, |_| 400.0);
    let mut command = Daemon::command_set(driver, state.path(), SETTINGS);
    command.arg("--carbon-file").arg(carbon);
    Daemon::start(command, state.path()).await
}

async fn locked(driver: &FakeDriver, gpu: usize) -> f64 {
    eventually("a planned lock", LONG, async || driver.lock_mhz(gpu).filter(|lock| *lock > 0.0)).await
}

/// What a plan comes to by the GPU's true curve: mean watts, and how much slower than at the highest clock.
fn truth(plan: &Value) -> (f64, f64) {
    let time =
        |value: &Value| value.as_str().expect("a time").parse::<chrono::DateTime<chrono::Utc>>().expect("a time");
    let (mut seconds, mut joules, mut samples) = (0.0, 0.0, 0.0);
    for segment in plan["segments"].as_array().expect("segments") {
        let span = (time(&segment["end"]) - time(&segment["start"])).as_seconds_f64();
        let mhz = segment["clock_limit_mhz"].as_f64().unwrap_or(HIGHEST);
        seconds += span;
        joules += power(mhz) * span;
        samples += rate(mhz) * span;
    }
    (joules / seconds, seconds * rate(HIGHEST) / samples - 1.0)
}

#[tokio::test]
async fn clocks_save_where_limits_do_nothing_and_are_unlocked_whatever_happens() {
    let driver = Arc::new(FakeDriver::new(&[gpu()]));
    let state = tempfile::tempdir().expect("a directory");
    let daemon = start(&driver, &state).await;
    let id = daemon.register(&job(0)).await;
    let training = train(&daemon, &id, &driver, 0);
    daemon.phase(&id, "planned").await;
    let view = daemon.gpu(0).await;
    assert_eq!((&view["clock_limit_min_mhz"], &view["clock_limit_max_mhz"]), (&json!(855), &json!(1740)), "{view}");
    assert_eq!(view["clocks_left_alone"], Value::Null);

    // The optimum of the curve at 3 %: slower by exactly that at one clock.
    let plan = daemon.get(&format!("/v1/jobs/{id}/plan")).await.expect(200);
    let (mean, slowdown) = truth(&plan);
    let best = power(HIGHEST * 0.1 / (1.03 - 0.9));
    assert!(slowdown < 0.0305, "{slowdown}: {plan}");
    let (saved, possible) = (power(HIGHEST) - mean, power(HIGHEST) - best);
    assert!(saved > 0.95 * possible, "{saved} of {possible} W: {plan}");
    let profile = daemon.get(&format!("/v1/jobs/{id}/profile")).await.expect(200);
    let points = profile["points"].as_array().expect("points").iter();
    let swept: Vec<&Value> = points.filter(|p| p["measured_s"] != 0.0).map(|p| &p["clock_limit_mhz"]).collect();
    assert_eq!(swept, [&Value::Null, &Value::Null, &json!(1500), &json!(1260), &json!(1020)], "{profile}");
    assert!(driver.limits_written(0).iter().all(|w| [200.0, 300.0].contains(w)), "{:?}", driver.limits_written(0));

    let lock = locked(&driver, 0).await;
    let view = eventually("the lock in the API", LONG, async || {
        Some(daemon.gpu(0).await).filter(|view| view["clock_limit_mhz"].as_f64() == Some(lock))
    })
    .await;
    assert_eq!((&view["sm_clock_mhz"], &view["state"]), (&json!(lock as u32), &json!("job")), "{view}");
    let view = daemon.get(&format!("/v1/jobs/{id}")).await.expect(200);
    assert_eq!(view["clock_limit_mhz"], json!(lock as u32), "{view}");
    let metrics = daemon.get("/metrics").await.text;
    assert!(metrics.contains("wattune_gpu_clock_limit_hertz{") && metrics.contains("clock_limit_wanted_hertz{"));

    // By hand, the clocks are free; and locked again afterwards.
    daemon.hold(&driver, 0, 250.0).await;
    eventually("free clocks", LONG, async || (driver.lock_mhz(0) == Some(0.0)).then_some(())).await;
    daemon.delete("/v1/gpus/0/power-limit").await.expect(200);
    locked(&driver, 0).await;

    daemon.kill();
    assert!(journal(state.path()).contains("\"locked_mhz\""), "{}", journal(state.path()));
    let said = Daemon::restore(&driver, state.path());
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    assert!(said.contains("its clocks unlocked"), "{said}");
    assert_eq!((driver.lock_mhz(0), driver.limit_w(0)), (Some(0.0), Some(300.0)));
    assert!(!journal(state.path()).contains("found_mw"));

    // What was measured is known: the next daemon locks without a sweep, and the one after a kill unlocks at once.
    let daemon = start(&driver, &state).await;
    training.report_to(daemon.base());
    locked(&driver, 0).await;
    training.stop().await;
    daemon.kill();
    let daemon = start(&driver, &state).await;
    assert_eq!(driver.lock_mhz(0), Some(0.0), "before anything else");
    assert_eq!(driver.locks_written(0).last(), Some(&0));

    let training = train(&daemon, &id, &driver, 0);
    training.stop().await;
    let training = Training::start_at(daemon.base(), &id, &driver, |d| rate(clock(d, 0)), 500_000.0);
    locked(&driver, 0).await;
    assert!(daemon.stop("TERM").await.success());
    assert_eq!((driver.lock_mhz(0), driver.limit_w(0)), (Some(0.0), Some(300.0)));

    // Clocks that somebody else sets are theirs.
    let daemon = start(&driver, &state).await;
    training.report_to(daemon.base());
    let lock = locked(&driver, 0).await;
    eventually("the lock as shown", LONG, async || {
        (daemon.gpu(0).await["sm_clock_mhz"].as_f64() == Some(lock)).then_some(())
    })
    .await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    driver.lock_as_somebody_else(0, 1725);
    eventually("yielding", LONG, async || {
        daemon.problems().await.contains("an external writer has set its clocks").then_some(())
    })
    .await;
    eventually("a plan of limits", LONG, async || {
        let plan = daemon.get(&format!("/v1/jobs/{id}/plan")).await.expect(200);
        let segments = plan["segments"].as_array()?;
        (!segments.is_empty() && segments.iter().all(|s| s["clock_limit_mhz"].is_null())).then_some(())
    })
    .await;
    assert!(daemon.stop("TERM").await.success());
    assert_eq!(driver.lock_mhz(0), Some(1725.0));
    assert!(!journal(state.path()).contains("found_mw"), "{}", journal(state.path()));
    training.stop().await;
}

#[tokio::test]
async fn where_clocks_are_not_to_be_had_limits_are_steered_alone() {
    let with = |fields: Value| {
        let mut gpu = gpu();
        gpu.as_object_mut().expect("an object").extend(fields.as_object().expect("an object").clone());
        gpu
    };
    let driver = Arc::new(FakeDriver::new(&[
        with(json!({"deny_clocks": true})),
        with(json!({"initial_lock_mhz": 1200})),
        with(json!({"fail_calls": {"nvmlDeviceGetSupportedGraphicsClocks": 3, "nvmlDeviceGetMaxClockInfo": 3}})),
    ]));
    let state = tempfile::tempdir().expect("a directory");
    let daemon = start(&driver, &state).await;
    let mut jobs = Vec::new();
    for gpu in 0..3 {
        let id = daemon.register(&job(gpu)).await;
        jobs.push((train(&daemon, &id, &driver, gpu), id));
    }
    for (training, id) in jobs {
        daemon.phase(&id, "planned").await;
        let plan = daemon.get(&format!("/v1/jobs/{id}/plan")).await.expect(200);
        assert!(
            plan["segments"].as_array().expect("segments").iter().all(|s| s["clock_limit_mhz"].is_null()),
            "{plan}"
        );
        training.stop().await;
    }
    let why = async |gpu| daemon.gpu(gpu).await["clocks_left_alone"].as_str().unwrap_or_default().to_owned();
    let (denied, theirs, absent) = (why(0).await, why(1).await, why(2).await);
    assert!(denied.contains("nvmlDeviceSetGpuLockedClocks: no permission"), "{denied}");
    assert!(
        theirs.contains("runs at 1200 MHz at most, its highest clock is 1740 MHz")
            && theirs.contains("nvidia-smi -rgc"),
        "{theirs}"
    );
    assert!(absent.contains("not supported"), "{absent}");
    let tries = driver.writes().into_iter().filter(|w| w.call == "nvmlDeviceSetGpuLockedClocks");
    assert_eq!(
        tries.map(|w| w.uuid).collect::<Vec<_>>(),
        [FakeDriver::uuid(0)],
        "tried once, and only where it may be"
    );
    // Power limits still work.
    daemon.hold(&driver, 0, 250.0).await;
    assert!(daemon.stop("TERM").await.success());
    assert_eq!((driver.limit_w(0), driver.lock_mhz(1)), (Some(300.0), Some(1200.0)));
}

#[tokio::test]
async fn an_unlock_that_the_driver_ignores_is_a_problem_and_is_not_forgotten() {
    let driver = Arc::new(FakeDriver::new(&[gpu()]));
    let state = tempfile::tempdir().expect("a directory");
    let daemon = start(&driver, &state).await;
    let id = daemon.register(&job(0)).await;
    let training = train(&daemon, &id, &driver, 0);
    daemon.phase(&id, "planned").await;
    let lock = locked(&driver, 0).await;
    driver.set(0, json!({"ignore_calls": ["nvmlDeviceResetGpuLockedClocks"]}));
    training.stop().await;
    daemon.delete(&format!("/v1/jobs/{id}")).await.expect(200);
    eventually("the problem", LONG, async || {
        daemon
            .problems()
            .await
            .contains("its clocks are still locked: the driver accepts the request to unlock them")
            .then_some(())
    })
    .await;
    // The next job is not told that somebody else has locked them.
    let next = daemon.register(&job(0)).await;
    tokio::time::sleep(Duration::from_secs(7)).await;
    assert!(!daemon.problems().await.contains("external writer"), "{}", daemon.problems().await);
    daemon.delete(&format!("/v1/jobs/{next}")).await.expect(200);
    assert_eq!(daemon.stop("TERM").await.code(), Some(1));
    assert_eq!(driver.lock_mhz(0), Some(lock));
    assert!(journal(state.path()).contains("\"locked_mhz\""), "{}", journal(state.path()));
    let restored = Daemon::restore(&driver, state.path());
    let said = String::from_utf8_lossy(&restored.stdout).into_owned();
    assert_eq!(restored.status.code(), Some(1), "{said}");
    assert!(said.contains("the driver accepted the request to unlock them"), "{said}");
    // An idle GPU does not show it: said, and not in the way.
    driver.set(0, json!({"idle": true, "ignore_calls": []}));
    let restored = Daemon::restore(&driver, state.path());
    let said = String::from_utf8_lossy(&restored.stdout).into_owned();
    assert!(restored.status.success() && said.contains("only a GPU under load shows the effect"), "{said}");
    assert!(!journal(state.path()).contains("found_mw"), "{}", journal(state.path()));
    assert_eq!(driver.lock_mhz(0), Some(0.0));
}

#[tokio::test]
async fn locks_that_the_driver_ignores_are_a_problem_and_make_no_points() {
    let mut ignoring = gpu();
    ignoring["ignore_calls"] = json!(["nvmlDeviceSetGpuLockedClocks"]);
    let driver = Arc::new(FakeDriver::new(&[ignoring]));
    let state = tempfile::tempdir().expect("a directory");
    let daemon = start(&driver, &state).await;
    let id = daemon.register(&job(0)).await;
    let training = train(&daemon, &id, &driver, 0);
    eventually("a lock", LONG, async || (!driver.locks_written(0).is_empty()).then_some(())).await;
    // Within ten seconds, and some for a busy machine: the sweep is far from its end then.
    eventually("the problem", Duration::from_secs(20), async || {
        daemon.problems().await.contains("the driver accepts the lock and does not keep it").then_some(())
    })
    .await;
    daemon.phase(&id, "planned").await;
    let profile = daemon.get(&format!("/v1/jobs/{id}/profile")).await.expect(200);
    let points = profile["points"].as_array().expect("points").iter();
    let locked: Vec<&Value> = points.filter(|p| p["measured_s"] != 0.0 && !p["clock_limit_mhz"].is_null()).collect();
    assert!(locked.is_empty(), "{profile}");
    training.stop().await;
    assert!(daemon.stop("TERM").await.success());
    assert!(!journal(state.path()).contains("found_mw"), "{}", journal(state.path()));
}

#[tokio::test]
async fn a_lock_that_is_refused_for_a_moment_is_tried_again() {
    let call = "nvmlDeviceSetGpuLockedClocks";
    let mut refusing = gpu();
    refusing["fail_calls"] = json!({call: 3});
    let driver = Arc::new(FakeDriver::new(&[refusing]));
    let state = tempfile::tempdir().expect("a directory");
    let daemon = start(&driver, &state).await;
    let id = daemon.register(&job(0)).await;
    let training = train(&daemon, &id, &driver, 0);
    eventually("a try", LONG, async || driver.writes().iter().any(|w| w.call == call).then_some(())).await;
    driver.set(0, json!({"fail_calls": {}}));
    locked(&driver, 0).await;
    assert_eq!(daemon.gpu(0).await["clocks_left_alone"], Value::Null);
    training.stop().await;
    assert!(daemon.stop("TERM").await.success());
    assert_eq!((driver.lock_mhz(0), driver.limit_w(0)), (Some(0.0), Some(300.0)));
}
