use chrono::TimeDelta;
use wiremock::matchers::{path, query_param};
use wiremock::{Mock, MockServer, ResponseTemplate};

use super::*;
use crate::providers::testing::{at, ok, ok_at};
use crate::providers::{BaseUrl, CarbonSettings, FileSettings, PriceChain, PriceSettings, PriceSource, build_price};
use wattune_core::domain::{Quoted, TimeSeries};

/// A body in the documented shape (`carbon-apis.md` §6); 1783807200 is 2026-07-11T22:00:00Z.
const BODY: &str = r#"{"license_info":"CC BY 4.0","unix_seconds":[1783807200,1783808100,1783809000,1783809900],
  "price":[83.1,0,-12.5,null],"unit":"EUR / MWh","deprecated":false}"#;

fn now() -> DateTime<Utc> {
    at("2026-07-11T22:20:00Z")
}

fn prices(base_url: &str, carbon: &str) -> Result<PriceChain, SettingsError> {
    let mut carbon: CarbonSettings = toml::from_str(carbon).expect(carbon);
    carbon.energy_charts.base_url = BaseUrl::try_from(base_url.to_owned()).expect("an address");
    carbon.timeout_s = Seconds::new(0.5);
    let price = PriceSettings { source: PriceSource::EnergyCharts, ..PriceSettings::default() };
    build_price(&price, &carbon, None)
}

async fn answered(template: ResponseTemplate) -> Result<Answer<PricePerMwh>, ProviderError> {
    let server = MockServer::start().await;
    Mock::given(path("/price"))
        .and(query_param("bzn", "DE-LU"))
        .and(query_param("start", at("2026-07-10T22:00:00Z").timestamp().to_string()))
        .and(query_param("end", at("2026-07-14T22:00:00Z").timestamp().to_string()))
        .respond_with(template)
        .mount(&server)
        .await;
    let chain = prices(&server.uri(), "zone = \"DE\"").expect("a country");
    assert_eq!((chain.len(), chain[0].len(), chain[0][0].source()), (1, 1, "energy_charts"));
    chain[0][0].fetch(now()).await
}

async fn read_body(body: impl Into<String>) -> Result<Answer<PricePerMwh>, ProviderError> {
    answered(ok_at(now(), body)).await
}

fn values(series: &TimeSeries<Quoted<PricePerMwh>>) -> Vec<(f64, Origin)> {
    series.points().iter().map(|(_, p)| (p.value.get(), p.origin)).collect()
}

#[tokio::test]
async fn prices_lie_ahead_and_behind_and_may_be_negative() {
    for body in [BODY.to_owned(), BODY.replace("EUR / MWh", "EUR/MWh")] {
        let answer = read_body(body).await.expect("as documented");
        let forecast = answer.forecast;
        assert_eq!(values(&forecast.actual), [(83.1, Origin::Measured)]);
        assert_eq!(values(&forecast.expected), [(0.0, Origin::Forecast), (-12.5, Origin::Forecast)], "0 stays 0");
        assert_eq!(forecast.expected.end(), Some(at("2026-07-11T22:45:00Z")), "null is absent");
        assert_eq!((forecast.zone.as_str(), forecast.source.as_str()), ("DE-LU", "energy_charts"));
        assert_eq!(answer.notes, Vec::<String>::new());
    }
}

#[tokio::test]
async fn other_units_and_broken_bodies_are_refused() {
    for (from, to, part) in [
        ("EUR / MWh", "EUR / kWh", "unit: expected \"EUR / MWh\", found \"EUR / kWh\""),
        ("\"unit\"", "\"units\"", "unit: expected \"EUR / MWh\", found null"),
        ("83.1,", "", "price: has 3 entries, but unix_seconds has 4"),
        ("83.1", "1e9", "price[0]: expected a price per MWh from -100000 to 100000, or null"),
    ] {
        let error = read_body(BODY.replace(from, to)).await.expect_err(part).to_string();
        assert!(error.contains(part), "{error}");
    }
    let nothing =
        read_body(BODY.replace("[83.1,0,-12.5,null]", "[1,null,null,null]")).await.expect_err("all past").to_string();
    assert!(nothing.contains("no price for now or later for DE-LU"), "{nothing}");
    let limited = answered(ResponseTemplate::new(429).insert_header("retry-after", "3")).await;
    assert_eq!(limited, Err(ProviderError::RateLimited { retry_after: Some(Seconds::new(3.0)) }));
}

#[test]
fn days_of_92_and_100_slots_are_whole() {
    for (start, slots) in [("2026-03-28T23:00:00Z", 92), ("2026-10-24T22:00:00Z", 100)] {
        let start = at(start);
        let seconds: Vec<_> = (0..slots).map(|i| start.timestamp() + i * 900).collect();
        let price: Vec<_> = (0..slots).map(|i| i - 50).collect();
        let body = serde_json::json!({ "unix_seconds": seconds, "price": price, "unit": "EUR / MWh" });
        let points = read(&body).expect("a day");
        assert_eq!(points.len(), seconds.len());
        assert!(points.windows(2).all(|pair| pair[0].0.end() == pair[1].0.start()));
        assert_eq!(points[50].1, Some(PricePerMwh::ZERO));
    }
}

#[tokio::test]
async fn past_prices_are_fetched_with_a_window() {
    let server = MockServer::start().await;
    let from = at("2026-07-11T22:00:00Z");
    Mock::given(path("/price"))
        .and(query_param("bzn", "SE3"))
        .and(query_param("start", from.timestamp().to_string()))
        .and(query_param("end", now().timestamp().to_string()))
        .respond_with(ok(BODY))
        .expect(1)
        .mount(&server)
        .await;
    let chain = prices(&server.uri(), "zone = \"SE\"\nenergy_charts.bidding_zone = \"SE3\"").expect("a zone");
    let span = Slot::new(from, now() + TimeDelta::hours(1)).expect("from < now");
    let actuals = chain[0][0].fetch_actuals(span, now()).await.expect("reported").expect("can tell");
    assert_eq!(values(&actuals), [(83.1, Origin::Measured)]);
    assert_eq!(chain[0][0].requests(now()).map(|r| r.last_hour), Some(1));
}

#[test]
fn places_determine_bidding_zones() {
    let zone = |text: &str| prices("http://127.0.0.1:1", text).map(|chain| chain[0][0].zone().to_string());
    for (text, expected) in [
        ("zone = \"DE\"", "DE-LU"),
        ("zone = \"LUX\"", "DE-LU"),
        ("zone = \"48.86,2.35\"", "FR"),
        ("zone = \"DK1\"", "DK1"),
        ("zone = \"DK-DK2\"", "DK2"),
        ("zone = \"55.68,12.57\"", "DK2"),
        ("zone = \"SE-SE3\"", "SE3"),
        ("zone = \"no2\"", "NO2"),
        ("zone = \"IT-North\"", "IT-North"),
        ("zone = \"US\"\nenergy_charts.zone = \"AT\"", "AT"),
        ("zone = \"IT\"\nenergy_charts.bidding_zone = \"IT-Sicily\"", "IT-Sicily"),
    ] {
        assert_eq!(zone(text).as_deref(), Ok(expected), "{text}");
    }
    for (text, part) in [
        (
            "zone = \"SE\"",
            "SE has several bidding zones; set carbon.energy_charts.bidding_zone to SE1, SE2, SE3 or SE4",
        ),
        ("zone = \"DK\"", "to DK1 or DK2"),
        ("zone = \"NO\"", "NO1, NO2"),
        ("zone = \"IT\"", "IT-North"),
        ("zone = \"GB\"", "its bidding zone is not known"),
        ("", "no bidding zone is set"),
    ] {
        let error = zone(text).expect_err(text).to_string();
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn without_a_source_there_is_no_chain() {
    let carbon = CarbonSettings::default();
    assert_eq!(build_price(&PriceSettings::default(), &carbon, None).map(|chain| chain.len()), Ok(0));
    let file = PriceSettings { source: PriceSource::File, ..PriceSettings::default() };
    let missing = build_price(&file, &carbon, None).map(|chain| chain.len());
    assert_eq!(missing, Err(SettingsError::NoPath { table: "price" }));
    let path = Some("prices.csv".into());
    let file = PriceSettings { file: FileSettings { path, ..FileSettings::default() }, ..file };
    let chain = build_price(&file, &carbon, None).expect("has a path");
    assert_eq!(chain[0][0].source(), "file");
}
