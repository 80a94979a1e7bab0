//! What the daemon goes by when sources fail for long, and what it keeps apart and to itself meanwhile.

use std::path::Path;

use chrono::{DateTime, TimeDelta, Timelike, Utc};
use serde_json::{Value, json};

use crate::carbon_faults::{Case, MANY, MAPS, UK, follows, maps, moment, nothing_reads_as_zero, text, uk};
use crate::nvml::{CURVE, gpu};
use crate::support::{Asked, Daemon, FakeDriver, Grid, Said, Training, Weather, now};

/// Moves all moments in the stored forecasts.
fn age_caches(state: &Path, by: TimeDelta) {
    fn shift(value: &mut Value, by: TimeDelta) {
        match value {
            Value::Array(items) => items.iter_mut().for_each(|v| shift(v, by)),
            Value::Object(members) => members.values_mut().for_each(|v| shift(v, by)),
            Value::String(text) => {
                if let Ok(at) = text.parse::<DateTime<Utc>>() {
                    *text = (at + by).to_rfc3339();
                }
            }
            _ => {}
        }
    }
    for path in caches(state) {
        let mut stored: Value = serde_json::from_slice(&std::fs::read(&path).expect("readable")).expect("JSON");
        shift(&mut stored, by);
        std::fs::write(&path, stored.to_string()).expect("written");
    }
}

fn caches(state: &Path) -> Vec<std::path::PathBuf> {
    let of = |source: &str| state.join(format!("carbon-{source}-GB.json"));
    vec![of(MAPS), of(UK)]
}

/// By the time of day: from 150 to 450.
fn shape(t: DateTime<Utc>) -> f64 {
    300.0 + 150.0 * (f64::from(t.hour() * 60 + t.minute()) / 1440.0 * std::f64::consts::TAU).sin()
}

/// Waits until the present rests on this; answers with the signal.
async fn rests_on(daemon: &Daemon, basis: &str) -> Value {
    let carbon = daemon.carbon_where(basis, |c| c["basis"] == basis && c["last_error"].is_string()).await;
    let metrics = daemon.get("/metrics").await.text;
    assert!(metrics.contains(&format!("wattune_carbon_basis{{basis=\"{basis}\"}} 1.0")), "{metrics}");
    nothing_reads_as_zero(daemon).await;
    carbon
}

#[track_caller]
fn near_the_shape(carbon: &Value) {
    let planned = carbon["planned_with_g_per_kwh"].as_f64().expect("a value");
    let usual = shape(now());
    assert!((planned - usual).abs() < 60.0, "{planned} for {usual}: {carbon:#}");
}

#[tokio::test]
async fn when_all_sources_are_down_each_poorer_basis_follows_in_its_turn() {
    let mut first = Weather::new(|t| Some(shape(t)));
    first.step = TimeDelta::seconds(2);
    first.until = now() + TimeDelta::seconds(14);
    let mut case = Case::new(json!({}), [&first, &first], "", MANY).await;
    let daemon = case.daemon().await;
    daemon.carbon_where("both sources", |c| c["source"] == MAPS && c["sources"][1]["fetched_at"].is_string()).await;
    case.maps.close().await;
    case.uk.close().await;
    // What was said holds until its end.
    let old = |c: &Value| c["sources"].as_array().is_some_and(|s| s.iter().all(|s| s["freshness"] == "stale"));
    let stale = daemon.carbon_where("old forecasts", old).await;
    assert_eq!((text(&stale, "source"), text(&stale, "basis")), (MAPS, "source"), "{stale:#}");
    assert!(moment(&stale, "stale_since") < now() && now() < first.until, "{stale:#}");
    nothing_reads_as_zero(&daemon).await;

    let local = rests_on(&daemon, "local").await;
    let since = moment(&local, "basis_since");
    assert!(since >= first.until - first.step && since <= first.until + TimeDelta::seconds(8), "{local:#}");
    assert_eq!((text(&local, "origin"), text(&local, "freshness")), ("fallback", "none"), "{local:#}");
    near_the_shape(&local);
    let ahead = daemon.get("/v1/carbon/forecast").await.expect(200);
    assert!(ahead.as_array().is_some_and(|a| a.len() >= 48 && a.iter().all(|s| s["origin"] == "fallback")), "{ahead}");
    daemon.kill();

    // The same after a restart: what was stored of what came is a few hours old at the most.
    let daemon = case.daemon().await;
    let local = rests_on(&daemon, "local").await;
    assert_eq!((&local["sources"][0]["from_cache"], text(&local, "source")), (&json!(true), MAPS), "{local:#}");
    daemon.kill();

    age_caches(case.state.path(), TimeDelta::days(-3));
    let begun = now();
    let daemon = case.daemon().await;
    let daily = rests_on(&daemon, "daily_shape").await;
    assert!(moment(&daily, "basis_since") >= begun, "{daily:#}");
    assert!(moment(&daily, "fetched_at") < begun - TimeDelta::days(2), "{daily:#}");
    near_the_shape(&daily);
    for source in daily["sources"].as_array().expect("sources") {
        assert!(text(source, "last_error").contains("cannot be reached (Connection refused"), "{source:#}");
        assert!(moment(source, "failing_since") >= begun && source["from_cache"] == true, "{source:#}");
    }
    daemon.kill();

    for path in caches(case.state.path()) {
        std::fs::remove_file(path).expect("removed");
    }
    let daemon = case.daemon().await;
    let constant = rests_on(&daemon, "constant").await;
    assert_eq!(constant["planned_with_g_per_kwh"], 475.0, "{constant:#}");
    assert!(constant["intensity_g_per_kwh"].is_null() && constant["source"].is_null(), "{constant:#}");
    assert!(constant["notes"].to_string().contains("all plans use the configured 475 gCO2e/kWh"), "{constant:#}");

    case.uk.say(uk(&Weather::steady(210.0)));
    case.uk.open();
    let back = follows(&daemon, UK, 210.0).await;
    assert_eq!((text(&back, "basis"), &back["sources"][0]["followed"]), ("source", &json!(false)), "{back:#}");
    assert!(moment(&back, "basis_since") > moment(&constant, "basis_since"), "{back:#}");
}

#[tokio::test]
async fn what_was_stored_is_used_after_a_restart_without_network_and_with_another_clock() {
    let mut case = Case::new(json!({}), [&Weather::steady(140.0), &Weather::steady(300.0)], "", MANY).await;
    let daemon = case.daemon().await;
    follows(&daemon, MAPS, 140.0).await;
    daemon.kill();
    case.maps.close().await;
    case.uk.close().await;
    // The second time the clock was set back by ten minutes meanwhile.
    for by in [TimeDelta::zero(), TimeDelta::minutes(10)] {
        age_caches(case.state.path(), by);
        let daemon = case.daemon().await;
        let stored = follows(&daemon, MAPS, 140.0).await;
        assert_eq!(
            (text(&stored, "basis"), &stored["sources"][0]["from_cache"]),
            ("source", &json!(true)),
            "{stored:#}"
        );
        assert!(moment(&stored, "fetched_at") <= now(), "{stored:#}");
        let tried = daemon.carbon_where("a try", |c| c["last_error"].is_string()).await;
        assert_eq!((text(&tried, "source"), &tried["intensity_g_per_kwh"]), (MAPS, &json!(140.0)), "{tried:#}");
        nothing_reads_as_zero(&daemon).await;
        daemon.kill();
    }
}

const STEP: i64 = 3;

/// Clean and dirty in turn.
fn in_turn(t: DateTime<Utc>, first: bool) -> f64 {
    if (t.timestamp().div_euclid(STEP) % 2 == 0) == first { 100.0 } else { 600.0 }
}

/// The mean limit in the clean slots of a span less that in its dirty ones, where a slot's first second is left out.
fn followed(driver: &FakeDriver, (from, to): (DateTime<Utc>, DateTime<Utc>), first: bool) -> f64 {
    let writes: Vec<(f64, f64)> = driver
        .writes()
        .iter()
        .filter(|w| w.call == "nvmlDeviceSetPowerManagementLimit" && w.code == 0)
        .map(|w| (w.at, w.argument.parse::<f64>().expect("milliwatts") / 1e3))
        .collect();
    let (mut sums, mut counts) = ([0.0; 2], [0.0; 2]);
    let mut t = from;
    while t < to {
        let into = t.timestamp_millis().rem_euclid(STEP * 1000);
        if into >= 1000 {
            let at = t.timestamp_millis() as f64 / 1e3;
            let limit = writes.iter().rev().find(|w| w.0 <= at).expect("written").1;
            let dirty = usize::from(in_turn(t, first) > 300.0);
            sums[dirty] += limit;
            counts[dirty] += 1.0;
        }
        t += TimeDelta::milliseconds(200);
    }
    assert!(counts.iter().all(|n| *n > 5.0), "{counts:?}");
    sums[0] / counts[0] - sums[1] / counts[1]
}

#[tokio::test]
async fn limits_follow_the_best_signal_that_is_left() {
    let weather = |first: bool| {
        // Of what came nothing is said, so that each value is taken as it is.
        let mut weather = Weather::new(move |t| (t > now() - TimeDelta::seconds(2 * STEP)).then(|| in_turn(t, first)));
        (weather.step, weather.until) = (TimeDelta::seconds(STEP), now() + TimeDelta::minutes(5));
        weather
    };
    // Two rungs make a short sweep.
    let mut case = Case::new(gpu(), [&weather(true), &weather(false)], "lowest_w = 230\n", MANY).await;
    let daemon = case.daemon().await;
    let job = json!({"name": "resnet50", "gpus": [0], "work": {"total_samples": 80_000},
                     "objective": {"max_slowdown": 0.02}, "lease_s": 60});
    let id = daemon.register(&job).await;
    let training = Training::start(daemon.base(), &id, &case.driver, vec![(0, CURVE)], 0.0);
    daemon.phase(&id, "planned").await;
    let spell = async |source: &str, seconds: u64, first: bool| {
        let begun = now();
        tokio::time::sleep(std::time::Duration::from_secs(seconds)).await;
        let carbon = daemon.get("/v1/carbon").await.expect(200);
        assert_eq!((text(&carbon, "source"), text(&carbon, "basis")), (source, "source"), "{carbon:#}");
        nothing_reads_as_zero(&daemon).await;
        let by = followed(&case.driver, (begun, now()), first);
        assert!(by > 20.0, "{source}: {by} W of 50 W: {:?}", case.driver.writes());
        let plan = daemon.get(&format!("/v1/jobs/{id}/plan")).await.expect(200);
        let values = plan["segments"].as_array().expect("segments").iter().map(|s| s["intensity_g_per_kwh"].as_f64());
        assert!(values.into_iter().all(|v| v.is_some_and(|v| v >= 100.0)), "{plan}");
        let costs = plan["segments"].as_array().expect("segments").iter().map(|s| &s["marginal_costs"]);
        let costs: Vec<_> = costs.filter(|costs| !costs.is_null()).collect();
        assert!(!costs.is_empty(), "{plan}");
        for costs in costs {
            let cost = costs["plan"].as_f64().expect("a cost");
            let is_best = |slower: Option<f64>, faster: Option<f64>| {
                slower.is_none_or(|slower| slower <= cost * 1.001) && faster.is_none_or(|faster| faster >= cost * 0.999)
            };
            assert!(is_best(costs["slower"].as_f64(), costs["faster"].as_f64()), "{plan}");
        }
    };
    spell(MAPS, 6, true).await;
    case.maps.close().await;
    daemon.carbon_where("the second source", |c| c["source"] == UK).await;
    spell(UK, 6, false).await;
    // What the first one said last is still valid.
    case.uk.close().await;
    daemon.carbon_where("the first one's old forecast", |c| c["source"] == MAPS && c["freshness"] == "stale").await;
    spell(MAPS, 6, true).await;
    assert_eq!(daemon.phase(&id, "planned").await["phase"], "planned");
    assert!(training.stop().await.iter().all(|a| a["phase"].is_string()));
}

const NAME: &str = "us3r-of-a-file";
const PASSWORD: &str = "p4ssw0rd-of-a-file";
const TOKEN: &str = "t0ken-of-a-session";
const MAPS_KEY: &str = "k3y-of-a-file";
const GATEWAY: &str = "g4teway-of-the-environment";

/// An average source before a marginal one, with keys from files and the environment.
struct Kinds {
    driver: FakeDriver,
    state: tempfile::TempDir,
    maps: Grid,
    watttime: Grid,
}

impl Kinds {
    async fn start() -> (Self, Daemon) {
        let marginal = Weather::steady(800.0);
        let first = Grid::start(maps(&Weather::steady(120.0))).await;
        let second = Grid::start(move |asked| marginal.watttime(asked, TOKEN)).await;
        let case = Self {
            driver: FakeDriver::new(&[json!({})]),
            state: tempfile::tempdir().expect("a directory"),
            maps: first,
            watttime: second,
        };
        let secrets = tempfile::tempdir_in(case.driver.dir()).expect("a directory").keep();
        let file = |name: &str, text: &str| {
            std::fs::write(secrets.join(name), format!("{text}\n")).expect("written");
            secrets.join(name).display().to_string()
        };
        let settings = format!(
            "[log]\nlevel = \"trace\"\n{}[carbon]\nsource = [\"{MAPS}\", \"watttime\"]\nzone = \"GB\"\npoll_interval_s = 1\n\
             [carbon.{MAPS}]\nbase_url = \"{}\"\nkey_file = \"{}\"\n{MANY}\n\
             headers = {{ \"X-Gateway\" = \"env:WATTUNE_GATEWAY\" }}\n\
             [carbon.watttime]\nzone = \"CAISO_NORTH\"\nbase_url = \"{}\"\nusername_file = \"{}\"\npassword_env = \
             \"WATTUNE_PASSWORD\"\n{MANY}\n",
            Daemon::QUICK,
            case.maps.url(),
            file("maps.key", MAPS_KEY),
            case.watttime.url(),
            file("user", NAME),
        );
        let mut command = Daemon::command_set(&case.driver, case.state.path(), &settings);
        command.env("WATTUNE_GATEWAY", GATEWAY).env("WATTUNE_PASSWORD", PASSWORD);
        let daemon = Daemon::start(command, case.state.path()).await;
        (case, daemon)
    }
}

#[tokio::test]
async fn another_kind_of_signal_is_followed_by_its_name_and_mixed_with_none() {
    let (mut case, daemon) = Kinds::start().await;
    let good = follows(&daemon, MAPS, 120.0).await;
    assert_eq!((text(&good, "kind"), text(&good, "scope")), ("average", "lifecycle"), "{good:#}");
    case.maps.close().await;
    let over = daemon.carbon_where("the marginal source", |c| c["source"] == "watttime").await;
    assert_eq!((text(&over, "kind"), text(&over, "scope")), ("marginal", "operational"), "{over:#}");
    let value = over["intensity_g_per_kwh"].as_f64().expect("a value");
    assert!((value - 800.0).abs() < 0.1, "{over:#}");
    assert_eq!((text(&over["sources"][0], "kind"), text(&over["sources"][1], "kind")), ("average", "marginal"));
    // The ledger go on in the first kind, as far as it was forecast.
    let history = daemon.get("/v1/carbon/history?hours=30").await.expect(200);
    let slots = history.as_array().expect("slots");
    assert!(slots.len() >= 24 && slots.iter().all(|s| s["intensity_g_per_kwh"] == 120.0), "{history:#}");
    nothing_reads_as_zero(&daemon).await;
}

/// Answers with all that it was told to keep for itself.
fn blabs(asked: &Asked) -> Said {
    let sent = ["auth-token", "x-gateway", "authorization"].iter().filter_map(|h| asked.header(h));
    let message = sent.collect::<Vec<_>>().join(" or ");
    let status = if asked.path.contains("/login") { 403 } else { 500 };
    Said::status(status, &json!({ "error": format!("what is {message}?") }).to_string())
}

#[tokio::test]
async fn secrets_stay_with_their_source() {
    let (case, daemon) = Kinds::start().await;
    let reported = |c: &Value| c["source"] == MAPS && c["sources"][1]["fetched_at"].is_string();
    daemon.carbon_where("both sources", reported).await;
    // They were sent, or there would be nothing to find.
    let (first, second) = (case.maps.asked(), case.watttime.asked());
    assert!(first.iter().all(|a| a.header("auth-token") == Some(MAPS_KEY) && a.header("x-gateway") == Some(GATEWAY)));
    let login = second.iter().find(|a| a.path.starts_with("/login")).and_then(|a| a.header("authorization"));
    let basic = login.and_then(|l| l.strip_prefix("Basic ")).expect("a login").to_owned();
    assert!(second.iter().any(|a| a.header("authorization") == Some(&format!("Bearer {TOKEN}"))));

    case.maps.say(blabs);
    case.watttime.say(blabs);
    let fails = |c: &Value| c["sources"].as_array().is_some_and(|s| s.iter().all(|s| s["last_error"].is_string()));
    let failing = daemon.carbon_where("both fail", fails).await;
    let mut seen = vec![("the signal".to_owned(), failing.to_string())];
    for path in ["/v1/carbon", "/v1/status", "/v1/carbon/forecast", "/v1/carbon/history?hours=30", "/metrics"] {
        seen.push((path.to_owned(), daemon.get(path).await.text));
    }
    seen.push(("the log".to_owned(), daemon.log()));
    assert!(seen.last().is_some_and(|(_, log)| log.contains("TRACE")), "all of it is looked at");
    assert!(daemon.stop("TERM").await.success());
    for entry in std::fs::read_dir(case.state.path()).expect("readable") {
        let path = entry.expect("readable").path();
        let bytes = std::fs::read(&path).expect("readable");
        seen.push((path.display().to_string(), String::from_utf8_lossy(&bytes).into_owned()));
    }
    assert!(seen.iter().any(|(place, _)| place.ends_with("wattune.db")) && seen.len() > 9, "all files are looked at");
    for (place, text) in &seen {
        for secret in [MAPS_KEY, GATEWAY, NAME, PASSWORD, TOKEN, &basic] {
            let near = text.find(secret).map(|at| text[at.saturating_sub(100)..].chars().take(200).collect::<String>());
            assert_eq!(near, None, "{secret} is in {place}");
        }
    }
}
