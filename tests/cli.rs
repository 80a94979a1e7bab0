//! The command line: help, errors that say what to do, and exit codes: 0 done, 1 failed, 2 wrong use.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde_json::{Value, json};

use crate::support::{Daemon, Ended, FakeDriver, LONG, eventually, wattune};

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

#[test]
fn every_command_explains_itself() {
    let help = Ended::of(&mut wattune(&["--help"]));
    for command in ["serve", "demo", "carbon", "status", "audit", "doctor", "restore"] {
        assert!(help.done().contains(&format!("\n  {command} ")), "{}", help.out);
        let own = Ended::of(&mut wattune(&[command, "--help"]));
        assert!(own.done().contains(&format!("Usage: wattune {command}")), "{}", own.out);
        assert!(own.out.lines().all(|l| l.chars().count() <= 120), "{}", own.out);
    }
    let version = Ended::of(&mut wattune(&["--version"]));
    assert_eq!(version.done().trim(), concat!("wattune ", env!("CARGO_PKG_VERSION")));
}

#[test]
fn wrong_use_ends_with_2_and_says_what_would_be_right() {
    let wrong: [(&[&str], &str); 19] = [
        (&[], "Usage: wattune"),
        (&["server"], "unrecognized subcommand 'server'"),
        (&["serve", "--listn", "127.0.0.1:0"], "unexpected argument '--listn'"),
        (&["serve", "--listen", "localhost"], "invalid value 'localhost'"),
        (&["serve", "--gpus", "amd"], "possible values: nvml, simulated"),
        (&["status", "--format", "yaml"], "possible values: table, json"),
        (&["status", "--listen", "127.0.0.1:1", "--socket", "/x"], "cannot be used with"),
        (&["carbon", "backtest"], "--actual <FILE>"),
        (&["carbon", "backtest", "--actual", "x", "--from", "1.7.2021"], "give a date like 2021-07-01"),
        (&["carbon", "backtest", "--actual", "x", "--horizon", "1,0"], "1..=168"),
        (&["demo", "--duration=-1"], "0 or more seconds"),
        (&["demo", "--duration", "NaN"], "0 or more seconds"),
        (&["demo", "--hours", "0"], "0.25 to 8784 hours"),
        (&["demo", "--hours", "1", "--days", "1"], "cannot be used with"),
        (&["demo", "--jobs", "0"], "1..=16"),
        (&["demo", "--noise", "0.7"], "a fraction from 0 to 0.5"),
        (&["demo", "--max-slowdown", "3%"], "0.03 allows 3 %"),
        (&["demo", "--power-trace", "x.csv"], "--workload"),
        (&["demo", "--power-trace", "x.csv", "--workload", "resnet50"], "imagenet/resnet50/128"),
    ];
    for (arguments, part) in wrong {
        let ended = Ended::of(&mut wattune(arguments));
        assert!(ended.failed(2).contains(part), "{arguments:?}: {}", ended.err);
        assert_eq!(ended.out, "", "{arguments:?}");
    }
}

#[test]
fn mistakes_in_the_configuration_are_reported_with_their_place() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("wattune.toml");
    let state = dir.path().join("state");
    let wrong = [
        ("[contrl]\n", "wattune.toml:1:2: unknown key `contrl`, expected one of `state_dir`, `gpus`, `control`"),
        ("\n[control]\n  tick = 1\n", "wattune.toml:3:3: unknown key `tick`, expected one of `observe`, `tick_s`"),
        ("[control]\ntick_s = \"1\"\n", "wattune.toml:2:10: invalid type: string \"1\", expected a number"),
        ("[control]\nobserve = 1\n", "wattune.toml:2:11: invalid type: integer `1`, expected a boolean"),
        ("[control]\ntick_s = 0\n", "wattune.toml:2:1: tick_s = 0 must be from 0.05 to 60 seconds"),
        ("[control]\ntick_s = inf\n", "wattune.toml:2:10: "),
        ("[profile]\nwindow_s = 4.5\n", "wattune.toml:2:1: window_s = 4.5 must be at least 5 s"),
        ("[gpus]\nbackend = \"amd\"\n", "unknown value `amd`, expected `nvml` or `simulated`"),
        ("[gpus.simulated]\nboards = 1.5\n", "wattune.toml:2:10: invalid type: floating point `1.5`, expected a whole"),
        ("[gpus.simulated]\nboards = 65\n", "wattune.toml:2:1: boards = 65 must be from 1 to 64"),
        (
            "[carbon]\nsource = \"uk\"\n",
            "unknown value `uk`, expected one of `auto`, `fixed`, `file`, `electricity_maps`",
        ),
        ("[carbon]\nsource = \"file\"\n", "wattune.toml:2:1: source is \"file\", but carbon.file.path is not set"),
        ("[carbon]\nfallback_g_per_kwh = -1\n", "wattune.toml:2:22: "),
        ("[carbon.file]\norigin = \"forecast\"\n", "wattune.toml:2:1: file.origin is \"forecast\"; write \"measured\""),
        (
            "[http]\nlisten = \"0.0.0.0:4938\"\n",
            "wattune.toml:2:1: listen = \"0.0.0.0:4938\" can be reached from other",
        ),
        ("[http]\nlisten = \"localhost\"\n", "wattune.toml:2:10: \"localhost\" is not an address; give IP and port"),
        ("[log]\nlevel = \"x=y=z\"\n", "wattune.toml:2:1: level = \"z\" is no log level"),
        ("[control\n", "wattune.toml:1:"),
        ("state_dir = 1\nstate_dir = 2\n", "wattune.toml:2:1: duplicate key"),
    ];
    for (content, part) in wrong {
        std::fs::write(&file, content).expect("written");
        for command in ["serve", "restore"] {
            let ended = Ended::of(&mut wattune(&[command, "--config", text(&file), "--state-dir", text(&state)]));
            assert!(ended.failed(1).contains(part), "{content:?}: {}", ended.err);
        }
        let doctor = Ended::of(&mut wattune(&["doctor", "--config", text(&file)]));
        assert_eq!(doctor.code, Some(1), "{doctor:?}");
        assert!(doctor.out.starts_with("BROKEN   configuration: ") && doctor.out.contains(part), "{doctor:?}");
    }
    assert!(!state.exists(), "nothing was begun");
    let missing = Ended::of(&mut wattune(&["serve", "--config", text(&dir.path().join("none.toml"))]));
    assert!(missing.failed(2).contains("--config: cannot read"), "{}", missing.err);
}

#[test]
fn serve_says_why_it_cannot_start() {
    let driver = FakeDriver::new(&[json!({})]);
    let dir = tempfile::tempdir().expect("a directory");
    let (state, lib) = (dir.path().join("state"), FakeDriver::library());
    let busy = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let busy = busy.local_addr().map(|a| (a.to_string(), busy)).expect("known");
    let no_library = dir.path().join("libnvidia-ml.so.1");
    let nowhere = dir.path().join("missing/wattune.sock");
    let serve = |flags: &[&str]| {
        let mut command = wattune(&["serve", "--state-dir", text(&state)]);
        Ended::of(command.args(flags).env("FAKE_NVML_DIR", driver.dir()))
    };
    let wrong: [(&[&str], &str); 5] = [
        (&["--nvml-library", text(&no_library)], text(&no_library)),
        (&["--nvml-library", text(&lib), "--listen", &busy.0], "is in use, perhaps by another wattune"),
        (&["--nvml-library", text(&lib), "--listen", "0.0.0.0:0"], "which need tokens: set token_keys"),
        (&["--nvml-library", text(&lib), "--listen", "127.0.0.1:0", "--socket", text(&nowhere)], "no directory"),
        (&["--nvml-library", text(&lib), "--state-dir", "/proc/wattune"], "cannot make the state directory"),
    ];
    for (flags, part) in wrong {
        let ended = match flags.contains(&"--state-dir") {
            true => Ended::of(wattune(&["serve"]).args(flags).env("FAKE_NVML_DIR", driver.dir())),
            false => serve(flags),
        };
        assert!(ended.failed(1).contains(part), "{flags:?}: {}", ended.err);
    }
    assert!(driver.writes().is_empty());
}

#[tokio::test]
async fn two_daemons_do_not_share_a_state_directory() {
    let driver = FakeDriver::new(&[json!({})]);
    let state = tempfile::tempdir().expect("a directory");
    let daemon = Daemon::start_with(&driver, state.path(), &[]).await;
    let second = Ended::of(&mut Daemon::command(&driver, state.path()));
    assert!(second.failed(1).contains("another wattune owns the state directory"), "{}", second.err);
    let restore = Ended::with_driver(&driver, &["restore", "--state-dir", text(state.path())]);
    assert!(restore.failed(1).contains("stop it first"), "{}", restore.err);
    assert!(daemon.stop("TERM").await.success());
}

#[tokio::test]
async fn status_shows_the_daemon_over_tcp_and_socket() {
    let driver = FakeDriver::new(&[json!({}), json!({"name": "NVIDIA Other", "oob_cap_w": 200})]);
    let state = tempfile::tempdir().expect("a directory");
    let socket = state.path().join("s.sock");
    let daemon = Daemon::start_with(&driver, state.path(), &["--socket", text(&socket)]).await;
    let id = daemon.register(&json!({"name": "resnet50", "gpus": [0]})).await;
    let address = daemon.base().trim_start_matches("http://").to_owned();
    let address = address.as_str();
    let places: [&[&str]; 2] = [&["--listen", address], &["--socket", text(&socket)]];
    for place in places {
        let table = Ended::of(wattune(&["status"]).args(place));
        for part in ["(control)", "NVIDIA Fake A40", "NVIDIA Other", &id, "resnet50", "waiting", "out-of-band cap"] {
            assert!(table.done().contains(part), "{part}: {}", table.out);
        }
        let json = Ended::of(wattune(&["status", "--format", "json"]).args(place)).json();
        assert_eq!((&json["jobs"][0]["job_id"], json["gpus"].as_array().map(Vec::len)), (&json!(id), Some(2)));
    }
    // Variables say where, too, and flags win over them.
    let nowhere = "127.0.0.1:9";
    let by_variable = [("WATTUNE_LISTEN", address), ("WATTUNE_SOCKET", text(&socket))];
    for (key, value) in by_variable {
        assert!(Ended::of(wattune(&["status"]).env(key, value)).done().contains("resnet50"));
    }
    let flag = Ended::of(wattune(&["status", "--listen", address]).env("WATTUNE_SOCKET", "/nowhere.sock"));
    assert!(flag.done().contains("resnet50"));
    let flag = Ended::of(wattune(&["status", "--listen", nowhere]).env("WATTUNE_SOCKET", &socket));
    assert!(flag.failed(1).contains(nowhere), "{}", flag.err);
    let wrong = Ended::of(wattune(&["status"]).env("WATTUNE_LISTEN", "here"));
    assert!(wrong.failed(1).contains("WATTUNE_LISTEN"), "{}", wrong.err);
    assert!(daemon.stop("INT").await.success());
    for place in places {
        let ended = Ended::of(wattune(&["status"]).args(place));
        let reported = ended.failed(1);
        assert!(
            reported.contains("no daemon answers at") && reported.contains("is `wattune serve` running"),
            "{reported}"
        );
        assert_eq!(ended.out, "");
    }
}

#[tokio::test]
async fn variables_configure_the_daemon_and_flags_win() {
    let driver = FakeDriver::new(&[json!({})]);
    let dir = tempfile::tempdir().expect("a directory");
    let carbon = crate::support::forecast_file(&dir, 60, 10, |_| 321.0);
    // Alone, the file would be refused: it names a source without its path, and an address for all the world.
    let config = dir.path().join("wattune.toml");
    std::fs::write(&config, "[carbon]\nsource = \"file\"\n[http]\nlisten = \"0.0.0.0:1\"\n").expect("written");
    let state = dir.path().join("state");
    std::fs::create_dir(&state).expect("a directory");
    let mut command = wattune(&["serve", "--listen", "127.0.0.1:0"]);
    command
        .env("FAKE_NVML_DIR", driver.dir())
        .env("WATTUNE_CONFIG", &config)
        .env("WATTUNE_GPUS", "nvml")
        .env("WATTUNE_NVML_LIBRARY", FakeDriver::library())
        .env("WATTUNE_STATE_DIR", &state)
        .env("WATTUNE_LISTEN", "127.0.0.1:1")
        .env("WATTUNE_CARBON_FILE", &carbon)
        .env("WATTUNE_OBSERVE", "yes");
    let daemon = Daemon::start(command, &state).await;
    let status = eventually("the signal", LONG, async || {
        let status = daemon.get("/v1/status").await.expect(200);
        status["carbon"]["intensity_g_per_kwh"].is_number().then_some(status)
    })
    .await;
    assert_eq!((&status["mode"], &status["carbon"]["intensity_g_per_kwh"]), (&json!("observe"), &json!(321.0)));
    assert_eq!(status["gpus"][0]["uuid"], FakeDriver::uuid(0));
    let wrong = Ended::of(wattune(&["serve"]).env("WATTUNE_GPUS", "amd"));
    assert!(wrong.failed(2).contains("possible values: nvml, simulated"), "{}", wrong.err);
}

#[test]
fn the_doctor_finds_what_works_and_what_does_not() {
    let driver = FakeDriver::new(&[json!({}), json!({"persistence": false, "energy_supported": false})]);
    let dir = tempfile::tempdir().expect("a directory");
    let state = dir.path().join("state");
    let flags = ["doctor", "--state-dir", text(&state), "--listen", "127.0.0.1:0", "--format", "json"];
    let findings = Ended::with_driver(&driver, &flags).json();
    let find = |findings: &Value, what: &str| {
        let all = findings.as_array().expect("findings");
        all.iter().find(|f| f["what"].as_str().is_some_and(|w| w.starts_with(what))).cloned()
    };
    for what in ["configuration", "GPU 0", "state in", "carbon signal", "API"] {
        assert_eq!(find(&findings, what).expect(what)["verdict"], "good", "{findings}");
    }
    let second = find(&findings, "GPU 1").expect("there")["detail"].to_string();
    assert!(second.contains("persistence mode is off") && second.contains("integrated from power"), "{second}");
    // Who is not root is told; who is, is not.
    let rights = find(&findings, "rights").is_some_and(|f| f["detail"].to_string().contains("run the daemon as root"));
    assert_eq!(rights, !wattune::config::is_root());
    assert!(driver.writes().is_empty() && !state.exists(), "it only reads");

    let none = dir.path().join("libnvidia-ml.so.1");
    let ended = Ended::of(wattune(&flags).arg("--nvml-library").arg(&none));
    assert_eq!(ended.code, Some(1));
    let findings: Value = serde_json::from_str(&ended.out).expect("JSON");
    let gpus = find(&findings, "GPUs").expect("reported");
    assert_eq!(gpus["verdict"], "broken");
    let detail = gpus["detail"].as_str().expect("reported");
    assert!(detail.contains(text(&none)) && detail.contains("--nvml-library"), "{detail}");
    let empty = FakeDriver::new(&[]);
    let ended = Ended::with_driver(&empty, &flags[..5]);
    assert_eq!(ended.code, Some(1));
    assert!(ended.out.contains("BROKEN   GPUs: the driver reports no GPU"), "{}", ended.out);
}

#[test]
fn a_wrong_call_by_slurm_is_reported_and_fails_no_job() {
    let wrong: [(&[&str], &str); 5] = [
        (
            &["prolog", "--lease", "0"],
            "wattune slurm prolog: nothing was done, since the command line is wrong: invalid value '0'",
        ),
        (
            &["epilog", "--bogus"],
            "wattune slurm epilog: nothing was done, since the command line is wrong: unexpected argument",
        ),
        (&["task-prolog", "--listen", "here"], "wattune slurm task-prolog: "),
        (&["prologue"], "wattune slurm call: "),
        (&[], "give one of prolog, epilog, task-prolog"),
    ];
    for (arguments, part) in wrong {
        let ended = Ended::of(wattune(&["slurm"]).args(arguments));
        assert_eq!((ended.code, ended.out.as_str()), (Some(0), ""), "{ended:?}");
        assert!(ended.err.contains(part) && ended.err.lines().count() == 1, "{arguments:?}: {}", ended.err);
    }
    assert!(Ended::of(&mut wattune(&["slurm", "--help"])).done().contains("Usage: wattune slurm"));
    assert!(Ended::of(&mut wattune(&["slurm", "prolog", "--help"])).done().contains("Usage: wattune slurm prolog"));
}

#[test]
fn a_daemon_without_tcp_is_looked_for_at_the_usual_socket() {
    const USUAL: &str = "/run/wattune/wattune.sock";
    if Path::new(USUAL).exists() {
        return;
    }
    let status = Ended::of(wattune(&["status"]).env("WATTUNE_LISTEN", "off"));
    assert!(status.failed(1).contains(&format!("no daemon answers at {USUAL}; is")), "{}", status.err);
    let mut run = wattune(&["run", "--", "true"]);
    let run = Ended::of(run.env("WATTUNE_LISTEN", "off").env_remove("LOCAL_RANK").env_remove("SLURM_JOB_ID"));
    run.done();
    assert!(run.err.contains(&format!("no daemon answers at {USUAL}; the command runs")), "{}", run.err);
}

#[test]
fn only_an_id_that_a_token_can_have_is_revoked() {
    let dir = tempfile::tempdir().expect("a directory");
    let (key, list) = (dir.path().join("key"), dir.path().join("key.revoked"));
    std::fs::write(&key, [7; 32]).expect("written");
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600)).expect("changed");
    let revoke = |id: &str| Ended::of(&mut wattune(&["token", "revoke", "--key", text(&key), "--id", id]));
    let id = "00112233445566778899aabbccddeeff";
    for wrong in ["a b", "a#b", ""] {
        let refused = revoke(wrong);
        assert!(refused.failed(1).contains("is no id of a token"), "{wrong}: {}", refused.err);
    }
    assert!(!list.exists());
    // Another program with the same key may write an id of this form in capitals.
    let capitals = id.to_uppercase();
    let both = revoke(&capitals);
    assert!(both.done().starts_with(&format!("revoked  {capitals}, {id}\n")), "{}", both.out);
    assert!(!both.err.contains("wattune's own"), "{}", both.err);
    let foreign = revoke("Ada-7");
    assert!(foreign.done().starts_with("revoked  Ada-7\n"), "{}", foreign.out);
    assert!(foreign.err.contains("added; wattune's own tokens never have such an id"), "{}", foreign.err);
    assert_eq!(std::fs::read_to_string(&list).expect("a list"), format!("{capitals}\n{id}\nAda-7\n"));
    let issue = ["token", "issue", "--key", text(&key), "--user", "ada", "--expires", "0"];
    assert!(Ended::of(&mut wattune(&issue)).failed(2).contains("or `never`"));
}

#[test]
fn restore_with_nothing_to_do_says_so() {
    let driver = FakeDriver::new(&[json!({})]);
    let dir = tempfile::tempdir().expect("a directory");
    let state = text(dir.path());
    let ended = Ended::with_driver(&driver, &["restore", "--state-dir", state]);
    assert!(ended.done().starts_with("nothing to restore"), "{ended:?}");
    // The driver is not even needed.
    let ended = Ended::of(&mut wattune(&["restore", "--state-dir", state, "--nvml-library", "/none.so"]));
    assert!(ended.done().starts_with("nothing to restore"), "{ended:?}");
    let json = Ended::with_driver(&driver, &["restore", "--state-dir", text(dir.path()), "--format", "json"]);
    assert_eq!(json.json(), json!([]));
    assert!(driver.writes().is_empty());
}

fn demo(more: &[&str]) -> Ended {
    Ended::of(wattune(&["demo", "--duration", "0", "--hours", "2", "--jobs", "2", "--format", "json"]).args(more))
}

#[test]
fn the_demo_gives_one_object_that_depends_on_the_seed_alone() {
    let first = demo(&["--seed", "3"]);
    let report = first.json();
    let jobs = report["jobs"].as_array().expect("jobs");
    assert_eq!((jobs.len(), &report["simulated"]), (2, &json!(true)));
    for job in jobs {
        let number = |key: &str| job[key].as_f64().unwrap_or_else(|| panic!("{key}: {job}"));
        assert!(job["name"].is_string() && number("carbon_g") > 0.0 && number("carbon_at_max_g") > 0.0, "{job}");
        assert!(number("time_s") >= number("time_at_max_s") * 0.999 && number("time_increase_pct") < 3.1, "{job}");
        let sum = number("energy_effect_pct") + number("timing_effect_pct");
        assert!((sum - number("carbon_reduction_pct")).abs() < 1e-6, "{job}");
    }
    assert_eq!(demo(&["--seed", "3"]).out, first.out);
    assert_ne!(demo(&["--seed", "4"]).out, first.out);
}

/// A recorded grid and a power trace, for the demo.
fn traces(dir: &tempfile::TempDir) -> (PathBuf, PathBuf) {
    let (grid, power) = (dir.path().join("grid.csv"), dir.path().join("summary_power_a40.csv"));
    let hours: String = (0..8).map(|h| format!("2021-01-01T0{h}:00:00Z,{}\n", 100 + 50 * h)).collect();
    std::fs::write(&grid, format!("timestamp,value\n{hours}")).expect("written");
    let rows = "d,n,8,adam,100,20,90\nd,n,8,adam,150,14,120\nd,n,8,adam,200,12,150\nd,n,16,adam,200,5,150\nd,n,16,sgd,200,4,160\n";
    let header = "dataset,network,batch_size,optimizer,power_limit,time_per_epoch,average_power\n";
    std::fs::write(&power, format!("{header}{rows}")).expect("written");
    (grid, power)
}

#[test]
fn the_demo_plays_traces_and_says_what_is_wrong_with_them() {
    let dir = tempfile::tempdir().expect("a directory");
    let (grid, power) = traces(&dir);
    let (grid, power) = (text(&grid), text(&power));
    let report = demo(&["--carbon-trace", grid, "--power-trace", power, "--workload", "d/n/8"]).json();
    assert_eq!(report["jobs"][0]["name"], "d/n/8-1", "{report}");
    assert!(report["carbon_source"].as_str().expect("reported").contains(grid), "{report}");
    let zoneless = dir.path().join("zoneless.csv");
    std::fs::write(&zoneless, "timestamp,value\n2021-01-01T00:00:00,1\n").expect("written");
    let named = dir.path().join("named.csv");
    std::fs::write(&named, "when,price\n2021-01-01T00:00:00Z,1\n").expect("written");
    let wrong: [(&[&str], &str); 11] = [
        (&["--carbon-trace", "/none.csv"], "cannot read the carbon trace /none.csv"),
        (&["--carbon-trace", text(&zoneless)], "line 2, column \"timestamp\": \"2021-01-01T00:00:00\" has no zone"),
        (&["--carbon-trace", text(&named)], "no column for time among \"price\", 1 other(s)"),
        (
            &["--carbon-trace", grid, "--value-column", "co2"],
            "there is no column \"co2\"; there are \"timestamp\", \"value\"",
        ),
        (&["--carbon-trace", grid, "--start", "2022-01-01T00:00:00Z"], "give fewer --hours or another --start"),
        (
            &["--carbon-trace", grid, "--start", "2021-01-01T07:00:00Z"],
            "covers 2021-01-01 00:00:00 UTC to 2021-01-01 08:00",
        ),
        (&["--power-trace", "/none.csv", "--workload", "d/n/8"], "cannot read /none.csv"),
        (&["--power-trace", power, "--workload", "d/n/4"], "no workload d/n/4; it has d/n/16, d/n/8"),
        (&["--power-trace", power, "--workload", "d/n/16"], "choose one: adam, sgd"),
        (&["--power-trace", power, "--workload", "d/n/8", "--optimizer", "sgd"], "it has adam"),
        (&["--power-trace", grid, "--workload", "d/n/8"], "it lacks the column dataset"),
    ];
    for (flags, part) in wrong {
        let ended = demo(flags);
        assert!(ended.failed(1).contains(part), "{flags:?}: {}", ended.err);
        assert_eq!(ended.out, "", "{flags:?}");
    }
    let outside = demo(&["--listen", "0.0.0.0:0"]);
    assert!(outside.failed(1).contains("which need tokens: set token_keys"), "{}", outside.err);
}

#[tokio::test]
async fn an_interrupt_ends_the_demo_cleanly() {
    let temporary = tempfile::tempdir().expect("a directory");
    let errors = temporary.path().join("err.txt");
    let mut command = wattune(&["demo", "--duration", "600", "--format", "json"]);
    command.env("TMPDIR", temporary.path()).stdout(Stdio::piped());
    command.stderr(std::fs::File::create(&errors).expect("a file"));
    let mut child = command.spawn().expect("starts");
    let reported = || std::fs::read_to_string(&errors).unwrap_or_default();
    eventually("its API", LONG, async || reported().contains("the daemon's API: http://127.0.0.1:").then_some(()))
        .await;
    let address =
        reported().split("http://").nth(1).and_then(|l| l.split("/v1").next()).expect("an address").to_owned();
    eventually("an answer", LONG, async || {
        let status = Ended::of(&mut wattune(&["status", "--listen", &address]));
        status.out.contains("resnet50").then_some(())
    })
    .await;
    let sent = std::process::Command::new("kill").arg("-INT").arg(child.id().to_string()).status();
    assert!(sent.expect("kill runs").success());
    let code = eventually("the end", LONG, async || child.try_wait().expect("known")).await;
    assert_eq!(code.code(), Some(0), "{}", reported());
    assert!(reported().contains("interrupted"), "{}", reported());
    let out = std::io::read_to_string(child.stdout.take().expect("piped")).expect("UTF-8");
    assert_eq!(out, "", "no result of half a demo");
    let left: Vec<_> =
        std::fs::read_dir(temporary.path()).expect("readable").flatten().map(|e| e.file_name()).collect();
    assert_eq!(left, ["err.txt"], "its state goes with it");
}

/// Three days of hourly outcomes and a forecast that is 20 g too high.
fn carbon_files(dir: &Path) -> (PathBuf, PathBuf) {
    let (came, said) = (dir.join("came.csv"), dir.join("said.csv"));
    let rows = |column: &str, more: u32| {
        let row = |h: u32| format!("2026-01-{:02}T{:02}:00:00Z,{}\n", h / 24 + 1, h % 24, 200 + more + h % 24 * 5);
        format!("timestamp,{column}\n") + &(0..96).map(row).collect::<String>()
    };
    std::fs::write(&came, rows("actual", 0)).expect("written");
    std::fs::write(&said, rows("forecast", 20)).expect("written");
    (came, said)
}

#[test]
fn forecasts_of_the_past_are_scored() {
    let dir = tempfile::tempdir().expect("a directory");
    let (came, said) = carbon_files(dir.path());
    let run = |more: &[&str]| {
        let mut arguments = vec!["carbon", "backtest", "--actual", text(&came)];
        arguments.extend(more);
        Ended::of(&mut wattune(&arguments))
    };
    let dates = ["--from", "2026-01-03", "--to", "2026-01-04"];
    let both = run(&[["--provider-forecast", text(&said), "--format", "json"].as_slice(), &dates].concat());
    let report: Value = serde_json::from_str(both.done()).expect("JSON");
    let rows = report["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), 10, "{}", both.out);
    for row in rows {
        assert_eq!(row["slots"], 48, "a last date counts whole: {row}");
        let bounded = !["yesterday", "provider"].contains(&row["source"].as_str().expect("a name"));
        assert_eq!(row["interval80_coverage"].is_number(), bounded, "{row}");
    }
    let provider = rows.iter().find(|row| row["source"] == "provider").expect("a row");
    assert_eq!((&provider["bias_g_per_kwh"], &provider["rank_correlation"]), (&json!(20.0), &json!(1.0)));
    let alone = run(&["--format", "csv", "--horizon", "24"]);
    let sources: Vec<_> = alone.done().lines().filter_map(|line| line.split(',').next()).collect();
    assert_eq!(sources, ["source", "yesterday", "local", "feed"]);
    let wrong: [(&[&str], &str); 4] = [
        (&["--provider-forecast", "/nonexistent"], "cannot read /nonexistent"),
        (&["--from", "2026-01-04", "--to", "2026-01-02"], "nothing to forecast from"),
        (&["--from", "2027-01-01", "--to", "2027-01-02"], "no actual value from 2027-01-01"),
        (&["--provider-forecast", text(&came)], "came.csv"),
    ];
    for (more, part) in wrong {
        let ended = run(more);
        let place = if ended.err.contains(part) { "" } else { &ended.err };
        assert_eq!(place, "", "{more:?} lacks {part}");
    }
    let early = run(&["--from", "2025-12-30", "--to", "2026-01-03"]);
    assert!(early.err.contains("the forecasts begin at 2026-01-01"), "{}", early.err);
    let reversed = Ended::of(&mut wattune(&["carbon", "backtest", "--actual", text(&said)]));
    assert!(reversed.failed(1).contains("name the column of actual values"), "{}", reversed.err);
}
