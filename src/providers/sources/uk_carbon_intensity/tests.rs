use wiremock::{MockServer, ResponseTemplate};

use super::*;
use crate::providers::CarbonSettings;
use crate::providers::testing::{at, base_url, ok_at, serve, values};

/// Makes the source as the settings say.
fn source(settings: &CarbonSettings, state_dir: Option<&std::path::Path>) -> Result<UkCarbonIntensity, SettingsError> {
    UkCarbonIntensity::new(&settings.uk_carbon_intensity, &settings.shared(state_dir))
}

fn settings(server: &MockServer, place: &str) -> CarbonSettings {
    let uk: Settings = toml::from_str(place).expect(place);
    CarbonSettings {
        uk_carbon_intensity: Settings { base_url: base_url(server), ..uk },
        timeout_s: Seconds::new(0.5),
        max_body_bytes: 64 << 10,
        ..CarbonSettings::default()
    }
}

/// A body in the documented shape (`carbon-apis.md` §3.2); numbers are made up.
const AHEAD: &str = r#"{"data":[
  {"from":"2025-10-22T23:30Z","to":"2025-10-23T00:00Z","intensity":{"forecast":162,"actual":158,"index":"moderate"}},
  {"from":"2025-10-23T00:00Z","to":"2025-10-23T00:30Z","intensity":{"forecast":164,"actual":null,"index":"moderate"}},
  {"from":"2025-10-23T00:30Z","to":"2025-10-23T01:00Z","intensity":{"forecast":150.5,"actual":null,"index":"moderate"}}]}"#;
const BEHIND: &str = r#"{"data":[
  {"from":"2025-10-22T22:30Z","to":"2025-10-22T23:00Z","intensity":{"forecast":200,"actual":190,"index":"high"}},
  {"from":"2025-10-22T23:00Z","to":"2025-10-22T23:30Z","intensity":{"forecast":180,"actual":null,"index":"high"}},
  {"from":"2025-10-22T23:30Z","to":"2025-10-23T00:00Z","intensity":{"forecast":162,"actual":158,"index":"moderate"}}]}"#;
const NOW: &str = "2025-10-23T00:10:00Z";
const AHEAD_PATH: &str = "/intensity/2025-10-23T00:01Z/fw48h";
const BEHIND_PATH: &str = "/intensity/2025-10-23T00:01Z/pt24h";
const REGION_PATH: &str = "/regional/intensity/2025-10-23T00:01Z/fw48h/regionid/11";

fn text(body: impl Into<String>) -> ResponseTemplate {
    ok_at(at(NOW), body)
}

async fn country(ahead: ResponseTemplate, behind: ResponseTemplate) -> Result<Answer, ProviderError> {
    let server = serve(&[(AHEAD_PATH, ahead), (BEHIND_PATH, behind)]).await;
    source(&settings(&server, ""), None).expect("a place").fetch(at(NOW)).await
}

async fn region(body: &str) -> Result<Answer, ProviderError> {
    let server = serve(&[(REGION_PATH, text(body))]).await;
    source(&settings(&server, "region = 11"), None).expect("a place").fetch(at(NOW)).await
}

#[tokio::test]
async fn the_country_has_a_forecast_and_actual_values() {
    let answer = country(text(AHEAD), text(BEHIND)).await.expect("as documented");
    let forecast = answer.forecast;
    assert_eq!(values(&forecast.expected), [164.0, 150.5], "slots that have ended are not expected any more");
    assert_eq!(forecast.expected.start(), Some(at("2025-10-23T00:00:00Z")));
    assert_eq!(values(&forecast.actual), [190.0, 158.0], "null is absent, not zero");
    assert_eq!(forecast.actual.points()[0].1.origin, Origin::Estimated);
    assert_eq!((forecast.kind, forecast.scope), (SignalKind::Average, SignalScope::Operational));
    assert_eq!((forecast.zone.as_str(), forecast.source.as_str()), ("GB", "uk_carbon_intensity"));
    assert_eq!(answer.notes, ["the forecast reaches 0.8 h ahead; 48 h were asked for"]);
}

#[tokio::test]
async fn a_region_is_an_object_or_an_array_and_has_no_outcome() {
    let slots = r#"[{"from":"2025-10-23T00:00Z","to":"2025-10-23T00:30Z","intensity":{"forecast":162,"index":"moderate"},
        "generationmix":[{"fuel":"gas","perc":32.9}]}]"#;
    let region_data =
        format!(r#"{{"regionid":11,"dnoregion":"WPD South West","shortname":"South West England","data":{slots}}}"#);
    for body in [format!(r#"{{"data":{region_data}}}"#), format!(r#"{{"data":[{region_data}]}}"#)] {
        let forecast = region(&body).await.expect("both are in use").forecast;
        assert_eq!(values(&forecast.expected), [162.0]);
        assert!(forecast.actual.is_empty());
        assert_eq!(forecast.zone.as_str(), "11");
    }
    let other =
        region(&format!(r#"{{"data":{region_data}}}"#).replace(":11", ":12")).await.expect_err("another region");
    assert!(other.to_string().contains("region 11 was requested"), "{other}");

    let route = "/regional/intensity/2025-10-23T00:01Z/fw48h/postcode/BS16";
    let server = serve(&[(route, text(format!(r#"{{"data":{region_data}}}"#)))]).await;
    let answer = source(&settings(&server, "postcode = \"bs16\""), None)
        .expect("a place")
        .fetch(at(NOW))
        .await
        .expect("a postcode");
    assert_eq!(answer.forecast.zone.as_str(), "BS16");
}

#[tokio::test]
async fn success_without_a_slot_is_a_fault() {
    for body in
        ["{}", r#"{"data":[]}"#, r#"{"data":{}}"#, r#"{"data":null}"#, r#"{"data":[{"regionid":11,"data":[]}]}"#]
    {
        let error = region(body).await.expect_err(body);
        assert!(matches!(error, ProviderError::Empty { .. }), "{body}: {error:?}");
    }
    let nulls = AHEAD.replace("164", "null").replace("150.5", "null");
    assert!(matches!(country(text(nulls), text(BEHIND)).await, Err(ProviderError::Empty { .. })));
    assert!(matches!(country(text(""), text(BEHIND)).await, Err(ProviderError::Empty { .. })));
}

#[tokio::test]
async fn actual_values_alone_are_enough_where_no_more_is_wanted() {
    let nulls = AHEAD.replace("164", "null").replace("150.5", "null");
    for ahead in [&nulls, "{}", "", "[]", r#"{"data":3}"#] {
        let server = serve(&[(AHEAD_PATH, text(ahead)), (BEHIND_PATH, text(BEHIND))]).await;
        let source = source(&settings(&server, "contributes = \"actual\""), None).expect("a place");
        let answer = source.fetch(at(NOW)).await.expect(ahead);
        assert_eq!(values(&answer.forecast.actual), [190.0, 158.0]);
        assert!(!answer.notes.iter().any(|note| note.contains("h ahead")), "{:?}", answer.notes);
    }
    let server = serve(&[(AHEAD_PATH, text("{}")), (BEHIND_PATH, text("{}"))]).await;
    let source = source(&settings(&server, "contributes = \"actual\""), None).expect("a place");
    assert!(matches!(source.fetch(at(NOW)).await, Err(ProviderError::Empty { .. })));
}

#[tokio::test]
async fn a_missing_past_is_only_a_note() {
    let answer = country(text(AHEAD), ResponseTemplate::new(500)).await.expect("the forecast is there");
    assert_eq!(values(&answer.forecast.actual), [158.0], "the forecast's own past slot is used");
    assert!(answer.notes[0].contains("last 24 h") && answer.notes[0].contains("500"), "{:?}", answer.notes);
}

#[tokio::test]
async fn overlapping_slots_are_resolved_and_noted() {
    let body = AHEAD.replace("00:30Z\",\"to\":\"2025-10-23T01:00Z", "00:20Z\",\"to\":\"2025-10-23T01:00Z");
    let answer = country(text(body), text(BEHIND)).await.expect("still usable");
    assert_eq!(values(&answer.forecast.expected), [164.0, 150.5]);
    assert!(answer.notes[0].contains("overlaps"), "{:?}", answer.notes);
}

#[tokio::test]
async fn broken_bodies_say_where() {
    for (from, to, part) in [
        (
            "164",
            "\"many\"",
            "data[1].intensity.forecast: expected a carbon intensity in g/kWh from 0 to 20000, or null, found \"many\"",
        ),
        ("164", "-1", "data[1].intensity.forecast"),
        (
            "\"2025-10-23T00:00Z\",\"to\":\"2025-10-23T00:30Z\"",
            "\"soon\",\"to\":\"2025-10-23T00:30Z\"",
            "data[1].from: \"soon\" is not a time",
        ),
        ("\"from\":\"2025-10-23T00:00Z\",", "", "data[1].from: expected a time"),
        ("2025-10-23T00:30Z\",\"intensity\"", "2025-10-22T00:30Z\",\"intensity\"", "data[1]: the slot must end"),
    ] {
        let error = country(text(AHEAD.replace(from, to)), text(BEHIND)).await.expect_err(part).to_string();
        assert!(error.contains(part), "{error}");
    }
    for body in ["[]", "3", r#"{"data":3}"#, r#"{"data":[[3]]}"#, r#"{"data":[{"from":[]}]}"#, &AHEAD[..80]] {
        let error = country(text(body), text(BEHIND)).await.expect_err(body);
        assert!(matches!(error, ProviderError::Malformed { .. } | ProviderError::Empty { .. }), "{body}: {error:?}");
    }
    let error = country(text(r#"{"error":{"code":"x","message":"not today"}}"#), text(BEHIND)).await;
    assert_eq!(error, Err(ProviderError::Unexpected { status: 200, message: "not today".to_owned() }));
}

#[tokio::test]
async fn the_past_is_fetched_in_windows_of_a_fortnight() {
    // The request begins at a full half hour, so the response begins one slot early; its last slots have no actual
    // values yet.
    let actuals = BEHIND.replace("22:30Z\",\"to", "22:30Z\",\"x\":0,\"to");
    let server = serve(&[("/intensity/2025-10-22T23:00Z/2025-10-23T00:10Z", text(actuals))]).await;
    let uk = source(&settings(&server, ""), None).expect("a place");
    let span = |from: &str, to: &str| Slot::new(at(from), at(to)).expect("from < to");
    let settled =
        uk.fetch_actuals(span("2025-10-22T23:00:00Z", NOW), at(NOW)).await.expect("reported").expect("can tell");
    assert_eq!(values(&settled), [158.0], "neither the slot before nor the null");
    assert_eq!(settled.start(), Some(at("2025-10-22T23:30:00Z")));

    let server = serve(&[("/intensity/2025-09-25T00:10Z/2025-10-08T23:40Z", text(r#"{"data":[]}"#))]).await;
    let uk = source(&settings(&server, ""), None).expect("a place");
    let long = uk.fetch_actuals(span("2025-09-25T00:10:00Z", NOW), at(NOW)).await;
    assert_eq!(long, Ok(Some(CarbonSeries::default())), "at most a fortnight at once");
    let region = source(&settings(&server, "region = 11"), None).expect("a place");
    assert_eq!(
        region.fetch_actuals(span("2025-09-25T00:10:00Z", NOW), at(NOW)).await,
        Ok(None),
        "regions have no outcome"
    );
}

#[test]
fn zones_are_understood_as_people_write_them() {
    let asked = |text: &str| source(&toml::from_str(text).expect(text), None).map(|uk| (uk.area.clone(), uk.zone()));
    let zone = |text: &str| Zone::new(text).expect(text);
    for (written, meant) in [
        ("GB", Area::Country),
        ("uk", Area::Country),
        ("GBR", Area::Country),
        ("51.5,-0.12", Area::Country),
        ("GB-ORK", Area::Country),
        ("GB-13", Area::Region(13)),
        ("13", Area::Region(13)),
        ("BS16", Area::Postcode("BS16".to_owned())),
        ("e1", Area::Postcode("E1".to_owned())),
    ] {
        assert_eq!(asked(&format!("zone = \"{written}\"")), Ok((meant, zone(written))), "{written}");
    }
    for (written, part) in [
        ("DE", "Great Britain only"),
        ("DK1", "Great Britain only"),
        ("52.52,13.40", "Great Britain only"),
        ("CAISO_NORTH", "Great Britain only"),
        ("54.6,-5.93", "Northern Ireland"),
        ("GB-NIR", "Northern Ireland"),
        ("GB-18", "numbered 1 (North Scotland) to 17 (Wales)"),
    ] {
        let error = asked(&format!("zone = \"{written}\"")).expect_err(written).to_string();
        assert!(error.contains(part) && error.contains(written), "{error}");
    }
    let own = "zone = \"DE\"\n[uk_carbon_intensity]\n";
    assert_eq!(
        asked(&format!("{own}region = 11")),
        Ok((Area::Region(11), zone("11"))),
        "a region is a zone of its own"
    );
    assert_eq!(asked(&format!("{own}zone = \"GB\"")), Ok((Area::Country, zone("GB"))));
    assert_eq!(asked(""), Ok((Area::Country, zone("GB"))));
}

#[tokio::test]
async fn the_clocks_going_back_gives_no_slot_twice() {
    // 2025-10-26 has 25 hours in Britain; slots are in UTC, and there are 50 of half an hour between British midnight
    // and the next.
    let start = at("2025-10-25T23:00:00Z");
    let slot = |i: i64| {
        let (from, to) = (start + HALF_HOUR * i as i32, start + HALF_HOUR * (i as i32 + 1));
        let form = "%Y-%m-%dT%H:%MZ";
        format!(
            r#"{{"from":"{}","to":"{}","intensity":{{"forecast":{i},"actual":null}}}}"#,
            from.format(form),
            to.format(form)
        )
    };
    let body = format!(r#"{{"data":[{}]}}"#, (0..50).map(slot).collect::<Vec<_>>().join(","));
    let server = serve(&[("/intensity/2025-10-25T23:01Z/fw48h", text(body))]).await;
    let answer = source(&settings(&server, ""), None).expect("a place").fetch(start).await.expect("a day");
    let expected = &answer.forecast.expected;
    assert_eq!((expected.points().len(), expected.gaps().count()), (50, 0));
    assert_eq!(expected.end(), Some(at("2025-10-27T00:00:00Z")));
    assert_eq!(expected.points()[0].1.value, GramsPerKwh::ZERO, "0 stays 0");
}
