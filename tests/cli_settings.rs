//! A settings file as each command uses it: what only the daemon needs stops no other command, and `wattune doctor`
//! finds what would keep the daemon from starting.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::support::{Daemon, Ended, FakeDriver, LONG, eventually, forecast_file, wattune};

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

/// A folder with a settings file and a state directory.
struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let place = Self { dir: tempfile::tempdir().expect("a directory") };
        std::fs::create_dir(place.path("state")).expect("made");
        place
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.dir.path().join(name)
    }

    /// A command with these settings, on simulated GPUs.
    fn command(&self, settings: &str, arguments: &[&str]) -> Command {
        std::fs::write(self.path("wattune.toml"), settings).expect("written");
        let mut command = wattune(arguments);
        command.arg("--config").arg(self.path("wattune.toml")).arg("--state-dir").arg(self.path("state"));
        command.env("WATTUNE_GPUS", "simulated");
        command
    }

    fn run(&self, settings: &str, arguments: &[&str]) -> Ended {
        Ended::of(&mut self.command(settings, arguments))
    }
}

/// The findings with this verdict, one a line.
fn findings(ended: &Ended, verdict: &str) -> String {
    let all: Value = serde_json::from_str(&ended.out).expect(&ended.out);
    let all = all.as_array().expect("findings").iter().filter(|finding| finding["verdict"] == verdict);
    let line = |finding: &Value| format!("{}: {}\n", finding["what"], finding["detail"]);
    all.map(line).collect()
}

#[test]
fn a_socket_that_a_service_gives_by_a_flag_is_needed_by_no_other_command() {
    let place = Place::new();
    let commands: [(&[&str], &str); 5] = [
        (&["restore"], "nothing to restore"),
        (&["report"], "there is no database"),
        (&["token", "inspect", "a.b.c"], "there is no key"),
        (&["carbon", "--direct"], "gCO2e/kWh now"),
        (&["when", "--direct", "--duration", "1h", "--within", "2h"], "Source: "),
    ];
    for setting in ["socket_group = \"root\"", "socket_owner = \"root\"", "listen = \"off\""] {
        let settings = format!("[http]\n{setting}\n");
        for (command, part) in commands {
            let ended = place.run(&settings, command);
            assert!(format!("{}{}", ended.out, ended.err).contains(part), "{setting}, {command:?}: {ended:?}");
        }
        let doctor = place.run(&settings, &["doctor", "--format", "json"]);
        assert!(findings(&doctor, "limited").contains("the daemon starts only with --socket PATH"), "{doctor:?}");
        assert!(!findings(&doctor, "good").contains("on the Unix socket only"), "{doctor:?}");
        assert!(!findings(&doctor, "broken").contains("without a socket"), "{doctor:?}");
        let serve = place.run(&settings, &["serve"]);
        assert!(serve.failed(1).contains("without a socket"), "{setting}: {}", serve.err);
    }
}

#[test]
fn the_doctor_finds_what_would_keep_the_daemon_from_starting() {
    const SIMULATED: &str = "[gpus]\nbackend = \"simulated\"\n[gpus.simulated]\n";
    let place = Place::new();
    let file = place.path("file");
    std::fs::write(&file, "notes").expect("written");
    let doctor = ["doctor", "--listen", "127.0.0.1:0", "--format", "json"];
    let broken = |ended: &Ended, part: &str| {
        assert_eq!(ended.code, Some(1), "{part}: {ended:?}");
        assert!(findings(ended, "broken").contains(part), "{part}: {ended:?}");
    };
    place.run("", &doctor).done();
    let at = |name: &str| text(&place.path(name)).to_owned();
    let (socket, missing) = (at("s.sock"), at("missing"));
    for (settings, part) in [
        (format!("[http]\nsocket = {:?}\n", at("missing/s.sock")), "there is no directory"),
        (format!("[http]\nsocket = {:?}\n", at(&"x".repeat(90))), "at most 90 bytes"),
        (format!("[http]\nsocket = {:?}\n", text(&file)), "is not a socket"),
        (format!("[http]\nsocket = {socket:?}\nsocket_owner = \"no such user\"\n"), "there is no user"),
        (format!("[http]\nsocket = {socket:?}\nsocket_group = \"no such group\"\n"), "there is no group"),
        (format!("[http]\ntoken_keys = [{missing:?}]\n"), "http.token_keys: "),
        (format!("[http]\ntls_cert = {missing:?}\ntls_key = {missing:?}\n"), "http.tls_cert: cannot read"),
        (format!("{SIMULATED}clock_speed = 60\nclock_start = \"9999-01-01T00:00:00Z\"\n"), "is in the future"),
    ] {
        broken(&place.run(&settings, &doctor), part);
    }
    assert!(!place.path("s.sock").exists());

    // The disk is full: an empty file can be created, and nothing can be written.
    let full = place.command("", &doctor);
    let mut limited = Command::new("sh");
    limited.args(["-c", "trap '' XFSZ; ulimit -f 8; exec \"$0\" \"$@\""]).arg(full.get_program()).args(full.get_args());
    broken(&Ended::of(limited.env("WATTUNE_GPUS", "simulated")), "state in ");
    assert_eq!(std::fs::read_dir(place.path("state")).expect("there").count(), 0, "nothing is left");

    let database = place.path("state").join("wattune.db");
    std::fs::write(&database, "no database. ".repeat(1000)).expect("written");
    broken(&place.run("", &doctor), "file is not a database");
    std::fs::remove_file(&database).expect("removed");
    let newer = rusqlite::Connection::open(&database).expect("made");
    newer.execute_batch("PRAGMA application_id = 2002875508; PRAGMA user_version = 99;").expect("written");
    newer.close().expect("closed");
    broken(&place.run("", &doctor), "has migration 99");
    std::fs::remove_file(&database).expect("removed");
    place.run("", &doctor).done();
}

/// That tokens are refused is seen without the daemon's log, too.
#[test]
fn a_replaced_key_that_is_missing_is_reported() {
    use std::os::unix::fs::PermissionsExt as _;

    let place = Place::new();
    let (key, missing) = (place.path("key"), place.path("old"));
    std::fs::write(&key, [7; 32]).expect("written");
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600)).expect("changed");
    let settings = format!("[http]\ntoken_keys = [{:?}, {:?}]\n", text(&key), text(&missing));
    let report = format!("{} is missing, so its tokens are refused", text(&missing));
    let doctor = place.run(&settings, &["doctor", "--listen", "127.0.0.1:0", "--format", "json"]);
    doctor.done();
    assert!(findings(&doctor, "limited").contains(&report), "{doctor:?}");
    let issued = place.run(&settings, &["token", "issue", "--user", "ada", "--expires", "1h"]);
    issued.done();
    assert!(issued.err.contains(&report), "{issued:?}");
}

#[test]
fn the_doctor_tries_the_job_mapping_folder_out() {
    let place = Place::new();
    std::fs::write(place.path("file"), "").expect("written");
    let doctor = ["doctor", "--listen", "127.0.0.1:0", "--format", "json"];
    let of = |folder: &Path| {
        let settings = format!("[discovery]\njob_mapping_dir = {:?}\nwrite_job_mapping = true\n", text(folder));
        place.run(&settings, &doctor)
    };
    let blocked = of(&place.path("file/mapping"));
    assert!(findings(&blocked, "limited").contains("job-mapping folder "), "{blocked:?}");
    assert_eq!(blocked.code, Some(0), "jobs are recorded nevertheless: {blocked:?}");
    let free = of(&place.path("mapping"));
    assert!(findings(&free, "good").contains("job-mapping folder "), "{free:?}");
    assert!(!place.path("mapping").exists(), "it only reads");
}

#[test]
fn a_file_without_a_zone_is_not_shown_as_that_of_another_zone_without_a_word() {
    const DOUBT: &str = "the file names no zone; its values are used for FR";
    let place = Place::new();
    let carbon = forecast_file(&place.dir, 3600, 48, |hour| if hour == 7 { 300.0 } else { 400.0 });
    let settings = format!("[carbon]\nsource = \"file\"\n[carbon.file]\npath = {:?}\n", text(&carbon));
    let when = ["when", "--direct", "--duration", "2h", "--within", "12h"];
    let run = |command: &[&str], more: &[&str]| place.run(&settings, &[command, more].concat());
    let advice = run(&when, &["--zone", "FR", "--format", "json"]).json();
    assert_eq!((&advice["zone"], &advice["warnings"]), (&json!("FR"), &json!([DOUBT])), "{advice:#}");
    assert!(run(&when, &["--zone", "FR"]).done().contains(&format!("! {DOUBT}\n")));
    assert_eq!(run(&when, &["--format", "json"]).json()["warnings"], json!([]));
    let shown = run(&["carbon"], &["--zone", "FR", "--format", "json"]).json();
    assert_eq!(shown["advice"], DOUBT, "{shown:#}");
    assert!(run(&["carbon"], &["--zone", "FR"]).done().contains(DOUBT));
    // One that names the zone is used without a doubt.
    let rows = std::fs::read_to_string(&carbon).expect("there");
    let mut lines = rows.lines();
    let header = format!("zone,{}\n", lines.next().expect("a header"));
    std::fs::write(&carbon, header + &lines.map(|line| format!("FR,{line}\n")).collect::<String>()).expect("written");
    assert_eq!(run(&when, &["--zone", "FR", "--format", "json"]).json()["warnings"], json!([]));
}

#[tokio::test]
async fn a_cap_below_the_lowest_limits_is_said_to_hold_now() {
    let driver = FakeDriver::new(&[json!({})]);
    let state = tempfile::tempdir().expect("a directory");
    let settings = format!("{}[cap]\nlimit_w = 50\n", Daemon::QUICK);
    let command = Daemon::command_set(&driver, state.path(), &settings);
    let daemon = Daemon::start(command, state.path()).await;
    let problems = eventually("the problem", LONG, async || {
        let problems = daemon.problems().await;
        problems.contains("lowest limits add up to").then_some(problems)
    })
    .await;
    assert!(problems.contains("the node's cap is 50 W, but even the GPUs' lowest limits"), "{problems}");
    assert!(daemon.stop("TERM").await.success());
}
