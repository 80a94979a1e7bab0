use std::fs;

use proptest::prelude::*;

use super::play::MOST_ROWS;
use super::*;
use crate::providers::testing::{at, values};
use crate::providers::{CarbonSettings, Contribution, PriceSettings, PriceSource};
use wattune_core::domain::{CarbonSeries, Origin, SignalKind, SignalScope};
use wattune_core::units::PricePerMwh;

fn read_text(text: &str) -> Result<ParsedFile, ParseError> {
    parse(text.as_bytes(), &Settings::default(), None)
}

fn parsed(text: &str) -> ParsedFile {
    read_text(text).expect(text)
}

fn refused(text: &str) -> String {
    read_text(text).expect_err(text).to_string()
}

fn minutes(series: &CarbonSeries) -> Vec<f64> {
    series.points().iter().map(|(slot, _)| slot.duration().get() / 60.0).collect()
}

#[test]
fn a_row_with_forecast_and_outcome_gives_both() {
    let file = parsed(
        "location,timestamp,duration,value,hist\nX,2022-10-20T06:20:00+00:00,30,646.5,619.25\nX,2022-10-20T06:50:00+00:00,30,639,\n",
    );
    assert_eq!((values(&file.expected), values(&file.actual)), (vec![646.5, 639.0], vec![619.25]));
    assert_eq!(file.zone, Some(Zone::new("X").expect("a zone")));
    assert_eq!(file.expected.start(), Some(at("2022-10-20T06:20:00Z")));
    assert_eq!(file.expected.points()[0].1.origin, Origin::Forecast);
    assert_eq!(file.actual.points()[0].1.origin, Origin::Measured);
    assert!(file.notes.is_empty());
}

#[test]
fn a_lone_value_column_is_both_unless_named_forecast() {
    let file =
        parsed("timestamp_utc,carbon_intensity_gco2_per_kwh\n2021-01-01T00:00:00Z,0\n2021-01-01T01:00:00,355.03");
    assert_eq!((values(&file.expected), values(&file.actual)), (vec![0.0, 355.03], vec![0.0, 355.03]));
    let file = parsed("timestamp_utc,forecast_gco2_per_kwh\n2021-01-01T00:00:00Z,310");
    assert_eq!((values(&file.expected), values(&file.actual)), (vec![310.0], vec![]));
    let made = Settings { origin: Origin::Synthetic, ..Settings::default() };
    let file = parse(b"time,value\n2021-01-01T00:00:00Z,1", &made, None).expect("synthetic");
    assert_eq!(file.expected.points()[0].1.origin, Origin::Synthetic);
}

#[test]
fn steps_come_from_the_file() {
    let ends = parsed("from,to,value\n2021-01-01T00:00Z,2021-01-01T00:05Z,1\n2021-01-01T00:05Z,2021-01-01T01:00Z,2\n");
    assert_eq!(minutes(&ends.expected), [5.0, 55.0]);
    let neighbours = parsed("time,value\n0,1\n900,2\n1800,\n2700,4\n5400,5\n6300,6");
    assert_eq!(minutes(&neighbours.expected), [15.0; 5], "neither a null nor a missing row makes a longer slot");
    assert_eq!(neighbours.notes.iter().filter(|n| n.contains("no value for")).count(), 2, "{:?}", neighbours.notes);
    assert_eq!(minutes(&parsed("time,value\n0,1").expected), [60.0], "an hour where nothing tells");
}

#[test]
fn json_has_the_same_names() {
    for text in [
        r#"[{"timestamp":"2021-01-01T00:00:00Z","value":7,"actual":null},{"timestamp":"2021-01-01T00:30Z","value":"8","actual":9}]"#,
        r#"{"data":[{"timestamp":1609459200,"value":7},{"timestamp":1609461000000,"value":8.0,"actual":9}]}"#,
    ] {
        let file = parsed(text);
        assert_eq!((values(&file.expected), values(&file.actual)), (vec![7.0, 8.0], vec![9.0]), "{text}");
        assert_eq!(minutes(&file.expected), [30.0, 30.0]);
    }
}

#[test]
fn a_stored_forecast_is_read_back() {
    let file = parsed("time,value\n2021-01-01T00:00:00Z,1\n2021-01-01T01:00:00Z,2");
    let forecast = Forecast {
        zone: Zone::new("DE").expect("a zone"),
        source: "file".to_owned(),
        kind: SignalKind::Average,
        scope: SignalScope::Lifecycle,
        issued_at: at("2021-01-01T00:00:00Z"),
        retrieved_at: at("2021-01-01T00:00:00Z"),
        provenance: Default::default(),
        expected: file.expected.clone(),
        actual: file.actual,
    };
    let text = serde_json::to_string(&forecast).expect("plain data");
    let read = parsed(&text);
    assert_eq!((read.expected, read.kind, read.scope), (file.expected, SignalKind::Average, SignalScope::Lifecycle));
    assert!(refused(&text.replace("T01:00:00Z", "T00:00:00Z")).contains("out of order"));
    assert!(refused(&text.replace("2.0", "-2.0")).contains("no intensities"));
}

#[test]
fn errors_name_row_column_and_what_would_be_right() {
    let error = refused("timestamp,value\n2021-01-01T00:00:00Z,1\n2021-01-01T01:00:00Z,NaN\n");
    assert_eq!(
        error,
        "line 3, column \"value\": \"NaN\" is not a carbon intensity (grams per kWh, from 0 to 20000); \
         leave the field empty where there is none"
    );
    for (text, part) in [
        ("timestamp,value\n2021-01-01T00:00:00Z,-1", "\"-1\" is not a carbon intensity"),
        ("timestamp,value\n2021-01-01T00:00:00Z,many", "\"many\" is not a carbon intensity"),
        ("timestamp,value\n2021-01-01T00:00:00Z,1e9", "from 0 to 20000"),
        ("timestamp,value\n2021-01-01T00:00:00,1", "has no zone; write UTC with a Z"),
        ("timestamp,value\n,1", "every row needs the start"),
        ("timestamp,value\n2021-01-01T00:00:00Z,1,2", "line 2"),
        ("from,to,value\n2021-01-01T00:00:00Z,2021-01-01T00:00:00Z,1", "must end after it starts"),
        ("timestamp,duration,value\n2021-01-01T00:00:00Z,0,1", "must end after it starts"),
        ("timestamp,value\n2021-01-01T00:00:00Z,\n", "no row with a value"),
        ("timestamp,value\n", "no row with a value"),
        (" \n", "is empty"),
        ("[1]", "entry 1: is not an object"),
        ("{\"data\":3}", "array of objects"),
        ("[{\"time\":{},\"value\":1}]", "entry 1, column \"time\": a nested value is not a time"),
        ("[{\"time\":1,\"value\":[]}]", "a nested value is not a carbon intensity"),
        ("[{\"time\":1,", "line 1"),
        ("zone,time,value\nA,1,1\nB,1,1", "\"A\", \"B\"; leave those of one zone, or choose with carbon.zone"),
    ] {
        assert!(refused(text).contains(part), "{text:?} gave {:?}", refused(text));
    }
    assert!(parse(b"time,value\n\xff\xfe,1", &Settings::default(), None).is_err());
}

#[test]
fn errors_for_readers_without_settings_name_none() {
    for text in [
        "when,value\n2021-01-01T00:00:00Z,1",
        "timestamp,value\n2021-01-01T00:00:00,1",
        "timestamp,value\n2021-01-01T00:00:00Z,0.3",
        "zone,time,value\nA,1,1\nB,1,1",
    ] {
        let error = read_text(text).expect_err(text);
        assert!(error.to_string().contains("carbon."), "{error}");
        let remedy = error.without_setting().to_string();
        assert!(!remedy.contains("carbon.") && remedy.contains("; "), "{remedy}");
    }
}

#[test]
fn disorder_is_sorted_and_noted() {
    let file = parsed("time,value\n7200,3\n3600,2\n0,1\n0,4");
    assert_eq!(values(&file.expected), [4.0, 2.0, 3.0], "of two for the same time the later row counts");
    assert!(file.notes.iter().any(|n| n.contains("not in time order")), "{:?}", file.notes);
    assert!(file.notes.iter().any(|n| n.contains("overlaps")), "{:?}", file.notes);
}

#[test]
fn one_zone_is_chosen_among_several() {
    let text = "zone,time,value\nA,0,1\nB,0,2\nA,3600,3";
    let zone = |name| Zone::new(name).expect("a zone");
    let file = parse(text.as_bytes(), &Settings::default(), Some(&zone("A"))).expect("there is an A");
    assert_eq!(values(&file.expected), [1.0, 3.0]);
    let error = parse(text.as_bytes(), &Settings::default(), Some(&zone("C"))).expect_err("there is no C");
    assert!(error.to_string().contains("no rows for C"), "{error}");
}

#[test]
fn a_key_in_the_place_of_a_zone_is_not_shown() {
    const KEY: &str = "aB3dE5gH7jK9mN1pQ3";
    let only = parsed(&format!("zone,time,value\n{KEY},0,1\n{KEY},3600,2"));
    assert_eq!((values(&only.expected), only.zone), (vec![1.0, 2.0], None));
    let long = "x1".repeat(60);
    let zone = Zone::new("DE").expect("a zone");
    for (text, wanted) in [
        (format!("zone,time,value\n{KEY},0,1\nDE,0,2"), None),
        (format!("zone,time,value\n{KEY},0,1"), Some(&zone)),
        (format!("zone,time,value\n\u{1}{KEY},0,1"), None),
        (format!("zone,time,value\n{long} {long},0,1"), None),
    ] {
        let error = parse(text.as_bytes(), &Settings::default(), wanted).expect_err(&text).to_string();
        assert!(error.contains("a text of ") && !error.contains(KEY) && !error.contains(&long), "{error}");
    }
}

struct Kept {
    directory: tempfile::TempDir,
    provider: FileProvider,
}

impl Kept {
    fn with(text: &str, settings: Settings) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("carbon.csv");
        fs::write(&path, text).expect("written");
        let file = Settings { path: Some(path), ..settings };
        let provider = FileProvider::new(&file, &CarbonSettings::default().shared(None)).expect("has a path");
        Self { directory, provider }
    }

    fn rewrite(&self, text: &str) {
        fs::write(self.directory.path().join("carbon.csv"), text).expect("written");
    }

    async fn answer(&self, text: &str) -> Result<Answer, ProviderError> {
        self.provider.fetch(at(text)).await
    }

    async fn at(&self, text: &str) -> Result<Forecast, ProviderError> {
        self.provider.fetch(at(text)).await.map(|answer| answer.forecast)
    }
}

const HOURS: &str = "zone,time,value\nZ,2021-01-01T00:00Z,1\nZ,2021-01-01T01:00Z,2\nZ,2021-01-01T02:00Z,3\n";

#[tokio::test]
async fn actual_values_are_those_of_slots_that_have_ended() {
    let kept = Kept::with(HOURS, Settings::default());
    let forecast = kept.at("2021-01-01T02:00:00Z").await.expect("covers now");
    // As forecasts, the values of the only column would count as exact.
    assert_eq!((values(&forecast.expected), values(&forecast.actual)), (vec![3.0], vec![1.0, 2.0]));
    assert_eq!(forecast.zone.as_str(), "Z");
    assert_eq!(kept.provider.zone().as_str(), "Z");
    let ended = kept.at("2021-01-01T03:00:00Z").await.expect_err("all past").to_string();
    assert!(ended.contains("ends at 2021-01-01T03:00:00Z") && ended.contains("replay"), "{ended}");
}

#[tokio::test]
async fn a_changed_file_is_read_again_and_a_broken_one_named() {
    let kept = Kept::with(HOURS, Settings::default());
    kept.at("2021-01-01T00:00:00Z").await.expect("as written");
    kept.rewrite(&format!("{HOURS}Z,2021-01-01T03:00Z,4\n"));
    assert_eq!(values(&kept.at("2021-01-01T00:00:00Z").await.expect("longer").expected), [1.0, 2.0, 3.0, 4.0]);
    kept.rewrite("zone,time,value\nZ,2021-01-01T00:00Z,x\n");
    let error = kept.at("2021-01-01T00:00:00Z").await.expect_err("not a number").to_string();
    assert!(error.contains("carbon.csv, line 2, column \"value\""), "{error}");
    fs::remove_file(kept.directory.path().join("carbon.csv")).expect("removed");
    let error = kept.at("2021-01-01T00:00:00Z").await.expect_err("gone").to_string();
    assert!(error.contains("cannot be read") && error.contains("carbon.file.path"), "{error}");
}

#[tokio::test]
async fn a_replay_begins_at_the_first_poll_and_again_at_the_end() {
    let kept = Kept::with(HOURS, Settings { timing: Timing::Replay, ..Settings::default() });
    let first = kept.at("2026-05-01T10:07:00Z").await.expect("always");
    assert_eq!(first.expected.start(), Some(at("2026-05-01T10:07:00Z")));
    assert!(first.actual.is_empty());
    let later = kept.at("2026-05-01T13:37:00Z").await.expect("always");
    assert_eq!(later.best_at(at("2026-05-01T13:37:00Z")).map(|(_, i)| i.value), Some(GramsPerKwh::new(1.0)));
    assert_eq!(values(&later.actual), [1.0, 2.0, 3.0]);
    assert!(later.expected.gaps().next().is_none());
    let much_later = kept.at("2027-05-01T10:08:00Z").await.expect("always");
    assert!(much_later.best_at(at("2027-05-01T10:08:00Z")).is_some());

    let once = Kept::with(HOURS, Settings { timing: Timing::Replay, repeat: false, ..Settings::default() });
    once.at("2026-05-01T10:00:00Z").await.expect("the first hour");
    let error = once.at("2026-05-01T13:00:00Z").await.expect_err("played").to_string();
    assert!(error.contains("carbon.file.repeat"), "{error}");
}

#[tokio::test]
async fn a_replay_can_begin_in_the_middle_with_a_past() {
    let replay_start = Some(at("2021-01-01T02:00:00Z"));
    let kept = Kept::with(HOURS, Settings { timing: Timing::Replay, replay_start, ..Settings::default() });
    let first = kept.at("2026-05-01T10:00:00Z").await.expect("always");
    assert_eq!(values(&first.actual), [1.0, 2.0]);
    assert_eq!(first.best_at(at("2026-05-01T10:00:00Z")).map(|(_, i)| i.value), Some(GramsPerKwh::new(3.0)));
    assert_eq!(first.best_at(at("2026-05-01T11:00:00Z")).map(|(_, i)| i.value), Some(GramsPerKwh::new(1.0)));
}

#[tokio::test]
async fn a_replay_that_begins_outside_of_the_file_is_named() {
    for (start, repeat) in
        [("2020-01-01T00:00:00Z", true), ("2020-01-01T00:00:00Z", false), ("2021-01-01T03:00:00Z", false)]
    {
        let replay_start = Some(at(start));
        let replay = Settings { timing: Timing::Replay, replay_start, repeat, ..Settings::default() };
        let error = Kept::with(HOURS, replay).at("2026-05-01T10:00:00Z").await.expect_err(start).to_string();
        let expected = format!("carbon.file.replay_start, {start}, lies outside of ");
        assert!(
            error.contains(&expected) && error.contains("(2021-01-01T00:00:00Z to 2021-01-01T03:00:00Z)"),
            "{error}"
        );
        assert!(!error.contains("played to its end"), "{error}");
    }
}

#[tokio::test]
async fn a_replay_that_began_before_the_file_is_played_to_its_end() {
    let replay_start = Some(at("2020-12-31T22:00:00Z"));
    let replay = Settings { timing: Timing::Replay, replay_start, repeat: false, ..Settings::default() };
    let kept = Kept::with(HOURS, replay);
    let ahead = kept.at("2026-05-01T10:00:00Z").await.expect("the file is ahead");
    assert_eq!(ahead.expected.start(), Some(at("2026-05-01T12:00:00Z")));
    let error = kept.at("2026-05-01T16:00:00Z").await.expect_err("played").to_string();
    assert!(error.contains("was played to its end") && !error.contains("lies outside"), "{error}");
}

#[test]
fn the_missing_zone_of_a_file_is_described() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("carbon.csv");
    let zone = Zone::new("FR").expect("a zone");
    let settings = Settings { path: Some(path.clone()), ..Settings::default() };
    assert_eq!(describe_missing_zone(&settings, &zone), None, "there is no file");
    for (text, is_described) in [("time,value\n0,1\n", true), ("zone,time,value\nFR,0,1\n", false), ("nonsense", false)]
    {
        fs::write(&path, text).expect("written");
        assert_eq!(
            describe_missing_zone(&settings, &zone).is_some_and(|why| why.ends_with("used for FR")),
            is_described,
            "{text}"
        );
    }
}

#[tokio::test]
async fn the_shortest_replay_stays_small() {
    let replay = Settings { timing: Timing::Replay, ..Settings::default() };
    let kept = Kept::with("from,to,value\n0,0.01,1\n", replay);
    kept.at("2026-05-01T10:00:00Z").await.expect("always");
    let later = kept.at("2026-06-01T10:00:00Z").await.expect("always");
    assert!(later.expected.points().len() < 3 * MOST_ROWS);
    assert!(later.best_at(at("2026-06-01T10:00:00Z")).is_some());
}

fn hourly(header: &str, hours: i64) -> String {
    let rows =
        (0..hours).map(|h| format!("{},{}\n", (at("2021-01-01T00:00:00Z") + TimeDelta::hours(h)).to_rfc3339(), h));
    format!("{header}\n{}", rows.collect::<String>())
}

#[tokio::test]
async fn a_history_alone_is_used_with_a_note() {
    let day = Kept::with(&hourly("time,value", 24), Settings::default());
    let answer = day.answer("2021-01-03T00:00:00Z").await.expect("a day or more is a history");
    assert!(
        answer.forecast.actual.points().len() == 24
            && answer.forecast.expected.end() <= Some(at("2021-01-02T00:00:00Z"))
    );
    assert!(
        answer.notes[0].contains("only actual values are used") && answer.notes[0].contains("append newer"),
        "{:?}",
        answer.notes
    );
    let late = day.answer("2021-02-05T00:00:00Z").await.expect_err("longer ago than a month").to_string();
    assert!(late.contains("append newer rows, or set carbon.file.timing"), "{late}");

    let measured =
        Kept::with(&hourly("time,actual,forecast", 2).replace(",0", ",0,").replace(",1", ",1,"), Settings::default());
    let answer = measured.answer("2021-01-01T03:00:00Z").await.expect("its column says that it came");
    assert_eq!((values(&answer.forecast.actual), answer.forecast.expected.is_empty()), (vec![0.0, 1.0], true));

    let said = Settings { contributes: Contribution::Actual, ..Settings::default() };
    let kept = Kept::with(HOURS, said);
    assert_eq!(kept.provider.contributes(), Contribution::Actual);
    assert_eq!(values(&kept.at("2021-01-01T03:00:00Z").await.expect("the settings say so").actual), [1.0, 2.0, 3.0]);
    let asked = Settings { contributes: Contribution::Forecast, ..Settings::default() };
    let error = Kept::with(&hourly("time,value", 48), asked).at("2021-01-03T12:00:00Z").await.expect_err("no forecast");
    assert!(error.to_string().contains("append newer rows"), "{error}");
}

#[tokio::test]
async fn prices_are_read_like_intensities() {
    let read = |text: &str| parse_as::<PricePerMwh>(text.as_bytes(), &Settings::default(), None);
    for text in [
        "time,price\n2021-01-01T00:00Z,-12.5\n2021-01-01T00:15Z,\n2021-01-01T00:30Z,0\n",
        "time,EUR/MWh\n2021-01-01T00:00Z,-12.5\n2021-01-01T00:15Z,null\n2021-01-01T00:30Z,0\n",
        r#"[{"time":"2021-01-01T00:00Z","price_eur_mwh":-12.5},{"time":"2021-01-01T00:15Z","price_eur_mwh":null},
            {"time":"2021-01-01T00:30Z","price_eur_mwh":"0"}]"#,
    ] {
        let file = read(text).expect(text);
        let found: Vec<_> =
            file.expected.points().iter().map(|(slot, p)| (slot.duration().get(), p.value.get())).collect();
        assert_eq!(found, [(900.0, -12.5), (900.0, 0.0)], "{text}");
    }
    for (text, part) in [
        ("time,price\n2021-01-01T00:00Z,x", "is not a price per MWh (from -100000 to 100000)"),
        ("time,price\n2021-01-01T00:00Z,1e6", "is not a price per MWh"),
        ("time,price\n2021-01-01T00:00,1", "set price.file.time_zone"),
        ("time,intensity\n2021-01-01T00:00Z,1", "set price.file.value_column"),
        ("zone,time,price\nA,1,1\nB,1,1", "choose with carbon.energy_charts.bidding_zone"),
    ] {
        let error = read(text).expect_err(text).to_string();
        assert!(error.contains(part), "{error}");
    }

    let settings = |path: PathBuf| {
        let file = Settings { path: Some(path), ..Settings::default() };
        PriceSettings { source: PriceSource::File, file, ..PriceSettings::default() }
    };
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("price.csv");
    fs::write(&path, "time,price\n2021-01-01T00:00Z,-5\n2021-01-01T01:00Z,90\n").expect("written");
    let prices = FileProvider::<PricePerMwh>::of(&settings(path.clone()).file, None, None).expect("has a path");
    let forecast = prices.fetch(at("2021-01-01T01:10:00Z")).await.expect("covers now").forecast;
    assert_eq!(forecast.best_at(at("2021-01-01T01:10:00Z")).map(|(_, p)| p.value), Some(PricePerMwh::new(90.0)));
    assert_eq!(forecast.actual.points()[0].1.value, PricePerMwh::new(-5.0));
    let ended = prices.fetch(at("2021-01-01T02:00:00Z")).await.expect_err("all past").to_string();
    assert!(ended.contains("set price.file.timing"), "{ended}");
    fs::remove_file(path).expect("removed");
    let gone = prices.fetch(at("2021-01-01T01:10:00Z")).await.expect_err("gone").to_string();
    assert!(gone.contains("check price.file.path"), "{gone}");
    let nowhere = FileProvider::<PricePerMwh>::of(&Settings::default(), None, None);
    assert_eq!(nowhere.map(|_| ()), Err(SettingsError::NoPath { table: "price" }));
}

fn with(settings: Settings, text: &str) -> Result<ParsedFile, String> {
    parse(text.as_bytes(), &settings, None).map_err(|e| e.to_string())
}

fn in_zone(zone: &str) -> Settings {
    let time_zone = TimeZoneName::try_from(zone.to_owned()).expect("a zone");
    Settings { time_zone: Some(time_zone), ..Settings::default() }
}

#[test]
fn times_without_a_zone_are_those_of_the_zone_that_is_set() {
    let text = "time,value\n2026-07-01 02:00,100\n2026-07-01 03:00,110\n";
    let file = with(in_zone("Europe/Berlin"), text).expect("local times");
    assert_eq!(file.expected.start(), Some(at("2026-07-01T00:00:00Z")));
    assert_eq!(with(in_zone("-05:00"), text).expect("an offset").expected.start(), Some(at("2026-07-01T07:00:00Z")));
    let mixed = "time,value\n2026-07-01T00:00Z,100\n2026-07-01 03:00,110\n";
    assert_eq!(
        minutes(&with(in_zone("Europe/Berlin"), mixed).expect("its own zone goes first").expected),
        [60.0, 60.0]
    );

    let autumn = "from,to,value\n2026-10-25 01:00,2026-10-25 02:00,100\n2026-10-25 02:00,2026-10-25 02:00,110\n\
                  2026-10-25 02:00,2026-10-25 03:00,120\n2026-10-25 03:00,2026-10-25 04:00,130\n";
    let file = with(in_zone("Europe/Berlin"), autumn).expect("the hour is there twice");
    assert_eq!((minutes(&file.expected), values(&file.expected)), (vec![60.0; 4], vec![100.0, 110.0, 120.0, 130.0]));
    assert!(file.notes.is_empty() && file.repeated.is_none(), "{:?}", file.notes);
    let spring = with(in_zone("Europe/Berlin"), "time,value\n2026-03-29 02:00,100\n").expect_err("no such hour");
    assert!(spring.contains("carbon.file.time_zone, because clocks are put forward"), "{spring}");

    let taken_for_utc = Settings { assume_utc: true, ..Settings::default() };
    let twice = "time,value\n2026-10-25 02:00,100\n2026-10-25 02:00,110\n2026-10-25 03:00,120\n";
    let file = with(taken_for_utc, twice).expect("read");
    assert!(file.notes.iter().any(|n| n.contains("set carbon.file.time_zone")), "{:?}", file.notes);
    let named = with(in_zone("Europe/Berlin"), "timestamp_utc,value\n2026-07-01 02:00,100\n").expect("read");
    assert!(named.notes.iter().any(|n| n.contains("says UTC")), "{:?}", named.notes);
    assert!(refused("time,value\n07/01/2026 02:00,100\n").contains("day or month may come first"));
}

#[test]
fn semicolons_tabs_and_decimal_commas_are_read() {
    for text in [
        "time;value;actual\n2026-07-01T02:00Z;369,1;\n2026-07-01T03:00Z;370;371,25\n",
        "sep=;\r\ntime;value;actual\r\n2026-07-01T02:00Z;369,1;\r\n2026-07-01T03:00Z;370;371,25\r\n",
        "time\tvalue\tactual\n2026-07-01T02:00Z\t369,1\t\n2026-07-01T03:00Z\t370\t371,25\n",
        "time;value;actual\n2026-07-01T02:00Z;369.1;\n2026-07-01T03:00Z;370;371.25\n",
    ] {
        let file = parsed(text);
        assert_eq!((values(&file.expected), values(&file.actual)), (vec![369.1, 370.0], vec![371.25]), "{text}");
    }
    let german = with(in_zone("Europe/Berlin"), "time;value\n01.07.2026 02:00;369,1\n").expect("German");
    assert_eq!((german.expected.start(), values(&german.expected)), (Some(at("2026-07-01T00:00:00Z")), vec![369.1]));
    for (text, part) in [
        ("time,value\n2026-07-01T02:00Z,369,1\n", "if numbers have decimal commas"),
        ("time,value\n2026-07-01T02:00Z,\"1,234\"\n", "write a decimal point"),
        ("time;value\n2026-07-01T02:00Z;1.234,5\n", "nothing between thousands"),
        ("time;value\n2026-07-01T02:00Z;369,1\n2026-07-01T03:00Z;1.234\n", "decimal commas and others decimal points"),
    ] {
        assert!(refused(text).contains(part), "{text}: {}", refused(text));
    }
}

#[test]
fn values_in_another_unit_are_noticed_and_can_be_set() {
    let kilograms = "time,value\n2026-07-01T02:00Z,0.369\n2026-07-01T03:00Z,0.412\n";
    let error = refused(kilograms);
    assert!(error.contains("look like kg_per_kwh") && error.contains("carbon.file.unit = \"kg_per_kwh\""), "{error}");
    let unit = |unit| Settings { unit: Some(unit), ..Settings::default() };
    for (set, right) in [
        (FileUnit::KgPerKwh, [369.0, 412.0]),
        (FileUnit::TPerMwh, [369.0, 412.0]),
        (FileUnit::GPerKwh, [0.369, 0.412]),
        (FileUnit::LbPerMwh, [0.369 * 0.453_592_37, 0.412 * 0.453_592_37]),
    ] {
        assert_eq!(values(&with(unit(set), kilograms).expect("set").expected), right, "{set:?}");
    }
    for fine in ["0", "0.369\n2026-07-01T03:00Z,30", "1"] {
        parsed(&format!("time,value\n2026-07-01T02:00Z,{fine}\n"));
    }
    let large = with(unit(FileUnit::KgPerKwh), "time,value\n2026-07-01T02:00Z,100\n").expect_err("a hundred kilograms");
    assert!(
        large.contains("\"100\" is not a carbon intensity") && large.contains("100 kg/kWh are 100000 g/kWh"),
        "{large}"
    );
    assert!(!refused("time,value\n2026-07-01T02:00Z,20001\n").contains("g/kWh are"));
    let named = Settings { value_column: Some("lbs/MWh".to_owned()), ..Settings::default() };
    let error = with(named, "time,lbs/MWh\n2026-07-01T02:00Z,800\n").expect_err("pounds");
    assert!(error.contains("carbon.file.unit = \"lb_per_mwh\""), "{error}");
    let prices = parse_as::<PricePerMwh>(b"time,price\n2026-07-01T02:00Z,0.08\n", &Settings::default(), None);
    let error = prices.expect_err("per kWh").to_string();
    assert!(error.contains("price.file.unit = \"per_kwh\""), "{error}");
    let cents = parse_as::<PricePerMwh>(b"time,price\n2026-07-01T02:00Z,8.25\n", &unit(FileUnit::CentsPerKwh), None);
    assert_eq!(cents.expect("cents").expected.points()[0].1.value, PricePerMwh::new(82.5));
}

#[test]
fn nothing_of_another_file_is_repeated() {
    const SECRET: &str = "hunter2hunter2";
    for text in [
        "root:$6$hunter2hunter2:19000:0:99999:7:::\ndaemon:*:1:\n",
        "hunter2hunter2",
        "user,password\nadmin,hunter2hunter2\n",
        "hunter2hunter2;b,c\n1;2\n",
        "[default]\naws_secret_access_key = hunter2hunter2\n",
        "{\"password\": \"hunter2hunter2\"}",
        "[{\"hunter2hunter2\": 1}]",
        "{\"expected\": \"hunter2hunter2\", \"retrieved_at\": \"hunter2hunter2\"}",
        "[\"hunter2hunter2\"",
        "time,value\nhunter2hunter2,1\n",
        "time,value\n2026-07-01T02:00Z,hunter2hunter2\n",
        "time,value\n1,hunter2hunter2,3\n",
        "zone,time,value\n$6$hunter2hunter2,1,5\nB,1,5\n",
    ] {
        let error = refused(text);
        assert!(!error.contains(SECRET) && !error.contains("root") && !error.contains("admin"), "{text}: {error}");
    }
    assert!(refused("timestmp,value\n1,2\n").contains("among \"timestmp\", \"value\";"));
}

#[tokio::test]
async fn what_is_no_regular_file_is_not_opened() {
    let directory = tempfile::tempdir().expect("a directory");
    let pipe = directory.path().join("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().expect("mkfifo runs").success());
    for (path, part) in
        [(pipe, "a named pipe"), (PathBuf::from("/dev/zero"), "a device"), (directory.path().to_owned(), "a directory")]
    {
        let file = Settings { path: Some(path), ..Settings::default() };
        let provider = FileProvider::new(&file, &CarbonSettings::default().shared(None)).expect("has a path");
        let error = provider.fetch(at("2026-07-01T02:00:00Z")).await.expect_err("no file").to_string();
        assert!(error.contains(part) && error.contains("check carbon.file.path"), "{error}");
    }
}

#[tokio::test]
async fn actual_values_before_their_time_are_noted() {
    let kept = Kept::with("time,forecast,actual\n2026-05-01T12:00Z,300,310\n", Settings::default());
    let notes = kept.answer("2026-05-01T10:00:00Z").await.expect("a forecast").notes;
    assert!(notes.iter().any(|n| n.contains("set carbon.file.time_zone")), "{notes:?}");
}

#[test]
fn tables_without_measure_are_refused() {
    let error = refused(&format!("time,value{}\n2024-01-01T00:00Z,1\n", ",a".repeat(1000)));
    assert!(error.contains("1002 columns"), "{error}");
    let entries: Vec<_> = (0..1002).map(|i| format!("{{\"a{i}\":1}}")).collect();
    assert!(refused(&format!("[{}]", entries.join(","))).contains("1002 columns"));
    let long = read_text(&format!("time,value\n{}", "0,1\n".repeat(1_000_001))).expect_err("a long file").to_string();
    assert!(long.contains("more than 1000000 rows"), "{long}");
    let settings = Settings { step_s: Some(Seconds::new(1e300)), ..Settings::default() };
    let text = "time,value\n2024-01-01T00:00Z,1\n2024-01-01T01:00Z,1\n";
    let file = parse(text.as_bytes(), &settings, None).expect("a step that no slot has");
    assert_eq!(minutes(&file.expected), [60.0, 60.0]);
}

proptest! {
    #[test]
    fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = parse(&bytes, &Settings::default(), None);
        let _ = parse_as::<PricePerMwh>(&bytes, &Settings::default(), None);
    }

    #[test]
    fn no_table_panics(
        rows in prop::collection::vec(("[-0-9TZ:e+.]{0,22}", "[-0-9e.NaN]{0,6}", "[-0-9e.]{0,8}", "[A-B]{0,1}"), 0..20),
        json in any::<bool>(),
        assume_utc in any::<bool>(),
    ) {
        let text = if json {
            let rows = rows.iter().map(|(t, v, d, z)| format!(r#"{{"time":"{t}","value":"{v}","duration":"{d}","zone":"{z}"}}"#));
            format!("[{}]", rows.collect::<Vec<_>>().join(","))
        } else {
            let rows = rows.iter().map(|(t, v, d, z)| format!("{t},{v},{d},{z}\n"));
            format!("time,value,duration,zone\n{}", rows.collect::<String>())
        };
        let settings = Settings { assume_utc, ..Settings::default() };
        let _ = parse(text.as_bytes(), &settings, None);
    }

    #[test]
    fn what_is_written_is_read(values in prop::collection::vec(prop::option::of(0.0f64..2000.0), 1..60), step in 1i64..200) {
        // A file that holds only small values is refused, because these look like kg/kWh.
        prop_assume!(values.iter().flatten().any(|value| *value > 100.0));
        let rows = values.iter().zip(0i64..).map(|(value, i)| {
            let time = DateTime::UNIX_EPOCH + TimeDelta::minutes(i * step);
            format!("{},{}\n", time.format("%FT%TZ"), value.map(|v| v.to_string()).unwrap_or_default())
        });
        let file = parsed(&format!("time,value\n{}", rows.collect::<String>()));
        for (value, i) in values.iter().zip(0i64..) {
            let found = file.expected.at(DateTime::UNIX_EPOCH + TimeDelta::minutes(i * step)).map(|(_, v)| v.value.get());
            prop_assert_eq!(found, *value);
        }
    }
}
