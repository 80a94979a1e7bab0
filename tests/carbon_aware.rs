//! The routes of the Carbon Aware SDK, as its clients read them, and a second daemon that takes the first for a WebAPI.

use std::path::Path;

use chrono::{DateTime, DurationRound, TimeDelta, Utc};
use serde_json::{Value, json};

use crate::support::{Daemon, FakeDriver, LONG, eventually, moment, now};

/// A file with an actual value for each past hour of two days and a forecast for each hour of the two days to come.
fn file(dir: &Path) -> std::path::PathBuf {
    let hour = now().duration_trunc(TimeDelta::hours(1)).expect("an hour");
    let value = |h: i64| 300.0 + 150.0 * (h as f64 / 24.0 * std::f64::consts::TAU).sin() + 1.0 / 3.0;
    let row = |h: i64| {
        let (forecast, actual) =
            if h < 0 { (value(h) + 5.0, (value(h) - 5.0).to_string()) } else { (value(h), String::new()) };
        format!("{},{forecast},{actual}\n", (hour + TimeDelta::hours(h)).format("%FT%TZ"))
    };
    let text: String = std::iter::once("timestamp,forecast,actual\n".to_owned()).chain((-48..48).map(row)).collect();
    let path = dir.join("carbon.csv");
    std::fs::write(&path, text).expect("written");
    path
}

async fn first(driver: &FakeDriver, state: &Path) -> Daemon {
    let settings = format!("{}[carbon]\npoll_interval_s = 3600\n", Daemon::QUICK);
    let mut command = Daemon::command_with(driver, state, &FakeDriver::library(), &settings);
    command.arg("--carbon-file").arg(file(state)).args(["--zone", "DE"]);
    let daemon = Daemon::start(command, state).await;
    daemon.carbon_where("the file", |c| c["basis"] == "source").await;
    daemon
}

/// The intensities by the end of their slots, from a forecast or history of the daemon's own API.
fn by_end(slots: &Value) -> Vec<(DateTime<Utc>, f64)> {
    let slots = slots.as_array().expect("slots").iter();
    slots.map(|s| (moment(&s["end"]), s["intensity_g_per_kwh"].as_f64().expect("a number"))).collect()
}

#[tokio::test]
async fn a_second_daemon_gets_the_same_series() {
    let (driver, state) = (FakeDriver::new(&[json!({})]), tempfile::tempdir().expect("a directory"));
    let first = first(&driver, state.path()).await;
    let (other_driver, other) = (FakeDriver::new(&[json!({})]), tempfile::tempdir().expect("a directory"));
    let settings = format!(
        "{}[carbon]\nsource = \"carbon_aware_sdk\"\nzone = \"DE\"\n[carbon.carbon_aware_sdk]\nbase_url = \"{}\"\n",
        Daemon::QUICK,
        first.base()
    );
    let command = Daemon::command_with(&other_driver, other.path(), &FakeDriver::library(), &settings);
    let second = Daemon::start(command, other.path()).await;
    second.carbon_where("the first daemon", |c| c["source"] == "carbon_aware_sdk" && c["basis"] == "source").await;

    let sent = first.get("/emissions/forecasts/current?location=DE").await.expect(200);
    let points = sent[0]["forecastData"].as_array().expect("points").clone();
    assert!(points.len() >= 48, "{sent:#}");
    let own = by_end(&first.get("/v1/carbon/forecast").await.expect(200));
    for (point, (end, value)) in points.iter().zip(&own).take(47) {
        let minutes = point["duration"].as_i64().expect("whole minutes");
        assert_eq!(moment(&point["timestamp"]) + TimeDelta::minutes(minutes), *end, "{point}");
        // The two answers were made at different times, whose sums may be rounded differently.
        let sent = point["value"].as_f64().expect("a number");
        assert!((sent / value - 1.0).abs() < 1e-12, "{point}, {value} at {end}");
    }
    // What the second daemon received, digit by digit, before it corrects anything: its stored response.
    let stored = std::fs::read_to_string(other.path().join("carbon-carbon_aware_sdk-DE.json")).expect("stored");
    for point in &points {
        let digits = point["value"].to_string();
        assert!(stored.contains(&digits), "{digits} is not in {stored}");
    }
    let span = |daemon: &Daemon| daemon.base().to_owned();
    assert_ne!(span(&first), span(&second));
    let history = async |daemon: &Daemon| {
        let history = by_end(&daemon.get("/v1/carbon/history?hours=20").await.expect(200));
        history.into_iter().filter(|(end, _)| *end < now() - TimeDelta::hours(1)).collect::<Vec<_>>()
    };
    let expected = history(&first).await;
    assert!(expected.len() >= 18, "{expected:?}");
    eventually("the same history", LONG, async || (history(&second).await == expected).then_some(())).await;
    first.kill();
    second.kill();
}

/// A source whose forecasts miss that weekends are cleaner: all faces show the same forecast, corrected for it.
#[tokio::test]
async fn one_forecast_is_shown_everywhere() {
    let (driver, state) = (FakeDriver::new(&[json!({})]), tempfile::tempdir().expect("a directory"));
    let hour = now().duration_trunc(TimeDelta::hours(1)).expect("an hour");
    let row = |h: i64| {
        let at = hour + TimeDelta::hours(h);
        let forecast = 400.0 + 100.0 * (h as f64 / 24.0 * std::f64::consts::TAU).sin();
        let weekend = chrono::Datelike::weekday(&at).number_from_monday() > 5;
        let actual = if h < 0 { (forecast - if weekend { 80.0 } else { 0.0 }).to_string() } else { String::new() };
        format!("{},{forecast},{actual}\n", at.format("%FT%TZ"))
    };
    let text: String = std::iter::once("timestamp,forecast,actual\n".to_owned()).chain((-672..96).map(row)).collect();
    let path = state.path().join("weekends.csv");
    std::fs::write(&path, text).expect("written");
    let settings = format!("{}[carbon]\npoll_interval_s = 3600\n", Daemon::QUICK);
    let mut command = Daemon::command_with(&driver, state.path(), &FakeDriver::library(), &settings);
    command.arg("--carbon-file").arg(&path).args(["--zone", "DE"]);
    let daemon = Daemon::start(command, state.path()).await;
    daemon.carbon_where("the file", |c| c["basis"] == "source").await;

    let asked = daemon.get("/v1/when?duration_s=3600&within_s=169200").await.expect(200);
    let asked = by_end(&asked["forecast"]);
    let shown = by_end(&daemon.get("/v1/carbon/forecast").await.expect(200));
    let sent = daemon.get("/emissions/forecasts/current?location=DE").await.expect(200);
    let sent: Vec<_> = sent[0]["forecastData"]
        .as_array()
        .expect("points")
        .iter()
        .map(|point| {
            let length = TimeDelta::minutes(point["duration"].as_i64().expect("whole minutes"));
            (moment(&point["timestamp"]) + length, point["value"].as_f64().expect("a number"))
        })
        .collect();
    let value_at =
        |series: &[(DateTime<Utc>, f64)], end| series.iter().find(|(at, _)| *at == end).map(|(_, value)| *value);
    for h in 1..46 {
        // The present slot ends with the first hour, the last one at the time of each request.
        let end = hour + TimeDelta::hours(h + 1);
        let all = [&asked, &shown, &sent].map(|series| value_at(series, end).expect("a slot"));
        assert!(all.iter().all(|value| (value - all[0]).abs() < 1e-6), "{all:?} until {end}");
    }
    let published = |h: i64| 400.0 + 100.0 * (h as f64 / 24.0 * std::f64::consts::TAU).sin();
    let corrected = shown.iter().zip(0..).filter(|((_, value), h)| (value - published(*h)).abs() > 5.0).count();
    assert!(corrected > 10, "{shown:?}");
    daemon.kill();
}

#[tokio::test]
async fn clients_of_the_sdk_are_answered_in_its_shapes() {
    let (driver, state) = (FakeDriver::new(&[json!({})]), tempfile::tempdir().expect("a directory"));
    let daemon = first(&driver, state.path()).await;
    let places = daemon.get("/locations").await.expect(200);
    assert_eq!(places, json!({"DE": {"latitude": null, "longitude": null, "name": "DE"}}));

    // As KEDA's carbon-aware operator and the SDK's own clients ask.
    let hour = now().duration_trunc(TimeDelta::hours(1)).expect("an hour") + TimeDelta::hours(1);
    let time = |hours: i64| (hour + TimeDelta::hours(hours)).format("%Y-%m-%dT%H:%M:%SZ").to_string();
    let query = format!("location=de&dataStartAt={}&dataEndAt={}&windowSize=240", time(0), time(24));
    let forecast = daemon.get(&format!("/emissions/forecasts/current?{query}")).await.expect(200);
    let forecast = &forecast[0];
    assert_eq!((&forecast["location"], &forecast["windowSize"]), (&json!("de"), &json!(240)), "{forecast:#}");
    assert_eq!(moment(&forecast["dataStartAt"]), hour);
    let points = forecast["forecastData"].as_array().expect("points");
    assert_eq!(points.len(), 21, "{forecast:#}");
    assert!(points.iter().all(|p| p["duration"] == 240 && p["value"].is_number()), "{forecast:#}");
    let best = &forecast["optimalDataPoints"][0]["value"];
    assert!(points.iter().all(|p| p["value"].as_f64() >= best.as_f64()), "{forecast:#}");

    let rows = daemon.get(&format!("/emissions/bylocation?location=DE&time={}&toTime={}", time(-5), time(-2))).await;
    let rows = rows.expect(200);
    assert_eq!(rows.as_array().map(Vec::len), Some(3), "{rows:#}");
    assert_eq!((&rows[0]["duration"], moment(&rows[0]["time"])), (&json!("01:00:00"), hour - TimeDelta::hours(5)));
    let ratings: Vec<f64> = rows.as_array().expect("rows").iter().map(|r| r["rating"].as_f64().expect("one")).collect();

    let path = format!("/emissions/bylocations/best?location=DE&time={}&toTime={}", time(-5), time(-2));
    let best = daemon.get(&path).await.expect(200);
    let lowest = ratings.iter().copied().fold(f64::INFINITY, f64::min);
    assert_eq!(best.as_array().and_then(|b| b[0]["rating"].as_f64()), Some(lowest), "{best}");

    let query = format!("location=DE&startTime={}&endTime={}", time(-5), time(-2));
    let mean = daemon.get(&format!("/emissions/average-carbon-intensity?{query}")).await.expect(200);
    let expected = ratings.iter().sum::<f64>() / 3.0;
    assert!((mean["carbonIntensity"].as_f64().expect("a mean") - expected).abs() < 1e-9, "{mean}");
    let newest = daemon.get("/emissions/bylocations?location=DE&location=de").await.expect(200);
    assert_eq!(newest.as_array().map(Vec::len), Some(2), "{newest}");
    let body = json!([{"location": "DE", "startTime": time(-5), "endTime": time(-2)}]);
    let means = daemon.post("/emissions/average-carbon-intensity/batch", &body).await.expect(200);
    assert_eq!(means[0]["carbonIntensity"], mean["carbonIntensity"]);
    let nothing = daemon.get(&format!("/emissions/bylocation?location=DE&time={}", time(30))).await;
    assert_eq!((nothing.status, nothing.text.as_str()), (204, ""));

    for (path, status, field) in [
        ("/emissions/forecasts/current?location=FR", 400, Some("location")),
        ("/emissions/forecasts/current", 400, Some("location")),
        ("/emissions/forecasts/current?location=DE&windowSize=x", 400, Some("windowSize")),
        ("/emissions/forecasts/current?location=DE&dataStartAt=2001-01-01", 400, Some("dataStartAt")),
        ("/emissions/bylocation?location=DE&time=soon", 400, Some("time")),
        // The first and last times that can be written: adding an hour is impossible.
        ("/emissions/bylocation?location=DE&time=%2B262142-12-31T23:59:59Z", 400, Some("time")),
        ("/emissions/bylocation?location=DE&time=-262143-01-01T00:00:00Z&toTime=2026-01-01", 400, Some("time")),
        (
            "/emissions/average-carbon-intensity?location=DE&startTime=2026-01-01&endTime=%2B262142-12-31",
            400,
            Some("endTime"),
        ),
        ("/emissions/bylocation?location=DE&toTime=2026-01-01", 400, Some("time")),
        ("/emissions/bylocations?location=DE&location=FR", 400, Some("location")),
        ("/emissions/average-carbon-intensity?location=DE", 400, Some("startTime")),
    ] {
        let answer = daemon.get(path).await;
        assert_eq!(answer.content_type, "application/problem+json", "{path}");
        let problem = answer.expect(status);
        assert_eq!((&problem["title"], &problem["status"]), (&json!("ArgumentException"), &json!(status)), "{path}");
        assert!(field.is_none_or(|field| problem["errors"][field].is_array()), "{path}: {problem}");
        assert!(problem["traceId"].is_string() && problem["detail"].is_string(), "{path}: {problem}");
    }
    let unknown = daemon.get("/emissions/forecasts/current?location=FR").await.expect(400);
    assert!(unknown["detail"].as_str().is_some_and(|d| d.contains("Unknown Location: 'FR' not found")), "{unknown}");
    check_past_forecasts(&daemon).await;
    daemon.kill();
}

async fn check_past_forecasts(daemon: &Daemon) {
    const PATH: &str = "/emissions/forecasts/batch";
    let current = daemon.get("/emissions/forecasts/current?location=DE").await.expect(200)[0].clone();
    let asked = &current["requestedAt"];
    let answers = daemon.post(PATH, &json!([{"requestedAt": asked, "location": "DE"}])).await.expect(200);
    // The present slot's value is a mean from the request on, with a rounding error of its own.
    let values = |forecast: &Value| -> Vec<(Value, String)> {
        let data = forecast["forecastData"].as_array().expect("a list").iter();
        data.map(|slot| (slot["timestamp"].clone(), format!("{:.9}", slot["value"].as_f64().expect("a number"))))
            .collect()
    };
    assert_eq!((values(&answers[0]), &answers[0]["requestedAt"]), (values(&current), asked));
    let window = json!([{"requestedAt": asked, "location": "de", "dataStartAt": null, "windowSize": 120}]);
    assert_eq!(daemon.post(PATH, &window).await.expect(200)[0]["windowSize"], 120);
    assert_eq!(daemon.post(PATH, &json!([])).await.expect(200), json!([]));
    for (body, field) in [
        (json!([{"requestedAt": "2001-01-01", "location": "DE"}]), "requestedAt"),
        (json!([{"requestedAt": "2101-01-01", "location": "DE"}]), "requestedAt"),
        (json!([{"requestedAt": "soon", "location": "DE"}]), "requestedAt"),
        (json!([{"requestedAt": asked, "location": "FR"}]), "location"),
        (json!([{"requestedAt": asked, "location": "DE", "windowSize": -1}]), "windowSize"),
        (json!([{"requestedAt": asked, "location": "DE", "dataEndAt": "2001-01-01"}]), "dataEndAt"),
        (json!([{"location": "DE"}]), "body"),
        (json!({}), "body"),
        (json!(vec![json!({"requestedAt": asked, "location": "DE"}); 101]), "body"),
    ] {
        let problem = daemon.post(PATH, &body).await.expect(400);
        assert!(problem["errors"][field].is_array(), "{body}: {problem}");
    }
}
