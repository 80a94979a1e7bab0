//! GPUs that cannot be used at the start and come back later.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use crate::nvml::{CURVE, gpu};
use crate::support::{Daemon, Ended, FakeDriver, LedgerFile, Training, eventually, wattune};

const LONG: Duration = Duration::from_secs(120);

const FOUND: Option<f64> = Some(280.0);

async fn gpus(daemon: &Daemon, wanted: usize) -> Value {
    eventually("the GPUs", LONG, async || {
        let gpus = daemon.get("/v1/gpus").await.expect(200);
        (gpus.as_array()?.len() == wanted).then_some(gpus)
    })
    .await
}

async fn limit(daemon: &Daemon, driver: &FakeDriver, gpu: usize, watts: f64) {
    for _ in 0..LONG.as_millis() / 50 {
        if driver.limit_w(gpu) == Some(watts) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let status = daemon.get("/v1/status").await.expect(200);
    panic!("GPU {gpu} did not get {watts} W within {LONG:?}: {status:#}\n{}", daemon.log());
}

#[tokio::test]
async fn a_gpu_that_is_lost_at_the_start_is_taken_up_when_it_comes_back() {
    for (gone, back) in [
        (json!({"lost": true}), json!({"lost": false})),
        (json!({"removed": true}), json!({"removed": false})),
        (json!({"fail_calls": {"nvmlDeviceGetUUID": 999}}), json!({"fail_calls": {}})),
    ] {
        let driver = Arc::new(FakeDriver::new(&[gpu(), gpu()]));
        driver.set(1, gone.clone());
        let state = tempfile::tempdir().expect("a directory");
        let daemon = Daemon::start(Daemon::command(&driver, state.path()), state.path()).await;
        gpus(&daemon, 1).await;
        assert_eq!(daemon.problems().await.contains("GPU 1 cannot be used"), gone.get("removed").is_none());
        driver.set(1, back);
        gpus(&daemon, 2).await;
        eventually("no problem", LONG, async || Some(daemon.problems().await).filter(String::is_empty)).await;
        // It is one like the others: measured, steered, and given back.
        let job = json!({"name": "resnet50", "gpus": [1], "work": {"total_samples": 1_000_000}, "lease_s": 60});
        let id = daemon.register(&job).await;
        let training = Training::start(daemon.base(), &id, &driver, vec![(1, CURVE)], 0.0);
        limit(&daemon, &driver, 1, 230.0).await;
        training.stop().await;
        assert_eq!(daemon.stop("TERM").await.code(), Some(0));
        assert_eq!(driver.limit_w(1), FOUND);
        let ledger = LedgerFile::open(state.path());
        assert!(ledger.total_j(1) > 0.0);
    }
}

#[tokio::test]
async fn what_is_owed_to_it_is_given_back_then() {
    let driver = Arc::new(FakeDriver::new(&[gpu(), gpu()]));
    let state = tempfile::tempdir().expect("a directory");
    let daemon = Daemon::start(Daemon::command(&driver, state.path()), state.path()).await;
    daemon.hold(&driver, 1, 150.0).await;
    daemon.kill();
    driver.set(1, json!({"lost": true}));
    let daemon = Daemon::start(Daemon::command(&driver, state.path()), state.path()).await;
    gpus(&daemon, 1).await;
    driver.set(1, json!({"lost": false}));
    limit(&daemon, &driver, 1, 280.0).await;
    eventually("no problem", LONG, async || Some(daemon.problems().await).filter(String::is_empty)).await;
    assert_eq!(daemon.stop("TERM").await.code(), Some(0));
}

#[tokio::test]
async fn its_job_goes_on_there_and_keeps_its_energy() {
    let driver = Arc::new(FakeDriver::new(&[gpu(), gpu()]));
    let state = tempfile::tempdir().expect("a directory");
    let daemon = Daemon::start(Daemon::command(&driver, state.path()), state.path()).await;
    let job = json!({"name": "resnet50", "gpus": [0, 1], "work": {"total_samples": 1_000_000}, "lease_s": 60});
    let id = daemon.register(&job).await;
    let training = Training::start(daemon.base(), &id, &driver, vec![(0, CURVE), (1, CURVE)], 0.0);
    limit(&daemon, &driver, 1, 230.0).await;
    daemon.kill();
    driver.set(1, json!({"lost": true}));
    let daemon = Daemon::start(Daemon::command(&driver, state.path()), state.path()).await;
    gpus(&daemon, 1).await;
    training.report_to(daemon.base());
    driver.set(1, json!({"lost": false}));
    let views = gpus(&daemon, 2).await;
    assert_eq!(views[1]["owner"], json!(id), "{views}");
    daemon.phase(&id, "profiling").await;
    limit(&daemon, &driver, 1, 230.0).await;
    training.stop().await;
    // A second job does not get it.
    let other = json!({"name": "other", "gpus": [1], "work": {"total_samples": 1_000_000}, "lease_s": 60});
    daemon.post("/v1/jobs", &other).await.problem(409);
    daemon.delete(&format!("/v1/jobs/{id}")).await.expect(200);
    limit(&daemon, &driver, 1, 280.0).await;
    assert_eq!(daemon.stop("TERM").await.code(), Some(0));
    let ledger = LedgerFile::open(state.path());
    let (rows, _) = ledger.of(1);
    assert!(rows.iter().any(|row| row.source == "counter_gap" && row.job.as_deref() == Some(id.as_str())), "{rows:#?}");
}

#[tokio::test]
async fn nothing_is_held_before_the_daemon_had_it() {
    let driver = FakeDriver::new(&[gpu(), gpu()]);
    driver.set(1, json!({"removed": true}));
    let state = tempfile::tempdir().expect("a directory");
    let embodied = "[ledger]\nembodied_per_gpu_g = 1e9\nembodied_life_years = 1.0\nembodied_source = \"a test\"\n";
    let settings = format!("{}{embodied}", Daemon::QUICK.replace("interval_s = 5", "interval_s = 1"));
    let before = crate::support::now();
    let daemon = Daemon::start(Daemon::command_set(&driver, state.path(), &settings), state.path()).await;
    let ledger = LedgerFile::open(state.path());
    let so_far = |since: chrono::DateTime<chrono::Utc>| (crate::support::now() - since).as_seconds_f64();
    eventually("an interval", LONG, async || (ledger.total_j(0) > 0.0).then_some(())).await;
    // One that comes later was not held before that.
    driver.set(1, json!({"removed": false}));
    let back = crate::support::now();
    eventually("its first interval", LONG, async || (ledger.total_j(1) > 0.0).then_some(())).await;
    assert_eq!(daemon.stop("TERM").await.code(), Some(0));
    let dir = state.path().to_str().expect("UTF-8");
    let report = Ended::of(&mut wattune(&["report", "--state-dir", dir, "--by", "gpu", "--format", "json"])).json();
    let held = |gpu: usize| {
        let rows = report["rows"].as_array().expect("rows");
        let row = rows.iter().find(|row| row["key"] == json!(FakeDriver::uuid(gpu))).expect("its row");
        (row["held_s"].as_f64().expect("reported"), row["embodied_g"].as_f64().expect("declared"))
    };
    for (gpu, since) in [(0, before), (1, back)] {
        let (time, grams) = held(gpu);
        assert!(time > 0.0 && time <= so_far(since), "GPU {gpu}: {time} s of {}", so_far(since));
        assert!((grams / (time * 1e9 / (365.25 * 86_400.0)) - 1.0).abs() < 0.01, "{grams} g in {time} s");
    }
}

#[tokio::test]
async fn a_default_that_it_comes_back_with_is_nobodys_wish() {
    for gone in [json!({"lost": true}), json!({"removed": true})] {
        let driver = Arc::new(FakeDriver::new(&[gpu(), gpu()]));
        driver.set(0, json!({"back_with_default_limit": true}));
        let state = tempfile::tempdir().expect("a directory");
        let daemon = Daemon::start(Daemon::command(&driver, state.path()), state.path()).await;
        daemon.hold(&driver, 0, 150.0).await;
        daemon.kill();
        driver.set(0, gone);
        let daemon = Daemon::start(Daemon::command(&driver, state.path()), state.path()).await;
        gpus(&daemon, 1).await;
        driver.set(0, json!({"lost": false, "removed": false}));
        limit(&daemon, &driver, 0, 280.0).await;
        let view = daemon.get(&format!("/v1/gpus/{}", FakeDriver::uuid(0))).await.expect(200);
        assert_eq!(view["state"], "free");
        // Its index may now be that of the other one, too: then no index names either.
        let indexes: Vec<Value> =
            gpus(&daemon, 2).await.as_array().expect("a list").iter().map(|gpu| gpu["index"].clone()).collect();
        if indexes[0] == indexes[1] {
            let limit = json!({"power_limit_w": 150, "ttl_s": 60});
            let refused = daemon.put("/v1/gpus/0/power-limit", &limit).await.problem(409);
            assert!(refused["detail"].as_str().is_some_and(|d| d.contains("UUID")), "{refused}");
        }
        assert_eq!(daemon.stop("TERM").await.code(), Some(0));
        assert_eq!((driver.limit_w(0), driver.limit_w(1)), (FOUND, FOUND));
    }
}
