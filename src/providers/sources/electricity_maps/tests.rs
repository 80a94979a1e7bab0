use std::path::PathBuf;

use wiremock::matchers::{header, path, query_param, query_param_is_missing};
use wiremock::{Mock, MockServer, Request, ResponseTemplate};

use super::*;
use crate::providers::CarbonSettings;
use crate::providers::testing::{asks, at, base_url, ok, requests, serve, status, values};

const KEY: &str = "s3cret-key";

/// A body in the documented shape (`carbon-apis.md` §1.3), like the constants below; numbers are made up.
const AHEAD: &str = r#"{"zone":"DK-DK2","forecast":[
  {"carbonIntensity":75,"datetime":"2026-08-22T19:00:00.000Z"},
  {"carbonIntensity":81.5,"datetime":"2026-08-22T20:00:00.000Z"},
  {"carbonIntensity":0,"datetime":"2026-08-22T21:00:00.000Z"}],
 "updatedAt":"2026-08-22T18:52:11.310Z","temporalGranularity":"hourly"}"#;
const BEHIND: &str = r#"{"zone":"DK-DK2","history":[
  {"zone":"DK-DK2","carbonIntensity":60,"datetime":"2026-08-22T15:00:00.000Z","updatedAt":"2026-08-22T18:48:54.012Z",
   "createdAt":"2026-08-19T15:47:49.346Z","emissionFactorType":"lifecycle","isEstimated":false,"estimationMethod":null},
  {"zone":"DK-DK2","carbonIntensity":null,"datetime":"2026-08-22T16:00:00.000Z","updatedAt":"2026-08-22T18:49:04.367Z",
   "createdAt":"2026-08-19T16:48:36.543Z","emissionFactorType":"lifecycle","isEstimated":false,"estimationMethod":null},
  {"zone":"DK-DK2","carbonIntensity":70,"datetime":"2026-08-22T18:00:00.000Z","updatedAt":"2026-08-22T18:49:04.367Z",
   "createdAt":"2026-08-19T18:48:36.543Z","emissionFactorType":"lifecycle","isEstimated":true,
   "estimationMethod":"SOMETHING_NEW"},
  {"zone":"DK-DK2","carbonIntensity":71,"datetime":"2026-08-22T19:00:00.000Z","updatedAt":"2026-08-22T18:49:04.367Z",
   "emissionFactorType":"lifecycle","isEstimated":true,"estimationMethod":"TIME_SLICER_AVERAGE"}]}"#;
const NOW: &str = "2026-08-22T19:20:00Z";
const NOT_IN_PLAN: &str = r#"{"error":"Request unauthorized for zoneKey=DK-DK2,requestType=forecast,dataType=carbon-intensity.",
  "message":"You do not have access to this specific endpoint for this specific zone."}"#;
const FORECAST: &str = "/v3/carbon-intensity/forecast";
const HISTORY: &str = "/v3/carbon-intensity/history";
const PAST_RANGE: &str = "/v3/carbon-intensity/past-range";

/// A source whose key is in a file, which exists as long as `directory` does.
struct Maps {
    source: ElectricityMaps,
    server: MockServer,
    directory: tempfile::TempDir,
}

/// Makes the source as the settings say.
fn source(settings: &CarbonSettings, state_dir: Option<&std::path::Path>) -> Result<ElectricityMaps, SettingsError> {
    ElectricityMaps::new(&settings.electricity_maps, &settings.shared(state_dir))
}

fn settings(server: &MockServer, key_file: PathBuf, table: &str) -> CarbonSettings {
    let own: Settings = toml::from_str(table).expect(table);
    CarbonSettings {
        electricity_maps: Settings { base_url: base_url(server), key_file: Some(key_file), ..own },
        timeout_s: Seconds::new(0.5),
        max_body_bytes: 64 << 10,
        ..CarbonSettings::default()
    }
}

fn maps(server: MockServer, table: &str) -> Maps {
    let directory = tempfile::tempdir().expect("a directory");
    let key_file = directory.path().join("key");
    std::fs::write(&key_file, format!("{KEY}\n")).expect("written");
    let source = source(&settings(&server, key_file, table), Some(directory.path())).expect("a place");
    Maps { source, server, directory }
}

impl Maps {
    async fn fetch(&self, now: &str) -> Result<Answer, ProviderError> {
        self.source.fetch(at(now)).await
    }

    async fn requests(&self, route: &str) -> Vec<Request> {
        requests(&self.server, route).await
    }
}

/// Makes a source for the zone DK-DK2, written as the API's own code, with these responses for forecast and history.
async fn dk2(ahead: ResponseTemplate, behind: ResponseTemplate) -> Maps {
    maps(serve(&[(FORECAST, ahead), (HISTORY, behind)]).await, "zone = \"DK-DK2\"\nhorizon_hours = 24")
}

async fn answered(ahead: &str, behind: &str) -> Result<Answer, ProviderError> {
    dk2(ok(ahead), ok(behind)).await.fetch(NOW).await
}

fn slots_of(series: &CarbonSeries) -> Vec<Slot> {
    series.points().iter().map(|(slot, _)| *slot).collect()
}

#[tokio::test]
async fn a_zone_has_a_forecast_and_actual_values() {
    let maps = dk2(ok(AHEAD), ok(BEHIND)).await;
    let answer = maps.fetch(NOW).await.expect("as documented");
    let forecast = answer.forecast;
    assert_eq!(values(&forecast.expected), [75.0, 81.5, 0.0], "the hour in progress is the first; zero is zero");
    assert_eq!(forecast.expected.start(), Some(at("2026-08-22T19:00:00Z")));
    assert_eq!(forecast.expected.end(), Some(at("2026-08-22T22:00:00Z")));
    assert_eq!(values(&forecast.actual), [60.0, 70.0], "null is absent, and the hour in progress has not come");
    let slots: Vec<_> = forecast.actual.points().iter().map(|(slot, i)| (slot.duration().get(), i.origin)).collect();
    assert_eq!(slots, [(3600.0, Origin::Measured), (3600.0, Origin::Estimated)], "no hour reaches over the null");
    let methods = maps.source.provenance().methods;
    let (start, end) = (slots_of(&forecast.actual)[1].start(), slots_of(&forecast.actual)[1].end());
    assert_eq!(methods, [Method { start, end, name: "SOMETHING_NEW".into() }], "of the estimated hour that has come");
    assert_eq!(maps.source.provenance().methods, [], "of the next answer");
    assert_eq!((forecast.kind, forecast.scope), (SignalKind::Average, SignalScope::Lifecycle));
    assert_eq!((forecast.zone.as_str(), forecast.source.as_str()), ("DK-DK2", "electricity_maps"));
    assert_eq!(forecast.issued_at, at("2026-08-22T18:52:11.310Z"));
    assert!(answer.notes[0].contains("reaches 2.7 h ahead; 24 h were asked for"), "{:?}", answer.notes);

    let asked = maps.requests(FORECAST).await;
    assert_eq!(asked[0].headers.get("auth-token").map(|key| key.as_bytes()), Some(KEY.as_bytes()));
    for (field, value) in [
        ("zone", "DK-DK2"),
        ("horizonHours", "24"),
        ("emissionFactorType", "lifecycle"),
        ("shouldUseFallbackCallerLookup", "false"),
    ] {
        assert_eq!(asks(&asked[0], field).as_deref(), Some(value), "{field}");
    }
    assert!(!asked[0].url.as_str().contains(KEY));
    assert_eq!(maps.source.requests(at(NOW)).map(|r| r.last_hour), Some(2));
}

#[tokio::test]
async fn version_four_header_and_direct_factors_are_settings() {
    let server = MockServer::start().await;
    for (route, body) in [("/v4/carbon-intensity/forecast", AHEAD), ("/v4/carbon-intensity/history", BEHIND)] {
        Mock::given(path(route))
            .and(header("x-blobr-key", KEY))
            .and(header("x-more", "1"))
            .and(query_param("disableCallerLookup", "true"))
            .and(query_param("emissionFactorType", "direct"))
            .and(query_param_is_missing("shouldUseFallbackCallerLookup"))
            .respond_with(ok(body.replace("\"lifecycle\"", "\"direct\"")))
            .mount(&server)
            .await;
    }
    let table = "zone = \"DK-DK2\"\napi_version = 4\nkey_header = \"X-BLOBR-KEY\"\nemission_factors = \"direct\"\n\
                 headers = { X-More = \"1\" }";
    let forecast = maps(server, table).fetch(NOW).await.expect("as documented").forecast;
    assert_eq!((forecast.scope, forecast.actual.points().len()), (SignalScope::Operational, 2));
    let answer = answered(AHEAD, &BEHIND.replace("\"lifecycle\"", "\"direct\"")).await.expect("the forecast is there");
    assert!(answer.notes[0].contains("counts direct emissions, but lifecycle ones"), "{:?}", answer.notes);
}

#[tokio::test]
async fn places_are_written_in_several_ways() {
    for (written, zone) in
        [("de", "DE"), ("DEU", "DE"), ("UK", "GB"), ("US-CAL-CISO", "US-CAL-CISO"), ("DK1", "DK-DK1"), ("DK", "DK")]
    {
        let server = MockServer::start().await;
        let body = AHEAD.replace("DK-DK2", zone);
        let given = Mock::given(path(FORECAST)).and(query_param("zone", zone));
        given.respond_with(ok(body)).mount(&server).await;
        let answer = maps(server, &format!("zone = \"{written}\"")).fetch(NOW).await.expect(written);
        assert_eq!(answer.forecast.zone.as_str(), written, "answers carry the zone as it was written");
    }
    let none = source(&CarbonSettings::default(), None).expect_err("no place");
    assert!(none.to_string().contains("carbon.electricity_maps.zone"), "{none}");
}

#[tokio::test]
async fn coordinates_are_looked_up_once_in_a_run() {
    let found =
        [(r#"{"zoneKey":"DK-DK2","zoneName":"East"}"#, 200), ("{}", 200), ("no such route", 404), (NOT_IN_PLAN, 401)];
    for (body, code) in found {
        let latest = r#"{"zone":"DK-DK2","carbonIntensity":216,"datetime":"2026-08-22T19:00:00.000Z"}"#;
        let routes = [
            ("/v3/zone", status(code, body)),
            ("/v3/carbon-intensity/latest", ok(latest)),
            (FORECAST, ok(AHEAD)),
            (HISTORY, ok(BEHIND)),
        ];
        let maps = maps(serve(&routes).await, "zone = \"55.68, 12.57\"");
        for _ in 0..2 {
            assert_eq!(maps.fetch(NOW).await.expect(body).forecast.zone.as_str(), "55.68, 12.57");
        }
        let asked = maps.requests("/v3/zone").await;
        assert_eq!(asked.len(), 1, "kept afterwards");
        assert_eq!((asks(&asked[0], "lat"), asks(&asked[0], "lon")), (Some("55.68".into()), Some("12.57".into())));
        assert_eq!(asks(&asked[0], "shouldUseFallbackCallerLookup").as_deref(), Some("false"));
        assert_eq!(asks(&maps.requests(FORECAST).await[1], "zone").as_deref(), Some("DK-DK2"));

        let key_file = maps.directory.path().join("key");
        let settings = settings(&maps.server, key_file, "zone = \"55.68, 12.57\"");
        let again = source(&settings, Some(maps.directory.path())).expect("a place");
        assert!(again.fetch(at(NOW)).await.is_ok());
        assert_eq!(maps.requests("/v3/zone").await.len(), 2, "and again after a restart");
    }
    let nowhere = serve(&[("/v3/zone", ok("{}")), ("/v3/carbon-intensity/latest", ok("{}"))]).await;
    let error = maps(nowhere, "zone = \"0,-160\"").fetch(NOW).await.expect_err("no zone").to_string();
    assert!(error.contains("names no zone for these coordinates"), "{error}");
}

#[tokio::test]
async fn the_zone_of_an_earlier_run_is_used_where_it_is_not_found_again() {
    let table = "zone = \"55.68, 12.57\"";
    let zone = ok(r#"{"zoneKey":"DK-DK2"}"#);
    let earlier = maps(serve(&[("/v3/zone", zone), (FORECAST, ok(AHEAD)), (HISTORY, ok(BEHIND))]).await, table);
    assert!(earlier.fetch(NOW).await.is_ok());
    let later = serve(&[("/v3/zone", status(500, "")), (FORECAST, ok(AHEAD)), (HISTORY, ok(BEHIND))]).await;
    let settings = settings(&later, earlier.directory.path().join("key"), table);
    let source = source(&settings, Some(earlier.directory.path())).expect("a place");
    for _ in 0..2 {
        assert!(source.fetch(at(NOW)).await.is_ok());
    }
    assert_eq!(requests(&later, "/v3/zone").await.len(), 1, "not at each poll");
    assert_eq!(asks(&requests(&later, FORECAST).await[0], "zone").as_deref(), Some("DK-DK2"));
}

#[tokio::test]
async fn a_refused_zone_is_determined_anew_once_a_day() {
    let table = "zone = \"55.68, 12.57\"\nhorizon_hours = 24";
    let zone = |key: &str| ok(format!(r#"{{"zoneKey":"{key}"}}"#));
    let server = MockServer::start().await;
    Mock::given(path("/v3/zone")).respond_with(zone("DK")).up_to_n_times(1).mount(&server).await;
    Mock::given(path("/v3/zone")).respond_with(zone("DK-DK2")).mount(&server).await;
    let split = Mock::given(path(FORECAST)).and(query_param("zone", "DK"));
    split.respond_with(status(404, "no such zone")).mount(&server).await;
    for (route, body) in [(FORECAST, AHEAD), (HISTORY, BEHIND)] {
        Mock::given(path(route)).and(query_param("zone", "DK-DK2")).respond_with(ok(body)).mount(&server).await;
    }
    let maps = maps(server, table);
    let refused = maps.fetch(NOW).await;
    assert!(matches!(refused, Err(ProviderError::Unexpected { status: 404, .. })), "{refused:?}");
    assert!(maps.fetch(NOW).await.is_ok());
    assert_eq!(maps.requests("/v3/zone").await.len(), 2);

    let unknown = serve(&[("/v3/zone", zone("DK")), (FORECAST, status(404, "")), (HISTORY, status(404, ""))]).await;
    let unknown = self::maps(unknown, table);
    for (now, lookups) in [
        (NOW, 1),
        ("2026-08-22T19:25:00Z", 2),
        ("2026-08-22T20:20:00Z", 2),
        ("2026-08-23T19:20:00Z", 2),
        ("2026-08-23T19:25:00Z", 3),
    ] {
        assert!(unknown.fetch(now).await.is_err());
        assert_eq!(unknown.requests("/v3/zone").await.len(), lookups, "{now}");
    }
}

#[tokio::test]
async fn another_zones_answer_is_a_fault() {
    let error = answered(&AHEAD.replace("DK-DK2", "DE"), BEHIND).await.expect_err("another zone").to_string();
    assert!(error.contains("wrong zone in the answer: DE, but DK-DK2 was asked for"), "{error}");
    let error = answered(&AHEAD.replace("\"zone\":\"DK-DK2\",", ""), BEHIND).await.expect_err("no zone").to_string();
    assert!(error.contains("zone: expected the zone DK-DK2, found null"), "{error}");
    for behind in [BEHIND.replacen("DK-DK2", "DE", 1), BEHIND.replacen("DK-DK2\",\"carbon", "DE\",\"carbon", 1)] {
        let answer = answered(AHEAD, &behind).await.expect("the forecast is right");
        assert!(answer.forecast.actual.is_empty());
        assert!(answer.notes[0].contains("wrong zone in the answer: DE"), "{:?}", answer.notes);
    }
}

#[tokio::test]
async fn the_three_meanings_of_401_are_distinguished() {
    for (body, part) in [
        (r#"{"error":"Invalid auth-token"}"#, "is not valid; compare it with the one at https://portal"),
        (NOT_IN_PLAN, "plan does not include /carbon-intensity/history for DK-DK2"),
        (r#"{"error":"Rate limit exceeded"}"#, "more often than its plan allows"),
        ("", "may be wrong, its plan may lack /carbon-intensity/history for DK-DK2, or it is used too often"),
    ] {
        let maps = dk2(status(401, body), status(401, body)).await;
        let error = maps.fetch(NOW).await.expect_err(body);
        assert!(matches!(error, ProviderError::Refused { status: 401, .. }), "{error:?}");
        let error = error.to_string();
        assert!(error.contains(part) && !error.contains(KEY), "{error}");
    }
    let echoed = format!(r#"{{"error":"Invalid auth-token {KEY}"}}"#);
    let error = dk2(status(401, &echoed), ok("")).await.fetch(NOW).await.expect_err("refused");
    assert!(!format!("{error} {error:?}").contains(KEY), "{error}");
}

#[tokio::test]
async fn a_plan_without_forecast_gives_history_alone_and_is_not_asked_again_for_a_day() {
    let maps = dk2(status(401, NOT_IN_PLAN), ok(BEHIND)).await;
    for (now, asked) in
        [(NOW, 1), ("2026-08-22T20:20:00Z", 1), ("2026-08-23T19:19:00Z", 1), ("2026-08-23T19:20:00Z", 2)]
    {
        let answer = maps.fetch(now).await.expect("history is enough");
        assert!(answer.forecast.expected.is_empty());
        assert_eq!(answer.forecast.issued_at, at(now));
        assert_eq!(values(&answer.forecast.actual)[..2], [60.0, 70.0]);
        assert!(answer.notes[0].contains("plan has no forecast for DK-DK2; only actual values"), "{:?}", answer.notes);
        assert_eq!(maps.requests(FORECAST).await.len(), asked, "{now}");
    }
    let unexplained = dk2(status(401, ""), ok(BEHIND)).await;
    for asked in 1..3 {
        let answer = unexplained.fetch(NOW).await.expect("the key is right");
        assert!(answer.notes[0].contains("the forecast is not given") && answer.notes[0].contains("401"));
        assert_eq!(unexplained.requests(FORECAST).await.len(), asked, "it may be for once");
    }
    let neither = dk2(status(401, NOT_IN_PLAN), status(401, NOT_IN_PLAN)).await;
    for asked in 1..3 {
        assert!(matches!(neither.fetch(NOW).await, Err(ProviderError::Refused { .. })));
        assert_eq!(neither.requests(FORECAST).await.len(), asked, "a new key may have all");
    }
    let server = serve(&[(FORECAST, status(401, NOT_IN_PLAN)), (HISTORY, ok(BEHIND))]).await;
    let forecasts = maps_with(server, "contributes = \"forecast\"");
    assert!(matches!(forecasts.fetch(NOW).await, Err(ProviderError::Refused { .. })), "nothing to make do with");
    assert!(forecasts.requests(HISTORY).await.is_empty());
}

fn maps_with(server: MockServer, table: &str) -> Maps {
    maps(server, &format!("zone = \"DK-DK2\"\n{table}"))
}

#[tokio::test]
async fn what_is_not_used_is_not_asked() {
    let server = serve(&[(FORECAST, ok(AHEAD)), (HISTORY, ok(BEHIND))]).await;
    let actual = maps_with(server, "contributes = \"actual\"");
    assert!(actual.fetch(NOW).await.expect("history").forecast.expected.is_empty());
    assert!(actual.requests(FORECAST).await.is_empty());
}

#[tokio::test]
async fn a_horizon_that_the_plan_refuses_becomes_24_hours() {
    for refused in [status(400, r#"{"error":"horizonHours must be one of 6, 24"}"#), status(401, NOT_IN_PLAN)] {
        let server = MockServer::start().await;
        let asked = |hours: &str| Mock::given(path(FORECAST)).and(query_param("horizonHours", hours));
        asked("72").respond_with(refused).mount(&server).await;
        asked("24").respond_with(ok(AHEAD)).mount(&server).await;
        Mock::given(path(HISTORY)).respond_with(ok(BEHIND)).mount(&server).await;
        let maps = maps_with(server, "horizon_hours = 72");
        for _ in 0..2 {
            let answer = maps.fetch(NOW).await.expect("24 hours");
            assert!(answer.notes[0].contains("72 h was refused") && answer.notes[0].contains("horizon_hours = 24"));
            assert!(answer.notes[1].contains("24 h were asked for"), "{:?}", answer.notes);
        }
        assert_eq!(maps.requests(FORECAST).await.len(), 3, "72, 24, and 24 the next time");
    }

    let unknown = status(400, r#"{"message":"Unknown zone"}"#);
    let server = serve(&[(FORECAST, unknown.clone()), (HISTORY, unknown)]).await;
    let error = self::maps(server, "zone = \"SE\"").fetch(NOW).await.expect_err("no such zone").to_string();
    assert!(error.contains("Unknown zone; large countries are several zones"), "{error}");
    for (zone, message, hinted) in [("SE", "Bad request", true), ("FR", "Bad request", false), ("FR", "No zone", true)]
    {
        let refused = status(400, &format!(r#"{{"message":"{message}"}}"#));
        let server = serve(&[(FORECAST, refused.clone()), (HISTORY, refused)]).await;
        let table = format!("zone = \"{zone}\"");
        let error = self::maps(server, &table).fetch(NOW).await.expect_err(message).to_string();
        assert_eq!(error.contains("several zones"), hinted, "{zone}: {error}");
    }
    let error = answered("{}", "{}").await.expect_err("nothing").to_string();
    assert!(error.contains("the answer: is empty"), "{error}");
}

#[tokio::test]
async fn success_without_a_value_is_a_fault() {
    for body in [
        r#"{"zone":"DK-DK2","forecast":[]}"#,
        r#"{"zone":"DK-DK2","forecast":[{"carbonIntensity":null,"datetime":"2026-08-22T19:00:00.000Z"}]}"#,
        r#"{"zone":"DK-DK2","forecast":[{"carbonIntensity":5,"datetime":"2026-08-21T19:00:00.000Z"}]}"#,
        r#"{"_disclaimer":"…","status":"no-data","countryCode":"DK","data":{},"units":{"carbonIntensity":"gCO2eq/kWh"}}"#,
        "",
    ] {
        let error = answered(body, BEHIND).await.expect_err(body);
        assert!(matches!(error, ProviderError::Empty { .. }), "{body}: {error:?}");
    }
    let said = answered(r#"{"error":"No recent data for zone \"DK-DK2\""}"#, BEHIND).await;
    let message = "No recent data for zone \"DK-DK2\"".to_owned();
    assert_eq!(said, Err(ProviderError::Unexpected { status: 200, message }));
    for body in
        ["[]", "3", "{}", r#"{"zone":"DK-DK2"}"#, r#"{"zone":"DK-DK2","forecast":{"a":1}}"#, &AHEAD[..90], "<html>"]
    {
        let error = answered(body, BEHIND).await.expect_err(body);
        assert!(matches!(error, ProviderError::Malformed { .. }), "{body}: {error:?}");
    }
}

#[tokio::test]
async fn broken_rows_say_where() {
    for (from, to, part) in [
        ("81.5", "\"many\"", "forecast[1]: expected a carbon intensity in g/kWh"),
        ("81.5", "-1", "found -1"),
        ("81.5", "81500", "found 81500"),
        ("2026-08-22T20:00:00.000Z", "soon", "forecast[1].datetime: \"soon\" is not a time"),
        ("2026-08-22T20:00:00.000Z", "2026-08-22T20:00:00", "has no zone"),
        ("{\"carbonIntensity\":81.5,", "[81.5],{", "forecast[1].datetime: expected a time, found null"),
    ] {
        let error = answered(&AHEAD.replace(from, to), BEHIND).await.expect_err(part).to_string();
        assert!(error.contains(part), "{error}");
    }
}

#[tokio::test]
async fn other_names_forms_and_orders_are_read() {
    let data = AHEAD.replace("\"forecast\"", "\"data\"").replace("81.5", "\"81.5\"");
    assert_eq!(values(&answered(&data, BEHIND).await.expect("read as data").forecast.expected), [75.0, 81.5, 0.0]);
    let early = AHEAD.replace("2026-08-22T18:52:11.310Z", "2026-08-22T19:52:00Z");
    assert_eq!(answered(&early, BEHIND).await.expect("read").forecast.issued_at, at(NOW), "not from the future");
    let silent = AHEAD.replace("\"updatedAt\"", "\"other\"");
    assert_eq!(answered(&silent, BEHIND).await.expect("read").forecast.issued_at, at(NOW));

    let quarters = AHEAD.replace("T20:00", "T19:15").replace("T21:00", "T19:30").replace("hourly", "15_minutes");
    let expected = answered(&quarters, BEHIND).await.expect("quarters").forecast.expected;
    assert_eq!(values(&expected), [81.5, 0.0], "the first has ended");
    assert_eq!(expected.end(), Some(at("2026-08-22T19:45:00Z")));
    let apart = AHEAD.replace("T20:00", "T22:00").replace("T21:00", "T20:00");
    let answer = answered(&apart, BEHIND).await.expect("unsorted, with an hour missing");
    assert_eq!(values(&answer.forecast.expected), [75.0, 0.0, 81.5]);
    assert!(answer.notes[0].contains("no value for 2026-08-22T21:00:00Z/2026-08-22T22:00:00Z"));
    let twice = AHEAD.replace("T20:00", "T19:00");
    assert_eq!(values(&answered(&twice, BEHIND).await.expect("overlapping").forecast.expected), [81.5, 0.0]);
}

#[tokio::test]
async fn rows_stay_an_hour_long_where_others_are_missing() {
    let apart = AHEAD.replace("T20:00", "T23:00").replace("T21:00", "T22:00").replace("T19:00", "T18:30");
    let one = r#"{"zone":"DK-DK2","forecast":[{"carbonIntensity":75,"datetime":"2026-08-22T19:00:00Z"}]}"#;
    let spread = AHEAD.replace("T20:00", "T22:00").replace("T21:00", "T23:59").replace("\"hourly\"", "null");
    for body in [apart.as_str(), one, &spread] {
        let expected = answered(body, BEHIND).await.expect(body).forecast.expected;
        assert!(expected.points().iter().all(|(slot, _)| slot.duration() == Seconds::new(3600.0)), "{expected:?}");
    }
}

#[tokio::test]
async fn a_missing_past_is_only_a_note() {
    for behind in [status(500, "oops"), ok(r#"{"zone":"DK-DK2","history":[]}"#), status(401, "")] {
        let answer = dk2(ok(AHEAD), behind).await.fetch(NOW).await.expect("the forecast is there");
        assert!(answer.forecast.actual.is_empty());
        assert!(answer.notes[0].starts_with("the actual values of the last 24 h are unknown"), "{:?}", answer.notes);
    }
}

#[tokio::test]
async fn without_a_key_nothing_is_requested_and_the_remedy_is_named() {
    let maps = dk2(ok(AHEAD), ok(BEHIND)).await;
    assert!(!format!("{:?}", maps.source).contains(KEY));
    std::fs::write(maps.directory.path().join("key"), "\n").expect("written");
    let error = maps.fetch(NOW).await.expect_err("no key");
    assert!(matches!(&error, ProviderError::NoKey { what } if what.contains("holds no key")), "{error}");
    assert!(maps.server.received_requests().await.expect("recorded").is_empty());
    std::fs::write(maps.directory.path().join("key"), KEY).expect("written");
    assert!(maps.fetch(NOW).await.is_ok(), "read at each use");

    let text = "electricity_maps = { zone = \"DE\", key_env = \"WATTUNE_NO_SUCH_VARIABLE\" }";
    let source = source(&toml::from_str(text).expect(text), None).expect("a place");
    let error = source.fetch(at(NOW)).await.expect_err("no key").to_string();
    for part in ["WATTUNE_NO_SUCH_VARIABLE", "carbon.electricity_maps.key_file", "https://portal.electricitymaps.com"] {
        assert!(error.contains(part), "{error}");
    }
}

#[tokio::test]
async fn a_past_window_is_asked_for_ten_days_at_a_time() {
    let past = BEHIND.replace("history", "data");
    let maps = maps_with(serve(&[(PAST_RANGE, ok(past))]).await, "");
    let span = |from: &str| Slot::new(at(from), at(NOW)).expect("from < to");
    let actuals =
        maps.source.fetch_actuals(span("2026-08-01T10:30:00Z"), at(NOW)).await.expect("past").expect("the route");
    assert_eq!(values(&actuals), [60.0, 70.0]);
    assert_eq!(actuals.points()[1].1.origin, Origin::Estimated);
    let actuals =
        maps.source.fetch_actuals(span("2026-08-22T18:30:00Z"), at(NOW)).await.expect("past").expect("the route");
    assert_eq!(values(&actuals), [70.0]);
    let asked: Vec<_> =
        maps.requests(PAST_RANGE).await.iter().map(|r| (asks(r, "start"), asks(r, "end"), asks(r, "zone"))).collect();
    let (some, zone) = (|text: &str| Some(text.to_owned()), Some("DK-DK2".to_owned()));
    assert_eq!(asked[0], (some("2026-08-01T10:00:00Z"), some("2026-08-11T10:00:00Z"), zone.clone()));
    assert_eq!(asked[1], (some("2026-08-22T18:00:00Z"), some("2026-08-22T19:20:00Z"), zone));

    let maps = maps_with(serve(&[(PAST_RANGE, status(401, NOT_IN_PLAN))]).await, "");
    for _ in 0..2 {
        assert_eq!(maps.source.fetch_actuals(span("2026-08-01T10:30:00Z"), at(NOW)).await, Ok(None));
    }
    assert_eq!(maps.requests(PAST_RANGE).await.len(), 1, "not asked again for a day");
    let bad_key = status(401, r#"{"error":"Invalid auth-token"}"#);
    let maps = maps_with(serve(&[(PAST_RANGE, bad_key)]).await, "");
    assert!(maps.source.fetch_actuals(span("2026-08-01T10:30:00Z"), at(NOW)).await.is_err());
}

#[tokio::test]
async fn the_key_is_shown_by_nothing_whatever_repeats_it() {
    let start = &KEY[..6];
    let (cut, long) = (&KEY[..8], format!("{}{KEY}", "a".repeat(195)));
    let mut bodies: Vec<String> = [KEY, cut, &long]
        .iter()
        .flat_map(|text| {
            [
                format!(r#"{{"error":"Invalid auth-token {text}"}}"#),
                format!(r#"{{"zone":"{text}"}}"#),
                format!(r#"{{"zone":{{"{text}":1}}}}"#),
                format!(r#"{{"status":"no-data {text}"}}"#),
                format!(r#"{{"zone":"DK-DK2","forecast":[{{"datetime":"{text}","carbonIntensity":1}}]}}"#),
                format!(r#"{{"zone":"DK-DK2","history":[{{"datetime":"{NOW}","emissionFactorType":"{text}"}}]}}"#),
            ]
        })
        .collect();
    bodies.extend((45..60).map(|before| format!("{}{KEY}", "a".repeat(before))));
    for body in bodies {
        for code in [200, 400, 401, 500] {
            let maps = dk2(status(code, &body), status(code, &body)).await;
            let answer = maps.fetch(NOW).await;
            assert!(!format!("{answer:?}").contains(start), "{body}: {answer:?}");
            let noted = dk2(ok(AHEAD), status(code, &body)).await;
            let answer = noted.fetch(NOW).await.expect("a forecast is enough");
            assert!(!format!("{answer:?}").contains(start), "{body}: {answer:?}");
        }
    }
}

#[tokio::test]
async fn what_a_plan_lacks_is_not_asked_again_where_the_quota_is_small() {
    let server = serve(&[(FORECAST, status(403, NOT_IN_PLAN)), (HISTORY, ok(BEHIND))]).await;
    let maps = maps(server, "zone = \"DK-DK2\"\nrequests_per_hour = 1");
    let first = maps.fetch(NOW).await;
    assert!(matches!(first, Err(ProviderError::QuotaSpent { .. })), "{first:?}");
    maps.fetch("2026-08-22T20:21:00Z").await.expect("the history, and nothing else");
    assert_eq!((maps.requests(FORECAST).await.len(), maps.requests(HISTORY).await.len()), (1, 1));
}
