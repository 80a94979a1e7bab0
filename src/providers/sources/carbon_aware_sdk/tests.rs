use serde_json::json;
use wiremock::matchers::{path, query_param, query_param_is_missing};
use wiremock::{Mock, MockServer, ResponseTemplate};

use super::*;
use crate::providers::CarbonSettings;
use crate::providers::testing::{at, base_url, ok_at, serve};

/// A response in the documented shape (`carbon-apis.md` §4.2) to a request without `windowSize`.
const FORECAST: &str = r#"[{"generatedAt":"2022-07-19T13:35:00+00:00","requestedAt":"2022-07-19T13:37:49+00:00",
  "location":"northeurope","dataStartAt":"2022-07-19T13:35:00+00:00","dataEndAt":"2022-07-19T13:50:00+00:00",
  "windowSize":0,"optimalDataPoints":[{"location":"IE","timestamp":"2022-07-19T18:45:00+00:00","duration":5,"value":1}],
  "forecastData":[
   {"location":"IE","timestamp":"2022-07-19T13:30:00+00:00","duration":5,"value":540},
   {"location":"IE","timestamp":"2022-07-19T13:35:00+00:00","duration":5,"value":532.023},
   {"location":"IE","timestamp":"2022-07-19T13:40:00+00:00","duration":5,"value":0},
   {"location":"IE","timestamp":"2022-07-19T13:45:00+00:00","duration":5,"value":-1},
   {"location":"IE","timestamp":"2022-07-19T13:50:00+00:00","duration":5,"value":528.5}]}]"#;
/// Actual values in the documented shape (`carbon-apis.md` §4.3); −1 stands for an unknown value (§4.4).
const ROWS: &str = r#"[{"location":"IE","time":"2022-07-19T12:30:00+00:00","rating":70.2,"duration":"00:05:00"},
  {"location":"IE","time":"2022-07-19T12:35:00+00:00","rating":-1,"duration":"00:05:00"},
  {"location":"IE","time":"2022-07-19T12:40:00+00:00","rating":80,"duration":"00:00:00"},
  {"location":"IE","time":"2022-07-18T12:40:00+00:00","rating":999,"duration":"00:05:00"}]"#;
const LOCATIONS: &str = r#"{"eastus":{"latitude":37.3719,"longitude":-79.8164,"name":"eastus"},
  "westus":{"Latitude":"37.783","Longitude":"-122.417","Name":"westus"},
  "francecentral":{"latitude":46.3772,"longitude":2.373,"name":"francecentral"},
  "swedencentral":{"latitude":60.67488,"longitude":17.14127,"name":"SE"},"nowhere":{"name":null}}"#;
const AVERAGE: &str = r#"{"location":"northeurope","startTime":"1970-01-01T00:00:00+00:00","endTime":"1970-01-01T01:00:00+00:00","carbonIntensity":345.434}"#;

const FORECAST_PATH: &str = "/emissions/forecasts/current";
const ROWS_PATH: &str = "/emissions/bylocation";

fn now() -> DateTime<Utc> {
    at("2022-07-19T13:37:49Z")
}

fn text(body: impl Into<String>) -> ResponseTemplate {
    ok_at(now(), body)
}

fn problem(status: u16, title: &str, detail: &str) -> ResponseTemplate {
    let body = json!({ "title": title, "status": status, "detail": detail, "traceId": "00-0" });
    ResponseTemplate::new(status).set_body_json(body)
}

fn provider(server: &MockServer, text: &str) -> CarbonAwareSdk {
    let mut settings: CarbonSettings = toml::from_str(text).expect(text);
    settings.carbon_aware_sdk.base_url = base_url(server);
    settings.timeout_s = Seconds::new(0.5);
    CarbonAwareSdk::new(&settings.carbon_aware_sdk, &settings.shared(None)).expect("a place")
}

async fn answered(forecast: ResponseTemplate, rows: ResponseTemplate) -> Result<Answer, ProviderError> {
    let server = serve(&[(FORECAST_PATH, forecast), (ROWS_PATH, rows)]).await;
    provider(&server, "zone = \"northeurope\"").fetch(now()).await
}

fn values(series: &CarbonSeries) -> Vec<(i64, f64, f64)> {
    let points = series.points().iter();
    points.map(|(s, i)| ((s.start() - now()).num_minutes(), s.duration().get() / 60.0, i.value.get())).collect()
}

#[tokio::test]
async fn requests_are_written_as_the_webapi_reads_them() {
    let server = MockServer::start().await;
    Mock::given(path(FORECAST_PATH))
        .and(query_param("location", "northeurope"))
        .and(query_param_is_missing("windowSize"))
        .and(query_param_is_missing("dataStartAt"))
        .respond_with(text(FORECAST))
        .expect(1)
        .mount(&server)
        .await;
    // The parameters are `time` and `toTime`, because this route silently ignores `startTime` and `endTime`.
    Mock::given(path(ROWS_PATH))
        .and(query_param("location", "northeurope"))
        .and(query_param("time", "2022-07-18T13:37:49Z"))
        .and(query_param("toTime", "2022-07-19T13:37:49Z"))
        .respond_with(text(ROWS))
        .expect(1)
        .mount(&server)
        .await;
    let zone = "zone = \"northeurope\"\n[carbon_aware_sdk]\nkind = \"marginal\"\nscope = \"operational\"";
    let answer = provider(&server, zone).fetch(now()).await.expect("as documented");
    let forecast = answer.forecast;
    assert_eq!(values(&forecast.expected), [(-2, 5.0, 532.023), (2, 5.0, 0.0), (12, 5.0, 528.5)], "0 stays 0");
    assert_eq!(values(&forecast.actual), [(-67, 5.0, 70.2), (-57, 5.0, 80.0)], "neither −1 nor other days");
    assert!(forecast.actual.points().iter().all(|(_, i)| i.origin == Origin::Estimated));
    assert_eq!((forecast.kind, forecast.scope), (SignalKind::Marginal, SignalScope::Operational));
    assert_eq!(forecast.issued_at, at("2022-07-19T13:35:00Z"));
    assert_eq!((forecast.zone.as_str(), forecast.source.as_str()), ("northeurope", "carbon_aware_sdk"));
    assert!(answer.notes[0].contains("1 points are negative"), "{:?}", answer.notes);
    assert_eq!(answer.notes.len(), 2, "and the gap: {:?}", answer.notes);
}

#[tokio::test]
async fn rolling_means_are_taken_for_their_step_and_noted() {
    let rolling = FORECAST.replace("\"duration\":5", "\"duration\":10").replace("\"value\":-1", "\"value\":2");
    let answer = answered(text(rolling), text("[]")).await.expect("usable");
    assert_eq!(values(&answer.forecast.expected), [(-2, 5.0, 532.023), (2, 5.0, 0.0), (7, 5.0, 2.0), (12, 5.0, 528.5)]);
    assert!(answer.notes[0].contains("points last 10 min but are 5 min apart"), "{:?}", answer.notes);
    let without = FORECAST.replace("\"duration\":5", "\"duration\":0").replace("optimalDataPoints", "optimalDataPoint");
    let answer = answered(text(without), text("[]")).await.expect("usable");
    assert_eq!(values(&answer.forecast.expected)[0], (-2, 5.0, 532.023), "the step where there is no length");
}

#[tokio::test]
async fn another_location_is_a_fault() {
    let other = answered(text(FORECAST.replace("northeurope", "westeurope")), text(ROWS)).await.expect_err("wrong");
    assert!(other.to_string().contains("\"northeurope\", which was asked for, found \"westeurope\""), "{other}");
    let capitals = answered(text(FORECAST.replace("northeurope", "NorthEurope")), text(ROWS)).await;
    assert!(capitals.is_ok(), "{capitals:?}");
    let one: Value = serde_json::from_str(FORECAST).expect("JSON");
    let mut other = one[0].clone();
    other["location"] = json!("westeurope");
    let several = answered(text(json!([other, one[0]]).to_string()), text(ROWS)).await.expect("one of them is right");
    assert_eq!(values(&several.forecast.expected)[0], (-2, 5.0, 532.023));
}

#[tokio::test]
async fn nothing_is_no_fault_of_the_past_but_of_the_forecast() {
    let answer = answered(text(FORECAST), ResponseTemplate::new(204)).await.expect("a forecast");
    assert!(answer.forecast.actual.is_empty());
    for body in ["[]", r#"[{"location":"northeurope","forecastData":[]}]"#] {
        let none = answered(text(body), ResponseTemplate::new(204)).await;
        assert!(matches!(none, Err(ProviderError::Empty { .. })), "{body}: {none:?}");
    }
    let none = answered(ResponseTemplate::new(204), text(ROWS)).await;
    assert!(matches!(none, Err(ProviderError::Empty { .. })), "{none:?}");
    let history = answered(problem(501, "NotImplementedException", "no forecasts"), text(ROWS)).await.expect("history");
    assert!(history.forecast.expected.is_empty() && !history.forecast.actual.is_empty());
    assert!(history.notes[0].contains("no forecasts"), "{:?}", history.notes);
}

#[tokio::test]
async fn problems_are_distinguished() {
    let unknown = answered(problem(400, "ArgumentException", "Unknown Location: 'x' not found"), text(ROWS)).await;
    let message = "Unknown Location: 'x' not found".to_owned();
    assert_eq!(unknown, Err(ProviderError::Unexpected { status: 400, message }));
    let key = answered(problem(403, "WattTimeClientHttpException", "Invalid scope"), text(ROWS)).await;
    let key = key.expect_err("passed through").to_string();
    assert!(key.contains("Invalid scope") && key.contains("the key of whoever runs it"), "{key}");
    let slow = answered(text(FORECAST).set_delay(std::time::Duration::from_secs(5)), text(ROWS)).await;
    assert!(matches!(slow, Err(ProviderError::TimedOut { .. })), "{slow:?}");
    let past = answered(text(FORECAST), problem(500, "Exception", "boom")).await.expect("a forecast");
    assert!(past.notes.iter().any(|n| n.contains("last 24 h") && n.contains("boom")), "{:?}", past.notes);
}

#[tokio::test]
async fn broken_bodies_say_where() {
    for (from, to, part) in [
        ("532.023", "\"x\"", "forecastData[1].value: expected a carbon intensity"),
        (
            "2022-07-19T13:35:00+00:00\",\"duration",
            "soon\",\"duration",
            "forecastData[1].timestamp: \"soon\" is not a time",
        ),
        (
            "\"duration\":5,\"value\":540",
            "\"duration\":99999,\"value\":540",
            "forecastData[0].duration: expected a length",
        ),
        ("forecastData", "data", "forecastData: expected an array"),
    ] {
        let error = answered(text(FORECAST.replacen(from, to, 1)), text(ROWS)).await.expect_err(part).to_string();
        assert!(error.contains(part), "{error}");
    }
    let error = answered(text("3"), text(ROWS)).await.expect_err("a number").to_string();
    assert!(error.contains("the answer: expected an array"), "{error}");
}

/// Responds with a mean for the requested span, which is the hour of the span's start; it has none for 11:00.
struct Averages;

impl wiremock::Respond for Averages {
    fn respond(&self, request: &wiremock::Request) -> ResponseTemplate {
        let of = |name: &str| {
            request.url.query_pairs().find(|(n, _)| n == name).map(|(_, v)| v.into_owned()).unwrap_or_default()
        };
        let (start, end) = (of("startTime"), of("endTime"));
        if start.contains("T11:") {
            return ResponseTemplate::new(204);
        }
        let hour: f64 = start[11..13].parse().expect("an hour");
        text(
            json!({ "location": of("location"), "startTime": start, "endTime": end, "carbonIntensity": hour })
                .to_string(),
        )
    }
}

#[tokio::test]
async fn where_there_are_no_rows_the_means_of_hours_are_gathered() {
    let server =
        serve(&[(FORECAST_PATH, text(FORECAST)), (ROWS_PATH, problem(501, "NotImplementedException", "no rows"))])
            .await;
    Mock::given(path("/emissions/average-carbon-intensity")).respond_with(Averages).mount(&server).await;
    let sdk = provider(&server, "zone = \"northeurope\"");
    let hours =
        |answer: &Answer| answer.forecast.actual.points().iter().map(|(_, i)| i.value.get()).collect::<Vec<_>>();
    let first = sdk.fetch(now()).await.expect("a forecast");
    assert_eq!(hours(&first), [7.0, 8.0, 9.0, 10.0, 12.0], "six hours are asked for, one of which is not known yet");
    assert_eq!(sdk.requests(now()).map(|r| r.last_hour), Some(8));
    let second = sdk.fetch(now() + TimeDelta::minutes(1)).await.expect("a forecast");
    assert_eq!(
        hours(&second),
        [2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 12.0],
        "further back, and the missing one"
    );
    let past = Slot::new(now() - DAY * 28, now()).expect("past");
    assert_eq!(sdk.fetch_actuals(past, now()).await, Ok(None), "weeks are not asked for hour by hour");

    let tight = provider(&server, "zone = \"northeurope\"\n[carbon_aware_sdk]\nrequests_per_hour = 10");
    let answer = tight.fetch(now()).await.expect("a forecast");
    assert_eq!(hours(&answer), [12.0], "a quarter of the room that is left, at most");
}

#[tokio::test]
async fn actual_values_are_fetched_by_the_week() {
    let server = MockServer::start().await;
    Mock::given(path(ROWS_PATH))
        .and(query_param("time", "2022-06-21T13:37:49Z"))
        .and(query_param("toTime", "2022-06-28T13:37:49Z"))
        .respond_with(ResponseTemplate::new(204))
        .expect(1)
        .mount(&server)
        .await;
    let sdk = provider(&server, "zone = \"northeurope\"");
    let past = Slot::new(now() - DAY * 28, now()).expect("past");
    assert_eq!(sdk.fetch_actuals(past, now()).await, Ok(Some(CarbonSeries::default())));
    Mock::given(path(ROWS_PATH)).respond_with(text(ROWS)).mount(&server).await;
    let day = Slot::new(now() - TimeDelta::hours(2), now()).expect("past");
    let actuals = sdk.fetch_actuals(day, now()).await.expect("reported").expect("can tell");
    assert_eq!(values(&actuals), [(-67, 5.0, 70.2), (-57, 5.0, 80.0)]);
}

#[tokio::test]
async fn countries_and_coordinates_find_their_location_once() {
    for (zone, location) in
        [("48.86,2.35", "francecentral"), ("FR", "francecentral"), ("SE", "swedencentral"), ("swe", "swedencentral")]
    {
        let server = serve(&[(ROWS_PATH, ResponseTemplate::new(204))]).await;
        Mock::given(path("/locations")).respond_with(text(LOCATIONS)).expect(1).mount(&server).await;
        Mock::given(path(FORECAST_PATH))
            .and(query_param("location", location))
            .respond_with(text(FORECAST.replace("northeurope", location)))
            .expect(2)
            .mount(&server)
            .await;
        let sdk = provider(&server, &format!("zone = \"{zone}\""));
        for _ in 0..2 {
            let answer = sdk.fetch(now()).await.expect(zone);
            assert_eq!(answer.forecast.zone.as_str(), zone, "as the settings name it");
        }
    }
    for (zone, part) in [
        ("US", "2 locations are in US"),
        ("IN", "no location is in IN"),
        ("-33.9,151.2", "km away; set carbon.carbon_aware_sdk.zone to one of the WebAPI's locations: \"eastus\""),
    ] {
        let server = serve(&[("/locations", text(LOCATIONS))]).await;
        let error = provider(&server, &format!("zone = \"{zone}\"")).fetch(now()).await.expect_err(zone).to_string();
        assert!(error.contains(part), "{error}");
    }
    // If the WebAPI has no list of locations, the country's code may still be the name of one.
    let server = serve(&[
        ("/locations", ResponseTemplate::new(204)),
        (FORECAST_PATH, text(FORECAST.replace("northeurope", "IE"))),
        (ROWS_PATH, ResponseTemplate::new(204)),
    ])
    .await;
    assert!(provider(&server, "zone = \"IE\"").fetch(now()).await.is_ok());
}

#[test]
fn means_must_be_of_the_window_that_was_asked_for() {
    let body: Value = serde_json::from_str(AVERAGE).expect("JSON");
    let hour =
        |h: i32| Slot::new(DateTime::UNIX_EPOCH + HOUR * h, DateTime::UNIX_EPOCH + HOUR * (h + 1)).expect("an hour");
    assert_eq!(parse::average(&body, "northeurope", hour(0)), Ok(Some(GramsPerKwh::new(345.434))));
    assert!(parse::average(&body, "northeurope", hour(1)).is_err());
    assert!(parse::average(&body, "eastus", hour(0)).is_err());
}
