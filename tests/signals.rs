//! What may happen to a daemon's process: signals, a log that nobody reads, and files that never end.

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::json;

use crate::nvml::gpu;
use crate::support::{Daemon, FakeDriver, eventually, forecast_file};

const LONG: Duration = Duration::from_secs(60);

const FOUND: Option<f64> = Some(280.0);

#[tokio::test]
async fn signals_that_mean_nothing_to_it_are_ignored() {
    let driver = FakeDriver::new(&[gpu()]);
    let state = tempfile::tempdir().expect("a directory");
    let mut daemon = Daemon::start(Daemon::command(&driver, state.path()), state.path()).await;
    daemon.hold(&driver, 0, 150.0).await;
    let harmless = [
        "HUP", "USR1", "USR2", "ALRM", "VTALRM", "PROF", "IO", "STKFLT", "TSTP", "TTIN", "TTOU", "PIPE", "URG",
        "WINCH", "CONT", "CHLD", "XFSZ", "34", "50", "64",
    ];
    for signal in harmless {
        daemon.signal(signal);
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(daemon.ended().is_none(), "{signal} ended it:\n{}", daemon.log());
        assert_eq!(daemon.get("/healthz").await.status, 200, "{signal}");
    }
    assert_eq!(driver.limit_w(0), Some(150.0));
    assert!(daemon.log().contains("SIGHUP"), "{}", daemon.log());
    assert_eq!(daemon.stop("TERM").await.code(), Some(0));
    assert_eq!(driver.limit_w(0), FOUND);
}

#[tokio::test]
async fn signals_that_end_it_give_the_limits_back() {
    for signal in ["QUIT", "XCPU", "PWR", "ABRT", "TRAP", "SYS"] {
        let driver = FakeDriver::new(&[gpu()]);
        let state = tempfile::tempdir().expect("a directory");
        let daemon = Daemon::start(Daemon::command(&driver, state.path()), state.path()).await;
        daemon.hold(&driver, 0, 150.0).await;
        assert_eq!(daemon.stop(signal).await.code(), Some(0), "{signal}");
        assert_eq!(driver.limit_w(0), FOUND, "{signal}");
    }
}

#[tokio::test]
async fn a_closed_terminal_does_not_end_it_under_nohup() {
    let driver = FakeDriver::new(&[gpu()]);
    let state = tempfile::tempdir().expect("a directory");
    let plain = Daemon::command(&driver, state.path());
    let mut command = Command::new("nohup");
    command.arg(plain.get_program()).args(plain.get_args()).env("FAKE_NVML_DIR", driver.dir());
    let mut daemon = Daemon::start(command, state.path()).await;
    daemon.signal("HUP");
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(daemon.ended().is_none());
    assert_eq!(daemon.get("/healthz").await.status, 200);
    assert_eq!(daemon.stop("TERM").await.code(), Some(0));
}

/// A daemon that writes its log into a pipe, and the pipe's other end once it listens.
async fn piped(driver: &FakeDriver, state: &Path, settings: &str) -> (Daemon, BufReader<std::process::ChildStderr>) {
    let mut command = Daemon::command_set(driver, state, settings);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("starts");
    drop(child.stdout.take());
    let mut reader = BufReader::new(child.stderr.take().expect("piped"));
    let mut line = String::new();
    let address = loop {
        line.clear();
        assert!(reader.read_line(&mut line).expect("readable") > 0, "it ended");
        if let Some((_, address)) = line.split_once("listening on http://") {
            break address.trim().to_owned();
        }
    };
    (Daemon::attached(child, &address, state).await, reader)
}

#[tokio::test]
async fn a_log_whose_reader_is_gone_ends_nothing() {
    let driver = FakeDriver::new(&[gpu()]);
    let state = tempfile::tempdir().expect("a directory");
    let (mut daemon, reader) = piped(&driver, state.path(), Daemon::QUICK).await;
    drop(reader);
    daemon.hold(&driver, 0, 150.0).await;
    daemon.hold(&driver, 0, 160.0).await;
    daemon.signal("HUP");
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(daemon.ended().is_none());
    assert_eq!(daemon.stop("TERM").await.code(), Some(0));
    assert_eq!(driver.limit_w(0), FOUND);
}

#[tokio::test]
async fn a_log_whose_reader_sleeps_holds_nothing_up() {
    let driver = FakeDriver::new(&[gpu()]);
    let state = tempfile::tempdir().expect("a directory");
    // Far more than a pipe takes, each second.
    let settings = format!("{}[log]\nlevel = \"trace\"\n", Daemon::QUICK);
    let (daemon, reader) = piped(&driver, state.path(), &settings).await;
    for round in 0..400 {
        assert_eq!(daemon.get("/v1/status").await.status, 200, "{round}");
    }
    daemon.hold(&driver, 0, 150.0).await;
    assert_eq!(daemon.stop("TERM").await.code(), Some(0));
    assert_eq!(driver.limit_w(0), FOUND);
    drop(reader);
}

#[tokio::test]
async fn a_log_on_a_full_disk_ends_nothing() {
    let driver = FakeDriver::new(&[gpu()]);
    let state = tempfile::tempdir().expect("a directory");
    let port = std::net::TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("bound");
    let mut command = Daemon::command_at(&driver, state.path(), &port.to_string());
    let full = || std::fs::OpenOptions::new().write(true).open("/dev/full").expect("Linux has it");
    let child = command.stdout(full()).stderr(full()).spawn().expect("starts");
    let daemon = Daemon::attached(child, &port.to_string(), state.path()).await;
    daemon.hold(&driver, 0, 150.0).await;
    daemon.kill();
    let mut restore = Command::new(env!("CARGO_BIN_EXE_wattune"));
    restore.args(["restore", "--gpus", "nvml", "--config"]).arg(state.path().join("test.toml"));
    restore.arg("--nvml-library").arg(FakeDriver::library()).arg("--state-dir").arg(state.path());
    restore.env("FAKE_NVML_DIR", driver.dir()).stdout(full()).stderr(full());
    assert_eq!(restore.status().expect("runs").code(), Some(0), "the limit is back, whoever hears of it");
    assert_eq!(driver.limit_w(0), FOUND);
    // An error that nobody can be told is still an error, and no panic.
    let mut wrong = Command::new(env!("CARGO_BIN_EXE_wattune"));
    wrong.args(["serve", "--config", "/nowhere/wattune.toml"]).stdout(full()).stderr(full());
    assert_eq!(wrong.status().expect("runs").code(), Some(2));
}

/// Runs a command that should end soon; answers with its exit code and what it wrote.
async fn ends(mut command: Command) -> (Option<i32>, String) {
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("starts");
    let mut stderr = child.stderr.take().expect("piped");
    let reader = std::thread::spawn(move || {
        let mut said = String::new();
        // What was read until then is what counts.
        let _ = stderr.read_to_string(&mut said);
        said
    });
    for _ in 0..400 {
        if let Some(status) = child.try_wait().expect("known") {
            return (status.code(), reader.join().expect("no panic"));
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    child.kill().expect("killed");
    child.wait().expect("gone");
    panic!("it hangs: {command:?}");
}

fn fifo(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().expect("coreutils are there").success());
}

#[tokio::test]
async fn a_journal_that_is_no_file_is_refused() {
    let driver = FakeDriver::new(&[gpu()]);
    for device in [false, true] {
        let state = tempfile::tempdir().expect("a directory");
        let journal = state.path().join("found-limits.json");
        match device {
            true => std::os::unix::fs::symlink("/dev/zero", &journal).expect("made"),
            false => fifo(&journal),
        }
        let serve = Daemon::command(&driver, state.path());
        let of = |word: &str| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_wattune"));
            command.args([word, "--gpus", "nvml", "--config"]).arg(state.path().join("test.toml"));
            command.arg("--nvml-library").arg(FakeDriver::library()).arg("--state-dir").arg(state.path());
            command.env("FAKE_NVML_DIR", driver.dir());
            command
        };
        for command in [serve, of("restore")] {
            let (code, said) = ends(command).await;
            assert_eq!(code, Some(1), "{said}");
            let why = if device { "link where wattune needs a regular file" } else { "regular file" };
            assert!(said.contains("found-limits.json") && said.contains(why), "{said}");
        }
        assert_eq!(ends(of("doctor")).await.0, Some(1));
    }
    assert!(driver.writes().is_empty());
}

#[tokio::test]
async fn a_configuration_that_is_no_file_is_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let pipe = dir.path().join("wattune.toml");
    fifo(&pipe);
    for path in [pipe.as_path(), Path::new("/dev/zero"), Path::new("/dev/urandom"), dir.path()] {
        for word in ["serve", "restore", "doctor"] {
            let mut command = Command::new(env!("CARGO_BIN_EXE_wattune"));
            command.arg(word).arg("--config").arg(path).arg("--state-dir").arg(dir.path().join("state"));
            let (code, said) = ends(command).await;
            // The doctor has it as a finding; for the others it is wrong use.
            assert_eq!(code, Some(if word == "doctor" { 1 } else { 2 }), "{word}: {said}");
            let names_it = said.contains(&path.display().to_string()) && said.contains("regular file");
            // The doctor tells it on stdout, as a finding.
            assert!(names_it || word == "doctor", "{word}: {said}");
        }
    }
}

#[tokio::test]
async fn what_lies_in_the_journals_way_does_not_hang_it() {
    let driver = FakeDriver::new(&[gpu()]);
    let state = tempfile::tempdir().expect("a directory");
    let daemon = Daemon::start(Daemon::command(&driver, state.path()), state.path()).await;
    fifo(&state.path().join("found-limits.json.new"));
    daemon.hold(&driver, 0, 150.0).await;
    assert_eq!(daemon.stop("TERM").await.code(), Some(0));
    assert_eq!(driver.limit_w(0), FOUND);
}

#[tokio::test]
async fn a_carbon_file_that_is_no_file_is_a_problem_and_no_hang() {
    let driver = FakeDriver::new(&[gpu()]);
    let state = tempfile::tempdir().expect("a directory");
    let pipe = state.path().join("carbon.pipe");
    fifo(&pipe);
    for path in [pipe.as_path(), Path::new("/dev/zero")] {
        let mut command = Daemon::command(&driver, state.path());
        command.arg("--carbon-file").arg(path);
        let daemon = Daemon::start(command, state.path()).await;
        eventually("words", LONG, async || {
            let carbon = daemon.get("/v1/carbon").await.expect(200).to_string();
            carbon.contains("regular file").then_some(())
        })
        .await;
        assert_eq!(daemon.stop("TERM").await.code(), Some(0));
    }
    // The same name as a file is read.
    std::fs::remove_file(&pipe).expect("removed");
    std::fs::rename(forecast_file(&state, 60, 30, |_| 400.0), &pipe).expect("moved");
    let mut command = Daemon::command(&driver, state.path());
    command.arg("--carbon-file").arg(&pipe);
    let daemon = Daemon::start(command, state.path()).await;
    daemon.carbon_where("an intensity", |carbon| carbon["intensity_g_per_kwh"] == json!(400.0)).await;
}
