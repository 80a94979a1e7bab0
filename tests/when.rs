//! `wattune when` and `GET /v1/when`: with a daemon, without one, and with forecasts that fail, end or change.

use std::path::Path;
use std::time::Duration;

use chrono::{NaiveDateTime, TimeDelta};
use serde_json::{Value, json};

use crate::support::{Daemon, Ended, FakeDriver, LONG, eventually, forecast_file, moment, now, wattune};

/// A forecast that is cleanest in the hours 7 and 8 from now on.
fn file(dir: &tempfile::TempDir) -> std::path::PathBuf {
    forecast_file(dir, 3600, 48, |hour| match hour {
        7 | 8 => 100.0,
        6 | 9 => 200.0,
        _ => 400.0,
    })
}

/// Runs `wattune when` without a daemon, with a forecast in a file, in a time zone.
fn when_in(zone: &str, dir: &Path, carbon: &Path, arguments: &[&str]) -> Ended {
    let mut command = wattune(&["when", "--listen", "127.0.0.1:1", "--carbon-file"]);
    command.arg(carbon).arg("--state-dir").arg(dir.join("state")).args(arguments).env("TZ", zone);
    Ended::of(&mut command)
}

fn when(dir: &tempfile::TempDir, carbon: &Path, arguments: &[&str]) -> Ended {
    when_in("UTC", dir.path(), carbon, arguments)
}

/// Checks what holds for each advice.
#[track_caller]
fn is_sound(advice: &Value) {
    let (start, asked) = (moment(&advice["start"]), moment(&advice["asked_at"]));
    assert!(start >= asked && start <= moment(&advice["latest_start"]).max(asked), "{advice:#}");
    assert_eq!(advice["start"].as_str().map(|t| t.ends_with('Z')), Some(true), "{advice:#}");
    for key in ["expected_saving_pct", "saving_low_pct", "saving_high_pct", "loss_probability", "duration_s"] {
        assert!(advice[key].is_number(), "{key}: {advice:#}");
    }
    let windows = advice["windows"].as_array().expect("windows");
    assert!(!windows.is_empty(), "{advice:#}");
    assert!(windows.iter().all(|w| w["intensity_g_per_kwh"].is_number()), "{advice:#}");
}

#[test]
fn the_clean_hours_are_found_without_a_daemon() {
    let dir = tempfile::tempdir().expect("a directory");
    let carbon = file(&dir);
    let arguments = ["--duration", "2h", "--within", "12h", "--power", "500", "--format", "json"];
    let advice = when(&dir, &carbon, &arguments).json();
    is_sound(&advice);
    let wait = moment(&advice["start"]) - moment(&advice["asked_at"]);
    assert!((wait - TimeDelta::hours(7)).abs() < TimeDelta::minutes(2), "{wait}: {advice:#}");
    assert_eq!((&advice["asked"], &advice["basis"]), (&json!("sources"), &json!("source")), "{advice:#}");
    let saving = advice["expected_saving_pct"].as_f64().expect("a number");
    // The less is known of a forecast's skill, the less of its range is expected.
    assert!((20.0..=75.0).contains(&saving), "{saving}");
    let best = &advice["best"];
    let carbon_g = best["carbon_g"].as_f64().expect("a number");
    let kwh = carbon_g / best["intensity_g_per_kwh"].as_f64().expect("a number");
    assert!((kwh - 1.0).abs() < 1e-9, "500 W for 2 h: {best}");
    let shown = when(&dir, &carbon, &["--duration", "2h", "--within", "12h"]);
    for part in ["best later", "▲▲", "asked the sources themselves", "(in 7 h"] {
        assert!(shown.done().contains(part), "{part}: {}", shown.out);
    }
}

#[test]
fn starts_are_written_for_slurm_cron_and_at_in_local_time() {
    let dir = tempfile::tempdir().expect("a directory");
    let carbon = file(&dir);
    let ask = |zone: &str, format: &str, more: &[&str]| {
        let arguments = [&["--duration", "2h", "--format", format], more].concat();
        let ended = when_in(zone, dir.path(), &carbon, &arguments);
        ended.done().trim().to_owned()
    };
    let within = ["--within", "12h"];
    let advice: Value = serde_json::from_str(&ask("UTC", "json", &within)).expect("JSON");
    // The forecast's slots begin at the same times for each call.
    let start = moment(&advice["start"]);
    for (zone, hours) in [("UTC", 0), ("XXX-5", 5), ("XXX+3", -3)] {
        let local = |text: &str, format: &str| NaiveDateTime::parse_from_str(text, format).expect(text);
        let expected = (start + TimeDelta::hours(hours)).naive_utc();
        let slurm = local(&ask(zone, "slurm", &within), "%Y-%m-%dT%H:%M:%S") - expected;
        assert!((TimeDelta::zero()..TimeDelta::seconds(2)).contains(&slurm), "{zone}: {slurm}");
        let at = local(&ask(zone, "at", &within), "%Y%m%d%H%M") - expected;
        assert!((TimeDelta::zero()..TimeDelta::seconds(61)).contains(&at), "{zone}: {at}");
        let cron = ask(zone, "cron", &within);
        let fields: Vec<&str> = cron.split(' ').collect();
        assert_eq!((fields.len(), fields[4]), (5, "*"), "{cron}");
    }
    // The earliest start is in a night when clocks are put back, and no time is left to wait.
    let year = now().format("%Y").to_string().parse::<i32>().expect("a year") + 1;
    let last_sunday = (25..=31).rev().map(|day| format!("{year}-10-{day:02}")).find(|date| {
        date.parse::<chrono::NaiveDate>().is_ok_and(|d| chrono::Datelike::weekday(&d) == chrono::Weekday::Sun)
    });
    let night = last_sunday.expect("a Sunday");
    let berlin = "CET-1CEST,M3.5.0,M10.5.0/3";
    let doubt = |at: &str| {
        let flags = ["--duration", "2h", "--format", "at", "--earliest", at, "--latest-start", at];
        when_in(berlin, dir.path(), &carbon, &flags).err
    };
    let three = doubt(&format!("{night}T02:00:00Z"));
    assert!(!three.contains("occurs twice"), "03:00 comes once: {three}");
    for (utc, slurm) in
        [("00:30:00Z", None), ("01:30:00Z", None), ("02:30:00Z", Some("03:30:00")), ("10:00:00Z", Some("11:00:00"))]
    {
        let at = format!("{night}T{utc}");
        let written = ask(berlin, "slurm", &["--earliest", &at, "--latest-start", &at]);
        match slurm {
            Some(local) => assert_eq!(written, format!("{night}T{local}"), "{at}"),
            None => {
                let seconds: i64 = written.strip_prefix("now+").and_then(|s| s.parse().ok()).expect(&written);
                let reached = now() + TimeDelta::seconds(seconds);
                assert!((reached - moment(&json!(at))).abs() < TimeDelta::seconds(60), "{written} for {at}");
                let which = if utc.starts_with("00") { "the first one is meant" } else { "the second one is meant" };
                assert!(doubt(&at).contains(which), "{at}: {}", doubt(&at));
            }
        }
    }
}

#[test]
fn a_latest_start_in_the_past_means_now() {
    let dir = tempfile::tempdir().expect("a directory");
    let carbon = file(&dir);
    let past = (now() - TimeDelta::hours(3)).to_rfc3339();
    let arguments = |format| ["--duration", "1h", "--latest-start", past.as_str(), "--format", format];
    let advice = when(&dir, &carbon, &arguments("json")).json();
    is_sound(&advice);
    assert_eq!((&advice["reason"], &advice["starts_at_once"]), (&json!("latest_start_passed"), &json!(true)));
    assert_eq!(advice["start"], advice["asked_at"]);
    let slurm = when(&dir, &carbon, &arguments("slurm"));
    assert_eq!(slurm.done(), "now\n");
    assert!(slurm.err.contains("the latest start, ") && slurm.err.contains("has passed"), "{}", slurm.err);
    assert_eq!(when(&dir, &carbon, &["--duration", "1h", "--within", "0", "--format", "slurm"]).done(), "now\n");
}

#[test]
fn a_job_longer_than_the_forecast_gets_an_answer_that_says_so() {
    let dir = tempfile::tempdir().expect("a directory");
    let carbon = file(&dir);
    for duration in ["10d", "200d", "9y"].into_iter().take(2) {
        let ended = when(&dir, &carbon, &["--duration", duration, "--within", "2d", "--format", "json"]);
        let advice = ended.json();
        is_sound(&advice);
        assert_ne!(advice["basis"], "source", "{advice:#}");
        assert!(ended.err.contains("from ") && ended.err.contains("forecast"), "{}", ended.err);
        assert!(!ended.out.contains("NaN") && !advice["warnings"].as_array().expect("a list").is_empty());
    }
}

#[test]
fn dead_sources_give_now_and_say_so() {
    let dir = tempfile::tempdir().expect("a directory");
    let config = dir.path().join("wattune.toml");
    let text = "[carbon]\nsource = \"energy_charts\"\nzone = \"DE\"\n[carbon.energy_charts]\nbase_url = \"http://127.0.0.1:1\"\n";
    std::fs::write(&config, text).expect("written");
    let ask = |format: &str| {
        let mut command = wattune(&["when", "--duration", "8h", "--within", "24h", "--format", format, "--direct"]);
        command.arg("--config").arg(&config).arg("--state-dir").arg(dir.path().join("state"));
        Ended::of(&mut command)
    };
    let ended = ask("json");
    let advice = ended.json();
    is_sound(&advice);
    assert_eq!((&advice["reason"], &advice["basis"]), (&json!("nothing_known"), &json!("constant")), "{advice:#}");
    assert!(ended.err.contains("energy_charts does not answer"), "{}", ended.err);
    assert_eq!(ask("slurm").done(), "now\n");
}

#[test]
fn wrong_use_ends_with_code_2() {
    let dir = tempfile::tempdir().expect("a directory");
    let carbon = file(&dir);
    for (arguments, why) in [
        (&["--within", "24h"] as &[&str], "--duration"),
        (&["--duration", "8h"], "--within 24h"),
        (&["--duration", "8h", "--within", "1h", "--latest-start", "2030-01-01T00:00:00Z"], "only one of"),
        (&["--duration", "8x", "--within", "24h"], "1h30m"),
        (&["--duration", "8h", "--within", "24h", "--power", "-3"], "above 0"),
        (&["--duration", "8h", "--within", "24h", "--confidence", "90"], "write 0.9 for 90 %"),
        (&["--duration", "0", "--within", "24h"], "above 0 s"),
        (&["--name", "never-seen", "--within", "24h"], "give the duration"),
        (&["--duration", "8h", "--within", "24h", "--earliest", "2100-01-01T00:00:00Z"], "earliest"),
        (&["--duration", "8h", "--within", "24h", "--earliest", "tomorrow"], "give a time with its zone"),
        (&["--duration", "8h", "--latest-start", "2030-01-01"], "give a time with its zone"),
        (&["--duration", "0", "--within", "24h"], "--duration: the duration is 0 s"),
        (&["--name", "never-seen", "--within", "24h"], "no run of never-seen was measured"),
        (&["--duration", "8h", "--within", "24h", "--power", "1e308"], "the power in watts"),
        (
            &["--duration", "8h", "--within", "24h", "--config", "/nowhere/wattune.toml"],
            "--config: cannot read /nowhere",
        ),
    ] {
        let ended = when(&dir, &carbon, arguments);
        assert_eq!(ended.code, Some(2), "{arguments:?}: {ended:?}");
        assert!(ended.err.contains(why) && ended.out.is_empty(), "{why}: {ended:?}");
    }
}

/// Half an hour alone differs eightfold from all other values: that is what the user wrote.
#[test]
fn the_values_of_the_users_file_are_used_as_they_are() {
    let dir = tempfile::tempdir().expect("a directory");
    let carbon = forecast_file(&dir, 1800, 96, |slot| if slot == 9 { 50.0 } else { 400.0 });
    let advice = when(&dir, &carbon, &["--duration", "30m", "--within", "12h", "--format", "json"]).json();
    assert_eq!(advice["best"]["intensity_g_per_kwh"], 50.0, "{advice:#}");
    let wait = moment(&advice["start"]) - moment(&advice["asked_at"]);
    assert!((wait - TimeDelta::minutes(270)).abs() < TimeDelta::minutes(2), "{wait}");
    let shown = Ended::of(wattune(&["carbon", "--format", "json", "--carbon-file"]).arg(&carbon)).json();
    assert!(shown["forecast"].to_string().contains("50.0"), "{shown:#}");
    assert!(!shown.to_string().contains("quarantined:"), "{shown:#}");
}

/// The file has two weeks of history, from which a forecaster would expect other values than the file has days ahead.
#[test]
fn days_ahead_in_the_users_file_are_used_as_they_are() {
    let dir = tempfile::tempdir().expect("a directory");
    let start = chrono::DateTime::from_timestamp(now().timestamp(), 0).expect("a time");
    let value = |hour: i64| if (60..63).contains(&hour) { 190 } else { 300 + (hour * 7919).rem_euclid(41) };
    let row = |hour: i64| format!("{},{}\n", (start + TimeDelta::hours(hour)).to_rfc3339(), value(hour));
    let carbon = dir.path().join("history.csv");
    let rows: String = (-14 * 24..5 * 24).map(row).collect();
    std::fs::write(&carbon, format!("timestamp,value\n{rows}")).expect("written");
    let advice = when(&dir, &carbon, &["--duration", "3h", "--within", "96h", "--format", "json"]).json();
    let slots = advice["forecast"].as_array().expect("slots");
    assert!(slots.len() >= 96, "{advice:#}");
    for slot in slots {
        let hour = (moment(&slot["start"]) - start).num_hours();
        assert_eq!(slot["intensity_g_per_kwh"].as_f64(), Some(value(hour) as f64), "hour {hour}: {slot}");
    }
    assert_eq!(moment(&advice["start"]), start + TimeDelta::hours(60), "{advice:#}");
    assert_eq!(advice["warnings"], json!([]), "{advice:#}");
}

/// The last windows reach an hour beyond the file's end, which says nothing about the windows within it.
#[test]
fn windows_within_the_users_file_are_judged_by_its_values_alone() {
    let dir = tempfile::tempdir().expect("a directory");
    let start = chrono::DateTime::from_timestamp(now().timestamp(), 0).expect("a time");
    let value = |hour: i64| if (8..11).contains(&hour) { 190 } else { 300 + (hour * 7919).rem_euclid(41) };
    let row = |hour: i64| format!("{},{}\n", (start + TimeDelta::hours(hour)).to_rfc3339(), value(hour));
    let carbon = dir.path().join("history.csv");
    let rows: String = (-14 * 24..30).map(row).collect();
    std::fs::write(&carbon, format!("timestamp,value\n{rows}")).expect("written");
    let ask = |within: &str| when(&dir, &carbon, &["--duration", "3h", "--within", within, "--format", "json"]).json();
    let (near, far) = (ask("24h"), ask("28h"));
    assert_eq!((&far["start"], &far["basis"]), (&near["start"], &json!("source")), "{far:#}");
    assert_eq!(far["warnings"], json!([]), "{far:#}");
    for key in ["expected_saving_pct", "saving_low_pct", "saving_high_pct"] {
        let (near, far) = (near[key].as_f64().expect("a number"), far[key].as_f64().expect("a number"));
        assert!((near - far).abs() < 0.5, "{key}: {near} and {far}");
    }
}

#[test]
fn the_start_is_at_the_top_and_a_reader_may_leave() {
    let dir = tempfile::tempdir().expect("a directory");
    let carbon = file(&dir);
    let arguments = ["--duration", "2h", "--within", "12h", "--format", "json"];
    let out = when(&dir, &carbon, &arguments).done().to_owned();
    assert!(out.starts_with("{\n  \"start\": \""), "{out}");
    let state = dir.path().join("state");
    for command in ["when", "carbon", "simulate"] {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let mut command = match command {
            "when" => wattune(&[&["when", "--listen", "127.0.0.1:1"], &arguments[..]].concat()),
            "carbon" => wattune(&["carbon", "--format", "json"]),
            _ => wattune(&["simulate", "carbon", "--help"]),
        };
        command.env("WATTUNE_CARBON_FILE", &carbon).env("WATTUNE_STATE_DIR", &state).stdout(writer);
        let output = command.output().expect("starts");
        let err = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), err.contains("pipe")), (Some(0), false), "{command:?}: {err}");
    }
}

#[test]
fn names_that_nothing_knows_are_wrong_use() {
    let dir = tempfile::tempdir().expect("a directory");
    let carbon = file(&dir);
    let arguments = ["--duration", "2h", "--within", "12h", "--format", "slurm"];
    let zone = when_in("Nope/City", dir.path(), &carbon, &arguments);
    assert!(zone.failed(2).contains("Nope/City") && zone.out.is_empty(), "{zone:?}");
    let state = dir.path().join("state");
    let mut command = wattune(&["when", "--zone", "Germny", "--duration", "2h", "--within", "12h", "--state-dir"]);
    let grid = Ended::of(command.arg(state));
    assert!(grid.failed(2).contains("did you mean Germany?") && grid.out.is_empty(), "{grid:?}");
}

#[test]
fn an_earliest_start_ahead_is_not_at_once() {
    let dir = tempfile::tempdir().expect("a directory");
    let carbon = file(&dir);
    let earliest = (now() + TimeDelta::hours(8)).to_rfc3339();
    let shown =
        when(&dir, &carbon, &["--duration", "1h", "--earliest", &earliest, "--within", "12h"]).done().to_owned();
    assert!(shown.contains("the earliest start") && shown.contains("\nearliest "), "{shown}");
    assert!(!shown.contains("at once"), "{shown}");
    let flags = ["--duration", "1h", "--earliest", &earliest, "--within", "12h", "--format", "json"];
    let advice = when(&dir, &carbon, &flags).json();
    assert_eq!(advice["starts_at_once"], false, "{advice:#}");
}

#[test]
fn a_wait_beyond_the_forecast_says_how_far_it_reaches() {
    let dir = tempfile::tempdir().expect("a directory");
    let carbon = file(&dir);
    let ask = |within: &str| when(&dir, &carbon, &["--duration", "2h", "--within", within, "--format", "json"]);
    let (near, far) = (ask("12h").json(), ask("3650d"));
    assert_eq!(near["warnings"], json!([]), "{near:#}");
    let until = moment(&far.json()["forecast_until"]);
    assert!((until - now() - TimeDelta::hours(48)).abs() < TimeDelta::minutes(5), "{until}");
    let end = until.format("%Y-%m-%d %H:%M UTC").to_string();
    assert!(far.err.contains(&end) && far.err.contains("daily profile"), "{}", far.err);
}

async fn daemon(driver: &FakeDriver, state: &Path, carbon: &Path) -> Daemon {
    let settings = format!("{}[carbon]\npoll_interval_s = 1\n", Daemon::QUICK);
    let mut command = Daemon::command_with(driver, state, &FakeDriver::library(), &settings);
    command.arg("--carbon-file").arg(carbon).args(["--zone", "DE"]);
    Daemon::start(command, state).await
}

#[tokio::test]
async fn a_daemon_advises_and_follows_a_forecast_that_changes() {
    let (driver, state) = (FakeDriver::new(&[json!({})]), tempfile::tempdir().expect("a directory"));
    let carbon = file(&state);
    let daemon = daemon(&driver, state.path(), &carbon).await;
    daemon.carbon_where("the file", |c| c["basis"] == "source").await;
    let path = "/v1/when?duration_s=7200&within_s=43200&zone=de";
    let advice = daemon.get(path).await.expect(200);
    is_sound(&advice);
    assert_eq!((&advice["reason"], &advice["zone"]), (&json!("cleaner_later"), &json!("DE")), "{advice:#}");
    assert_eq!(advice["power_w"], Value::Null);
    let first = moment(&advice["start"]);

    let address = daemon.base().strip_prefix("http://").expect("an address").to_owned();
    let asked = tokio::task::spawn_blocking(move || {
        let arguments = ["when", "--duration", "2h", "--within", "12h", "--format", "json", "--listen", &address];
        Ended::of(&mut wattune(&arguments))
    });
    let asked = asked.await.expect("runs");
    assert!(asked.out.starts_with("{\n  \"start\": \""), "{}", asked.out);
    let asked = asked.json();
    assert_eq!((&asked["asked"], &asked["reason"]), (&json!("daemon"), &json!("cleaner_later")), "{asked:#}");

    let metrics = daemon.get("/metrics").await.text;
    for name in ["start_time_seconds", "expected_saving_ratio", "loss_probability_ratio"] {
        assert!(metrics.contains(&format!("wattune_when_{name}{{duration_h=\"1\"}}")), "{name}: {metrics}");
    }

    // The newer forecast has its clean hours earlier.
    forecast_file(&state, 3600, 48, |hour| if (2..5).contains(&hour) { 50.0 } else { 400.0 });
    let moved = eventually("another start", LONG, async || {
        let advice = daemon.get(path).await.expect(200);
        (moment(&advice["start"]) < first - TimeDelta::hours(3)).then_some(advice)
    });
    is_sound(&moved.await);
    daemon.kill();
}

#[tokio::test]
async fn values_that_are_left_out_are_said_so() {
    let (driver, state) = (FakeDriver::new(&[json!({})]), tempfile::tempdir().expect("a directory"));
    let carbon = forecast_file(&state, 1800, 96, |slot| if slot == 9 { 50.0 } else { 400.0 });
    let settings = format!("{}[carbon]\npoll_interval_s = 3600\n", Daemon::QUICK);
    let mut command = Daemon::command_with(&driver, state.path(), &FakeDriver::library(), &settings);
    command.arg("--carbon-file").arg(&carbon).args(["--zone", "DE"]);
    let daemon = Daemon::start(command, state.path()).await;
    daemon.carbon_where("the file", |c| c["basis"] == "source").await;
    let advice = daemon.get("/v1/when?duration_s=1800&within_s=43200").await.expect(200);
    assert!(advice["warnings"].to_string().contains("values quarantined: 50.0"), "{advice:#}");
    daemon.kill();
}

#[tokio::test]
async fn refusals_of_the_route_name_the_parameter() {
    let (driver, state) = (FakeDriver::new(&[json!({})]), tempfile::tempdir().expect("a directory"));
    let carbon = file(&state);
    let daemon = daemon(&driver, state.path(), &carbon).await;
    daemon.carbon_where("the file", |c| c["basis"] == "source").await;
    for (query, field) in [
        ("within_s=3600", Some("duration_s")),
        ("duration_s=3600", Some("within_s")),
        ("duration_s=0&within_s=3600", Some("duration_s")),
        ("duration_s=nan&within_s=3600", Some("duration_s")),
        ("duration_s=3600&within_s=-1", Some("within_s")),
        ("duration_s=3600&within_s=1e300", Some("within_s")),
        ("duration_s=3600&within_s=1&latest_end=2030-01-01T00:00:00Z", Some("within_s")),
        ("duration_s=3600&within_s=60&power_w=-5", Some("power_w")),
        ("duration_s=3600&within_s=60&power_w=1e308", Some("power_w")),
        ("duration_s=3600&within_s=60&min_gain=2", Some("min_gain")),
        ("duration_s=3600&within_s=60&max_loss_probability=7", Some("max_loss_probability")),
        ("duration_s=3600&within_s=60&zone=FR", Some("zone")),
        ("duration_s=3600&within_s=60&earliest=soon", Some("earliest")),
        ("name=never&within_s=60", Some("duration_s")),
        ("duration_s=3600&latest_start=9999-12-31T23:59:59Z", Some("latest_start")),
        ("duration_s=3600&latest_end=9999-12-31T23:59:59Z", Some("latest_end")),
        ("duration_s=abc&within_s=60", Some("duration_s")),
        ("duration_s=3600&within_s=60&within_s=60", Some("within_s")),
        ("duration=3600&within_s=60", Some("duration")),
    ] {
        let problem = daemon.get(&format!("/v1/when?{query}")).await.problem(422);
        assert_eq!(problem["field"].as_str(), field, "{query}: {problem}");
    }
    daemon.kill();
}

#[tokio::test]
async fn without_a_signal_the_advice_is_now_and_the_metrics_are_absent() {
    let (driver, state) = (FakeDriver::new(&[json!({})]), tempfile::tempdir().expect("a directory"));
    let settings = format!("{}[carbon]\nsource = \"fixed\"\n", Daemon::QUICK);
    let command = Daemon::command_with(&driver, state.path(), &FakeDriver::library(), &settings);
    let daemon = Daemon::start(command, state.path()).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    let advice = daemon.get("/v1/when?duration_s=3600&within_s=86400").await.expect(200);
    is_sound(&advice);
    assert_eq!(advice["starts_at_once"], true, "{advice:#}");
    let metrics = daemon.get("/metrics").await.text;
    assert!(!metrics.contains("wattune_when_loss_probability_ratio{"), "{metrics}");
    daemon.kill();
}
