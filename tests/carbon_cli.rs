//! `wattune carbon` and what `doctor` says of sources, against local servers in place of the providers'.

use std::path::PathBuf;

use chrono::{DateTime, TimeDelta, Utc};
use serde_json::{Value, json};
use wiremock::matchers::{header, path, path_regex};
use wiremock::{Mock, MockServer, ResponseTemplate};

use wattune::store::Store;
use wattune_core::domain::{CarbonSeries, Forecast, Intensity, Origin, SignalKind, SignalScope, Slot, Zone};
use wattune_core::units::GramsPerKwh;

use crate::support::{Ended, now, traces, wattune};

/// Energy-Charts' two arrays: what came until now, and a forecast for a day from now on.
fn charts(value: f64) -> Value {
    let start = now().timestamp().div_euclid(900) * 900;
    let seconds: Vec<i64> = (-96..96).map(|i| start + 900 * i).collect();
    let when = |past: bool| -> Vec<Value> {
        seconds.iter().map(|s| if (*s < start) == past { json!(value) } else { Value::Null }).collect()
    };
    json!({"unix_seconds": seconds, "co2eq": when(true), "co2eq_forecast": when(false), "deprecated": false})
}

fn maps(value: f64) -> Value {
    let hour = now().timestamp().div_euclid(3600) * 3600;
    let time = |h: i64| DateTime::<Utc>::from_timestamp(hour + 3600 * h, 0).expect("a time").to_rfc3339();
    let rows: Vec<Value> = (0..25).map(|h| json!({"carbonIntensity": value, "datetime": time(h)})).collect();
    json!({"zone": "IN-NO", "forecast": rows, "updatedAt": time(0)})
}

async fn answers(server: &MockServer, route: &str, template: ResponseTemplate) {
    Mock::given(path(route)).respond_with(template).mount(server).await;
}

fn json_body(body: Value) -> ResponseTemplate {
    ResponseTemplate::new(200).set_body_json(body)
}

struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    /// A configuration whose sources are all at `server`.
    fn new(server: &MockServer, carbon: &str) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let at = |name: &str| format!("[carbon.{name}]\nbase_url = \"{}\"\n", server.uri());
        let sources =
            ["energy_charts", "energinet", "uk_carbon_intensity", "electricity_maps", "watttime"].map(at).concat();
        let text = format!(
            "state_dir = \"{}\"\n[gpus]\nbackend = \"simulated\"\n[http]\nlisten = \"127.0.0.1:1\"\n[carbon]\n{carbon}\n{sources}",
            dir.path().join("state").display()
        );
        std::fs::write(dir.path().join("wattune.toml"), text).expect("written");
        Self { dir }
    }

    fn config(&self) -> PathBuf {
        self.dir.path().join("wattune.toml")
    }

    /// Runs a command on a thread that may block: the servers live on this test's runtime.
    async fn run(&self, arguments: &[&str], variables: &[(&str, &str)]) -> Ended {
        let mut command = wattune(arguments);
        command.arg("--config").arg(self.config());
        for key in ["ELECTRICITY_MAPS_API_KEY", "WATTTIME_USERNAME", "WATTTIME_PASSWORD"] {
            command.env_remove(key);
        }
        command.envs(variables.iter().copied());
        tokio::task::spawn_blocking(move || Ended::of(&mut command)).await.expect("runs")
    }
}

#[tokio::test]
async fn a_zone_alone_shows_a_live_forecast() {
    let server = MockServer::start().await;
    answers(&server, "/co2eq", json_body(charts(321.0))).await;
    let place = Place::new(&server, "");
    let shown = place.run(&["carbon", "--zone", "DE", "--format", "json"], &[]).await.json();
    assert_eq!((&shown["carbon"]["source"], &shown["carbon"]["basis"]), (&json!("energy_charts"), &json!("source")));
    assert_eq!((&shown["carbon"]["intensity_g_per_kwh"], &shown["asked"]), (&json!(321.0), &json!("sources")));
    let ahead = shown["forecast"].as_array().expect("slots");
    assert!(ahead.iter().all(|s| s["low_g_per_kwh"].as_f64() <= s["high_g_per_kwh"].as_f64()), "{shown}");
    let reported = place.run(&["carbon", "--zone", "52.52,13.40"], &[]).await;
    for part in ["321 gCO2e/kWh now: forecast of energy_charts", "┤██████", "* energy_charts", "1 of 30"]
    {
        assert!(reported.done().contains(part), "{part}: {}", reported.out);
    }
}

#[tokio::test]
async fn a_key_is_used_and_not_shown() {
    let server = MockServer::start().await;
    let keyed = Mock::given(path("/v3/carbon-intensity/forecast")).and(header("auth-token", "s3cret"));
    keyed.respond_with(json_body(maps(650.0))).mount(&server).await;
    let place = Place::new(&server, "zone = \"IN-NO\"");
    let arguments = ["carbon", "--direct", "--format", "json"];
    let shown = place.run(&arguments, &[("ELECTRICITY_MAPS_API_KEY", "s3cret")]).await;
    let carbon = &shown.json()["carbon"];
    assert_eq!((&carbon["source"], &carbon["intensity_g_per_kwh"]), (&json!("electricity_maps"), &json!(650.0)));
    assert!(!format!("{shown:?}").contains("s3cret"));
    let without = place.run(&arguments, &[]).await.json();
    assert_eq!(without["carbon"]["basis"], "constant");
    assert!(without["advice"].as_str().is_some_and(|a| a.contains("portal.electricitymaps.com")), "{without}");
}

#[tokio::test]
async fn a_source_that_says_nothing_ends_as_failed() {
    let server = MockServer::start().await;
    answers(&server, "/co2eq", ResponseTemplate::new(503).set_body_string("<html>maintenance</html>")).await;
    let place = Place::new(&server, "zone = \"FR\"");
    let ended = place.run(&["carbon"], &[]).await;
    ended.failed(1);
    assert!(ended.out.contains("the configured constant") && ended.out.contains("an HTML page"), "{}", ended.out);
}

async fn doctor(carbon: &str, variables: &[(&str, &str)], route: &str, template: ResponseTemplate) -> String {
    let server = MockServer::start().await;
    Mock::given(path_regex(route)).respond_with(template).mount(&server).await;
    let ended = Place::new(&server, carbon).run(&["doctor", "--format", "json"], variables).await;
    let findings: Value = serde_json::from_str(&ended.out).expect(&ended.err);
    let of_the_signal = findings.as_array().expect("findings").iter().filter(|f| f["what"] == "carbon signal");
    of_the_signal.map(|f| format!("{}: {}\n", f["verdict"], f["detail"])).collect()
}

#[tokio::test]
async fn the_doctor_explains_refusals_in_the_users_words() {
    let key = [("ELECTRICITY_MAPS_API_KEY", "s3cret")];
    let account = [("WATTTIME_USERNAME", "me"), ("WATTTIME_PASSWORD", "s3cret")];
    let status = |code: u16, body: &str| ResponseTemplate::new(code).set_body_string(body);
    let maps = "source = \"electricity_maps\"\nzone = \"DE\"";
    let watttime = "source = \"watttime\"\nzone = \"CAISO_NORTH\"";
    let bad_key = doctor(maps, &key, ".", status(401, r#"{"error":"Invalid auth-token"}"#)).await;
    assert!(bad_key.contains("401") && bad_key.contains("ELECTRICITY_MAPS_API_KEY"), "{bad_key}");
    let plan = r#"{"error":"Request unauthorized for zoneKey=DE","message":"You do not have access to this"}"#;
    let plan = doctor(maps, &key, ".", status(401, plan)).await;
    assert!(plan.contains("plan"), "{plan}");
    let often = doctor(maps, &key, ".", status(429, "slow down").insert_header("retry-after", "60")).await;
    assert!(often.contains("the service reports too many requests; the service asks to wait 60 s"), "{often}");
    let login = doctor(watttime, &account, ".", status(403, "<html>403 Forbidden</html>")).await;
    assert!(login.contains("403") && login.contains("password"), "{login}");
    let none = doctor(maps, &[], ".", status(500, "")).await;
    assert!(none.contains("ELECTRICITY_MAPS_API_KEY") && none.contains("portal.electricitymaps.com"), "{none}");
    for reported in [bad_key, plan, often, login, none] {
        assert!(reported.starts_with("\"limited\"") && !reported.contains("s3cret"), "{reported}");
    }
}

#[tokio::test]
async fn the_doctor_looks_at_every_source_and_says_what_would_help() {
    let both = "source = [\"uk_carbon_intensity\", \"energy_charts\"]\n[carbon.energy_charts]\nzone = \"DE\"";
    let server = MockServer::start().await;
    answers(&server, "/co2eq", json_body(charts(250.0))).await;
    let place = Place::new(&server, "");
    let text = std::fs::read_to_string(place.config()).expect("written");
    let text = text.replace("[carbon]\n", &format!("[carbon]\n{}\n", both.split('\n').next().expect("a line")));
    std::fs::write(place.config(), text.replace("[carbon.energy_charts]\n", "[carbon.energy_charts]\nzone = \"DE\"\n"))
        .expect("written");
    let ended = place.run(&["doctor"], &[]).await;
    assert!(ended.out.contains("energy_charts, zone DE: 250 gCO2e/kWh now, 24 h ahead"), "{}", ended.out);
    assert!(ended.out.contains("uk_carbon_intensity, zone GB: answered with status 404"), "{}", ended.out);
    let nowhere = Place::new(&server, "zone = \"JP\"").run(&["doctor"], &[]).await;
    assert!(nowhere.out.contains("free key of Electricity Maps"), "{}", nowhere.out);
}

#[tokio::test]
async fn zones_are_listed_and_searched() {
    let server = MockServer::start().await;
    let zones = json!({"JP-TK": {"zoneName": "Tokyo", "countryName": "Japan"}, "DE": {"zoneName": "Germany"}});
    answers(&server, "/v3/zones", json_body(zones)).await;
    let place = Place::new(&server, "");
    let all = place.run(&["carbon", "zones"], &[]).await;
    for part in ["  DE ", "  DK2 ", "  GB-13 ", "  JP-TK                Tokyo Japan"] {
        assert!(all.done().contains(part), "{part}: {}", all.out);
    }
    assert!(all.out.contains("register at https://docs.watttime.org"), "{}", all.out);
    let tokyo = place.run(&["carbon", "zones", "tokyo", "--format", "json"], &[]).await.json();
    let codes = tokyo.as_array().expect("sources").iter().flat_map(|s| s["zones"].as_array().expect("zones"));
    assert_eq!(codes.map(|z| z["code"].clone()).collect::<Vec<_>>(), ["JP-TK"]);
}

#[tokio::test]
async fn scores_are_reported_by_the_database_where_no_daemon_runs() {
    let server = MockServer::start().await;
    let place = Place::new(&server, "");
    let nothing = place.run(&["carbon", "score"], &[]).await;
    assert!(nothing.failed(1).contains("has no database"), "{}", nothing.err);
}

#[tokio::test]
async fn scores_tell_a_good_source_from_one_that_is_the_wrong_way_round() {
    let server = MockServer::start().await;
    let place = Place::new(&server, "");
    let state = place.dir.path().join("state");
    std::fs::create_dir(&state).expect("made");
    let store = Store::open(&state).await.expect("opens");
    let today = DateTime::from_timestamp(now().timestamp().div_euclid(86_400) * 86_400, 0).expect("a time");
    let series = |from: i64, origin, value: &dyn Fn(i64) -> f64| {
        let points = (from..from + 24).filter_map(|h| {
            let slot = Slot::new(today + TimeDelta::hours(h), today + TimeDelta::hours(h + 1))?;
            Some((slot, Intensity { value: GramsPerKwh::new(value(h.rem_euclid(24))), origin }))
        });
        CarbonSeries::from_points(points.collect()).0
    };
    let came = |h: i64| if (6..12).contains(&h) { 100.0 } else { 400.0 };
    let sources: [(&str, &dyn Fn(i64) -> f64); 2] = [("good", &|h| came(h) + 50.0), ("wrong", &|h| 500.0 - came(h))];
    for (source, said) in sources {
        for day in [-3, -2, -1] {
            let issued = today + TimeDelta::days(day);
            let forecast = Forecast {
                zone: Zone::new("DE").expect("a zone"),
                source: source.to_owned(),
                kind: SignalKind::Average,
                scope: SignalScope::Lifecycle,
                issued_at: issued,
                retrieved_at: issued,
                provenance: Default::default(),
                expected: series(24 * day, Origin::Forecast, said),
                actual: series(24 * day, Origin::Measured, &came),
            };
            store.append_issued(&forecast).await.expect("written");
            store.append_intensities(&forecast, forecast.actual.points()).await.expect("written");
        }
    }
    store.close().await;
    let scores = place.run(&["carbon", "score", "--format", "json"], &[]).await.json();
    let of = |source: &str, key: &str| {
        let rows = scores.as_array().expect("rows");
        let row = rows.iter().find(|r| r["source"] == source && r["horizon_h"] == 24.0).expect(source);
        row[key].as_f64().expect(key)
    };
    let near = |a: f64, b: f64| (a - b).abs() < 1e-6;
    assert!(near(of("good", "bias_g_per_kwh"), 50.0) && near(of("good", "caught_gain"), 1.0), "{scores}");
    // 50 of 400 for three quarters of the day, 50 of 100 for a quarter.
    assert!(near(of("good", "mape_pct"), 21.875) && near(of("good", "hours"), 72.0), "{scores}");
    assert!(of("wrong", "caught_gain") < 0.0 && of("wrong", "rank_correlation") < -0.9, "{scores}");
    let table = place.run(&["carbon", "score"], &[]).await;
    assert!(table.done().contains("good") && table.out.contains("21.9 %"), "{}", table.out);
}

#[test]
fn a_backtest_has_a_row_per_source_and_horizon() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("actual.csv");
    let start = DateTime::UNIX_EPOCH + TimeDelta::days(20_000);
    let row = |h: i64| {
        let value = if h % 24 < 12 { 200 + h % 7 } else { 400 };
        format!("{},{value},{}\n", (start + TimeDelta::hours(h)).format("%FT%TZ"), value + 50)
    };
    let rows: String = (0..24 * 20).map(row).collect();
    std::fs::write(&file, format!("timestamp,actual,forecast\n{rows}")).expect("written");
    let file = file.to_str().expect("UTF-8");
    let found = Ended::of(&mut wattune(&["carbon", "backtest", "--actual", file, "--format", "json"])).json();
    let rows = found["rows"].as_array().expect("rows");
    let key = |r: &Value| format!("{} {}", r["source"].as_str().unwrap_or_default(), r["horizon_h"]);
    let keys: Vec<String> = rows.iter().map(key).collect();
    for source in ["yesterday", "local", "provider", "provider+bias", "feed"] {
        for horizon in ["1", "24"] {
            let horizon =
                keys.iter().any(|k| k == &format!("{source} {horizon}") || k == &format!("{source} {horizon}.0"));
            assert!(horizon, "{source}: {keys:?}");
        }
    }
    let of = |source: &str| rows.iter().find(|r| r["source"] == source && r["horizon_h"] == 24).expect(source);
    assert!((of("provider")["bias_g_per_kwh"].as_f64().expect("known") - 50.0).abs() < 1e-6);
    assert!(of("provider+bias")["mape_pct"].as_f64() < of("provider")["mape_pct"].as_f64());
    assert_eq!(of("yesterday")["interval80_coverage"], Value::Null);
    let missing = Ended::of(&mut wattune(&["carbon", "backtest", "--actual", "/nowhere.csv"]));
    assert!(missing.failed(1).contains("/nowhere.csv"), "{}", missing.err);
}

#[test]
fn a_backtest_refuses_actual_values_as_forecasts() {
    let dir = tempfile::tempdir().expect("a directory");
    let write = |name: &str, column: &str, more: &str| {
        let row = |h: i64| format!("2021-07-{:02}T{:02}:00:00Z,{}\n", 1 + h / 24, h % 24, 200 + h % 24);
        let rows: String = (0..24 * 20).map(row).collect();
        let path = dir.path().join(name);
        std::fs::write(&path, format!("timestamp,{column}\n{rows}{more}")).expect("written");
        path.to_str().expect("UTF-8").to_owned()
    };
    let actual = write("actual.csv", "value", "");
    let run = |more: &[&str]| {
        let command = ["carbon", "backtest", "--actual", &actual, "--horizon", "24", "--format", "json"];
        Ended::of(&mut wattune(&[&command[..], more].concat()))
    };
    let perfect = run(&["--provider-forecast", &actual]);
    assert!(perfect.failed(1).contains("it has actual values, no forecasts"), "{}", perfect.err);
    let twice = write("twice.csv", "forecast", "2021-07-01T05:00:00Z,900\n");
    let twice = run(&["--provider-forecast", &twice]);
    assert!(twice.failed(1).contains("2021-07-01T05:00:00Z occurs already in line 7"), "{}", twice.err);
    let local = write("local.csv", "forecast", "2021-07-05 00:00,200\n");
    let local = run(&["--provider-forecast", &local]);
    let (remedy, setting) = ("write UTC with a Z", "carbon.file");
    assert!(local.failed(1).contains(remedy) && !local.err.contains(setting), "{}", local.err);
    let said = write("said.csv", "forecast", "");
    let fine = run(&["--provider-forecast", &said, "--to", "+262142-12-30"]).json();
    assert_eq!(fine, run(&["--provider-forecast", &said]).json(), "the span ends with the actual values");
}

#[test]
fn the_backtest_on_recorded_grids_is_as_documented() {
    let Some(folder) = traces().map(|folder| folder.join("carbon")) else { return };
    let path = |name: &str| folder.join(name).to_str().expect("UTF-8").to_owned();
    let (actual, said) = (path("SE_2021_hourly.csv"), path("SE_2021H2_carboncast_dayahead.csv"));
    let arguments = ["carbon", "backtest", "--actual", &actual, "--provider-forecast", &said];
    let span = ["--from", "2021-07-01", "--to", "2021-12-28", "--horizon", "24", "--format", "json"];
    let found = Ended::of(&mut wattune(&[&arguments[..], &span[..]].concat())).json();
    let measured = include_str!("../docs/src/explanation/measured.md");
    let sweden = measured.lines().find(|l| l.starts_with("| Sweden")).expect("a row");
    let shown = |source: &str| {
        let row = found["rows"].as_array().expect("rows").iter().find(|r| r["source"] == source).expect(source);
        let number = |key: &str| row[key].as_f64().expect(key);
        format!("{:.2} ({})", number("mape_pct"), format!("{:.3}", number("caught_gain")).trim_start_matches('0'))
    };
    for source in ["yesterday", "local", "provider", "provider+bias", "feed"] {
        assert!(sweden.contains(&format!("| {} |", shown(source))), "{source}: {} is not in {sweden}", shown(source));
    }
}
