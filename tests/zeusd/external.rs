//! A client's settings and limits that other programs set.

use std::time::Duration;

use serde_json::json;

use super::overrides::LIMIT;
use super::{exchange, start};
use crate::support::{Daemon, FakeDriver, LONG, eventually, output_text};

/// Longer than the driver takes to see a change of its script.
const SCRIPT: Duration = Duration::from_millis(100);

#[tokio::test]
async fn a_limit_that_cannot_be_read_is_not_overwritten() {
    let driver = FakeDriver::new(&[json!({})]);
    let state = tempfile::tempdir().expect("a directory");
    let daemon = start(&driver, state.path(), "").await;
    assert_eq!(exchange(&daemon, "POST", &format!("{LIMIT}=200000")).await.0, 200);
    driver.set_limit_as_somebody_else(0, 250);
    driver.set(0, json!({"fail_calls": {"nvmlDeviceGetPowerManagementLimit": 999}}));
    tokio::time::sleep(SCRIPT).await;
    assert_eq!(exchange(&daemon, "POST", &format!("{LIMIT}=150000")).await.0, 500);
    assert_eq!((driver.limit_w(0), driver.limits_written(0)), (Some(250.0), vec![200.0]));
}

#[tokio::test]
async fn a_refused_write_takes_no_limit_from_another_program() {
    let driver = FakeDriver::new(&[json!({})]);
    let state = tempfile::tempdir().expect("a directory");
    let daemon = start(&driver, state.path(), "[zeus]\nover_jobs = true\n").await;
    daemon.register(&json!({"name": "a", "gpus": [0], "lease_s": 600})).await;
    assert_eq!(exchange(&daemon, "POST", &format!("{LIMIT}=200000")).await.0, 200);
    driver.set_limit_as_somebody_else(0, 250);
    let is_external = async || (daemon.gpu(0).await["state"] == "external").then_some(());
    eventually("the other program's limit", LONG, is_external).await;
    driver.set(0, json!({"deny_set_limit": true}));
    tokio::time::sleep(SCRIPT).await;
    assert_eq!(exchange(&daemon, "POST", &format!("{LIMIT}=150000")).await.0, 403);
    driver.set(0, json!({"deny_set_limit": false}));
    // Several ticks, in which the job's limit would be written.
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!((daemon.gpu(0).await["state"].as_str(), driver.limit_w(0)), (Some("external"), Some(250.0)));
}

#[tokio::test]
async fn persistence_mode_comes_back_although_another_program_sets_the_limit() {
    let driver = FakeDriver::new(&[json!({"persistence": false})]);
    let state = tempfile::tempdir().expect("a directory");
    let daemon = start(&driver, state.path(), "[zeus]\nunused_s = 600\n").await;
    let persist = "/gpu/set_persistence_mode?gpu_ids=0&enabled=true&block=true";
    for path in [persist, &format!("{LIMIT}=200000")] {
        assert_eq!(exchange(&daemon, "POST", path).await.0, 200, "{path}");
    }
    driver.set_limit_as_somebody_else(0, 250);
    eventually("no persistence mode", LONG, async || (daemon.gpu(0).await["persistence"] == false).then_some(())).await;
    assert_eq!(driver.limit_w(0), Some(250.0));

    // The same if the daemon ends before it has seen the other program's limit.
    assert_eq!(exchange(&daemon, "POST", persist).await.0, 200);
    assert_eq!(exchange(&daemon, "POST", &format!("{LIMIT}=200000")).await.0, 200);
    drop(daemon);
    driver.set_limit_as_somebody_else(0, 260);
    output_text(&Daemon::restore(&driver, state.path()), 0);
    assert_eq!(driver.limit_w(0), Some(260.0));
    let modes: Vec<_> = driver.writes().into_iter().filter(|w| w.call == "nvmlDeviceSetPersistenceMode").collect();
    assert_eq!(modes.len(), 4, "{modes:?}");
}
