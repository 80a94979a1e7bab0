//! Forecast files: what is wrong in them is told with its place, and the daemon goes on with what it has.

use std::path::Path;
use std::sync::Arc;

use chrono::TimeDelta;
use serde_json::{Value, json};

use crate::support::{Curve, Daemon, Ended, FakeDriver, LONG, Training, eventually, forecast_file};

/// The file is looked at every second.
const SETTINGS: &str = "[carbon]\npoll_interval_s = 1\n";

async fn daemon(driver: &FakeDriver, state: &Path, file: &Path) -> Daemon {
    let settings = format!("{}{SETTINGS}", Daemon::QUICK);
    let mut command = Daemon::command_with(driver, state, &FakeDriver::library(), &settings);
    command.arg("--carbon-file").arg(file);
    Daemon::start(command, state).await
}

/// Hourly rows from an hour ago on; `None` leaves the field empty.
fn hours(values: &[Option<f64>]) -> Vec<String> {
    let start = crate::support::now() - TimeDelta::minutes(90);
    let row = |(i, value): (i64, &Option<f64>)| {
        let at = start + TimeDelta::hours(i);
        format!("{},{}", at.format("%FT%TZ"), value.map(|v| v.to_string()).unwrap_or_default())
    };
    (0..).zip(values).map(row).collect()
}

fn near(value: &Value, expected: f64) -> bool {
    value.as_f64().is_some_and(|v| (v - expected).abs() < 1e-9)
}

fn text(rows: &[String]) -> String {
    format!("timestamp,value\n{}\n", rows.join("\n"))
}

#[test]
fn the_doctor_says_what_is_wrong_in_a_file() {
    let driver = FakeDriver::new(&[json!({})]);
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("carbon.csv");
    let signal = || {
        let state = dir.path().join("state");
        let (state, file) = (state.to_str().expect("UTF-8"), file.to_str().expect("UTF-8"));
        let arguments =
            ["doctor", "--format", "json", "--state-dir", state, "--carbon-file", file, "--listen", "127.0.0.1:0"];
        let findings = Ended::with_driver(&driver, &arguments).json();
        let found = findings.as_array().expect("findings").iter().find(|f| f["what"] == "carbon signal");
        found.expect("looked at").clone()
    };
    let missing = signal();
    assert_eq!(missing["verdict"], "limited");
    assert!(missing["detail"].as_str().expect("reported").contains("check carbon.file.path"), "{missing}");

    let rows = hours(&[Some(100.0), Some(200.0), Some(300.0)]);
    let with = |i: usize, row: String| {
        let mut rows = rows.clone();
        rows[i] = row;
        text(&rows)
    };
    let at = |i: usize| rows[i].split(',').next().expect("a time").to_owned();
    let zoneless = at(1).trim_end_matches('Z').to_owned();
    let wrong = [
        (String::new(), "is empty; write a header line"),
        ("timestamp,value\n".into(), "no row with a value"),
        (with(1, format!("{},NaN", at(1))), "line 3, column \"value\": \"NaN\" is not a carbon intensity"),
        (with(1, format!("{},-5", at(1))), "line 3, column \"value\": \"-5\" is not a carbon intensity"),
        (with(1, format!("{},inf", at(1))), "leave the field empty where there is none"),
        (with(1, format!("{},99999", at(1))), "from 0 to 20000"),
        (with(2, format!("{zoneless},1")), "line 4, column \"timestamp\": "),
        (with(2, format!("{zoneless},1")), "has no zone; write UTC with a Z"),
        (with(0, "soon,1".into()), "line 2, column \"timestamp\": \"soon\" is not a time"),
        (with(0, ",1".into()), "every row needs the start of its slot"),
        (with(0, format!("{},1,2", at(0))), "line 2"),
        (text(&rows).replace("value", "price"), "set carbon.file.value_column"),
        (text(&rows).replace("timestamp", "when"), "set carbon.file.time_column"),
        ("{\"data\": 3}".into(), "write an array of objects"),
        ("timestamp,value\n2001-01-01T00:00:00Z,100\n".into(), "append newer rows, or set carbon.file.timing"),
    ];
    for (text, part) in wrong {
        std::fs::write(&file, &text).expect("written");
        let finding = signal();
        let detail = finding["detail"].as_str().expect("reported");
        assert!(detail.contains(part) && finding["verdict"] == "limited", "{text:?}: {finding}");
    }
    let odd = [
        (text(&hours(&[Some(1.0), Some(2.0), None, Some(4.0)])), "no value for"),
        (text(&[&rows[..1], &rows[2..]].concat()), "h ahead"),
        (text(&[rows[2].clone(), rows[0].clone(), rows[1].clone()]), "not in time order; sorted"),
        (text(&[rows[0].clone(), rows[1].clone(), format!("{},7", at(1)), rows[2].clone()]), "overlaps"),
    ];
    for (text, part) in odd {
        std::fs::write(&file, &text).expect("written");
        let finding = signal();
        assert!(finding["detail"].as_str().expect("reported").contains(part), "{text:?}: {finding}");
    }
}

#[tokio::test]
async fn holes_are_filled_and_reported() {
    let driver = FakeDriver::new(&[json!({})]);
    let state = tempfile::tempdir().expect("a directory");
    let file = state.path().join("carbon.csv");
    // Newest first, with a null ahead.
    let mut rows = hours(&[Some(100.0), Some(200.0), None, Some(400.0), Some(500.0)]);
    rows.reverse();
    std::fs::write(&file, text(&rows)).expect("written");
    let daemon = daemon(&driver, state.path(), &file).await;
    let carbon = daemon.carbon_where("a signal", |c| c["freshness"] == "fresh").await;
    assert_eq!((&carbon["intensity_g_per_kwh"], &carbon["source"]), (&json!(200.0), &json!("file")));
    let notes = carbon["notes"].to_string();
    assert!(notes.contains("not in time order") && notes.contains("no value for"), "{notes}");
    let ahead = daemon.get("/v1/carbon/forecast").await.expect(200);
    let slots: Vec<(f64, &str)> = ahead
        .as_array()
        .expect("slots")
        .iter()
        .map(|s| (s["intensity_g_per_kwh"].as_f64().expect("a value"), s["origin"].as_str().expect("reported")))
        .collect();
    let known = |origin: &str| slots.iter().filter(|s| s.1 == origin).map(|s| s.0).collect::<Vec<_>>();
    assert_eq!(known("forecast"), [200.0, 400.0, 500.0], "{ahead}");
    // The hole between 200 and 400, and then what the local forecaster goes on with.
    let filled = known("fallback");
    assert!((200.0..=400.0).contains(&filled[0]), "{ahead}");
    assert!(filled.len() > 40 && filled.iter().all(|v| (100.0..=500.0).contains(v)), "{ahead}");
    let ends: Vec<_> = ahead.as_array().expect("slots").windows(2).map(|w| w[0]["end"] == w[1]["start"]).collect();
    assert!(ends.iter().all(|joined| *joined), "{ahead}");
}

#[tokio::test]
async fn a_file_comes_changes_and_breaks_while_a_job_runs() {
    const CURVE: Curve = &[(300.0, 100.0)];
    let driver = Arc::new(FakeDriver::new(&[json!({"min_w": 300, "max_w": 300, "default_w": 300, "demand_w": 400})]));
    let state = tempfile::tempdir().expect("a directory");
    let file = state.path().join("carbon.csv");
    let daemon = daemon(&driver, state.path(), &file).await;
    let job = json!({"name": "steady", "gpus": [0], "work": {"total_samples": 1_000_000}});
    let id = daemon.register(&job).await;
    let training = Training::start(daemon.base(), &id, &driver, vec![(0, CURVE)], 0.0);

    let missing = daemon.carbon_where("a look at the file", |c| c["last_error"].is_string()).await;
    assert_eq!((&missing["freshness"], &missing["intensity_g_per_kwh"]), (&json!("none"), &Value::Null));
    assert_eq!((&missing["fallback_g_per_kwh"], &missing["followed"]), (&json!(475.0), &Value::Null));
    assert!(missing["last_error"].as_str().expect("reported").contains("check carbon.file.path"), "{missing}");
    assert!(missing["notes"].to_string().contains("all plans use the configured 475 gCO2e/kWh"), "{missing}");
    assert_eq!(daemon.get("/v1/carbon/forecast").await.expect(200), json!([]));
    let planned = daemon.phase(&id, "planned").await;
    assert_eq!(planned["carbon_g"], Value::Null, "{planned}");
    let plan = daemon.get(&format!("/v1/jobs/{id}/plan")).await.expect(200);
    assert!(
        plan["segments"].as_array().expect("segments").iter().all(|s| near(&s["intensity_g_per_kwh"], 475.0)),
        "{plan}"
    );

    let rows = |value: f64| text(&hours(&[Some(value); 5]));
    std::fs::write(&file, rows(100.0)).expect("written");
    daemon.carbon_where("the file", |c| c["intensity_g_per_kwh"] == 100.0 && c["freshness"] == "fresh").await;
    std::fs::write(&file, rows(900.0)).expect("written");
    daemon.carbon_where("the change", |c| c["intensity_g_per_kwh"] == 900.0).await;
    eventually("a plan with it", LONG, async || {
        let plan = daemon.get(&format!("/v1/jobs/{id}/plan")).await.expect(200);
        (plan["segments"][0]["intensity_g_per_kwh"].as_f64()? > 500.0).then_some(())
    })
    .await;

    std::fs::write(&file, rows(f64::NAN)).expect("written");
    let broken = daemon.carbon_where("the breakage", |c| c["last_error"].is_string()).await;
    assert!(broken["last_error"].as_str().expect("reported").contains("line 2, column \"value\": \"NaN\""), "{broken}");
    assert_eq!(broken["intensity_g_per_kwh"], 900.0, "what was known stays: {broken}");
    daemon.carbon_where("its age", |c| c["freshness"] == "stale" && c["stale_since"].is_string()).await;

    let job = daemon.get(&format!("/v1/jobs/{id}")).await.expect(200);
    assert_eq!(job["phase"], "planned", "{job}");
    assert!(training.stop().await.iter().all(|a| a["phase"].is_string()));
    let account = daemon.delete(&format!("/v1/jobs/{id}")).await.expect(200);
    assert!(account["energy_j"].as_f64().expect("recorded") > 0.0, "{account}");
}

#[tokio::test]
async fn a_forecast_that_runs_out_leaves_the_job_running() {
    let driver = FakeDriver::new(&[json!({})]);
    let state = tempfile::tempdir().expect("a directory");
    let file = forecast_file(&state, 3, 2, |_| 250.0);
    let daemon = daemon(&driver, state.path(), &file).await;
    let id = daemon.register(&json!({"name": "steady", "gpus": [0]})).await;
    let gone = daemon.carbon_where("the end", |c| c["freshness"] == "none" && c["last_error"].is_string()).await;
    assert!(gone["last_error"].as_str().expect("reported").contains("append newer rows"), "{gone}");
    let gone = daemon.carbon_where("the shape of what was said", |c| c["basis"] == "daily_shape").await;
    assert_eq!((&gone["intensity_g_per_kwh"], &gone["origin"]), (&json!(250.0), &json!("fallback")));
    assert!(gone["basis_since"].is_string() && gone["sources"][0]["failing_since"].is_string(), "{gone}");
    assert!(gone["notes"].to_string().contains("the next 24 h: "), "what is planned with is told: {gone}");
    let ahead = daemon.get("/v1/carbon/forecast").await.expect(200);
    assert!(ahead.as_array().is_some_and(|a| !a.is_empty() && a.iter().all(|s| s["origin"] == "fallback")), "{ahead}");
    daemon.post(&format!("/v1/jobs/{id}/progress"), &json!({"samples": 1})).await.expect(200);
    let metrics = daemon.get("/metrics").await.text;
    assert!(metrics.contains("wattune_carbon_signal_fresh 0"), "{metrics}");
    assert!(metrics.contains("wattune_carbon_basis{basis=\"daily_shape\"} 1.0"), "{metrics}");
    // Newer rows are found.
    std::fs::write(&file, text(&hours(&[Some(50.0); 4]))).expect("written");
    daemon.carbon_where("newer rows", |c| c["intensity_g_per_kwh"] == 50.0).await;
}
