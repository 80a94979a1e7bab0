//! The HTTP API of a running daemon: shapes, refusals, listeners, limits set by hand, metrics.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::nvml::{CURVE, gpu};
use crate::support::{Daemon, FakeDriver, LONG, Shapes, Training, eventually, forecast_file};

#[tokio::test]
async fn every_address_answers_in_its_documented_shape() {
    let driver = Arc::new(FakeDriver::new(&[gpu(), json!({"energy_supported": false})]));
    let state = tempfile::tempdir().expect("a directory");
    let carbon = forecast_file(&state, 60, 10, |i| 100.0 + i as f64);
    let daemon = Daemon::start_with(&driver, state.path(), &["--carbon-file", carbon.to_str().expect("UTF-8")]).await;
    let shapes = Shapes(daemon.get("/openapi.json").await.expect(200));
    let checked = |method: &str, address: &str, status: &str, value: &Value| {
        let schema = shapes.of(method, address, status).unwrap_or_else(|| panic!("{method} {address} {status}"));
        shapes.check(schema, value, address);
    };
    let job = json!({"name": "a", "gpus": [0], "batch_size": 8, "work": {"total_samples": 1e6},
                     "objective": {"eta": 0.9, "max_slowdown": 0.1, "deadline": "2999-01-01T00:00:00Z"},
                     "tags": {"team": "vision"}});
    let registered = daemon.post("/v1/jobs", &job).await;
    let registered = registered.expect(201);
    checked("post", "/v1/jobs", "201", &registered);
    let id = registered["job_id"].as_str().expect("an id").to_owned();
    let training = Training::start(daemon.base(), &id, &driver, vec![(0, CURVE)], 0.0);
    let ended = daemon.register(&json!({"name": "b", "gpus": [1]})).await;
    let report = daemon.post(&format!("/v1/jobs/{ended}/progress"), &json!({"samples": 1})).await.expect(200);
    checked("post", "/v1/jobs/{id}/progress", "200", &report);
    checked("delete", "/v1/jobs/{id}", "200", &daemon.delete(&format!("/v1/jobs/{ended}")).await.expect(200));
    let set = daemon.put("/v1/gpus/1/power-limit", &json!({"power_limit_w": 200, "ttl_s": 60})).await.expect(200);
    checked("put", "/v1/gpus/{id}/power-limit", "200", &set);
    let released = daemon.delete("/v1/gpus/1/power-limit").await.expect(200);
    checked("delete", "/v1/gpus/{id}/power-limit", "200", &released);
    daemon.phase(&id, "profiling").await;
    eventually("a recorded interval", LONG, async || {
        (daemon.get(&format!("/v1/jobs/{id}")).await.json()["energy_j"].as_f64()? > 0.0).then_some(())
    })
    .await;

    let recurring = json!({"batch_sizes": [8], "default_batch_size": 8, "max_epochs": 1, "target_metric": 1,
                           "max_power_w": 300, "objective": "carbon", "reference_g_per_kwh": 400});
    checked("put", "/v1/recurring/{name}", "201", &daemon.put("/v1/recurring/r", &recurring).await.expect(201));
    daemon.post("/v1/recurring/r/trials", &json!({})).await.expect(201);

    let mut read = 0;
    for address in shapes.readable() {
        let Some(schema) = shapes.of("get", &address, "200") else { continue };
        // The audit log is refused over TCP without a token.
        if address == "/v1/audit" {
            daemon.get(&address).await.problem(403);
            continue;
        }
        let ids: Vec<&str> = match address.split('/').nth(2) {
            Some("gpus") => vec!["0", "1"],
            // There is a plan only while a job runs.
            Some("jobs") if !address.ends_with("/plan") => vec![&id, &ended],
            _ => vec![&id],
        };
        for id in ids {
            let path = address.replace("{id}", id).replace("{name}", "r").replace("{number}", "1");
            let answer = daemon.get(&format!("{path}{}", query(&address))).await;
            // No actual value is known.
            if answer.status == 204 && address.starts_with("/emissions/") {
                continue;
            }
            assert_eq!(answer.content_type, "application/json", "{address}");
            shapes.check(schema, &answer.expect(200), &address);
            read += 1;
        }
    }
    assert!(read >= 15, "{read}");
    checked("get", "/v1/jobs", "200", &daemon.get("/v1/jobs?state=ended&limit=1").await.expect(200));
    let history = daemon.get("/v1/carbon/history?hours=1").await.expect(200);
    assert!(!history.as_array().expect("slots").is_empty(), "{history}");

    let status = daemon.get("/v1/status").await.expect(200);
    assert_eq!((&status["mode"], &status["simulated"]), (&json!("control"), &json!(false)));
    assert_eq!((&status["gpus"][0]["owner"], &status["gpus"][1]["state"]), (&json!(id), &json!("free")));
    assert_eq!(status["gpus"][1]["energy_source"], "integrated_power");
    assert_eq!(status["carbon"]["origin"], "forecast");
    // The same GPU by every name it has.
    let by_index = daemon.gpu(0).await;
    for name in ["uuid", "pci_bus_id"] {
        let view = daemon.get(&format!("/v1/gpus/{}", by_index[name].as_str().expect("a name"))).await.expect(200);
        assert_eq!(view["index"], 0);
    }
    // An ended job says nothing about the present, and its account is complete.
    let view = daemon.get(&format!("/v1/jobs/{ended}")).await.expect(200);
    for absent in ["phase", "power_limit_w", "lease_left_s", "slowdown", "energy_j", "carbon_g", "expected_end"] {
        assert_eq!(view[absent], Value::Null, "{absent}: {view}");
    }
    assert_eq!((&view["end_reason"], view["ended_at"].is_string()), (&json!("ended by its owner"), true));
    assert_eq!(daemon.get("/v1/jobs?state=ended").await.expect(200), json!([view]));
    for path in ["/healthz", "/health", "/readyz"] {
        assert_eq!(daemon.get(path).await.expect(200), json!({"status": "ok"}));
    }
    training.stop().await;
}

/// Returns the query that an address needs.
fn query(address: &str) -> &'static str {
    match address {
        "/v1/when" => "?duration_s=3600&within_s=7200",
        "/emissions/average-carbon-intensity" => "?location=file&startTime=2026-01-01T00:00Z&endTime=2026-01-01T01:00Z",
        emissions if emissions.starts_with("/emissions/") => "?location=file",
        _ => "",
    }
}

#[tokio::test]
async fn what_is_not_there_is_a_problem_and_so_is_a_external_page() {
    let driver = FakeDriver::new(&[json!({})]);
    let state = tempfile::tempdir().expect("a directory");
    let daemon = Daemon::start_with(&driver, state.path(), &[]).await;
    let absent = [
        ("/v1/gpus/1", "GPUs of this machine: 0 (GPU-0"),
        ("/v1/gpus/GPU-none", "GPUs of this machine: 0 (GPU-0"),
        ("/v1/jobs/none", "registered with POST /v1/jobs"),
        ("/v1/jobs/none/profile", "registered with POST /v1/jobs"),
        ("/v1/jobs/none/emissions", "registered with POST /v1/jobs"),
        ("/v1/jobs/none/plan", "only while a job runs"),
        ("/v1/nothing", "there is no /v1/nothing"),
    ];
    for (path, part) in absent {
        let problem = daemon.get(path).await.problem(404);
        assert!(problem["detail"].as_str().expect("reported").contains(part), "{problem}");
    }
    for (path, part) in [("/v1/carbon/history?hours=745", "at most 744"), ("/v1/jobs?limit=1001", "from 1 to 1000")] {
        let problem = daemon.get(path).await.problem(422);
        assert!(problem["detail"].as_str().expect("reported").contains(part), "{problem}");
    }
    daemon.put("/v1/status", &json!({})).await.problem(405);

    let url = |path: &str| format!("{}{path}", daemon.base());
    let foreign = [("host", "evil.example"), ("origin", "http://evil.example"), ("sec-fetch-site", "cross-site")];
    for (header, value) in foreign {
        let reading = daemon.client().get(url("/v1/status")).header(header, value);
        daemon.send(reading).await.problem(403);
        let writing = daemon.client().post(url("/v1/jobs")).json(&json!({"name": "a", "gpus": [0]}));
        daemon.send(writing.header(header, value)).await.problem(403);
    }
    let own = daemon.client().get(url("/v1/status")).header("origin", daemon.base());
    daemon.send(own).await.expect(200);
    assert_eq!(daemon.get("/v1/jobs").await.expect(200), json!([]));
}

#[tokio::test]
async fn a_limit_set_by_hand_wins_for_a_while_and_stays_in_its_range() {
    let driver = Arc::new(FakeDriver::new(&[gpu()]));
    let state = tempfile::tempdir().expect("a directory");
    let daemon = Daemon::start_with(&driver, state.path(), &[]).await;
    let put = async |limit: Value, ttl: Value| {
        daemon.put("/v1/gpus/0/power-limit", &json!({"power_limit_w": limit, "ttl_s": ttl})).await
    };
    let refused = [
        (json!(300), json!(60), "power_limit_w", "100 W to 280 W (its original limit; wattune never goes above it)"),
        (json!(99), json!(60), "power_limit_w", "100 W to 280 W"),
        (json!(1e300), json!(60), "power_limit_w", "100 W to 280 W"),
        (json!(-5), json!(60), "power_limit_w", "more than 0 watts"),
        (json!("200"), json!(60), "power_limit_w", "give watts"),
        (json!(200), json!(0), "ttl_s", "from 1 to 604800"),
        (json!(200), Value::Null, "ttl_s", "an override always expires"),
    ];
    for (limit, ttl, field, part) in refused {
        let problem = put(limit, ttl).await.problem(422);
        assert_eq!(problem["field"], field, "{problem}");
        assert!(problem["detail"].as_str().expect("reported").contains(part), "{problem}");
    }
    daemon.put("/v1/gpus/1/power-limit", &json!({"power_limit_w": 200, "ttl_s": 60})).await.problem(404);
    assert!(driver.writes().is_empty());

    let id = daemon.register(&json!({"name": "a", "gpus": [0]})).await;
    let training = Training::start(daemon.base(), &id, &driver, vec![(0, CURVE)], 0.0);
    daemon.phase(&id, "profiling").await;
    let set = put(json!(150), json!(600)).await.expect(200);
    assert_eq!((&set["state"], &set["power_limit_wanted_w"]), (&json!("override"), &json!(150.0)), "{set}");
    assert!(set["override_until"].is_string(), "{set}");
    let limit_is = async |watts: f64| {
        eventually("the limit", LONG, async || (driver.limit_w(0) == Some(watts)).then_some(())).await;
    };
    limit_is(150.0).await;
    let observed = daemon.phase(&id, "observing").await;
    assert_eq!(observed["reason"], "GPU 0 has a manual override");
    // Renewed, it ends by itself, and the job's sweep goes on.
    put(json!(160), json!(1)).await.expect(200);
    limit_is(160.0).await;
    daemon.phase(&id, "profiling").await;
    let view = daemon.gpu(0).await;
    assert_eq!((&view["state"], &view["override_until"]), (&json!("job"), &Value::Null), "{view}");
    limit_is(280.0).await;
    // Released, it ends at once; without a job the found limit comes back, and nothing reminds of it.
    put(json!(170), json!(600)).await.expect(200);
    limit_is(170.0).await;
    daemon.delete(&format!("/v1/jobs/{id}")).await.expect(200);
    training.stop().await;
    assert_eq!(daemon.gpu(0).await["state"], "override", "it outlives the job");
    daemon.delete("/v1/gpus/0/power-limit").await.expect(200);
    limit_is(280.0).await;
    let free = eventually("a free GPU", LONG, async || {
        let view = daemon.gpu(0).await;
        (view["power_limit_original_w"].is_null() && view["power_limit_requested_w"] == 280.0).then_some(view)
    })
    .await;
    assert_eq!(
        (&free["state"], &free["detail"], &free["power_limit_wanted_w"]),
        (&json!("free"), &Value::Null, &Value::Null)
    );
    daemon.delete("/v1/gpus/0/power-limit").await.expect(200);
}

fn over_socket(path: &Path) -> reqwest::Client {
    let client = reqwest::Client::builder().no_proxy().tls_certs_only([]).unix_socket(path.to_owned());
    client.build().expect("a client")
}

#[tokio::test]
async fn the_unix_socket_is_private_replaced_when_dead_and_respected_when_alive() {
    let driver = FakeDriver::new(&[json!({})]);
    let (first, second) = (tempfile::tempdir().expect("a directory"), tempfile::tempdir().expect("a directory"));
    let path = first.path().join("wattune.sock");
    let flag = ["--socket", path.to_str().expect("UTF-8")];
    let daemon = Daemon::start_with(&driver, first.path(), &flag).await;
    let mode = std::fs::metadata(&path).expect("a socket").permissions().mode();
    assert_eq!(mode & 0o777, 0o660);
    let client = over_socket(&path);
    let status = daemon.send(client.get("http://anything/v1/status")).await.expect(200);
    assert_eq!(status["mode"], "control");
    daemon.send(client.get("http://localhost/v1/status").header("origin", "http://evil.example")).await.problem(403);

    let taken = Daemon::command(&driver, second.path()).args(flag).output().expect("starts");
    let reported = String::from_utf8_lossy(&taken.stderr).into_owned();
    assert_eq!(taken.status.code(), Some(1), "{reported}");
    assert!(reported.contains("another daemon answers at") && reported.contains("choose another path"), "{reported}");
    daemon.send(client.get("http://localhost/healthz")).await.expect(200);

    daemon.kill();
    assert!(path.exists(), "a killed daemon leaves its socket");
    let daemon = Daemon::start_with(&driver, first.path(), &flag).await;
    daemon.send(over_socket(&path).get("http://localhost/healthz")).await.expect(200);
    assert!(daemon.stop("TERM").await.success());
    assert!(!path.exists());
}

#[tokio::test]
async fn metrics_show_what_is_known_and_forget_ended_jobs() {
    let quiet = json!({"energy_supported": false,
                       "fail_calls": {"nvmlDeviceGetTemperature": 3, "nvmlDeviceGetClockInfo": 3,
                                      "nvmlDeviceGetCurrentClocksThrottleReasons": 3}});
    let driver = FakeDriver::new(&[json!({}), quiet]);
    let state = tempfile::tempdir().expect("a directory");
    let daemon = Daemon::start_with(&driver, state.path(), &[]).await;
    let id = daemon.register(&json!({"name": "a \"quoted\" name", "gpus": [0, 1], "tags": {"team": "vision"}})).await;
    daemon.post(&format!("/v1/jobs/{id}/progress"), &json!({"samples": 42})).await.expect(200);
    let metrics = async || {
        let plain = daemon.get("/metrics").await;
        assert!(plain.content_type.starts_with("text/plain; version=0.0.4"), "{}", plain.content_type);
        assert!(!plain.text.contains("# UNIT") && !plain.text.contains("# EOF"), "{}", plain.text);
        let request = daemon.client().get(format!("{}/metrics", daemon.base()));
        let answer = daemon.send(request.header("accept", "application/openmetrics-text; version=1.0.0")).await;
        assert!(answer.content_type.starts_with("application/openmetrics-text"), "{}", answer.content_type);
        assert!(answer.text.ends_with("# EOF\n") && !answer.text.contains("NaN"), "{}", answer.text);
        answer.text
    };
    let text =
        eventually("energy", LONG, async || Some(metrics().await).filter(|t| t.contains("gpu_power_watts"))).await;
    let line = |text: &str, name: &str, label: &str| {
        text.lines().find(|l| l.starts_with(name) && l.contains(label)).map(str::to_owned)
    };
    let (job, first, second) = (format!("job_id=\"{id}\""), "gpu=\"0\"", "gpu=\"1\"");
    assert!(line(&text, "wattune_job_info", &job).expect("there").contains("tag_team=\"vision\""), "{text}");
    assert!(line(&text, "wattune_job_samples_total", &job).expect("there").ends_with(" 42.0"), "{text}");
    for name in ["wattune_job_energy_joules_total", "wattune_job_lease_left_seconds", "wattune_job_phase"] {
        assert!(line(&text, name, &job).is_some(), "{name}: {text}");
    }
    // Absent is not zero.
    for name in ["wattune_job_slowdown_ratio", "wattune_job_expected_end_time_seconds", "wattune_job_work_samples"] {
        assert_eq!(line(&text, name, &job), None);
    }
    assert_eq!(
        (&daemon.gpu(0).await["event_reasons"], &daemon.gpu(1).await["event_reasons"]),
        (&json!([]), &Value::Null)
    );
    let reported = ["wattune_gpu_temperature_celsius", "wattune_gpu_sm_clock_hertz", "wattune_gpu_clocks_event_reason"];
    for name in reported {
        assert!(line(&text, name, first).is_some(), "{name}: {text}");
        assert_eq!(line(&text, name, second), None);
    }
    for name in ["wattune_gpu_power_limit_original_watts", "wattune_gpu_out_of_band_cap_watts"] {
        assert_eq!(line(&text, name, second), None);
    }
    daemon.delete(&format!("/v1/jobs/{id}")).await.expect(200);
    let text = metrics().await;
    assert!(!text.contains(&id) && !text.contains("wattune_job_"), "{text}");
    assert!(line(&text, "wattune_gpu_energy_joules_total", first).is_some(), "{text}");
}
