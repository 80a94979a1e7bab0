//! One fault of a source each, with the real daemon: the chain goes on with the next source, `/v1/carbon` says so and
//! since when, and what comes back is followed again. Nothing reads as zero.

use chrono::{DateTime, TimeDelta, Utc};
use futures_util::future::join_all;
use serde_json::{Value, json};

use crate::support::{Asked, Daemon, FakeDriver, Grid, Said, Weather, now};

pub(crate) const MAPS: &str = "electricity_maps";
pub(crate) const UK: &str = "uk_carbon_intensity";

/// Enough for a second's rhythm.
pub(crate) const MANY: &str = "requests_per_hour = 36000";

const KEY: &str = "k3y-of-the-environment";

/// A daemon with a chain of two sources that it asks every second.
pub(crate) struct Case {
    pub(crate) driver: std::sync::Arc<FakeDriver>,
    pub(crate) state: tempfile::TempDir,
    pub(crate) maps: Grid,
    pub(crate) uk: Grid,
    settings: String,
}

/// Rows of Electricity Maps' for the zone that is asked.
pub(crate) fn maps(weather: &Weather) -> impl Fn(&Asked) -> Said + Send + Sync + 'static {
    let weather = weather.clone();
    move |asked| weather.maps(asked, "GB")
}

pub(crate) fn uk(weather: &Weather) -> impl Fn(&Asked) -> Said + Send + Sync + 'static {
    let weather = weather.clone();
    move |asked| weather.uk(asked)
}

impl Case {
    /// `profile` are lines of `[profile]`, `settings` of `[carbon.electricity_maps]`.
    pub(crate) async fn new(gpu: Value, [first, second]: [&Weather; 2], profile: &str, settings: &str) -> Self {
        let (maps, uk) = (Grid::start(maps(first)).await, Grid::start(uk(second)).await);
        let text = format!(
            "{}{profile}[carbon]\nsource = [\"{MAPS}\", \"{UK}\"]\nzone = \"GB\"\npoll_interval_s = 1\n\
             [carbon.{MAPS}]\nbase_url = \"{}\"\nkey_env = \"WATTUNE_KEY\"\ntimeout_s = 2\n{settings}\n\
             [carbon.{UK}]\nbase_url = \"{}\"\nrequests_per_hour = 36000\n",
            Daemon::QUICK,
            maps.url(),
            uk.url()
        );
        let driver = std::sync::Arc::new(FakeDriver::new(&[gpu]));
        Self { driver, state: tempfile::tempdir().expect("a directory"), maps, uk, settings: text }
    }

    /// With steady values from each source.
    async fn steady(first: f64, second: f64) -> Self {
        Self::new(json!({}), [&Weather::steady(first), &Weather::steady(second)], "", MANY).await
    }

    pub(crate) async fn daemon(&self) -> Daemon {
        let mut command = Daemon::command_set(&self.driver, self.state.path(), &self.settings);
        command.env("WATTUNE_KEY", KEY);
        Daemon::start(command, self.state.path()).await
    }
}

/// Waits until this source is followed and says this of the present.
pub(crate) async fn follows(daemon: &Daemon, source: &str, value: f64) -> Value {
    let what = format!("{source} with {value}");
    daemon.carbon_where(&what, |c| c["source"] == source && c["intensity_g_per_kwh"] == value).await
}

pub(crate) fn text<'a>(view: &'a Value, field: &str) -> &'a str {
    view[field].as_str().unwrap_or_else(|| panic!("no {field} in {view:#}"))
}

#[track_caller]
pub(crate) fn moment(view: &Value, field: &str) -> DateTime<Utc> {
    text(view, field).parse().expect("a moment")
}

/// What is planned with and shown is never nothing: there are values, and none is zero.
pub(crate) async fn nothing_reads_as_zero(daemon: &Daemon) {
    let carbon = daemon.get("/v1/carbon").await.expect(200);
    assert!(carbon["planned_with_g_per_kwh"].as_f64().is_some_and(|v| v > 1.0), "{carbon:#}");
    assert!(carbon["intensity_g_per_kwh"].as_f64().is_none_or(|v| v > 1.0), "{carbon:#}");
    for path in ["/v1/carbon/forecast", "/v1/carbon/history?hours=48"] {
        let slots = daemon.get(path).await.expect(200);
        let values = slots.as_array().expect("slots").iter().map(|s| s["intensity_g_per_kwh"].as_f64());
        assert!(values.into_iter().all(|v| v.is_some_and(|v| v > 1.0)), "{path}: {slots:#}");
    }
}

/// A fault of the first source, and what the daemon says of it.
struct Fault {
    name: &'static str,
    said: Option<fn(&Asked) -> Said>,
    reported: &'static str,
}

/// A gibibyte: if any of it were kept, the daemon's memory would show it.
const GIB: u64 = 1 << 30;

fn faults() -> Vec<Fault> {
    let fault = |name, reported, said| Fault { name, said: Some(said), reported };
    vec![
        Fault { name: "connection refused", said: None, reported: "cannot be reached (Connection refused" },
        fault("time-out", "did not answer completely within 2 s; raise the source's own timeout_s", |_| Said::Nothing),
        fault("hung up", "cannot be reached (", |_| Said::HangUp),
        fault("500", "the service failed with status 500 (out of order)", |_| {
            Said::status(500, "{\"message\":\"out of order\"}")
        }),
        fault(
            "429",
            "the service reports too many requests; the service asks to wait 6 s; raise carbon.poll_interval_s",
            |_| Said::status(429, "").with("retry-after", "6"),
        ),
        fault("truncated JSON", "not JSON (EOF while parsing", |asked| {
            let body = Weather::steady(1.0).maps(asked, "GB").body();
            Said::status(200, &body[..body.len() / 2])
        }),
        fault("broken off", "cannot be reached (", |asked| Said::Half(Weather::steady(1.0).maps(asked, "GB").body())),
        fault("1 GB", "more than 1048576 bytes; if that is expected, raise carbon.max_body_bytes", |_| Said::Endless {
            bytes: GIB,
            declared: true,
        }),
        fault("1 GB, undeclared", "more than 1048576 bytes", |_| Said::Endless { bytes: GIB, declared: false }),
        fault("32 MiB with status 500", "the service failed with status 500", |_| {
            Said::status(500, &"9".repeat(1 << 25))
        }),
        fault("slow drip", "did not answer completely within 2 s", |asked| {
            Said::Drip(Weather::steady(1.0).maps(asked, "GB").body())
        }),
        fault("wrong zone", "wrong zone in the answer: FR, but GB was asked for", |asked| {
            Weather::steady(1.0).maps(asked, "FR")
        }),
        fault("nulls alone", "no usable value: ", |asked| Weather::new(|_| None).maps(asked, "GB")),
        fault("a page", "not JSON", |_| Said::status(200, "<html>welcome</html>")),
        fault("nothing in it", "no usable value: the answer has no content", |_| Said::status(200, "")),
        fault("below zero", "expected a carbon intensity", |asked| Weather::steady(-1.0).maps(asked, "GB")),
    ]
}

async fn falls_over_and_comes_back(fault: Fault) {
    let Fault { name, said, reported } = fault;
    let mut case = Case::steady(120.0, 300.0).await;
    let daemon = case.daemon().await;
    // On a busy machine the first poll may be old already.
    let is_good = |c: &Value| {
        c["source"] == MAPS && c["intensity_g_per_kwh"] == 120.0 && c["basis"] == "source" && c["freshness"] == "fresh"
    };
    daemon.carbon_where(&format!("the first source, fresh, before {name}"), is_good).await;
    let memory = daemon.most_memory_mib();

    let broken_at = now();
    match said {
        Some(said) => case.maps.say(said),
        None => case.maps.close().await,
    }
    let is_over = |c: &Value| {
        let [first, second] = [0, 1].map(|i| c["sources"][i]["freshness"].as_str());
        let fails = c["sources"][0]["last_error"].is_string();
        c["source"] == UK && fails && (first, second) == (Some("stale"), Some("fresh"))
    };
    let over = daemon.carbon_where(&format!("the second source after {name}"), is_over).await;
    let (first, second) = (&over["sources"][0], &over["sources"][1]);
    assert_eq!(over["intensity_g_per_kwh"], 300.0, "{name}: {over:#}");
    assert!(text(first, "last_error").contains(reported), "{name}: {first:#}");
    assert!(first["consecutive_failures"].as_u64() >= Some(1), "{name}: {first:#}");
    assert_eq!((&first["followed"], &second["followed"]), (&json!(false), &json!(true)), "{name}: {over:#}");
    assert_eq!(second["last_error"], Value::Null, "{name}: {second:#}");
    // Which one and since when: the other one is followed since the first was stale, even while that still hangs.
    let (failing, stale) = (moment(first, "failing_since"), moment(first, "stale_since"));
    let since = moment(&over, "basis_since");
    assert!(broken_at <= failing && broken_at <= since && stale <= since && since <= now(), "{name}: {over:#}");
    assert_eq!(text(&over, "basis"), "source", "{name}: {over:#}");
    nothing_reads_as_zero(&daemon).await;
    let more = daemon.most_memory_mib() - memory;
    assert!(more < 64.0, "{name}: {more} MiB more");
    let log = daemon.log();
    let problems = log.lines().filter(|l| l.contains("carbon source failed:") && l.contains(reported)).count();
    assert_eq!(problems, 1, "{name}: told once\n{log}");
    if name == "429" {
        let last = |grid: &Grid| grid.asked().last().expect("asked").at;
        let (refused, next) = (last(&case.maps), moment(first, "next_poll_at"));
        assert!(next >= refused + TimeDelta::seconds(5), "it is given the time it asks for: {first:#}");
    }

    case.maps.say(maps(&Weather::steady(150.0)));
    case.maps.open();
    let back = follows(&daemon, MAPS, 150.0).await;
    let first = &back["sources"][0];
    assert!(first["last_error"].is_null() && first["failing_since"].is_null(), "{name}: {first:#}");
    assert_eq!((&first["consecutive_failures"], text(first, "circuit")), (&json!(0), "closed"), "{name}: {first:#}");
    assert!(moment(&back, "basis_since") > since, "{name}: {back:#}");
    nothing_reads_as_zero(&daemon).await;
}

#[tokio::test]
async fn whatever_breaks_a_source_the_next_one_is_followed_until_it_is_back() {
    join_all(faults().into_iter().map(falls_over_and_comes_back)).await;
}

#[tokio::test]
async fn what_is_null_is_not_known_and_not_zero() {
    // Of the present, and of every third hour, the first source knows nothing.
    let known = |t: DateTime<Utc>| t > now() && t.timestamp() / 3600 % 3 > 0;
    let some = Weather::new(move |t| known(t).then_some(120.0));
    let mut case = Case::new(json!({}), [&some, &Weather::steady(300.0)], "", MANY).await;
    let daemon = case.daemon().await;
    let carbon = follows(&daemon, UK, 300.0).await;
    let first = &carbon["sources"][0];
    assert_eq!((text(first, "freshness"), &first["last_error"]), ("none", &Value::Null), "{first:#}");
    nothing_reads_as_zero(&daemon).await;
    // Alone, its present is made up from what it does say, and is called so.
    drop(daemon);
    case.state = tempfile::tempdir().expect("a directory");
    case.uk.say(|asked| Weather::new(|_| None).uk(asked));
    let daemon = case.daemon().await;
    let made = daemon.carbon_where("its word", |c| c["source"] == MAPS).await;
    let planned = made["planned_with_g_per_kwh"].as_f64().expect("a value");
    assert!((planned - 120.0).abs() < 1.0 && made["origin"] != "forecast", "{made:#}");
    nothing_reads_as_zero(&daemon).await;
}

#[tokio::test]
async fn a_clock_ten_minutes_off_is_reported_and_changes_nothing_else() {
    let skewed = async |minutes: i64, reported: &str| {
        let mut weather = Weather::steady(130.0);
        weather.ahead = TimeDelta::minutes(minutes);
        let case = Case::new(json!({}), [&weather, &weather], "", MANY).await;
        let daemon = case.daemon().await;
        let carbon = follows(&daemon, MAPS, 130.0).await;
        assert!(carbon["notes"].to_string().contains(reported), "{carbon:#}");
        assert_eq!((text(&carbon, "freshness"), text(&carbon, "basis")), ("fresh", "source"), "{carbon:#}");
        assert!(moment(&carbon, "fetched_at") <= now(), "{carbon:#}");
        let second = daemon.carbon_where("both", |c| c["sources"][1]["fetched_at"].is_string()).await;
        assert!(second["sources"][1]["notes"].to_string().contains(reported), "{second:#}");
        nothing_reads_as_zero(&daemon).await;
    };
    tokio::join!(
        skewed(
            10,
            "this machine's clock is 10 min behind the source's; check this machine's time synchronisation (NTP)"
        ),
        skewed(-10, "this machine's clock is 10 min ahead of the source's"),
    );
}

#[tokio::test]
async fn values_that_jump_are_used_when_they_were_said_three_times() {
    let case = Case::steady(120.0, 300.0).await;
    let daemon = case.daemon().await;
    follows(&daemon, MAPS, 120.0).await;
    let before = case.maps.asked().len();
    case.maps.say(maps(&Weather::steady(1200.0)));
    let held = daemon.carbon_where("a jump", |c| c["sources"][0]["quarantined"].is_string()).await;
    let reported = text(&held["sources"][0], "quarantined");
    assert!(
        reported.contains("1200.0 for")
            && reported.contains("(120.0 to 120.0)")
            && reported.contains("3 consecutive answers"),
        "{reported}"
    );
    assert_eq!((text(&held, "source"), &held["intensity_g_per_kwh"]), (MAPS, &json!(120.0)), "{held:#}");
    let used = follows(&daemon, MAPS, 1200.0).await;
    assert_eq!(used["sources"][0]["quarantined"], Value::Null, "{used:#}");
    let answers = case.maps.asked()[before..].iter().filter(|a| a.path.contains("/forecast")).count();
    assert!(answers >= 3, "{answers}");
    let log = daemon.log();
    assert_eq!(log.matches("values quarantined").count(), 1, "{log}");
    // A single slip is never used.
    case.maps.say(maps(&Weather::steady(12_000.0)));
    daemon.carbon_where("a slip", |c| c["sources"][0]["quarantined"].is_string()).await;
    case.maps.say(maps(&Weather::steady(1100.0)));
    let right = follows(&daemon, MAPS, 1100.0).await;
    assert_eq!(right["sources"][0]["quarantined"], Value::Null, "{right:#}");
    let seen = daemon.get("/v1/carbon/history?hours=48").await.expect(200);
    let most = seen.as_array().expect("slots").iter().filter_map(|s| s["intensity_g_per_kwh"].as_f64());
    assert!(most.fold(0.0, f64::max) <= 1200.0, "{seen:#}");
}

#[tokio::test]
async fn requests_are_counted_over_restarts_and_a_spent_quota_says_until_when() {
    // Two requests an answer.
    let weather = [&Weather::steady(120.0), &Weather::steady(300.0)];
    let case = Case::new(json!({}), weather, "", "requests_per_hour = 6").await;
    let begun = now();
    let mut ends = Vec::new();
    for _ in 0..2 {
        let daemon = case.daemon().await;
        let over = follows(&daemon, UK, 300.0).await;
        let spent = daemon.carbon_where("a spent quota", |c| c["sources"][0]["last_error"].is_string()).await;
        let first = &spent["sources"][0];
        let until = moment(first, "next_poll_at");
        // The error has the second in which the next request is allowed, the poll may be a moment later.
        let reported = |until: DateTime<Utc>| {
            format!("the limit of 6 requests an hour is reached, the next one is sent after {}", until.format("%H:%M"))
        };
        let reported = [reported(until), reported(until - TimeDelta::seconds(1))];
        assert!(
            reported.iter().any(|reported| text(first, "last_error").starts_with(reported)),
            "{reported:?}: {first:#}"
        );
        assert!((begun + TimeDelta::minutes(59)..now() + TimeDelta::minutes(61)).contains(&until), "{first:#}");
        assert_eq!((&first["requests_last_hour"], &first["requests_allowed_per_hour"]), (&json!(6), &json!(6)));
        assert_eq!((&first["requests_last_day"], case.maps.asked().len()), (&json!(6), 6), "{first:#}");
        assert!(over["sources"][1]["requests_last_hour"].as_u64() >= Some(2), "{over:#}");
        ends.push(until);
        daemon.kill();
    }
    assert_eq!(ends[0], ends[1], "the same after a restart");
}

#[tokio::test]
async fn an_unchanged_answer_is_asked_for_by_its_tag_and_keeps_the_source_fresh() {
    let case = Case::steady(120.0, 300.0).await;
    let weather = Weather::steady(120.0);
    case.maps.say(move |asked| {
        if asked.path.contains("/forecast") && asked.header("if-none-match") == Some("\"7\"") {
            return Said::status(304, "");
        }
        weather.maps(asked, "GB").with("etag", "\"7\"")
    });
    let daemon = case.daemon().await;
    let first = moment(&follows(&daemon, MAPS, 120.0).await, "fetched_at");
    // Without answers it would be stale after two seconds.
    let later = first + TimeDelta::seconds(4);
    let kept = daemon.carbon_where("more answers", |c| moment(c, "fetched_at") > later).await;
    assert_eq!((text(&kept, "source"), text(&kept, "freshness")), (MAPS, "fresh"), "{kept:#}");
    assert_eq!((&kept["intensity_g_per_kwh"], &kept["last_error"]), (&json!(120.0), &Value::Null), "{kept:#}");
    let asked = case.maps.asked();
    let ahead: Vec<_> = asked.iter().filter(|a| a.path.contains("/forecast")).collect();
    assert!(ahead[0].header("if-none-match").is_none() && ahead.len() > 3, "{ahead:#?}");
    assert!(ahead[1..].iter().all(|a| a.header("if-none-match") == Some("\"7\"")), "{ahead:#?}");
}
