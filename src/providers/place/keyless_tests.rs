//! Tests that `carbon.zone` alone is enough for a forecast in Germany, Great Britain and Denmark: no key, no source and
//! no other setting is needed.

use chrono::{DateTime, TimeDelta, Utc};
use serde_json::{Value, json};
use wiremock::matchers::{path, path_regex, query_param};
use wiremock::{Mock, MockServer, ResponseTemplate};

use crate::providers::testing::{at, base_url};
use crate::providers::{CarbonSettings, build};

fn now() -> DateTime<Utc> {
    at("2026-03-01T12:10:00Z")
}

/// Starts a server that answers like the three sources without a key, each in its own format, with a forecast of two
/// days.
async fn world() -> MockServer {
    let server = MockServer::start().await;
    let start = now() - TimeDelta::minutes(10);
    let times = |step: i64| (0..2880 / step).map(move |i| start + TimeDelta::minutes(i * step));
    let seconds: Vec<_> = times(15).map(|t| t.timestamp()).collect();
    let charts = json!({ "unix_seconds": seconds, "co2eq": vec![Value::Null; seconds.len()],
        "co2eq_forecast": vec![300; seconds.len()], "deprecated": false });
    let written = |t: DateTime<Utc>| t.format("%Y-%m-%dT%H:%MZ").to_string();
    let slots = times(30).map(|t| {
        json!({ "from": written(t), "to": written(t + TimeDelta::minutes(30)), "intensity": { "forecast": 100, "actual": null } })
    });
    let uk = json!({ "data": slots.collect::<Vec<_>>() });
    let energinet = |areas: &[&str]| {
        let record = |t: DateTime<Utc>, area: &&str| json!({ "Minutes5UTC": t.format("%Y-%m-%dT%H:%M:%S").to_string(), "PriceArea": area, "CO2Emission": 50 });
        json!({ "records": times(5).flat_map(|t| areas.iter().map(move |a| record(t, a))).collect::<Vec<_>>() })
    };
    let answers = |body: Value| ResponseTemplate::new(200).set_body_json(body);
    Mock::given(path("/co2eq")).respond_with(answers(charts)).mount(&server).await;
    Mock::given(path_regex("/fw48h$")).respond_with(answers(uk)).mount(&server).await;
    for areas in [&["DK2"][..], &["DK1", "DK2"]] {
        Mock::given(path("/dataset/CO2EmisProg"))
            .and(query_param("filter", json!({ "PriceArea": areas }).to_string()))
            .respond_with(answers(energinet(areas)))
            .mount(&server)
            .await;
    }
    server
}

#[tokio::test]
async fn a_zone_alone_gives_a_forecast() {
    let server = world().await;
    let base_url = base_url(&server);
    for (zone, sources, value) in [
        ("DE", &["energy_charts"][..], 300.0),
        ("52.52,13.40", &["energy_charts"], 300.0),
        ("GB", &["uk_carbon_intensity"], 100.0),
        ("51.5,-0.12", &["uk_carbon_intensity"], 100.0),
        ("DK", &["energinet", "energy_charts"], 50.0),
        ("55.68,12.57", &["energinet", "energy_charts"], 50.0),
    ] {
        let mut settings: CarbonSettings = toml::from_str(&format!("zone = \"{zone}\"")).expect(zone);
        // Keys in the environment of the machine that runs the tests must not count.
        settings.electricity_maps.key_env = "WATTUNE_NONE".to_owned();
        settings.watttime.username_env = "WATTUNE_NONE".to_owned();
        settings.energy_charts.base_url = base_url.clone();
        settings.uk_carbon_intensity.base_url = base_url.clone();
        settings.energinet.base_url = base_url.clone();
        let chain = build(&settings, None).expect(zone);
        assert_eq!(chain.concat().iter().map(|p| p.source()).collect::<Vec<_>>(), sources, "{zone}");
        let forecast = chain[0][0].fetch(now()).await.expect(zone).forecast;
        let (slot, found) = forecast.best_at(now()).expect("covers now");
        assert!(slot.contains(now()));
        assert_eq!((found.value.get(), forecast.zone.as_str()), (value, zone));
        assert_eq!(forecast.expected.end(), Some(now() + TimeDelta::minutes(2870)));
    }
}
