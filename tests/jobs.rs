//! What the daemon does for jobs of every kind, beyond the plain one of `nvml`.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::support::{Curve, Daemon, FakeDriver, LONG, Training, eventually, forecast_file};

/// Two limits, so that a sweep with its closing takes about seventeen seconds.
fn gpu() -> Value {
    json!({"min_w": 200, "max_w": 250, "default_w": 250, "demand_w": 400})
}

const CURVE: Curve = &[(200.0, 97.0), (250.0, 100.0)];

fn limits(view: &Value) -> Vec<f64> {
    serde_json::from_value(view.clone()).expect("limits")
}

#[tokio::test]
async fn a_recurring_job_starts_with_its_profile_and_is_planned_even_where_nothing_is_set() {
    let driver = Arc::new(FakeDriver::new(&[gpu()]));
    let state = tempfile::tempdir().expect("a directory");
    let carbon = forecast_file(&state, 5, 200, |i| if i % 2 == 0 { 100.0 } else { 600.0 });
    let flags = ["--carbon-file", carbon.to_str().expect("UTF-8")];
    let daemon = Daemon::start_with(&driver, state.path(), &flags).await;
    let job = json!({"name": "nightly", "gpus": [0], "batch_size": 64, "work": {"total_samples": 200_000},
                     "objective": {"max_slowdown": 0.02}});
    let run = async |daemon: &Daemon, job: &Value| {
        let id = daemon.register(job).await;
        let training = Training::start(daemon.base(), &id, &driver, vec![(0, CURVE)], 0.0);
        (id, training)
    };
    let (first, training) = run(&daemon, &job).await;
    daemon.phase(&first, "planned").await;
    assert_eq!(driver.limits_written(0)[..2], [200.0, 250.0], "one sweep");
    training.stop().await;
    daemon.delete(&format!("/v1/jobs/{first}")).await.expect(200);

    let (second, training) = run(&daemon, &job).await;
    eventually("a report", LONG, async || {
        let view = daemon.get(&format!("/v1/jobs/{second}")).await.json();
        view["samples"].is_number().then_some(view)
    })
    .await;
    let answers = training.stop().await;
    assert!(answers.iter().all(|a| a["phase"] == "planned"), "no sweep: {:?}", answers.first());
    let profile = daemon.get(&format!("/v1/jobs/{second}/profile")).await.expect(200);
    assert_eq!(
        (&profile["complete"], profile["points"].as_array().map(Vec::len)),
        (&json!(true), Some(2)),
        "{profile}"
    );
    // Another batch size is another job.
    daemon.delete(&format!("/v1/jobs/{second}")).await.expect(200);
    let other = json!({"name": "nightly", "gpus": [0], "batch_size": 128});
    let other = daemon.register(&other).await;
    let report = daemon.post(&format!("/v1/jobs/{other}/progress"), &json!({"samples": 1})).await.expect(200);
    assert_eq!(report["phase"], "profiling", "{report}");
    daemon.delete(&format!("/v1/jobs/{other}")).await.expect(200);
    assert!(daemon.stop("TERM").await.success());

    // The same with a daemon that only observes: it plans and records, and the driver's log stays as it is.
    let before = driver.writes();
    let daemon = Daemon::start_with(&driver, state.path(), &[&flags[..], &["--observe"]].concat()).await;
    assert_eq!(daemon.get("/v1/status").await.expect(200)["mode"], "observe");
    let (third, training) = run(&daemon, &job).await;
    let plan = eventually("a plan", LONG, async || {
        let plan = daemon.get(&format!("/v1/jobs/{third}/plan")).await.expect(200);
        (!plan["segments"].as_array()?.is_empty()).then_some(plan)
    })
    .await;
    assert_eq!((&plan["applied"], plan["expected_carbon_g"].is_number()), (&json!(false), true), "{plan}");
    assert!(plan["note"].as_str().expect("reported").contains("observes only"), "{plan}");
    let planned: Vec<f64> =
        plan["segments"].as_array().expect("segments").iter().flat_map(|s| limits(&s["power_limits_w"])).collect();
    assert!(planned.contains(&200.0) && planned.contains(&250.0), "{planned:?}");
    let by_hand = daemon.put("/v1/gpus/0/power-limit", &json!({"power_limit_w": 200, "ttl_s": 60})).await.problem(403);
    assert!(by_hand["detail"].as_str().expect("reported").contains("observes only"), "{by_hand}");
    let recorded = eventually("a recorded interval", LONG, async || {
        let view = daemon.get(&format!("/v1/jobs/{third}")).await.json();
        (view["energy_j"].as_f64()? > 0.0).then_some(view)
    })
    .await;
    assert_eq!((&recorded["phase"], &recorded["power_limit_w"]), (&json!("observing"), &Value::Null), "{recorded}");
    training.stop().await;
    daemon.delete(&format!("/v1/jobs/{third}")).await.expect(200);
    assert!(daemon.stop("TERM").await.success());
    assert_eq!(driver.writes(), before);
}

#[tokio::test]
async fn a_second_job_on_a_gpu_is_recorded_and_not_controlled() {
    let driver = Arc::new(FakeDriver::new(&[gpu()]));
    let state = tempfile::tempdir().expect("a directory");
    let carbon = forecast_file(&state, 60, 10, |_| 300.0);
    let flags = ["--carbon-file", carbon.to_str().expect("UTF-8")];
    let daemon = Daemon::start_with(&driver, state.path(), &flags).await;
    let guest = daemon.register(&json!({"name": "guest", "gpus": [0], "control": false})).await;
    let owner = daemon.register(&json!({"name": "owner", "gpus": [0]})).await;
    let gpu = daemon.gpu(0).await;
    assert_eq!((&gpu["owner"], &gpu["observed_jobs"], &gpu["state"]), (&json!(owner), &json!([guest]), &json!("job")));
    let training = Training::start(daemon.base(), &owner, &driver, vec![(0, CURVE)], 0.0);
    let report = daemon.post(&format!("/v1/jobs/{guest}/progress"), &json!({"samples": 1})).await.expect(200);
    assert_eq!((&report["phase"], &report["power_limit_w"]), (&json!("observing"), &Value::Null), "{report}");
    assert!(report["reason"].as_str().expect("reported").contains("registered without control"), "{report}");
    daemon.phase(&owner, "profiling").await;
    eventually("recorded intervals", LONG, async || {
        let view = daemon.get(&format!("/v1/jobs/{guest}")).await.json();
        // More than the moment that is recorded when a second job comes.
        (view["energy_j"].as_f64()? > 300.0 && view["carbon_g"].as_f64()? > 0.0).then_some(())
    })
    .await;
    let phase = daemon.get(&format!("/v1/jobs/{owner}")).await.expect(200);
    assert!(phase["phase"] != "observing", "a guest is no hindrance: {phase}");
    training.stop().await;
    // Both pay the same for the time that they shared, and together no more than the GPU used.
    let account = async |id: &str, why: &str| {
        let ended = daemon.delete(&format!("/v1/jobs/{id}")).await.expect(200);
        let unknown = ended["savings"]["against_original"]["unknown"].as_str().expect("what is shared is not compared");
        assert!(unknown.contains(why), "{unknown}");
        ended["energy_j"].as_f64().expect("recorded")
    };
    let for_guest = account(&guest, "registered without control").await;
    let for_owner = account(&owner, "another job").await;
    assert!(for_guest > 0.0 && for_owner > 0.0, "{for_guest} {for_owner}");
    assert!(for_guest + for_owner <= driver.counter_j(0), "{for_guest} {for_owner}");
    let gpu = daemon.gpu(0).await;
    assert_eq!((&gpu["owner"], &gpu["observed_jobs"]), (&Value::Null, &json!([])));
}

#[tokio::test]
async fn two_equal_gpus_get_one_limit_and_their_power_is_summed() {
    let mut lowered = gpu();
    lowered["initial_limit_w"] = json!(240);
    let driver = Arc::new(FakeDriver::new(&[gpu(), lowered]));
    let state = tempfile::tempdir().expect("a directory");
    let daemon = Daemon::start_with(&driver, state.path(), &[]).await;
    let id = daemon.register(&json!({"name": "pair", "gpus": [0, 1]})).await;
    let training = Training::start(daemon.base(), &id, &driver, vec![(0, CURVE), (1, CURVE)], 0.0);
    // The lower of the two found limits is the ceiling of both.
    let point = eventually("a measured ceiling", LONG, async || {
        let profile = daemon.get(&format!("/v1/jobs/{id}/profile")).await.expect(200);
        let point = profile["points"].get(0)?.clone();
        (point["measured_s"].as_f64()? >= 5.0).then_some(point)
    })
    .await;
    assert_eq!(limits(&point["power_limits_w"]), [240.0], "one limit for the group: {point}");
    let power = point["power_w"].as_f64().expect("measured");
    assert!((power / 480.0 - 1.0).abs() < 0.05, "{point}");
    assert_eq!((driver.limits_written(0).first(), driver.limits_written(1).first()), (Some(&240.0), None));
    let view = daemon.get(&format!("/v1/jobs/{id}")).await.expect(200);
    let both = limits(&view["power_limits_w"]);
    assert!(both.len() == 2 && both[0] == both[1], "{view}");
    training.stop().await;
    daemon.delete(&format!("/v1/jobs/{id}")).await.expect(200);
    eventually("the found limits", LONG, async || {
        ((driver.limit_w(0), driver.limit_w(1)) == (Some(250.0), Some(240.0))).then_some(())
    })
    .await;
}

#[tokio::test]
async fn two_unequal_gpus_are_slowed_equally() {
    const LARGE: Curve = &[(400.0, 95.0), (500.0, 105.0)];
    const SMALL: Curve = &[(150.0, 80.0), (200.0, 96.0), (250.0, 100.0)];
    let small = json!({"name": "NVIDIA Small", "min_w": 200, "max_w": 250, "default_w": 250, "demand_w": 400});
    let large = json!({"name": "NVIDIA Large", "min_w": 450, "max_w": 500, "default_w": 500, "demand_w": 900});
    let driver = Arc::new(FakeDriver::new(&[small, large]));
    let state = tempfile::tempdir().expect("a directory");
    let carbon = forecast_file(&state, 4, 300, |i| if i % 2 == 0 { 50.0 } else { 900.0 });
    let flags = ["--carbon-file", carbon.to_str().expect("UTF-8")];
    let daemon = Daemon::start_with(&driver, state.path(), &flags).await;
    let job = json!({"name": "uneven", "gpus": [0, 1], "work": {"total_samples": 50_000},
                     "objective": {"max_slowdown": 0.5}});
    let id = daemon.register(&job).await;
    let training = Training::start(daemon.base(), &id, &driver, vec![(0, SMALL), (1, LARGE)], 0.0);
    daemon.phase(&id, "planned").await;
    let plan = daemon.get(&format!("/v1/jobs/{id}/plan")).await.expect(200);
    let segments: Vec<Vec<f64>> =
        plan["segments"].as_array().expect("segments").iter().map(|s| limits(&s["power_limits_w"])).collect();
    assert!(segments.iter().all(|l| matches!(l.as_slice(), [200.0..=250.0, 450.0..=500.0])), "{segments:?}");
    let lowest = segments.iter().min_by(|a, b| a[0].total_cmp(&b[0])).expect("a plan");
    // At 200 W the small GPU does 96; the large one does that at 410 W, and may go down to 450 W, where it does 100.
    assert_eq!(*lowest, [200.0, 450.0], "both are lowered: {segments:?}");
    eventually("both boards as planned", LONG, async || {
        ((driver.limit_w(0), driver.limit_w(1)) == (Some(200.0), Some(450.0))).then_some(())
    })
    .await;
    training.stop().await;
    daemon.delete(&format!("/v1/jobs/{id}")).await.expect(200);
    eventually("the found limits", LONG, async || {
        ((driver.limit_w(0), driver.limit_w(1)) == (Some(250.0), Some(500.0))).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_job_taken_up_again_shows_what_was_recorded_before() {
    let driver = Arc::new(FakeDriver::new(&[gpu()]));
    let state = tempfile::tempdir().expect("a directory");
    let carbon = forecast_file(&state, 60, 10, |_| 300.0);
    let flags = ["--carbon-file", carbon.to_str().expect("UTF-8")];
    let daemon = Daemon::start_with(&driver, state.path(), &flags).await;
    let id = daemon.register(&json!({"name": "a", "gpus": [0], "lease_s": 600})).await;
    daemon.post(&format!("/v1/jobs/{id}/progress"), &json!({"samples": 1})).await.expect(200);
    let recorded = async |daemon: &Daemon| {
        eventually("recorded energy", LONG, async || {
            let view = daemon.get(&format!("/v1/jobs/{id}")).await.json();
            Some((view["energy_j"].as_f64()?, view["carbon_g"].as_f64()?)).filter(|(energy, _)| *energy > 0.0)
        })
        .await
    };
    let before = recorded(&daemon).await;
    assert!(daemon.stop("TERM").await.success());
    let daemon = Daemon::start_with(&driver, state.path(), &flags).await;
    let after = recorded(&daemon).await;
    assert!(after.0 >= before.0 && after.1 >= before.1, "{before:?} {after:?}");
    let account = daemon.get(&format!("/v1/jobs/{id}/emissions")).await.expect(200);
    assert!(account["energy_j"].as_f64().expect("recorded") >= after.0, "{account}");
}
