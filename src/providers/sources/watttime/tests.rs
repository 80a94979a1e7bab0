use std::path::Path;
use std::time::Duration;

use wiremock::matchers::{header, path};
use wiremock::{Mock, MockServer, Request, ResponseTemplate};

use super::*;
use crate::providers::CarbonSettings;
use crate::providers::testing::{self, asks, at, base_url, ok, requests, status};
use wattune_core::domain::Zone;

const USER: &str = "freddo";
const PASSWORD: &str = "the_frog!";
/// The `Authorization` header that RFC 7617 prescribes for the user name and password of the tests.
const BASIC: &str = "Basic ZnJlZGRvOnRoZV9mcm9nIQ==";
const TOKEN: &str = "eyJ0eXAi.t0ken";

/// A body in the documented shape (`carbon-apis.md` §2.3), like the constants below; numbers are made up.
const AHEAD: &str = r#"{"data":[
  {"point_time":"2022-07-15T00:00:00+00:00","value":870.0},
  {"point_time":"2022-07-15T00:05:00+00:00","value":0},
  {"point_time":"2022-07-15T00:10:00+00:00","value":null},
  {"point_time":"2022-07-15T00:15:00+00:00","value":868.4}],
 "meta":{"data_point_period_seconds":300,"region":"CAISO_NORTH",
  "warnings":[{"type":"EXAMPLE_WARNING","message":"the model will be superseded"}],
  "signal_type":"co2_moer","model":{"date":"2023-03-01"},"units":"lbs_co2_per_mwh",
  "generated_at_period_seconds":300,"generated_at":"2022-07-15T00:00:00+00:00"}}"#;
const BEHIND: &str = r#"{"data":[
  {"point_time":"2022-07-14T23:50:00+00:00","value":900,"last_updated":"2022-07-15T00:00:00+00:00","imputed_data_used":false},
  {"point_time":"2022-07-14T23:55:00+00:00","value":880,"last_updated":"2022-07-15T00:00:00+00:00","imputed_data_used":true},
  {"point_time":"2022-07-15T00:00:00+00:00","value":870,"imputed_data_used":false}],
 "meta":{"data_point_period_seconds":300,"region":"CAISO_NORTH","warnings":[],"signal_type":"co2_moer",
  "model":{"date":"2023-03-01","type":"binned_regression"},"units":"lbs_co2_per_mwh"}}"#;
const SCOPE: &str = r#"{"error":"Invalid query parameters",
  "message":"Invalid scope. You are restricted to: CAISO_NORTH. Contact us to upgrade."}"#;
const PAGE: &str = "<html><head><title>403 Forbidden</title></head></html>";
const NO_COVERAGE: &str = r#"{"error":"No coverage available for these coordinates and signal_type","latitude":"0",
  "longitude":"-160","signal_type":"co2_moer"}"#;
const NOW: &str = "2022-07-15T00:02:00Z";
const FORECAST: &str = "/v3/forecast";
const HISTORY: &str = "/v3/historical";
const REGION: &str = "/v3/region-from-loc";

fn token(token: &str) -> ResponseTemplate {
    ok(format!(r#"{{"token":"{token}"}}"#))
}

/// Starts a server that responds to `routes` and, if none of them matches, to a login with the account of the tests.
async fn serve(routes: &[(&str, ResponseTemplate)]) -> MockServer {
    let server = testing::serve(routes).await;
    let login = Mock::given(path("/login")).and(header("authorization", BASIC));
    login.respond_with(token(TOKEN)).mount(&server).await;
    server
}

/// A source whose user name and password are in files, which exist as long as `directory` does.
struct Watt {
    source: WattTime,
    server: MockServer,
    directory: tempfile::TempDir,
}

/// Makes the source as the settings say.
fn source(settings: &CarbonSettings, state_dir: Option<&Path>) -> Result<WattTime, SettingsError> {
    WattTime::new(&settings.watttime, &settings.shared(state_dir))
}

fn settings(server: &MockServer, directory: &Path, table: &str) -> CarbonSettings {
    let own: Settings = toml::from_str(table).expect(table);
    let files = (Some(directory.join("user")), Some(directory.join("password")));
    CarbonSettings {
        watttime: Settings { base_url: base_url(server), username_file: files.0, password_file: files.1, ..own },
        timeout_s: Seconds::new(0.5),
        max_body_bytes: 64 << 10,
        ..CarbonSettings::default()
    }
}

fn watt(server: MockServer, table: &str) -> Watt {
    let directory = tempfile::tempdir().expect("a directory");
    std::fs::write(directory.path().join("user"), USER).expect("written");
    std::fs::write(directory.path().join("password"), format!("{PASSWORD}\n")).expect("written");
    let settings = settings(&server, directory.path(), table);
    let source = source(&settings, Some(directory.path())).expect("a place");
    Watt { source, server, directory }
}

impl Watt {
    async fn fetch(&self, now: &str) -> Result<Answer, ProviderError> {
        self.source.fetch(at(now)).await
    }

    async fn requests(&self, route: &str) -> Vec<Request> {
        requests(&self.server, route).await
    }
}

async fn caiso(ahead: ResponseTemplate, behind: ResponseTemplate) -> Watt {
    watt(serve(&[(FORECAST, ahead), (HISTORY, behind)]).await, "zone = \"CAISO_NORTH\"\nhorizon_hours = 24")
}

async fn answered(ahead: &str, behind: &str) -> Result<Answer, ProviderError> {
    caiso(ok(ahead), ok(behind)).await.fetch(NOW).await
}

/// Returns the values in g/kWh, rounded to a thousandth.
fn values(series: &CarbonSeries) -> Vec<f64> {
    series.points().iter().map(|(_, i)| (i.value.get() * 1e3).round() / 1e3).collect()
}

#[tokio::test]
async fn a_region_has_a_marginal_forecast_and_actual_values() {
    let watt = caiso(ok(AHEAD), ok(BEHIND)).await;
    let answer = watt.fetch(NOW).await.expect("as documented");
    let forecast = answer.forecast;
    assert_eq!(values(&forecast.expected), [394.625, 0.0, 393.9], "870 lb/MWh; 0 stays 0; null is absent");
    assert!(forecast.expected.points().iter().all(|(slot, _)| slot.duration() == Seconds::new(300.0)));
    assert_eq!(values(&forecast.actual), [408.233, 399.161], "the slot in progress has not come");
    let origins: Vec<_> = forecast.actual.points().iter().map(|(_, i)| i.origin).collect();
    assert_eq!(origins, [Origin::Measured, Origin::Estimated]);
    assert_eq!((forecast.kind, forecast.scope), (SignalKind::Marginal, SignalScope::Operational));
    assert_eq!((forecast.zone.as_str(), forecast.source.as_str()), ("CAISO_NORTH", "watttime"));
    assert_eq!(forecast.issued_at, at("2022-07-15T00:00:00Z"));
    assert_eq!(answer.notes[0], "WattTime warns: the model will be superseded");
    assert!(answer.notes[1].contains("no value for 2022-07-15T00:10:00Z"), "{:?}", answer.notes);
    assert!(answer.notes[2].contains("24 h were asked for"), "{:?}", answer.notes);

    let (ahead, behind) = (watt.requests(FORECAST).await, watt.requests(HISTORY).await);
    let bearer = format!("Bearer {TOKEN}");
    assert_eq!(ahead[0].headers.get("authorization").map(|t| t.as_bytes()), Some(bearer.as_bytes()));
    for (request, field, value) in [
        (&ahead[0], "region", "CAISO_NORTH"),
        (&ahead[0], "signal_type", "co2_moer"),
        (&ahead[0], "horizon_hours", "24"),
        (&behind[0], "start", "2022-07-14T00:02:00Z"),
        (&behind[0], "end", "2022-07-15T00:02:00Z"),
        (&behind[0], "include_imputed_marker", "true"),
    ] {
        assert_eq!(asks(request, field).as_deref(), Some(value), "{field}");
    }
    let shown = format!("{:?}", watt.source);
    assert!(!shown.contains(TOKEN) && !shown.contains(PASSWORD), "{shown}");
}

#[tokio::test]
async fn a_token_is_renewed_after_25_minutes() {
    let watt = caiso(ok(AHEAD), ok(BEHIND)).await;
    for (now, logins) in [(NOW, 1), ("2022-07-15T00:12:00Z", 1), ("2022-07-15T00:18:00Z", 1)] {
        assert!(watt.fetch(now).await.is_ok());
        assert_eq!(watt.requests("/login").await.len(), logins, "{now}");
    }
    for (now, logins) in [("2022-07-15T00:27:00Z", 2), ("2022-07-14T00:00:00Z", 3)] {
        let _ = watt.fetch(now).await;
        assert_eq!(watt.requests("/login").await.len(), logins, "{now}");
    }
}

#[tokio::test]
async fn a_refused_token_is_renewed_once() {
    for refusal in [status(401, r#"{"error":"token expired"}"#), status(403, PAGE), status(403, "")] {
        let server = MockServer::start().await;
        Mock::given(path("/login")).respond_with(token("old")).up_to_n_times(1).mount(&server).await;
        Mock::given(path("/login")).respond_with(token("new")).mount(&server).await;
        for (route, body) in [(FORECAST, AHEAD), (HISTORY, BEHIND)] {
            let by = |bearer: &str| Mock::given(path(route)).and(header("authorization", bearer));
            by("Bearer new").respond_with(ok(body)).mount(&server).await;
            by("Bearer old").respond_with(refusal.clone()).mount(&server).await;
        }
        let renewed = watt(server, "zone = \"CAISO_NORTH\"");
        assert_eq!(values(&renewed.fetch(NOW).await.expect("renewed").forecast.actual).len(), 2);
        assert_eq!((renewed.requests("/login").await.len(), renewed.requests(FORECAST).await.len()), (2, 2));
    }
    let blocked = caiso(status(403, PAGE), status(403, PAGE)).await;
    for logins in [2, 2] {
        let error = blocked.fetch(NOW).await.expect_err("refused for good").to_string();
        assert!(error.contains("the service refuses a valid login too; a firewall may block"), "{error}");
        assert_eq!(blocked.requests("/login").await.len(), logins, "the login is not hammered");
    }
    let history = caiso(ok(AHEAD), status(403, PAGE)).await;
    let answer = history.fetch(NOW).await.expect("the forecast is there");
    assert!(answer.notes.iter().any(|n| n.contains("last 24 h are unknown") && n.contains("403")), "{answer:?}");
}

#[tokio::test]
async fn a_region_outside_the_plan_is_reported_without_a_new_token() {
    let watt = caiso(status(403, SCOPE), status(403, SCOPE)).await;
    let error = watt.fetch(NOW).await.expect_err("outside the plan");
    assert!(matches!(error, ProviderError::Refused { status: 403, .. }), "{error:?}");
    let error = error.to_string();
    assert!(error.contains("Invalid scope. You are restricted to: CAISO_NORTH"), "{error}");
    assert!(error.contains("a new token does not help; CAISO_NORTH is free"), "{error}");
    assert_eq!(watt.requests("/login").await.len(), 1);
}

#[tokio::test]
async fn a_wrong_password_is_reported() {
    for login in [status(403, PAGE), status(401, r#"{"error":"no"}"#)] {
        let watt = watt(serve(&[("/login", login), (FORECAST, ok(AHEAD))]).await, "zone = \"CAISO_NORTH\"");
        let error = watt.fetch(NOW).await.expect_err("wrong password");
        assert!(matches!(error, ProviderError::Refused { .. }), "{error:?}");
        let error = error.to_string();
        assert!(error.contains("the user name or the password is wrong; compare the file "), "{error}");
        assert!(error.contains("carbon.watttime.password_file") && !error.contains(PASSWORD), "{error}");
        assert!(watt.requests(FORECAST).await.is_empty());
    }
}

#[tokio::test]
async fn a_login_never_shows_what_it_got() {
    for body in
        ["{}", r#"{"token":""}"#, r#"{"token":["t0ken"]}"#, r#"{"token":"t0ken"#, "t0ken", r#"{"token":"t0k en"}"#]
    {
        let watt = watt(serve(&[("/login", ok(body))]).await, "zone = \"CAISO_NORTH\"");
        let error = watt.fetch(NOW).await.expect_err(body);
        assert!(matches!(error, ProviderError::Malformed { .. }), "{body}: {error:?}");
        let error = error.to_string();
        assert!(error.contains("/login") && error.contains("base_url") && !error.contains("t0k"), "{error}");
    }
    let echo = serve(&[(FORECAST, status(500, &format!("{{\"message\":\"bad {TOKEN}\"}}")))]).await;
    let error = watt(echo, "zone = \"CAISO_NORTH\"").fetch(NOW).await.expect_err("500").to_string();
    assert!(error.contains("bad …") && !error.contains(TOKEN), "{error}");
}

#[tokio::test]
async fn without_an_account_nothing_is_requested_and_the_remedy_is_named() {
    let watt = caiso(ok(AHEAD), ok(BEHIND)).await;
    std::fs::write(watt.directory.path().join("password"), " \n").expect("written");
    assert!(matches!(watt.fetch(NOW).await, Err(ProviderError::NoKey { .. })));
    assert!(watt.server.received_requests().await.expect("recorded").is_empty());

    let text = "watttime = { zone = \"CAISO_NORTH\", username_env = \"WATTUNE_NO_USER\", password_env = \"WATTUNE_NO_PASSWORD\" }";
    let source = source(&toml::from_str(text).expect(text), None).expect("a place");
    let error = source.fetch(at(NOW)).await.expect_err("no account").to_string();
    for part in ["WATTUNE_NO_USER", "WATTUNE_NO_PASSWORD", "carbon.watttime.username_file", "https://docs.watttime.org"]
    {
        assert!(error.contains(part), "{error}");
    }
}

#[tokio::test]
async fn coordinates_are_looked_up_once_in_a_run() {
    let found = r#"{"region":"CAISO_NORTH","region_full_name":"California ISO Northern","signal_type":"co2_moer"}"#;
    let routes = [(REGION, ok(found)), (FORECAST, ok(AHEAD)), (HISTORY, ok(BEHIND))];
    let watt = watt(serve(&routes).await, "zone = \"37.77,-122.42\"");
    for _ in 0..2 {
        assert_eq!(watt.fetch(NOW).await.expect("found").forecast.zone.as_str(), "37.77,-122.42");
    }
    let again = settings(&watt.server, watt.directory.path(), "zone = \"37.77,-122.42\"");
    let again = source(&again, Some(watt.directory.path())).expect("a place");
    assert!(again.fetch(at(NOW)).await.is_ok());
    let asked = watt.requests(REGION).await;
    assert_eq!(asked.len(), 2, "and again after a restart");
    let place = ["latitude", "longitude", "signal_type"].map(|field| asks(&asked[0], field).unwrap_or_default());
    assert_eq!(place, ["37.77", "-122.42", "co2_moer"]);
    assert_eq!(asks(&watt.requests(FORECAST).await[0], "region").as_deref(), Some("CAISO_NORTH"));
}

#[tokio::test]
async fn places_without_a_region_are_reported() {
    for answer in [status(404, NO_COVERAGE), ok(NO_COVERAGE)] {
        let watt = watt(serve(&[(REGION, answer)]).await, "zone = \"0,-160\"");
        let error = watt.fetch(NOW).await.expect_err("the Pacific").to_string();
        assert!(error.contains("WattTime covers no region at 0,-160 (No coverage available"), "{error}");
    }
    let detail = r#"{"detail":[{"loc":["query","latitude"],"msg":"ensure this value is less than 90","type":"v"}]}"#;
    let watt = watt(serve(&[(REGION, status(422, detail))]).await, "zone = \"0,-160\"");
    let error = watt.fetch(NOW).await.expect_err("refused").to_string();
    assert!(error.contains("422") && error.contains("less than 90"), "{error}");
}

#[tokio::test]
async fn a_country_is_not_a_region_unless_written_for_watttime() {
    let country = CarbonSettings { zone: Some(Zone::new("DE").expect("a zone")), ..CarbonSettings::default() };
    let error = source(&country, None).expect_err("a country").to_string();
    for part in ["watttime does not serve DE", "carbon.watttime.zone", "latitude,longitude", "CAISO_NORTH"] {
        assert!(error.contains(part), "{error}");
    }
    assert!(source(&CarbonSettings::default(), None).is_err(), "no place at all");
    let ireland = AHEAD.replace("CAISO_NORTH", "IE");
    let watt = watt(serve(&[(FORECAST, ok(ireland))]).await, "zone = \"IE\"");
    let answer = watt.fetch(NOW).await.expect("a region of that name");
    assert_eq!(answer.forecast.zone.as_str(), "IE");
}

#[tokio::test]
async fn other_units_regions_and_signals_are_faults() {
    for (from, to, part) in [
        ("lbs_co2_per_mwh", "percentile", "meta.units: expected \"lbs_co2_per_mwh\", found \"percentile\""),
        ("\"units\":\"lbs_co2_per_mwh\",", "", "meta.units"),
        ("CAISO_NORTH", "ERCOT", "wrong zone in the answer: ERCOT, but CAISO_NORTH was asked for"),
        ("\"region\":\"CAISO_NORTH\",", "", "meta.region"),
        ("co2_moer", "co2_aoer", "meta.signal_type"),
        (":300,\"region", ":0,\"region", "meta.data_point_period_seconds: expected seconds, at most a day, found 0"),
        (":300,\"region", ":1e9,\"region", "meta.data_point_period_seconds"),
        ("868.4", "-1", "data[3].value"),
        ("868.4", "1e6", "data[3].value"),
        ("2022-07-15T00:15:00+00:00", "2022-07-15T00:15:00", "data[3].point_time"),
        ("\"meta\"", "\"mata\"", "meta: expected an object, found null"),
        ("\"data\"", "\"date\"", "data: expected an array, found null"),
    ] {
        let error = answered(&AHEAD.replace(from, to), BEHIND).await.expect_err(part);
        assert!(matches!(error, ProviderError::Malformed { .. }), "{error:?}");
        assert!(error.to_string().contains(part), "{error}");
    }
}

#[tokio::test]
async fn steps_come_from_the_body() {
    let hourly =
        AHEAD.replace(":300,\"region", ":3600,\"region").replace("T00:05", "T01:00").replace("T00:15", "T02:00");
    let hourly = hourly.replace("T00:10", "T03:00");
    let expected = answered(&hourly, BEHIND).await.expect("hourly").forecast.expected;
    assert_eq!((values(&expected), expected.end()), (vec![394.625, 0.0, 393.9], Some(at("2022-07-15T03:00:00Z"))));
    let silent = AHEAD.replace("\"data_point_period_seconds\":300,", "");
    let expected = answered(&silent, BEHIND).await.expect("by spacing").forecast.expected;
    assert_eq!(expected.points()[0].0.duration(), Seconds::new(300.0), "null points tell the step, too");
    let overlapping = AHEAD.replace(":300,\"region", ":600,\"region");
    let answer = answered(&overlapping, BEHIND).await.expect("overlapping");
    assert!(answer.notes[1].contains("overlaps"), "{:?}", answer.notes);
    let early = AHEAD.replace("\"generated_at\":\"2022-07-15T00:00:00", "\"generated_at\":\"2022-07-16T00:00:00");
    assert_eq!(answered(&early, BEHIND).await.expect("read").forecast.issued_at, at(NOW), "not from the future");
}

#[tokio::test]
async fn another_model_is_noted() {
    let server = MockServer::start().await;
    Mock::given(path("/login")).respond_with(token(TOKEN)).mount(&server).await;
    Mock::given(path(FORECAST)).respond_with(ok(AHEAD)).up_to_n_times(1).mount(&server).await;
    let newer = AHEAD.replace("2023-03-01", "2026-03-01");
    Mock::given(path(FORECAST)).respond_with(ok(newer)).mount(&server).await;
    let watt = watt(server, "zone = \"CAISO_NORTH\"\ncontributes = \"forecast\"");
    for changed in [false, true, false] {
        let notes = watt.fetch(NOW).await.expect("a forecast").notes;
        assert_eq!(notes.iter().any(|n| n.contains("changed from 2023-03-01 to 2026-03-01")), changed, "{notes:?}");
    }
    assert!(watt.requests(HISTORY).await.is_empty(), "what is not used is not asked");
}

#[tokio::test]
async fn success_without_a_value_is_a_fault() {
    let none = AHEAD.replace("870.0", "null").replace("868.4", "null").replace("\"value\":0", "\"value\":null");
    let past = AHEAD.replace("2022-07-15T00:", "2022-07-14T00:");
    let empty = r#"{"data":[],"meta":{"region":"CAISO_NORTH","units":"lbs_co2_per_mwh"}}"#;
    for body in [none.as_str(), &past, empty, ""] {
        let error = answered(body, BEHIND).await.expect_err(body);
        assert!(matches!(error, ProviderError::Empty { .. }), "{body}: {error:?}");
    }
    let error = answered(r#"{"error":"INVALID_QUERY_PARAMS","msg":"not today"}"#, BEHIND).await;
    assert_eq!(error, Err(ProviderError::Unexpected { status: 200, message: "not today".to_owned() }));
    for body in ["[]", "3", "{}", "<html>", &AHEAD[..80]] {
        let error = answered(body, BEHIND).await.expect_err(body);
        assert!(matches!(error, ProviderError::Malformed { .. }), "{body}: {error:?}");
    }
}

#[tokio::test]
async fn a_plan_without_history_is_only_a_note_and_not_asked_again_for_a_day() {
    let watt = caiso(ok(AHEAD), status(403, SCOPE)).await;
    for _ in 0..2 {
        let answer = watt.fetch(NOW).await.expect("the forecast is there");
        assert!(answer.forecast.actual.is_empty());
        assert!(answer.notes.iter().any(|n| n.contains("are unknown")), "{:?}", answer.notes);
    }
    assert_eq!(watt.requests(HISTORY).await.len(), 1);
    let span = Slot::new(at("2022-07-01T00:00:00Z"), at(NOW)).expect("from < to");
    assert_eq!(watt.source.fetch_actuals(span, at(NOW)).await, Ok(None));

    let actual = self::watt(serve(&[(HISTORY, ok(BEHIND))]).await, "zone = \"CAISO_NORTH\"\ncontributes = \"actual\"");
    assert!(actual.fetch(NOW).await.expect("history").forecast.expected.is_empty());
    let nothing =
        self::watt(serve(&[(HISTORY, status(403, SCOPE))]).await, "zone = \"CAISO_NORTH\"\ncontributes = \"actual\"");
    assert!(matches!(nothing.fetch(NOW).await, Err(ProviderError::Refused { .. })));
}

#[tokio::test]
async fn a_past_window_is_asked_for_two_weeks_at_a_time() {
    let watt = caiso(ok(AHEAD), ok(BEHIND)).await;
    let span = |from: &str| Slot::new(at(from), at(NOW)).expect("from < to");
    let actuals =
        watt.source.fetch_actuals(span("2022-06-01T00:00:00Z"), at(NOW)).await.expect("past").expect("the route");
    assert_eq!(values(&actuals), [408.233, 399.161]);
    let actuals =
        watt.source.fetch_actuals(span("2022-07-14T23:57:00Z"), at(NOW)).await.expect("past").expect("the route");
    assert_eq!(values(&actuals), [399.161], "the slot in which the span begins is whole");
    let asked: Vec<_> = watt.requests(HISTORY).await.iter().map(|r| (asks(r, "start"), asks(r, "end"))).collect();
    let some = |text: &str| Some(text.to_owned());
    assert_eq!(asked[0], (some("2022-05-31T23:55:00Z"), some("2022-06-14T23:55:00Z")));
    assert_eq!(asked[1], (some("2022-07-14T23:52:00Z"), some("2022-07-15T00:02:00Z")));
    let down = caiso(ok(AHEAD), status(500, "")).await;
    assert!(down.source.fetch_actuals(span("2022-06-01T00:00:00Z"), at(NOW)).await.is_err());
}

#[tokio::test]
async fn http_faults_are_distinguished() {
    let limited = caiso(status(429, "").insert_header("retry-after", "60"), ok(BEHIND)).await.fetch(NOW).await;
    assert_eq!(limited, Err(ProviderError::RateLimited { retry_after: Some(Seconds::new(60.0)) }));
    let unknown = r#"{"error":"INVALID_QUERY_PARAMS","message":"no such region","docs":"https://docs.watttime.org/"}"#;
    let unknown = caiso(status(400, unknown), ok(BEHIND)).await.fetch(NOW).await;
    assert_eq!(unknown, Err(ProviderError::Unexpected { status: 400, message: "no such region".to_owned() }));
    let down = caiso(status(503, PAGE), ok(BEHIND)).await.fetch(NOW).await;
    assert!(matches!(down, Err(ProviderError::ServerError { status: 503, .. })), "{down:?}");
    let slow = caiso(ok(AHEAD).set_delay(Duration::from_secs(5)), ok(BEHIND)).await.fetch(NOW).await;
    assert!(matches!(slow, Err(ProviderError::TimedOut { .. })), "{slow:?}");
    let long = caiso(ok(format!("{AHEAD}{}", " ".repeat(70_000))), ok(BEHIND)).await.fetch(NOW).await;
    assert_eq!(long, Err(ProviderError::TooLarge { limit_bytes: 64 << 10 }));
}

#[tokio::test]
async fn the_account_is_shown_by_nothing_whatever_repeats_it() {
    let base64 = BASIC.trim_start_matches("Basic ");
    let forbidden = |text: &str| [USER, PASSWORD, TOKEN, base64].iter().any(|secret| text.contains(&secret[..6]));
    let echo = format!(r#"{{"message":"{BASIC} of {USER} ({USER}:{PASSWORD}) is wrong: {}"}}"#, &base64[..10]);
    for code in [200, 401, 403, 500] {
        let server = serve(&[("/login", status(code, &echo))]).await;
        let answer = watt(server, "zone = \"CAISO_NORTH\"").fetch(NOW).await;
        assert!(answer.is_err() && !forbidden(&format!("{answer:?}")), "{answer:?}");
    }
    for text in [TOKEN, &TOKEN[..9], USER, PASSWORD, BASIC] {
        let units = AHEAD.replace("lbs_co2_per_mwh", text);
        let answer = answered(&units, BEHIND).await;
        assert!(answer.is_err() && !forbidden(&format!("{answer:?}")), "{answer:?}");
        let warned = AHEAD.replace("the model will be superseded", &format!("beware of {text}"));
        let answer = answered(&warned, &BEHIND.replace("lbs_co2_per_mwh", text)).await.expect("a forecast");
        assert!(!forbidden(&format!("{answer:?}")), "{answer:?}");
    }
}

#[tokio::test]
async fn an_answer_names_the_bodies_it_was_made_from() {
    use wattune_core::domain::Unit;
    use wattune_core::ledger::chain::Digest;

    let watt = caiso(ok(AHEAD), ok(BEHIND)).await;
    let answer = watt.fetch(NOW).await.expect("read");
    assert_eq!(answer.forecast.provenance.model.as_deref(), Some("2023-03-01"));
    let read = watt.source.provenance();
    // The digest of the login's body is not among the responses.
    assert_eq!(read.responses, [AHEAD, BEHIND].map(|body| Digest::of(body).to_string()));
    assert_eq!((read.unit, read.zone.as_deref()), (Some(Unit::PoundsPerMwh), Some("CAISO_NORTH")));
    let given: Vec<f64> =
        answer.forecast.actual.points().iter().map(|(_, i)| Unit::PoundsPerMwh.received(i.value)).collect();
    assert_eq!(given, [900.0, 880.0]);
    assert!(watt.source.provenance().responses.is_empty(), "reported once");
}
