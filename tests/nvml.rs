//! The main job against the driver's interface: the real daemon, the real FFI path, a fake library.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use crate::support::{Curve, Daemon, FakeDriver, Training, eventually, forecast_file};

/// A GPU whose operator lowered the limit: neither the default nor the maximum is what was found.
pub(crate) fn gpu() -> serde_json::Value {
    json!({"min_w": 100, "max_w": 350, "default_w": 320, "initial_limit_w": 280, "demand_w": 400})
}

/// Diminishing returns, as real GPUs have them.
pub(crate) const CURVE: Curve = &[(100.0, 40.0), (130.0, 66.0), (180.0, 90.0), (230.0, 98.0), (280.0, 102.0)];

const LONG: Duration = Duration::from_secs(90);

#[tokio::test]
async fn a_job_is_profiled_planned_and_given_back() {
    let driver = Arc::new(FakeDriver::new(&[gpu(), gpu()]));
    let state = tempfile::tempdir().expect("a directory");
    // Six seconds clean, six seconds dirty, and so on.
    let carbon = forecast_file(&state, 6, 100, |i| if i % 2 == 0 { 100.0 } else { 600.0 });
    let mut command = Daemon::command(&driver, state.path());
    command.arg("--carbon-file").arg(carbon);
    let daemon = Daemon::start(command, state.path()).await;
    let job = json!({"name": "resnet50", "gpus": [0], "batch_size": 256, "work": {"total_samples": 2_000_000},
                     "objective": {"max_slowdown": 0.03}, "lease_s": 30, "tags": {"team": "vision"}});
    let registered = daemon.post("/v1/jobs", &job).await.expect(201);
    let id = registered["job_id"].as_str().expect("an id").to_owned();
    assert_eq!(registered["phase"], "waiting");
    assert!(driver.writes().is_empty(), "nothing is set before the job is known to train");
    let training = Training::start(daemon.base(), &id, &driver, vec![(0, CURVE)], 0.0);
    let phase = async |wanted: &'static str| {
        eventually(wanted, LONG, async || {
            let view = daemon.get(&format!("/v1/jobs/{id}")).await.json();
            (view["phase"] == wanted).then_some(view)
        })
        .await
    };
    phase("profiling").await;
    phase("planned").await;
    let swept = driver.limits_written(0);
    // What the plan sets may already follow.
    let sweep = [230.0, 180.0, 130.0, 280.0];
    assert!(swept.starts_with(&sweep), "from the found limit down, and back to it: {swept:?}");
    let profile = daemon.get(&format!("/v1/jobs/{id}/profile")).await.expect(200);
    assert_eq!(profile["complete"], true);
    for point in profile["points"].as_array().expect("points") {
        let limit = point["power_limits_w"][0].as_f64().expect("a limit");
        let rate = CURVE.iter().find(|p| p.0 == limit).expect("a rung").1;
        let measured = point["samples_per_s"].as_f64().expect("measured");
        assert!((measured / rate - 1.0).abs() < 0.03, "{point}");
        assert!((point["power_w"].as_f64().expect("measured") / limit - 1.0).abs() < 0.03, "{point}");
    }
    // Planned limits: lower where it is dirtier, in the library's own log.
    let log = eventually("four planned changes", LONG, async || {
        let limits = driver.limits_written(0)[sweep.len()..].to_vec();
        (limits.len() >= 4).then_some(limits)
    })
    .await;
    let plan = daemon.get(&format!("/v1/jobs/{id}/plan")).await.expect(200);
    assert_eq!(plan["applied"], true);
    let segments = plan["segments"].as_array().expect("segments");
    let limits_at = |g: f64| {
        let at = segments
            .iter()
            .filter(move |s| s["intensity_g_per_kwh"].as_f64().is_some_and(|v| (v < 300.0) == (g < 300.0)));
        at.map(|s| s["power_limits_w"][0].as_f64().expect("a limit")).collect::<Vec<_>>()
    };
    let (clean, dirty) = (limits_at(100.0), limits_at(600.0));
    let lowest_clean = clean.iter().copied().fold(f64::INFINITY, f64::min);
    let highest_dirty = dirty.iter().copied().fold(0.0, f64::max);
    assert!(lowest_clean >= highest_dirty && clean != dirty, "{plan}");
    assert!(log.iter().any(|l| *l < 280.0) && log.iter().all(|l| *l <= 280.0), "{log:?}");
    assert!(segments.iter().all(|s| !s["reason"].as_str().expect("a reason").is_empty()));
    let answers = training.stop().await;
    assert!(answers.iter().any(|a| a["slowdown"].as_f64().is_some()), "{:?}", answers.last());
    // The other GPU was never touched, and the end gives back what was found.
    assert!(driver.limits_written(1).is_empty());
    let account = daemon.delete(&format!("/v1/jobs/{id}")).await.expect(200);
    eventually("the found limit", LONG, async || (driver.limit_w(0) == Some(280.0)).then_some(())).await;
    assert!(account["energy_j"].as_f64().expect("recorded") > 1000.0, "{account}");
    assert!(account["carbon_g"].as_f64().expect("recorded") > 0.0, "{account}");
    let against = &account["against_max"];
    assert!(against.is_object(), "{account}");
    let sum = against["energy_effect_pct"].as_f64().expect("reported")
        + against["timing_effect_pct"].as_f64().expect("reported");
    assert!((sum - against["carbon_reduction_pct"].as_f64().expect("reported")).abs() < 1e-6, "{account}");
    let found = &account["savings"]["against_original"];
    assert_eq!(found["power_limits_w"], serde_json::json!([280.0]), "{account}");
    for figure in ["carbon_reduction_pct", "carbon_reduction_g", "energy_effect_pct", "timing_effect_pct"] {
        let [low, mean, high] = ["low", "mean", "high"].map(|of| found[figure][of].as_f64().expect("reported"));
        assert!(low <= mean && mean <= high, "{figure}: {account}");
    }
    // What was found is the ceiling: nothing is measured above it.
    let reduction = found["carbon_reduction_pct"]["mean"].as_f64().expect("reported");
    assert!((reduction - against["carbon_reduction_pct"].as_f64().expect("reported")).abs() < 1e-6, "{account}");
    let why = account["savings"]["against_max"]["unknown"].as_str().expect("a reason");
    assert!(why.contains("280 W"), "{why}");
    // Reports have the same saving as the job. It is provisional: it may be settled between two answers, and later than
    // the account was made.
    let row = eventually("the same saving in the report", LONG, async || {
        let later = &daemon.get(&format!("/v1/jobs/{id}/emissions")).await.expect(200)["savings"]["against_original"];
        // The energy since the last reading before the job's end is recorded a moment later.
        let [before, now] = [found, later].map(|saving| saving["energy_at_reference_j"].as_f64().expect("known"));
        assert!((now / before - 1.0).abs() < 0.01, "{before}, {later}");
        let report = daemon.get("/v1/report?by=tag%3Ateam").await.expect(200);
        let rows = report["rows"].as_array().expect("rows");
        let row = rows.iter().find(|row| row["key"] == "vision").expect("its row").clone();
        let agrees =
            [("saved_low_g", "low"), ("saved_g", "mean"), ("saved_high_g", "high")].iter().all(|(field, bound)| {
                let reported = later["carbon_reduction_g"][bound].as_f64().expect("reported");
                (row[field].as_f64().expect("known") - reported).abs() <= 1e-9 * reported.abs()
            });
        agrees.then_some(row)
    })
    .await;
    assert_eq!((&row["jobs"], &row["saved_of_jobs"]), (&1.into(), &1.into()), "{row}");
    // The ledger agree with the GPU's own counter.
    let used = driver.counter_j(0);
    assert!(account["energy_j"].as_f64().expect("recorded") <= used);
    assert!(daemon.stop("TERM").await.success());
    let journal = std::fs::read_to_string(state.path().join("found-limits.json")).expect("readable");
    assert!(!journal.contains("found_mw"), "{journal}");
}
