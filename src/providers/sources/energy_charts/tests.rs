use chrono::TimeDelta;
use wiremock::matchers::{path, query_param, query_param_is_missing};
use wiremock::{Mock, MockServer, ResponseTemplate};

use super::columns::LONGEST_WINDOW;
use super::*;
use crate::providers::CarbonSettings;
use crate::providers::testing::{at, base_url, ok, ok_at};

/// A body in the documented shape (`carbon-apis.md` §5.1); numbers are made up. 1783807200 is 2026-07-11T22:00:00Z.
const BODY: &str = r#"{"unix_seconds":[1783807200,1783808100,1783809000,1783809900,1783810800],
  "co2eq":[491.5,0,480.0,null,null],"co2eq_forecast":[null,487.0,470.3,465,null],"deprecated":false}"#;

/// Returns a time within the third slot of [`BODY`].
fn now() -> DateTime<Utc> {
    at("2026-07-11T22:35:00Z")
}

fn provider(server: &MockServer, text: &str) -> Result<EnergyCharts, SettingsError> {
    let mut settings: CarbonSettings = toml::from_str(text).expect(text);
    settings.energy_charts.base_url = base_url(server);
    settings.timeout_s = Seconds::new(0.5);
    EnergyCharts::new(&settings.energy_charts, &settings.shared(None))
}

async fn answered(template: ResponseTemplate) -> Result<Answer, ProviderError> {
    let server = MockServer::start().await;
    Mock::given(path("/co2eq"))
        .and(query_param("country", "de"))
        .and(query_param_is_missing("start"))
        .respond_with(template)
        .mount(&server)
        .await;
    provider(&server, "zone = \"DE\"").expect("a country").fetch(now()).await
}

async fn read_body(body: impl Into<String>) -> Result<Answer, ProviderError> {
    answered(ok_at(now(), body)).await
}

fn values(series: &CarbonSeries) -> Vec<(f64, Origin)> {
    series.points().iter().map(|(_, i)| (i.value.get(), i.origin)).collect()
}

#[tokio::test]
async fn measured_and_forecast_values_overlap_and_are_kept_apart() {
    let answer = read_body(BODY).await.expect("as documented");
    let forecast = answer.forecast;
    assert_eq!(values(&forecast.actual), [(491.5, Origin::Measured), (0.0, Origin::Measured)], "0 stays 0");
    assert_eq!(values(&forecast.expected), [(470.3, Origin::Forecast), (465.0, Origin::Forecast)]);
    assert_eq!(forecast.expected.start(), Some(at("2026-07-11T22:30:00Z")), "the slot in progress is expected");
    assert_eq!(forecast.expected.end(), Some(at("2026-07-11T23:00:00Z")), "null is absent");
    assert_eq!((forecast.kind, forecast.scope), (SignalKind::Average, SignalScope::Unspecified));
    assert_eq!((forecast.zone.as_str(), forecast.source.as_str()), ("DE", "energy_charts"));
    assert_eq!((forecast.issued_at, answer.notes.as_slice()), (now(), &[] as &[String]));
    // The current slot has a preliminary measured value, and no forecast any more.
    let partly = read_body(BODY.replace("470.3", "null")).await.expect("still usable").forecast;
    assert_eq!(values(&partly.expected), [(480.0, Origin::Estimated), (465.0, Origin::Forecast)]);
}

#[tokio::test]
async fn a_history_without_a_forecast_is_used() {
    let none = BODY.replace("[null,487.0,470.3,465,null]", "[null,null,null,null,null]").replace("480.0", "null");
    let answer = read_body(none.clone()).await.expect("what came is worth having");
    assert!(answer.forecast.expected.is_empty() && answer.forecast.actual.points().len() == 2);
    assert!(answer.notes[0].contains("no forecast for de now"), "{:?}", answer.notes);
    let nothing = read_body(none.replace("491.5,0", "null,null")).await.expect_err("all null").to_string();
    assert!(nothing.contains("5 slots for de, none with a value"), "{nothing}");
    let empty = read_body(r#"{"unix_seconds":[],"co2eq":[],"co2eq_forecast":[]}"#).await;
    assert!(matches!(empty, Err(ProviderError::Empty { .. })), "{empty:?}");
}

#[tokio::test]
async fn broken_bodies_say_where() {
    for (from, to, part) in [
        ("491.5,", "", "co2eq: has 4 entries, but unix_seconds has 5"),
        ("1783807200,", "", "co2eq: has 5 entries, but unix_seconds has 4"),
        ("491.5", "-1", "co2eq[0]: expected a carbon intensity"),
        ("487.0", "\"x\"", "co2eq_forecast[1]: expected"),
        ("1783807200", "null", "unix_seconds[0]: expected a time"),
        ("1783807200", "\"2026-07-11T22:00:00\"", "has no zone"),
        ("unix_seconds", "seconds", "unix_seconds: expected an array"),
    ] {
        let error = read_body(BODY.replace(from, to)).await.expect_err(part).to_string();
        assert!(error.contains(part), "{error}");
    }
    let error = read_body(r#"{"unix_seconds":[1]}"#).await.expect_err("no values").to_string();
    assert!(error.contains("neither co2eq nor co2eq_forecast"), "{error}");
    let page = read_body("<html>maintenance</html>").await.expect_err("a page").to_string();
    assert!(page.contains("not JSON"), "{page}");
}

#[tokio::test]
async fn days_of_92_and_100_slots_are_whole() {
    // The days on which clocks change in Germany, from one German midnight to the next.
    for (start, slots) in [("2026-03-28T23:00:00Z", 92), ("2026-10-24T22:00:00Z", 100)] {
        let start = at(start);
        let seconds: Vec<_> = (0..slots).map(|i| start.timestamp() + i * 900).collect();
        let body = serde_json::json!({ "unix_seconds": seconds, "co2eq": vec![Value::Null; seconds.len()],
            "co2eq_forecast": seconds.iter().map(|s| s % 500).collect::<Vec<_>>() });
        let rows = read(&body).expect("a day");
        assert_eq!(rows.len(), seconds.len());
        assert!(rows.windows(2).all(|pair| pair[0].slot.end() == pair[1].slot.start()));
        assert_eq!(rows.last().map(|r| r.slot.end()), Some(start + QUARTER * i32::try_from(slots).expect("few")));
    }
}

#[tokio::test]
async fn the_step_is_that_of_neighbours() {
    let hourly = serde_json::json!({ "unix_seconds": [7200, 0, 3600], "co2eq": [3, 1, null] });
    let rows = read(&hourly).expect("unordered, without a forecast");
    assert_eq!(rows.iter().map(|r| r.measured.map(GramsPerKwh::get)).collect::<Vec<_>>(), [Some(1.0), None, Some(3.0)]);
    assert!(rows.iter().all(|r| r.slot.duration() == Seconds::new(3600.0) && r.forecast.is_none()));
    let alone = read(&serde_json::json!({ "unix_seconds": [0], "co2eq_forecast": [3] })).expect("one slot");
    assert_eq!(alone[0].slot.duration(), Seconds::new(900.0));
}

#[tokio::test]
async fn actual_values_before_today_are_fetched_with_a_window() {
    let server = MockServer::start().await;
    let from = at("2026-07-11T22:15:00Z");
    Mock::given(path("/co2eq"))
        .and(query_param("country", "fr"))
        .and(query_param("start", from.timestamp().to_string()))
        .and(query_param("end", now().timestamp().to_string()))
        .respond_with(ok(BODY))
        .expect(1)
        .mount(&server)
        .await;
    let france = provider(&server, "zone = \"48.86,2.35\"").expect("Paris");
    let span = Slot::new(from, now()).expect("from < now");
    let actuals = france.fetch_actuals(span, now()).await.expect("reported").expect("can tell");
    assert_eq!(values(&actuals), [(0.0, Origin::Measured)], "neither before the span nor in progress");
    let ahead = Slot::new(now(), now() + QUARTER).expect("ahead");
    assert_eq!(france.fetch_actuals(ahead, now()).await, Ok(Some(CarbonSeries::default())), "nothing is asked");
    let year = Slot::new(now() - TimeDelta::days(365), now()).expect("long");
    let (asked, _) = window(year, now()).expect("past");
    assert_eq!(asked.end() - asked.start(), LONGEST_WINDOW);
}

#[tokio::test]
async fn places_are_countries() {
    let server = MockServer::start().await;
    let country = |zone: &str| provider(&server, &format!("zone = \"{zone}\"")).map(|p| p.country);
    for (zone, expected) in
        [("DE", "de"), ("deu", "de"), ("52.52,13.40", "de"), ("DE-LU", "de"), ("DK1", "dk"), ("SE-SE3", "se")]
    {
        assert_eq!(country(zone).as_deref(), Ok(expected), "{zone}");
    }
    for zone in ["US", "40.7,-74.0", "MISO_MASON_CITY", "0,-160"] {
        let error = country(zone).expect_err(zone).to_string();
        assert!(error.contains(zone) && error.contains("AT, BA, BE"), "{error}");
    }
    assert_eq!(provider(&server, "").map(|_| ()), Err(SettingsError::NoZone("energy_charts")));
    let own = "zone = \"US\"\n[energy_charts]\nzone = \"AT\"\nscope = \"lifecycle\"";
    let own = provider(&server, own).expect("its own zone");
    assert_eq!((own.country.as_str(), own.scope, own.zone().as_str()), ("at", SignalScope::Lifecycle, "AT"));
}
