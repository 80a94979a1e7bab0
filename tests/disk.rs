//! A state directory that cannot be used, and one that stops working later.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use crate::nvml::{CURVE, gpu};
use crate::support::{Daemon, FakeDriver, LedgerFile, Training, eventually};

const LONG: Duration = Duration::from_secs(60);

fn refusal(mut command: std::process::Command) -> String {
    let output = command.output().expect("runs");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    said
}

#[tokio::test]
async fn a_state_directory_that_cannot_be_used_is_named() {
    let driver = FakeDriver::new(&[gpu()]);
    let dir = tempfile::tempdir().expect("a directory");
    let command = |state: &std::path::Path| {
        let mut command = Daemon::command(&driver, dir.path());
        command.env("WATTUNE_STATE_DIR", state);
        let arguments: Vec<_> = command.get_args().map(std::ffi::OsStr::to_owned).collect();
        let mut moved = std::process::Command::new(command.get_program());
        let place = arguments.iter().position(|a| a == "--state-dir").expect("given");
        moved.args(&arguments[..=place]).arg(state).env("FAKE_NVML_DIR", driver.dir());
        moved
    };
    // Rights do not stop root, so the ways are blocked by files and directories.
    let file = dir.path().join("file");
    std::fs::write(&file, "").expect("written");
    let said = refusal(command(&file.join("state")));
    assert!(said.contains("cannot make the state directory") && said.contains("--state-dir"), "{said}");
    let blocked = dir.path().join("blocked");
    std::fs::create_dir_all(blocked.join("lock")).expect("made");
    let said = refusal(command(&blocked));
    assert!(said.contains("cannot write in the state directory") && said.contains("blocked"), "{said}");
    assert!(driver.writes().is_empty());
}

#[tokio::test]
async fn nothing_is_set_that_cannot_be_journalled() {
    let driver = Arc::new(FakeDriver::new(&[gpu()]));
    let state = tempfile::tempdir().expect("a directory");
    let daemon = Daemon::start(Daemon::command(&driver, state.path()), state.path()).await;
    let in_the_way = state.path().join("found-limits.json.new");
    std::fs::create_dir(&in_the_way).expect("made");
    let job = json!({"name": "resnet50", "gpus": [0], "work": {"total_samples": 1_000_000}, "lease_s": 60});
    let id = daemon.register(&job).await;
    let training = Training::start(daemon.base(), &id, &driver, vec![(0, CURVE)], 0.0);
    let problems = eventually("the problem", LONG, async || {
        let problems = daemon.problems().await;
        (!problems.is_empty()).then_some(problems)
    })
    .await;
    assert!(problems.contains("power limits cannot be changed: cannot write the restore journal"), "{problems}");
    assert!(problems.contains("found-limits.json") && problems.contains("directory"), "{problems}");
    let gpu = eventually("the rung that is not to be had", LONG, async || {
        Some(daemon.gpu(0).await)
            .filter(|gpu| gpu["detail"].as_str().is_some_and(|d| d.contains("power limits cannot be changed")))
    })
    .await;
    assert_eq!(gpu["power_limit_requested_w"], 280.0);
    assert!(driver.writes().is_empty());
    std::fs::remove_dir(&in_the_way).expect("removed");
    eventually("the limit", LONG, async || (driver.limit_w(0) == Some(230.0)).then_some(())).await;
    eventually("no problem", LONG, async || daemon.problems().await.is_empty().then_some(())).await;
    training.stop().await;
    assert!(daemon.stop("TERM").await.success());
    assert_eq!(driver.limit_w(0), Some(280.0));
}

#[tokio::test]
async fn a_damaged_journal_is_not_written_over() {
    let driver = FakeDriver::new(&[gpu()]);
    let state = tempfile::tempdir().expect("a directory");
    let half = "{\"version\":1,\"boards\":{\"GPU-00";
    std::fs::write(state.path().join("found-limits.json"), half).expect("written");
    let said = refusal(Daemon::command(&driver, state.path()));
    assert!(said.contains("found-limits.json is damaged") && said.contains("nvidia-smi -pl"), "{said}");
    let output = Daemon::restore(&driver, state.path());
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("move the file away"), "{said}");
    assert_eq!(std::fs::read_to_string(state.path().join("found-limits.json")).expect("there"), half);
    assert!(driver.writes().is_empty());
}

/// A database whose transactions are ended by what fails beneath it, as on a full disk.
#[tokio::test]
async fn a_disk_that_was_full_is_written_to_again_and_what_is_lost_at_the_end_is_reported() {
    let driver = FakeDriver::new(&[json!({"demand_w": 200})]);
    let state = tempfile::tempdir().expect("a directory");
    let settings = Daemon::QUICK.replace("interval_s = 5", "interval_s = 1");
    let command = Daemon::without_size_signal(&Daemon::command_set(&driver, state.path(), &settings));
    let daemon = Daemon::start(command, state.path()).await;
    let ledger = LedgerFile::open(state.path());
    let recorded = async || ledger.of(0).0.iter().map(|row| row.energy_mj).sum::<i64>();
    let (_, first) =
        eventually("an interval", LONG, async || Some(ledger.of(0)).filter(|(rows, _)| !rows.is_empty())).await;
    let fails = async || {
        // The log is smaller.
        daemon.limit_files_to("65536");
        eventually("the problem", LONG, async || {
            let problems = daemon.problems().await;
            (problems.contains("ledger:") && problems.contains("disk")).then_some(())
        })
        .await;
    };
    fails().await;
    // More than one attempt.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let before = recorded().await;
    daemon.limit_files_to("unlimited");
    eventually("no problem", LONG, async || daemon.problems().await.is_empty().then_some(())).await;
    eventually("what was kept", LONG, async || (recorded().await > before).then_some(())).await;
    let (rows, last) = ledger.of(0);
    assert!(rows.windows(2).all(|w| w[1].start_us == w[0].end_us), "{rows:#?}");
    let gained: i64 = last.expect("there") - first.expect("there");
    assert!(recorded().await >= gained && rows.iter().all(|r| r.source == "counter"), "{gained}: {rows:#?}");
    fails().await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(daemon.stop("TERM").await.success());
    let log = std::fs::read_to_string(state.path().join("log.txt")).expect("a log");
    assert!(log.contains(" J could not be written and are missing from their jobs"), "{log}");
}

#[tokio::test]
async fn ledger_that_cannot_be_written_for_a_while_lose_nothing() {
    let driver = FakeDriver::new(&[json!({"demand_w": 200}), json!({"demand_w": 200})]);
    let state = tempfile::tempdir().expect("a directory");
    let settings = Daemon::QUICK.replace("interval_s = 5", "interval_s = 1");
    let daemon = Daemon::start(Daemon::command_set(&driver, state.path(), &settings), state.path()).await;
    let ledger = LedgerFile::open(state.path());
    let (_, first) =
        eventually("an interval", LONG, async || Some(ledger.of(0)).filter(|(rows, _)| !rows.is_empty())).await;
    let locked = LedgerFile::lock(state.path());
    let problems = eventually("the problem", LONG, async || {
        let problems = daemon.problems().await;
        (!problems.is_empty()).then_some(problems)
    })
    .await;
    assert!(problems.contains("ledger:") && problems.contains("has locked the database"), "{problems}");
    // GPUs are served all the same.
    daemon.hold(&driver, 0, 150.0).await;
    drop(locked);
    eventually("no problem", LONG, async || daemon.problems().await.is_empty().then_some(())).await;
    assert!(daemon.stop("TERM").await.success());
    let (rows, last) = ledger.of(0);
    let recorded: i64 = rows.iter().map(|r| r.energy_mj).sum();
    let before: i64 = last.expect("there") - first.expect("there");
    assert!(rows.windows(2).all(|w| w[1].start_us == w[0].end_us), "{rows:#?}");
    assert!(rows.iter().all(|r| r.source == "counter") && recorded >= before, "{recorded} {before}");
}

#[tokio::test]
async fn a_database_that_is_removed_while_the_daemon_runs_is_a_problem() {
    let driver = FakeDriver::new(&[gpu()]);
    let state = tempfile::tempdir().expect("a directory");
    let daemon = Daemon::start(Daemon::command(&driver, state.path()), state.path()).await;
    eventually("a ledger", LONG, async || state.path().join("wattune.db-wal").exists().then_some(())).await;
    for file in ["wattune.db", "wattune.db-wal", "wattune.db-shm"] {
        std::fs::remove_file(state.path().join(file)).expect("removed");
    }
    let reported = eventually("the problem", LONG, async || {
        Some(daemon.problems().await).filter(|p| p.contains("was removed or replaced"))
    });
    assert!(reported.await.contains("wattune.db"));
    assert!(daemon.log().contains("was removed or replaced"), "{}", daemon.log());
}
