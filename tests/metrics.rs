//! What the metrics say of events: limits that somebody else set, limits that do not come back, recurring jobs.

use serde_json::json;

use crate::support::{Daemon, FakeDriver, LONG, eventually};

/// The value of the series of this name that has all these labels.
async fn value(daemon: &Daemon, name: &str, labels: &[&str]) -> Option<f64> {
    let text = daemon.get("/metrics").await.text;
    let of = |l: &&str| l.split(['{', ' ']).next() == Some(name) && labels.iter().all(|label| l.contains(label));
    text.lines().find(of)?.rsplit(' ').next()?.parse().ok()
}

#[tokio::test]
async fn external_limits_and_failed_restores_show_in_the_metrics() {
    let driver = FakeDriver::new(&[json!({}), json!({})]);
    let state = tempfile::tempdir().expect("a directory");
    let daemon = Daemon::start_with(&driver, state.path(), &[]).await;
    let (first, second) = (["gpu=\"0\""], ["gpu=\"1\""]);
    let is = async |name: &'static str, labels: &[&str], wanted: f64| {
        eventually(name, LONG, async || (value(&daemon, name, labels).await == Some(wanted)).then_some(())).await;
    };
    for gpu in [0, 1] {
        let limit = json!({"power_limit_w": 200, "ttl_s": 600});
        daemon.put(&format!("/v1/gpus/{gpu}/power-limit"), &limit).await.expect(200);
        eventually("the limit", LONG, async || (driver.limit_w(gpu) == Some(200.0)).then_some(())).await;
    }
    for name in
        ["wattune_gpu_restore_failures_total", "wattune_gpu_external_limits_total", "wattune_gpu_external_limit"]
    {
        is(name, &first, 0.0).await;
    }
    is("wattune_gpu_power_limit_enforced_watts", &first, 200.0).await;

    driver.set(0, json!({"deny_set_limit": true}));
    daemon.delete("/v1/gpus/0/power-limit").await.expect(200);
    is("wattune_gpu_restore_failed", &first, 1.0).await;
    assert!(value(&daemon, "wattune_gpu_restore_failures_total", &first).await >= Some(1.0));
    assert_eq!(value(&daemon, "wattune_gpu_restore_failed", &second).await, Some(0.0));
    driver.set(0, json!({"deny_set_limit": false}));
    is("wattune_gpu_restore_failed", &first, 0.0).await;
    assert_eq!(driver.limit_w(0), Some(300.0));

    driver.set_limit_as_somebody_else(1, 250);
    is("wattune_gpu_external_limit", &second, 1.0).await;
    is("wattune_gpu_external_limits_total", &second, 1.0).await;
    is("wattune_gpu_external_limit", &first, 0.0).await;
}

#[tokio::test]
async fn recurring_jobs_come_and_go_in_the_metrics() {
    let driver = FakeDriver::new(&[json!({})]);
    let state = tempfile::tempdir().expect("a directory");
    let daemon = Daemon::start_with(&driver, state.path(), &[]).await;
    assert_eq!(value(&daemon, "wattune_recurring_jobs", &[]).await, Some(0.0));
    let spec = json!({"batch_sizes": [32, 64], "default_batch_size": 64, "max_epochs": 9, "target_metric": 0.6,
                      "max_power_w": 100});
    daemon.put("/v1/recurring/nightly", &spec).await.expect(201);
    daemon.post("/v1/recurring/nightly/trials", &json!({})).await.expect(201);
    let done = json!({"epochs": 3, "energy_j": 300, "time_s": 3, "metric": 0.7});
    daemon.post("/v1/recurring/nightly/trials/1/progress", &done).await.expect(200);
    let arm = ["recurring=\"nightly\"", "batch_size=\"64\""];
    assert_eq!(value(&daemon, "wattune_recurring_pulls", &arm).await, Some(1.0));
    let believed = &daemon.get("/v1/recurring/nightly").await.expect(200)["arms"][1];
    for (name, field) in [
        ("wattune_recurring_mean_cost_joules", "mean_cost_j"),
        ("wattune_recurring_cost_deviation_joules", "deviation_j"),
    ] {
        assert_eq!(value(&daemon, name, &arm).await, believed[field].as_f64(), "{name}");
    }
    assert_eq!(value(&daemon, "wattune_recurring_favourite", &arm).await, Some(1.0));
    daemon.delete("/v1/recurring/nightly").await.expect(200);
    assert!(!daemon.get("/metrics").await.text.contains("nightly"));
    assert_eq!(value(&daemon, "wattune_recurring_jobs", &[]).await, Some(0.0));
}
