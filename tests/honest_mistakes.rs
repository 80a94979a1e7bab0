//! Honest mistakes of somebody who follows the README: each is refused or warned of in words that name what was most likely
//! meant. One table for each place where they are made.

use std::path::Path;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use serde_json::{Value, json};

use crate::support::{Daemon, Ended, FakeDriver, LONG, Training, eventually, wattune};

/// A daemon over four simulated GPUs.
async fn simulated(state: &Path) -> Daemon {
    let config = state.join("test.toml");
    let settings =
        "[control]\ntick_s = 0.1\ninterval_s = 1\n[gpus.simulated]\nboards = 8\n[http]\nloopback_control = true\n";
    std::fs::write(&config, settings).expect("written");
    let mut command = wattune(&["serve", "--gpus", "simulated", "--listen", "127.0.0.1:0"]);
    command.arg("--config").arg(config).arg("--state-dir").arg(state);
    Daemon::start(command, state).await
}

#[test]
fn mistakes_in_settings_and_variables_are_named() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("wattune.toml");
    let table = [
        ("[control]\nobseve = true\n", "2:1: unknown key `obseve`", "did you mean `observe`?"),
        ("[crabon]\nzone = \"DE\"\n", "1:2: unknown key `crabon`", "did you mean `carbon`?"),
        ("[gpus]\nbackend = \"simulate\"\n", "2:11: unknown value", "did you mean `simulated`?"),
        ("[cap]\nlimit_pct = 0.8\n", "2:1: limit_pct is 0.8", "for 80 % write 80"),
        (
            "[[cap.events]]\nid = \"a\"\nstart = \"2026-12-01T17:00:00Z\"\nend = \"2026-12-01T18:00:00Z\"\ntarget_pct = 0.6\n",
            "target_pct is 0.6",
            "for 60 % write 60",
        ),
        ("[cap]\nlimit_w = 2000000\n", "2:1: limit_w is 2000000", "in milliwatts: 2000 watts"),
        (
            "[cap]\nschedule = [{ from = \"17:00\", to = \"20:00\", limit_w = 900000 }]\n",
            "2:45: schedule[0].limit_w is 900000",
            "in milliwatts: 900 watts",
        ),
        (
            "[[cap.events]]\nid = \"a\"\nstart = \"2026-12-01T17:00:00Z\"\nend = \"2026-12-01T18:00:00Z\"\ntarget_w = 900000\n",
            "target_w is 900000",
            "in milliwatts: 900 watts",
        ),
        ("[profile]\nlowest_w = 150000\n", "2:1: lowest_w is 150000", "in milliwatts: 150 watts"),
        ("[profile]\nlowest_w = 0.15\n", "2:1: lowest_w = 0.15", "in kilowatts?"),
        ("[profile]\nstep_w = 25000\n", "2:1: step_w = 25000", "in milliwatts: 25 watts"),
        (
            "[ledger]\ncontract_g_per_kwh = 0.035\ncontract_source = \"a\"\n",
            "2:1: contract_g_per_kwh is 0.035",
            "0.035 kg/kWh are 35 g/kWh",
        ),
        ("[carbon]\nfallback_g_per_kwh = 0.475\n", "2:22: ", "0.475 kg/kWh are 475 g/kWh"),
        ("[carbon.fixed]\ng_per_kwh = 0.38\n", "2:13: ", "0.38 kg/kWh are 380 g/kWh"),
        (
            "[ledger]\nembodied_per_gpu_g = 318.0\nembodied_life_years = 5.0\nembodied_source = \"a\"\n",
            "2:1: embodied_per_gpu_g = 318",
            "for 318 kg write 318000",
        ),
        ("[carbon.file]\ntime_zone = \"Europe/Berln\"\n", "2:13: ", "did you mean \"Europe/Berlin\"?"),
        ("[carbon.file]\ntime_zone = \"Europe/Berlin\"\nassume_utc = true\n", "", "remove one of them"),
        ("[carbon.file]\nunit = \"kg\"\n", "2:8: unknown value", "`kg_per_kwh`"),
        ("[price.file]\nunit = \"kg_per_kwh\"\n", "", "\"cents_per_kwh\""),
        ("[log]\nlevel = \"inof\"\n", "2:1: ", "did you mean \"info\"?"),
        ("[log]\nlevel = \"verbose\"\n", "\"verbose\" is no log level", "error, warn, info, debug or trace"),
        ("[profile]\nstandard_error = 3\n", "standard_error = 3", "0.05 is 5 %"),
        ("[profile]\ndrift = 5\n", "drift = 5", "0.05 is 5 %"),
    ];
    for (text, place, meant) in table {
        std::fs::write(&file, text).expect("written");
        let path = file.to_str().expect("UTF-8");
        let ended = Ended::of(&mut wattune(&["doctor", "--gpus", "simulated", "--config", path]));
        assert_eq!(ended.code, Some(1), "{text}: {ended:?}");
        assert!(ended.out.starts_with("BROKEN   configuration: "), "{text}: {ended:?}");
        assert!(ended.out.contains(place) && ended.out.contains(meant), "{text}: {}", ended.out);
    }
    let variables = [
        ("WATTUNE_ZNOE", "did you mean WATTUNE_ZONE?"),
        ("WATTUNE_STATEDIR", "did you mean WATTUNE_STATE_DIR?"),
        ("wattune_zone", "did you mean WATTUNE_ZONE?"),
        ("WATTUEN_ZONE", "did you mean WATTUNE_ZONE?"),
    ];
    for (name, meant) in variables {
        for command in ["serve", "restore", "carbon"] {
            let state = dir.path().join("state");
            let state = state.to_str().expect("UTF-8");
            let ended = Ended::of(wattune(&[command, "--gpus", "simulated", "--state-dir", state]).env(name, "DE"));
            let error = ended.failed(1);
            assert!(error.contains(name) && error.contains(meant), "{command} with {name}: {error}");
        }
    }
    std::fs::write(&file, "[carbon]\nzone = \"13.40,52.52\"\n").expect("written");
    let swapped =
        Ended::of(&mut wattune(&["doctor", "--gpus", "simulated", "--config", file.to_str().expect("UTF-8")]));
    assert!(swapped.out.contains("latitude comes first: if 13.40,52.52"), "{}", swapped.out);
    let far =
        Ended::of(wattune(&["doctor", "--gpus", "simulated"]).env("WATTUNE_COLOUR", "red").env("WATTUNE_PORT", "1"));
    assert!(far.out.contains("WATTUNE_COLOUR is set but unused"), "{}", far.out);
    assert!(!far.out.contains("WATTUNE_PORT"), "{}", far.out);
}

/// No forecast is followed for a zone that no source covers, and nobody who set one wants that.
#[tokio::test]
async fn a_zone_without_a_source_is_a_problem() {
    let dir = tempfile::tempdir().expect("a directory");
    for (zone, meant) in [("Germny", "is no zone that wattune knows"), ("13.40,52.52", "latitude comes first")] {
        let (state, file) = (dir.path().join(zone), dir.path().join("wattune.toml"));
        std::fs::create_dir(&state).expect("made");
        std::fs::write(&file, format!("[gpus]\nbackend = \"simulated\"\n[carbon]\nzone = \"{zone}\"\n"))
            .expect("written");
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_wattune"));
        command.args(["serve", "--listen", "127.0.0.1:0", "--config"]).arg(&file).arg("--state-dir").arg(&state);
        let daemon = Daemon::start(command, &state).await;
        let problems = daemon.problems().await;
        assert!(problems.contains("carbon signal: ") && problems.contains(meant), "{problems}");
        assert!(daemon.log().contains(meant), "{}", daemon.log());
        let doctor = Ended::of(wattune(&["doctor", "--listen", "127.0.0.1:0", "--config"]).arg(&file));
        let signal: Vec<&str> = doctor.out.lines().filter(|line| line.contains("carbon signal")).collect();
        assert!(matches!(signal[..], [line] if line.starts_with("limited")), "{}", doctor.out);
        assert_eq!(daemon.stop("TERM").await.code(), Some(0));
    }
}

#[test]
fn a_daemon_that_is_named_and_does_not_answer_is_an_error() {
    let ended = Ended::of(&mut wattune(&["carbon", "--listen", "127.0.0.1:1"]));
    let error = ended.failed(1);
    assert!(error.contains("no wattune daemon answers at 127.0.0.1:1"), "{error}");
}

#[test]
fn a_state_directory_that_is_not_the_daemons_is_named() {
    let driver = FakeDriver::new(&[json!({})]);
    let dir = tempfile::tempdir().expect("a directory");
    let none = dir.path().join("none");
    let none = none.to_str().expect("UTF-8");
    for format in ["table", "json"] {
        let ended = Ended::with_driver(&driver, &["restore", "--state-dir", none, "--format", format]);
        let error = ended.failed(1);
        assert!(error.contains(&format!("no state directory {none}")) && error.contains("--state-dir"), "{error}");
        assert!(ended.out.is_empty() && !Path::new(none).exists(), "{ended:?}");
    }
    let empty = Ended::with_driver(&driver, &["restore", "--state-dir", dir.path().to_str().expect("UTF-8")]);
    assert!(empty.done().contains("is it the daemon's directory?"), "{empty:?}");
}

fn hours(header: &str, separator: &str, values: &[&str], form: &str) -> String {
    let start = crate::support::now() - TimeDelta::minutes(90);
    let row = |(i, value): (i64, &&str)| {
        let at: DateTime<Utc> = start + TimeDelta::hours(i);
        format!("{}{separator}{value}\n", at.format(form))
    };
    format!("{header}\n{}", (0..).zip(values).map(row).collect::<String>())
}

#[test]
fn mistakes_in_carbon_files_are_named() {
    let dir = tempfile::tempdir().expect("a directory");
    let (file, config) = (dir.path().join("carbon.csv"), dir.path().join("wattune.toml"));
    let signal = |settings: &str| {
        std::fs::write(&config, format!("[carbon.file]\n{settings}")).expect("written");
        let of = |path: &Path| path.to_str().expect("UTF-8").to_owned();
        let state = dir.path().join("state");
        let (file, config, state) = (of(&file), of(&config), of(&state));
        let arguments =
            ["doctor", "--format", "json", "--gpus", "simulated", "--config", &config, "--carbon-file", &file];
        let findings = Ended::of(wattune(&arguments).args(["--state-dir", &state, "--listen", "127.0.0.1:0"])).json();
        let found = findings.as_array().expect("findings").iter().find(|f| f["what"] == "carbon signal").cloned();
        let found = found.expect("looked at");
        (
            found["verdict"].as_str().expect("reported").to_owned(),
            found["detail"].as_str().expect("reported").to_owned(),
        )
    };
    let (utc, local) = ("%FT%TZ", "%F %T");
    let wrong = [
        (hours("time,value", ",", &["0.369", "0.412", "0.4"], utc), "", "look like kg_per_kwh"),
        (
            hours("time,kgCO2/kWh", ",", &["0.369", "0.412", "0.4"], utc),
            "value_column = \"kgCO2/kWh\"\n",
            "unit = \"kg_per_kwh\"",
        ),
        (
            hours("time,lb/MWh", ",", &["812", "790", "801"], utc),
            "value_column = \"lb/MWh\"\n",
            "unit = \"lb_per_mwh\"",
        ),
        (hours("time,value", ",", &["369", "412", "400"], local), "", "carbon.file.time_zone"),
        (hours("time,value", ",", &["369,1", "412,2", "400,3"], utc), "", "if numbers have decimal commas"),
        (hours("time;value", ";", &["369,1", "1.234", "400,3"], utc), "", "decimal commas and others decimal points"),
        (hours("time;value", ";", &["1.369,1", "412", "400,3"], utc), "", "nothing between thousands"),
        (hours("timestmp,value", ",", &["369"], utc), "", "among \"timestmp\", \"value\""),
        (hours("time,value", ",", &["369"], "%m/%d/%Y %H:%M"), "", "day or month may come first"),
        ("root:$6$hunter2:19000:0:99999:7:::\n".to_owned(), "", "no column for time"),
    ];
    for (text, settings, meant) in &wrong {
        std::fs::write(&file, text).expect("written");
        let (verdict, detail) = signal(settings);
        assert!(verdict == "limited" && detail.contains(meant), "{text:?}: {verdict}: {detail}");
        assert!(!detail.contains("hunter2"), "{detail}");
    }
    // A grid may be free of carbon for hours, so this is noted and not refused.
    std::fs::write(&file, hours("time,value", ",", &["0", "0", "0"], utc)).expect("written");
    let (_, detail) = signal("");
    assert!(detail.contains("all values are 0; is this the right column"), "{detail}");
    let right = [
        (hours("time,value", ",", &["0.369", "0.369", "0.369"], utc), "unit = \"kg_per_kwh\"\n"),
        (hours("time,value", ",", &["369", "369", "369"], local), "time_zone = \"UTC\"\n"),
        (hours("time;value", ";", &["369,0", "369", "369"], utc), ""),
        (hours("time;value", ";", &["369,0", "369", "369"], "%d.%m.%Y %H:%M"), "time_zone = \"+00:00\"\n"),
        (hours("sep=;\ntime;value", ";", &["369,0", "369", "369"], utc), ""),
    ];
    for (text, settings) in &right {
        std::fs::write(&file, text).expect("written");
        let (verdict, detail) = signal(settings);
        assert!(verdict == "good" && detail.contains("369 gCO2e/kWh"), "{text:?}: {verdict}: {detail}");
    }
    std::fs::remove_file(&file).expect("removed");
    assert!(std::process::Command::new("mkfifo").arg(&file).status().expect("mkfifo runs").success());
    let (verdict, detail) = signal("");
    assert!(verdict == "limited" && detail.contains("a named pipe"), "{verdict}: {detail}");
}

/// What is sent, and field and words of the refusal.
type Refused = (&'static str, &'static str, Value, &'static str, &'static str);

#[tokio::test]
async fn mistakes_in_requests_are_named() {
    let state = tempfile::tempdir().expect("a directory");
    let daemon = simulated(state.path()).await;
    let job = |more: Value| {
        let mut job = json!({"name": "a", "gpus": [0], "work": {"total_samples": 1e6}});
        job.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        job
    };
    let wishes = |more: Value| job(json!({"objective": more}));
    let spec = |more: Value| {
        let mut spec = crate::recurring::spec();
        spec.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        spec
    };
    let event = |more: Value| {
        let mut event = json!({"id": "e", "start": "2998-12-01T17:00:00Z", "end": "2998-12-01T18:00:00Z"});
        event.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        event
    };
    let (jobs, events, recurring) = ("/v1/jobs", "/v1/demand-response", "/v1/recurring/a");
    let table: Vec<Refused> = vec![
        ("POST", jobs, wishes(json!({"max_slowdown": 3})), "objective.max_slowdown", "for 3 % write 0.03"),
        ("POST", jobs, wishes(json!({"max_slowdown": 1})), "objective.max_slowdown", "for 1 % write 0.01"),
        ("POST", jobs, wishes(json!({"eta": 50})), "objective.eta", "for 50 % write 0.5"),
        ("POST", jobs, wishes(json!({"deadline": "2026-12-01"})), "objective.deadline", "lacks a time of day"),
        ("POST", jobs, wishes(json!({"price_weight": 30})), "objective.price_weight", "for 30 % write 0.3"),
        ("POST", jobs, wishes(json!({"deadline": "+10000-01-01T00:00:00Z"})), "objective.deadline", "from 1 to 9999"),
        ("POST", jobs, wishes(json!({"deadline": 1_796_000_000})), "objective.deadline", "RFC 3339"),
        (
            "POST",
            jobs,
            wishes(json!({"max_slowdown": 0.1, "pausable": {"idle_power_w": 50_000}})),
            "objective.pausable.idle_power_w",
            "in milliwatts?",
        ),
        ("POST", jobs, job(json!({"gpu": 0})), "gpu", "did you mean `gpus`?"),
        ("POST", jobs, job(json!({"objectve": {}})), "objectve", "did you mean `objective`?"),
        ("POST", jobs, wishes(json!({"max_slowdwn": 0.03})), "objective.max_slowdwn", "did you mean `max_slowdown`?"),
        ("POST", jobs, job(json!({"lease_s": 3_600_000})), "lease_s", "from 1 to 86400 seconds"),
        ("POST", jobs, job(json!({"name": "\u{a0}"})), "name", "all blank"),
        ("POST", jobs, job(json!({"name": "\u{301}\u{302}"})), "name", "all blank"),
        ("POST", jobs, job(json!({"name": "\u{2800}"})), "name", "all blank"),
        ("POST", jobs, job(json!({"name": " resnet50"})), "name", "none at either end"),
        ("POST", jobs, job(json!({"name": "resnet50 "})), "name", "none at either end"),
        ("POST", jobs, job(json!({"name": "resnet\u{a0}50"})), "name", "no spaces but the plain one"),
        ("POST", events, event(json!({"target_pct": 0.6})), "target_pct", "for 60 % write 60"),
        (
            "POST",
            events,
            event(json!({"target_w": 900, "rebound_pct": 0.9, "rebound_s": 60})),
            "rebound_pct",
            "for 90 % write 90",
        ),
        ("POST", events, event(json!({"target_w": 900_000})), "target_w", "in milliwatts: 900 watts"),
        (
            "POST",
            events,
            event(json!({"target_w": 900, "rebound_w": 1_200_000, "rebound_s": 60})),
            "rebound_w",
            "in milliwatts: 1200 watts",
        ),
        ("POST", events, event(json!({"target_pct": 60, "end": "2001-01-01T00:00:00Z"})), "end", "not after start"),
        ("PUT", recurring, spec(json!({"max_power_w": 300_000})), "max_power_w", "in milliwatts: 300 watts"),
        ("PUT", recurring, spec(json!({"max_power_w": 0.3})), "max_power_w", "kilowatts"),
        (
            "PUT",
            recurring,
            spec(json!({"objective": "carbon", "reference_g_per_kwh": 0.4})),
            "reference_g_per_kwh",
            "0.4 kg/kWh are 400 g/kWh",
        ),
        ("PUT", recurring, spec(json!({"eta": 50})), "eta", "from 0 (time alone) to 1"),
        ("PUT", recurring, spec(json!({"lease_s": 3_600_000})), "lease_s", "milliseconds"),
        (
            "PUT",
            recurring,
            spec(json!({"batch_sizes": (1..2_001).collect::<Vec<_>>()})),
            "batch_sizes",
            "from 1 to 100",
        ),
        ("PUT", "/v1/gpus/0/power-limit", json!({"power_limit_w": 225_000, "ttl_s": 60}), "power_limit_w", "300"),
        ("GET", "/v1/recurring/a/trials?after=%2B1", Value::Null, "after", "in digits"),
        ("GET", "/v1/recurring/a/trials?after=4294967296", Value::Null, "after", "within its bounds"),
        ("GET", "/v1/ledger?after=9223372036854775808", Value::Null, "after", "not the number of an interval"),
        ("GET", "/v1/jobs?limt=5", Value::Null, "limt", "did you mean `limit`?"),
    ];
    for (method, path, body, field, meant) in &table {
        let answer = match *method {
            "POST" => daemon.post(path, body).await,
            "PUT" => daemon.put(path, body).await,
            _ => daemon.get(path).await,
        };
        let problem = answer.problem(422);
        assert_eq!(problem["field"].as_str().unwrap_or_default(), *field, "{path} {body}: {problem}");
        assert!(problem["detail"].as_str().expect("reported").contains(meant), "{path} {body}: {problem}");
    }
    let long = format!("/v1/recurring?after={}", "a".repeat(129));
    assert_eq!(daemon.get(&long).await.problem(422)["field"], "after");
    assert_eq!(daemon.get(jobs).await.expect(200), json!([]));
    // What a node may be asked for at another time is taken, and warned of.
    daemon.post(events, &event(json!({"target_w": 40_000}))).await.expect(201);
    let problems = daemon.problems().await;
    assert!(problems.contains("event e changes nothing") && problems.contains("in milliwatts?"), "{problems}");
}

#[tokio::test]
async fn reports_that_count_something_else_are_warned_of() {
    let state = tempfile::tempdir().expect("a directory");
    let daemon = simulated(state.path()).await;
    /// The report at a time since the beginning, in seconds.
    type Reports = fn(f64) -> Value;
    let table: [(Value, Reports, &str); 6] = [
        (json!({}), |_| json!({"samples": 256}), "is the count of each step reported?"),
        (json!({}), |t| json!({"samples": 300.0 * t + 1.0, "at_s": 1000.0 * t}), "are these milliseconds?"),
        (
            json!({"work": {"total_samples": 90}}),
            |t| json!({"samples": 300.0 * t + 1.0}),
            "work.total_samples count the same?",
        ),
        (json!({"work": {"total_samples": 1e12}}), |t| json!({"samples": t}), "Are steps or epochs reported?"),
        (json!({"lease_s": 60_000}), |t| json!({"samples": 300.0 * t}), "lease_s is in seconds"),
        (
            json!({"work": {"total_samples": 1e6}, "objective": {"deadline": "2001-01-01T00:00:00Z"}}),
            |t| json!({"samples": 300.0 * t}),
            "the deadline 2001-01-01T00:00:00Z will be missed by",
        ),
    ];
    let mut ids = Vec::new();
    for (gpu, (more, ..)) in table.iter().enumerate() {
        let mut job = json!({"name": format!("job {gpu}"), "gpus": [gpu]});
        job.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        ids.push(daemon.register(&job).await);
    }
    ids.push(daemon.register(&json!({"name": "right", "gpus": [7], "work": {"total_samples": 1e6}})).await);
    let begun = crate::support::now();
    let mut missing: Vec<usize> = (0..table.len()).collect();
    let mut unasked = Value::Null;
    for _ in 0..LONG.as_millis() / 200 {
        let t = (crate::support::now() - begun).as_seconds_f64();
        for (job, (_, report, meant)) in table.iter().enumerate() {
            let answer = daemon.post(&format!("/v1/jobs/{}/progress", ids[job]), &report(t)).await.expect(200);
            if answer["warnings"].to_string().contains(meant) {
                missing.retain(|m| *m != job);
            }
        }
        let right = json!({"samples": 300.0 * t, "at_s": t});
        unasked = daemon.post(&format!("/v1/jobs/{}/progress", ids[6]), &right).await.expect(200)["warnings"].clone();
        if missing.is_empty() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    assert!(missing.is_empty(), "not warned of: {:?}", missing.iter().map(|m| table[*m].2).collect::<Vec<_>>());
    assert_eq!(unasked, json!([]), "nothing is wrong with that one");
    let falling = daemon.post(&format!("/v1/jobs/{}/progress", ids[0]), &json!({"samples": 100})).await.problem(422);
    assert!(falling["detail"].as_str().expect("reported").contains("not that of a step or an epoch"), "{falling}");
    // What reports look like stays told.
    for gpu in [0, 1, 2] {
        let account = daemon.delete(&format!("/v1/jobs/{}", ids[gpu])).await.expect(200);
        assert!(account["warnings"].to_string().contains(table[gpu].2), "{gpu}: {account}");
        let ended = daemon.get(&format!("/v1/jobs/{}", ids[gpu])).await.expect(200);
        assert_eq!((&ended["warnings"], &ended["broken_promises"]), (&account["warnings"], &json!(0)), "{ended}");
    }
    let again = daemon.delete(&format!("/v1/jobs/{}", ids[0])).await.problem(409);
    let detail = again["detail"].as_str().expect("reported");
    assert!(detail.contains("has already ended") && detail.contains("/emissions"), "{again}");
    // A deadline that was missed stays told.
    let late = daemon.delete(&format!("/v1/jobs/{}", ids[5])).await.expect(200);
    assert!(late["warnings"].to_string().contains("was missed by"), "{late}");
    let ended = daemon.get(&format!("/v1/jobs/{}", ids[5])).await.expect(200);
    assert_eq!(ended["broken_promises"], 1, "{ended}");
}

#[tokio::test]
async fn one_report_with_another_clock_does_not_lock_a_job() {
    let state = tempfile::tempdir().expect("a directory");
    let daemon = simulated(state.path()).await;
    let table: [(f64, &str); 4] = [
        (1.79e9, "is this Unix time?"),
        (22_000.0, "are these milliseconds?"),
        (22e6, "are these microseconds?"),
        (1.79e12, "is this Unix time in milliseconds?"),
    ];
    for (gpu, (wrong, meant)) in table.into_iter().enumerate() {
        // In the middle it is refused.
        let id = daemon.register(&json!({"name": format!("middle {gpu}"), "gpus": [gpu]})).await;
        let path = format!("/v1/jobs/{id}/progress");
        for at in [20.0, 21.0] {
            daemon.post(&path, &json!({"samples": 10.0 * at, "at_s": at})).await.expect(200);
        }
        let refused = daemon.post(&path, &json!({"samples": 215, "at_s": wrong})).await.problem(422);
        assert!(refused["detail"].as_str().expect("reported").contains(meant), "{wrong}: {refused}");
        daemon.post(&path, &json!({"samples": 220, "at_s": 22.0})).await.expect(200);
        daemon.delete(&format!("/v1/jobs/{id}")).await.expect(200);
    }
    // At the beginning there is nothing to compare it with: the clock begins anew, and that is told.
    let id = daemon.register(&json!({"name": "first", "gpus": [5]})).await;
    let path = format!("/v1/jobs/{id}/progress");
    daemon.post(&path, &json!({"samples": 200, "at_s": 1.79e9})).await.expect(200);
    let right = daemon.post(&path, &json!({"samples": 210, "at_s": 21.0})).await.expect(200);
    assert!(right["warnings"].to_string().contains("is this Unix time?"), "{right}");
    daemon.post(&path, &json!({"samples": 220, "at_s": 22.0})).await.expect(200);
    let out_of_order = daemon.post(&path, &json!({"samples": 220, "at_s": 21.5})).await.problem(422);
    assert_eq!(out_of_order["field"], "at_s");
    let account = daemon.delete(&format!("/v1/jobs/{id}")).await.expect(200);
    assert!(account["warnings"].to_string().contains("is this Unix time?"), "{account}");
}

#[tokio::test]
async fn figures_of_simulated_gpus_say_so_everywhere() {
    let state = tempfile::tempdir().expect("a directory");
    let daemon = simulated(state.path()).await;
    let id = daemon.register(&json!({"name": "tried out", "gpus": [0]})).await;
    for samples in 1..20 {
        daemon.post(&format!("/v1/jobs/{id}/progress"), &json!({"samples": 100 * samples})).await.expect(200);
        tokio::time::sleep(Duration::from_millis(150)).await;
    }
    let account = daemon.delete(&format!("/v1/jobs/{id}")).await.expect(200);
    assert_eq!(account["simulated"], true, "{account}");
    let report = eventually("energy in the ledger", LONG, async || {
        let report = daemon.get("/v1/report").await.expect(200);
        (report["total"]["energy_j"].as_f64()? > 0.0).then_some(report)
    })
    .await;
    assert_eq!(report["simulated"], true, "{report}");
    assert_eq!(report["total"]["energy_simulated_j"], report["total"]["energy_j"]);
    let page = daemon.get("/v1/report?format=html").await.text;
    assert!(page.contains("simulated GPUs: no hardware used it"), "{page}");
    let csv = daemon.get("/v1/report?format=csv").await.text;
    assert!(csv.lines().next().expect("names").contains("energy_simulated_j"), "{csv}");
    daemon.stop("TERM").await;
    let state = state.path().to_str().expect("UTF-8");
    let svg = format!("{state}/../badge-{}.svg", std::process::id());
    let table: [(&[&str], &str); 4] = [
        (&["report"], "simulated GPUs: no hardware used it"),
        (&["report", "--format", "markdown"], "simulated GPUs: no hardware used it"),
        (&["report", "--format", "html"], "simulated GPUs: no hardware used it"),
        (&["report", "badge", "--name", "tried out", "--svg", &svg], "simulated GPUs: no hardware used it"),
    ];
    for (arguments, part) in table {
        let ended = Ended::of(wattune(arguments).args(["--state-dir", state]));
        assert!(ended.done().contains(part), "{arguments:?}: {}", ended.out);
    }
    let badge = std::fs::read_to_string(&svg).expect("written");
    std::fs::remove_file(&svg).expect("removed");
    assert!(badge.contains("simulated GPUs"), "{badge}");
}

#[tokio::test]
async fn a_trial_that_ends_without_an_epoch_says_what_it_counts_as() {
    let state = tempfile::tempdir().expect("a directory");
    let daemon = simulated(state.path()).await;
    daemon.put("/v1/recurring/a", &crate::recurring::spec()).await.expect(201);
    let trials = "/v1/recurring/a/trials";
    daemon.post(trials, &json!({})).await.expect(201);
    let reached = json!({"epochs": 2, "energy_j": 1000, "time_s": 10, "metric": 0.7});
    assert_eq!(daemon.post(&format!("{trials}/1/progress"), &reached).await.expect(200)["reached"], true);
    daemon.post(trials, &json!({})).await.expect(201);
    let ended = daemon.post(&format!("{trials}/2/end"), &json!({"outcome": "not_reached"})).await.expect(200);
    let reason = ended["reason"].as_str().expect("reported");
    assert_eq!(ended["cost_j"], 200_000.0, "{ended}");
    for part in [
        "counts as 200000 J instead of 0 J",
        "200 times that of the cheapest",
        "completed no epoch",
        "outcome withdrawn",
    ] {
        assert!(reason.contains(part), "{part}: {reason}");
    }
}

#[tokio::test]
async fn the_first_job_of_a_few_minutes_keeps_its_slack() {
    let driver = std::sync::Arc::new(FakeDriver::new(&[json!({"demand_w": 300})]));
    let state = tempfile::tempdir().expect("a directory");
    let settings = "[control]\ntick_s = 0.1\n";
    let command = Daemon::command_with(&driver, state.path(), &FakeDriver::library(), settings);
    let daemon = Daemon::start(command, state.path()).await;
    let found = eventually("a limit", LONG, async || driver.limit_w(0)).await;
    let job =
        json!({"name": "short", "gpus": [0], "work": {"total_samples": 12_000}, "objective": {"max_slowdown": 0.03}});
    let id = daemon.register(&job).await;
    let training = Training::start(daemon.base(), &id, &driver, vec![(0, &[(100.0, 40.0), (300.0, 100.0)])], 0.0);
    tokio::time::sleep(Duration::from_secs(25)).await;
    let written = driver.limits_written(0);
    let view = daemon.get(&format!("/v1/jobs/{id}")).await.expect(200);
    training.stop().await;
    assert!(written.iter().all(|limit| *limit >= found), "{written:?}: {view}");
    assert_eq!(view["broken_promises"], 0, "{view}");
}

#[tokio::test]
async fn an_exceeded_budget_stays_a_warning_beside_others() {
    let driver = std::sync::Arc::new(FakeDriver::new(&[json!({"demand_w": 400})]));
    let state = tempfile::tempdir().expect("a directory");
    let daemon = Daemon::start_with(&driver, state.path(), &[]).await;
    let objective = json!({"max_slowdown": 0.03, "carbon_budget_g": 0.001});
    let job = json!({"name": "over", "gpus": [0], "work": {"total_samples": 20_000}, "objective": objective});
    let id = daemon.register(&job).await;
    let training = Training::start(daemon.base(), &id, &driver, vec![(0, &[(100.0, 40.0), (300.0, 100.0)])], 0.0);
    daemon.phase(&id, "planned").await;
    training.stop().await;
    let path = format!("/v1/jobs/{id}/progress");
    for samples in [100_000, 100_001] {
        daemon.post(&path, &json!({"samples": samples})).await.expect(200);
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    let warnings = daemon.post(&path, &json!({"samples": 100_002})).await.expect(200)["warnings"].to_string();
    assert!(warnings.contains("work.total_samples") && warnings.contains("the carbon budget of 0.001 g"), "{warnings}");
    assert!(!warnings.contains("budget of 0 g"), "{warnings}");
}

#[tokio::test]
async fn a_promise_that_is_missed_by_little_is_reported() {
    let driver = std::sync::Arc::new(FakeDriver::new(&[json!({"demand_w": 400})]));
    let state = tempfile::tempdir().expect("a directory");
    let daemon = Daemon::start_with(&driver, state.path(), &[]).await;
    let job =
        json!({"name": "missed", "gpus": [0], "work": {"total_samples": 20_000}, "objective": {"max_slowdown": 0.001}});
    let id = daemon.register(&job).await;
    let training = Training::start(daemon.base(), &id, &driver, vec![(0, &[(100.0, 40.0), (300.0, 100.0)])], 0.0);
    daemon.phase(&id, "planned").await;
    // Somebody lowers the limit for some seconds: a fraction of a point of the job's time.
    daemon.hold(&driver, 0, 200.0).await;
    let missed = eventually("a broken promise", LONG, async || {
        let view = daemon.get(&format!("/v1/jobs/{id}")).await.json();
        (view["broken_promises"].as_u64()? > 0).then_some(view)
    })
    .await;
    assert!(missed["warnings"].to_string().contains("slowdown budget"), "{missed}");
    training.stop().await;
    let account = daemon.delete(&format!("/v1/jobs/{id}")).await.expect(200);
    assert!(account["warnings"].to_string().contains("slowdown budget"), "{account}");
    let ended = daemon.get(&format!("/v1/jobs/{id}")).await.expect(200);
    assert_eq!((&ended["broken_promises"], &ended["warnings"]), (&json!(1), &account["warnings"]), "{ended}");
}
