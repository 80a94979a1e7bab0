use wiremock::matchers::{path, query_param};
use wiremock::{Mock, MockServer, ResponseTemplate};

use super::*;
use crate::providers::CarbonSettings;
use crate::providers::testing::{at, base_url, ok_at};

/// Returns a body in the documented shape (`carbon-apis.md` §5.2), newest row first as the API returns it; numbers are
/// made up.
fn records(points: &[(&str, &str, Option<f64>)]) -> String {
    let record = |(time, area, value): &(&str, &str, Option<f64>)| {
        serde_json::json!({ "Minutes5UTC": format!("2026-08-22T{time}:00"), "Minutes5DK": "2026-08-22T23:59:00",
            "PriceArea": area, "CO2Emission": value })
    };
    let records: Vec<_> = points.iter().rev().map(record).collect();
    serde_json::json!({ "total": 9, "limit": 100, "dataset": "CO2EmisProg", "records": records }).to_string()
}

const NOW: &str = "2026-08-22T19:08:00Z";

fn ahead() -> String {
    records(&[
        ("18:55", "DK1", Some(70.0)),
        ("19:00", "DK1", Some(80.0)),
        ("19:05", "DK1", Some(87.0)),
        ("19:10", "DK1", Some(91.0)),
        ("19:15", "DK1", None),
        ("19:20", "DK1", Some(0.0)),
        ("19:25", "DK1", Some(2.0)),
        ("19:30", "DK1", Some(30.0)),
    ])
}

fn behind() -> String {
    records(&[
        ("18:45", "DK1", Some(60.0)),
        ("18:50", "DK1", Some(66.0)),
        ("18:55", "DK1", None),
        ("19:00", "DK1", Some(50.0)),
    ])
}

fn provider(server: &MockServer, zone: &str) -> Result<Energinet, SettingsError> {
    let mut settings: CarbonSettings = toml::from_str(&format!("zone = \"{zone}\"")).expect(zone);
    settings.energinet.base_url = base_url(server);
    settings.timeout_s = Seconds::new(0.5);
    Energinet::new(&settings.energinet, &settings.shared(None))
}

async fn mount(server: &MockServer, dataset: &str, filter: &str, template: ResponseTemplate) {
    let start = if dataset == "CO2Emis" { "now-P1D" } else { "now-PT15M" };
    Mock::given(path(format!("/dataset/{dataset}")))
        .and(query_param("filter", filter))
        .and(query_param("start", start))
        .and(query_param("sort", "Minutes5UTC"))
        .and(query_param("limit", LIMIT))
        .respond_with(template)
        .mount(server)
        .await;
}

fn text(body: impl Into<String>) -> ResponseTemplate {
    ok_at(at(NOW), body)
}

async fn west(ahead: ResponseTemplate, behind: ResponseTemplate) -> Result<Answer, ProviderError> {
    let server = MockServer::start().await;
    mount(&server, "CO2EmisProg", r#"{"PriceArea":["DK1"]}"#, ahead).await;
    mount(&server, "CO2Emis", r#"{"PriceArea":["DK1"]}"#, behind).await;
    provider(&server, "DK1").expect("an area").fetch(at(NOW)).await
}

fn values(series: &CarbonSeries) -> Vec<(String, f64, f64)> {
    let points = series.points().iter();
    points.map(|(s, i)| (s.start().format("%H:%M").to_string(), s.duration().get() / 60.0, i.value.get())).collect()
}

#[tokio::test]
async fn five_minutes_without_a_zone_become_quarters_in_utc() {
    let answer = west(text(ahead()), text(behind())).await.expect("as documented");
    let forecast = answer.forecast;
    let expected = [("19:00".to_owned(), 15.0, 86.0), ("19:20".to_owned(), 10.0, 1.0), ("19:30".to_owned(), 5.0, 30.0)];
    assert_eq!(values(&forecast.expected), expected, "null is absent, 0 is 0");
    assert_eq!(values(&forecast.actual), [("18:45".to_owned(), 10.0, 63.0), ("19:00".to_owned(), 5.0, 50.0)]);
    assert!(forecast.expected.points().iter().all(|(_, i)| i.origin == Origin::Forecast));
    assert!(forecast.actual.points().iter().all(|(_, i)| i.origin == Origin::Measured));
    assert_eq!((forecast.zone.as_str(), forecast.source.as_str()), ("DK1", "energinet"));
    assert_eq!((forecast.kind, forecast.scope), (SignalKind::Average, SignalScope::Unspecified));
    assert_eq!(answer.notes, ["no value for 2026-08-22T19:15:00Z/2026-08-22T19:20:00Z"]);
}

#[tokio::test]
async fn without_an_area_the_mean_of_both_is_used() {
    let server = MockServer::start().await;
    let both = records(&[
        ("19:00", "DK1", Some(80.0)),
        ("19:00", "DK2", Some(20.0)),
        ("19:05", "DK2", Some(30.0)),
        ("19:10", "DK1", Some(50.0)),
        ("19:10", "DK2", Some(10.0)),
    ]);
    let filter = r#"{"PriceArea":["DK1","DK2"]}"#;
    mount(&server, "CO2EmisProg", filter, text(both)).await;
    mount(&server, "CO2Emis", filter, text(r#"{"records":[]}"#)).await;
    let answer = provider(&server, "DK").expect("the country").fetch(at(NOW)).await.expect("both");
    assert_eq!(values(&answer.forecast.expected), [("19:00".to_owned(), 15.0, 40.0)], "one alone is not the mean");
    assert!(answer.notes.iter().any(|n| n.contains("\"DK1\"") && n.contains("\"DK2\"")), "{:?}", answer.notes);
}

#[tokio::test]
async fn a_missing_past_is_a_note_and_a_missing_forecast_too() {
    let answer = west(text(ahead()), ResponseTemplate::new(500)).await.expect("the forecast is there");
    assert!(answer.forecast.actual.is_empty());
    assert!(answer.notes[0].contains("last 24 h") && answer.notes[0].contains("500"), "{:?}", answer.notes);
    let answer = west(text(r#"{"records":[]}"#), text(behind())).await.expect("what came is there");
    assert!(answer.forecast.expected.is_empty() && !answer.forecast.actual.is_empty());
    assert!(answer.notes[0].contains("no forecast for DK1 now"), "{:?}", answer.notes);
    let nothing = west(text(r#"{"records":[]}"#), text(r#"{"records":[]}"#)).await;
    assert!(matches!(nothing, Err(ProviderError::Empty { .. })), "{nothing:?}");
    let down = west(ResponseTemplate::new(502), text(behind())).await;
    assert!(matches!(down, Err(ProviderError::ServerError { status: 502, .. })), "{down:?}");
}

#[tokio::test]
async fn broken_bodies_say_where() {
    for (from, to, part) in [
        ("\"DK1\"", "\"DK2\"", "records[0].PriceArea: expected DK1, found \"DK2\""),
        ("PriceArea", "Area", "records[0].PriceArea: expected DK1, found null"),
        ("30.0", "-3", "records[0].CO2Emission: expected a carbon intensity"),
        ("Minutes5UTC", "Minutes5", "records[0].Minutes5UTC: expected a time"),
        ("2026-08-22T19:30:00", "later", "records[0].Minutes5UTC: \"later\" is not a time"),
        ("records", "rows", "records: expected an array, found null"),
    ] {
        let error = west(text(ahead().replace(from, to)), text(behind())).await.expect_err(part).to_string();
        assert!(error.contains(part), "{error}");
    }
}

#[tokio::test]
async fn actual_values_are_fetched_by_the_week() {
    let server = MockServer::start().await;
    // The requested end is two hours (and one step) late, because the API reads times as Danish time.
    Mock::given(path("/dataset/CO2Emis"))
        .and(query_param("start", "2026-08-22T18:50"))
        .and(query_param("end", "2026-08-22T21:13"))
        .respond_with(text(behind()))
        .expect(1)
        .mount(&server)
        .await;
    let west = provider(&server, "DK-DK1").expect("an area");
    let span = Slot::new(at("2026-08-22T18:50:00Z"), at(NOW)).expect("past");
    let actuals = west.fetch_actuals(span, at(NOW)).await.expect("reported").expect("can tell");
    assert_eq!(values(&actuals), [("18:45".to_owned(), 10.0, 63.0), ("19:00".to_owned(), 5.0, 50.0)]);
    let long = Slot::new(at("2026-07-22T18:50:00Z"), at(NOW)).expect("past");
    Mock::given(path("/dataset/CO2Emis"))
        .and(query_param("start", "2026-07-22T18:50"))
        .and(query_param("end", "2026-07-29T20:55"))
        .respond_with(text(r#"{"records":[]}"#))
        .expect(1)
        .mount(&server)
        .await;
    assert_eq!(west.fetch_actuals(long, at(NOW)).await, Ok(Some(CarbonSeries::default())));
}

#[tokio::test]
async fn places_are_danish() {
    let server = MockServer::start().await;
    let areas = |zone: &str| provider(&server, zone).map(|p| p.areas);
    for (zone, expected) in
        [("DK", &BOTH[..]), ("DNK", &BOTH), ("DK2", &["DK2"]), ("56.16,10.20", &["DK1"]), ("55.68,12.57", &["DK2"])]
    {
        assert_eq!(areas(zone).as_deref(), Ok(expected), "{zone}");
    }
    let error = areas("SE").expect_err("Sweden").to_string();
    assert!(error.contains("energinet does not serve SE") && error.contains("\"DK1\""), "{error}");
}

#[tokio::test]
async fn no_forecast_is_requested_where_actual_values_are_enough() {
    let server = MockServer::start().await;
    mount(&server, "CO2Emis", r#"{"PriceArea":["DK1"]}"#, text(behind())).await;
    let mut settings: CarbonSettings =
        toml::from_str("zone = \"DK1\"\nenerginet.contributes = \"actual\"").expect("right");
    settings.energinet.base_url = base_url(&server);
    let source = Energinet::new(&settings.energinet, &settings.shared(None)).expect("an area");
    let answer = source.fetch(at(NOW)).await.expect("what came");
    assert!(!answer.forecast.actual.is_empty() && answer.notes.is_empty(), "{answer:?}");
    server.reset().await;
    let error = source.fetch(at(NOW)).await.expect_err("nothing there");
    assert!(matches!(error, ProviderError::Unexpected { status: 404, .. }), "{error:?}");
}
