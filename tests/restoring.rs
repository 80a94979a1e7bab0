//! A limit is back when the GPU shows it, and what stands on a GPU after a kill or a reboot is told apart: wattune's own,
//! somebody else's, or the driver's default.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use crate::nvml::{CURVE, gpu};
use crate::support::{Daemon, FakeDriver, LedgerFile, Training, eventually, journal, output_text, wattune};

const LONG: Duration = Duration::from_secs(60);

/// The limit that [`gpu`] is found at, and its driver's default.
const FOUND: Option<f64> = Some(280.0);
const DEFAULT_W: u32 = 320;

const SET_LIMIT: &str = "nvmlDeviceSetPowerManagementLimit";

struct Case {
    driver: Arc<FakeDriver>,
    state: tempfile::TempDir,
    settings: String,
}

impl Case {
    fn of(gpus: &[Value]) -> Self {
        let state = tempfile::tempdir().expect("a directory");
        Self { driver: Arc::new(FakeDriver::new(gpus)), state, settings: Daemon::QUICK.into() }
    }

    fn with(self, settings: &str) -> Self {
        Self { settings: format!("{}{settings}", self.settings), ..self }
    }

    async fn start(&self) -> Daemon {
        let command = Daemon::command_set(&self.driver, self.state.path(), &self.settings);
        Daemon::start(command, self.state.path()).await
    }

    fn restore(&self, code: i32) -> String {
        output_text(&Daemon::restore(&self.driver, self.state.path()), code)
    }

    /// `wattune restore` with these GPUs to forget.
    fn forget(&self, gpus: &[&str], code: i32) -> String {
        let mut command = wattune(&["restore", "--gpus", "nvml", "--state-dir"]);
        command.arg(self.state.path()).arg("--nvml-library").arg(FakeDriver::library());
        for gpu in gpus {
            command.arg("--forget").arg(gpu);
        }
        output_text(&command.env("FAKE_NVML_DIR", self.driver.dir()).output().expect("it runs"), code)
    }

    fn journal(&self) -> String {
        journal(self.state.path())
    }

    fn holds(&self, gpu: usize) -> bool {
        let journal: Value = serde_json::from_str(&self.journal()).expect("JSON");
        journal["boards"].get(FakeDriver::uuid(gpu)).is_some()
    }

    fn ignore(&self, gpu: usize, calls: &[&str]) {
        self.driver.set(gpu, json!({ "ignore_calls": calls }));
        // The driver looks at its script every 5 ms.
        std::thread::sleep(Duration::from_millis(50));
    }

    async fn limit(&self, gpu: usize, watts: f64) {
        eventually("the limit", LONG, async || (self.driver.limit_w(gpu) == Some(watts)).then_some(())).await;
    }

    async fn register(&self, daemon: &Daemon, gpus: &[usize]) -> String {
        let job = json!({"name": "resnet50", "gpus": gpus, "work": {"total_samples": 1_000_000}, "lease_s": 60});
        daemon.register(&job).await
    }

    fn train(&self, daemon: &Daemon, id: &str) -> Training {
        Training::start(daemon.base(), id, &self.driver, vec![(0, CURVE)], 0.0)
    }

    /// The machine starts anew: GPUs have their defaults, and the kernel gives the boot another name.
    fn reboot(&self, gpus: usize) {
        let path = self.state.path().join("found-limits.json");
        let mut journal: Value = serde_json::from_str(&self.journal()).expect("JSON");
        rename_boots(&mut journal);
        std::fs::write(path, journal.to_string()).expect("written");
        (0..gpus).for_each(|b| self.driver.set_limit_as_somebody_else(b, DEFAULT_W));
    }
}

fn rename_boots(value: &mut Value) {
    match value {
        Value::Object(map) => map.iter_mut().for_each(|(key, value)| match key.as_str() {
            "boot_id" => *value = json!("an-earlier-boot"),
            _ => rename_boots(value),
        }),
        Value::Array(list) => list.iter_mut().for_each(rename_boots),
        _ => {}
    }
}

async fn state_of(daemon: &Daemon, gpu: usize, wanted: &str) -> Value {
    eventually(wanted, LONG, async || Some(daemon.gpu(gpu).await).filter(|view| view["state"] == wanted)).await
}

#[tokio::test]
async fn what_the_gpu_does_not_show_is_not_back() {
    let case = Case::of(&[gpu(), gpu()]);
    let daemon = case.start().await;
    daemon.hold(&case.driver, 0, 240.0).await;
    daemon.hold(&case.driver, 1, 150.0).await;
    case.ignore(0, &[SET_LIMIT]);
    assert_eq!(daemon.stop("TERM").await.code(), Some(1));
    let log = std::fs::read_to_string(case.state.path().join("log.txt")).expect("a log");
    assert!(log.lines().any(|l| l.contains("NOT restored to 280 W") && l.contains("240 W")), "{log}");
    assert_eq!((case.driver.limit_w(0), case.driver.limit_w(1)), (Some(240.0), FOUND));
    assert!(case.holds(0) && !case.holds(1), "{}", case.journal());
    let said = case.restore(1);
    assert!(said.contains("NOT restored to 280 W") && said.contains("240 W"), "{said}");
    assert!(case.holds(0));
    // A start does not believe the driver either, nor does the end after it.
    let daemon = case.start().await;
    assert!(case.holds(0));
    let problem = eventually("the problem", LONG, async || {
        Some(daemon.problems().await).filter(|p| p.contains("240 W") && p.contains("280 W"))
    });
    problem.await;
    assert_eq!(daemon.stop("TERM").await.code(), Some(1));
    assert!(case.holds(0));
    case.ignore(0, &[]);
    let said = case.restore(0);
    assert!(said.contains("restored to its original limit of 280 W"), "{said}");
    assert!(case.driver.limit_w(0) == FOUND && !case.holds(0));
}

#[tokio::test]
async fn a_limit_that_is_shown_again_is_back_however_long_it_was_not() {
    let case = Case::of(&[gpu()]);
    let daemon = case.start().await;
    daemon.hold(&case.driver, 0, 240.0).await;
    // What has been refused for so long is asked again only every few seconds.
    let unsupported =
        json!({"fail_calls": {"nvmlDeviceGetPowerManagementLimit": 3, "nvmlDeviceGetEnforcedPowerLimit": 3}});
    case.driver.set(0, unsupported);
    tokio::time::sleep(Duration::from_secs(12)).await;
    case.driver.set(0, json!({"fail_calls": {}}));
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(daemon.stop("TERM").await.code(), Some(0));
    assert_eq!(case.driver.limit_w(0), FOUND);
}

#[tokio::test]
async fn under_a_cap_what_the_gpu_does_not_show_is_not_back_either() {
    let case = Case::of(&[gpu(), gpu()]).with("[cap]\nlimit_w = 500\n");
    let daemon = case.start().await;
    daemon.hold(&case.driver, 0, 150.0).await;
    case.ignore(0, &[SET_LIMIT]);
    assert_eq!(daemon.stop("TERM").await.code(), Some(1));
    assert!(case.holds(0));
    case.ignore(0, &[]);
    case.restore(0);
    assert_eq!((case.driver.limit_w(0), case.driver.limit_w(1)), (FOUND, FOUND));
}

#[tokio::test]
async fn a_jobs_end_that_does_not_bring_the_limit_back_is_said() {
    let case = Case::of(&[gpu()]);
    let daemon = case.start().await;
    let id = case.register(&daemon, &[0]).await;
    let training = case.train(&daemon, &id);
    case.limit(0, 230.0).await;
    case.ignore(0, &[SET_LIMIT]);
    training.stop().await;
    daemon.delete(&format!("/v1/jobs/{id}")).await.expect(200);
    let output_text = eventually("the problem", LONG, async || {
        Some(daemon.problems().await).filter(|p| p.contains("280 W") && p.contains("230 W"))
    });
    assert!(output_text.await.contains("GPU 0: "));
    let view = daemon.gpu(0).await;
    assert!(view["restore_failed"] == true && view["restore_failures"].as_u64() >= Some(1), "{view}");
    assert!(case.holds(0), "it is still owed");
    eventually("three tries", LONG, async || {
        (daemon.gpu(0).await["restore_failures"].as_u64() >= Some(3)).then_some(())
    })
    .await;
    let writes = case.driver.writes().len();
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(case.driver.writes().len() <= writes + 1, "it is offered now and then, not at each tick");
    case.ignore(0, &[]);
    case.limit(0, 280.0).await;
    eventually("an empty journal", LONG, async || (!case.holds(0)).then_some(())).await;
    let sound = eventually("no problem", LONG, async || Some(daemon.problems().await).filter(String::is_empty));
    sound.await;
    assert_eq!(daemon.gpu(0).await["restore_failed"], false);
    assert_eq!(daemon.stop("TERM").await.code(), Some(0));
}

#[tokio::test]
async fn persistence_mode_is_read_back_too() {
    let mut off = gpu();
    off["persistence"] = json!(false);
    let mut case = Case::of(&[off]);
    case.settings = case.settings.replace("[profile]", "enable_persistence = true\n[profile]");
    let daemon = case.start().await;
    daemon.hold(&case.driver, 0, 150.0).await;
    eventually("persistence", LONG, async || (daemon.gpu(0).await["persistence"] == true).then_some(())).await;
    case.ignore(0, &["nvmlDeviceSetPersistenceMode"]);
    assert_eq!(daemon.stop("TERM").await.code(), Some(1));
    assert!(case.driver.limit_w(0) == FOUND && case.holds(0), "{}", case.journal());
    let said = case.restore(1);
    assert!(said.contains("persistence"), "{said}");
    case.ignore(0, &[]);
    case.restore(0);
    assert!(!case.holds(0));
}

#[tokio::test]
async fn a_gpu_that_is_not_there_is_not_back() {
    let case = Case::of(&[gpu(), gpu()]);
    let daemon = case.start().await;
    daemon.hold(&case.driver, 0, 150.0).await;
    daemon.kill();
    case.driver.set(0, json!({"removed": true}));
    let daemon = case.start().await;
    assert_eq!(daemon.stop("TERM").await.code(), Some(1));
    let log = std::fs::read_to_string(case.state.path().join("log.txt")).expect("a log");
    assert!(log.contains("NOT restored to 280 W") && case.holds(0), "{log}");
    case.driver.set(0, json!({"removed": false}));
    case.restore(0);
    assert_eq!(case.driver.limit_w(0), FOUND);
}

#[tokio::test]
async fn a_gpu_that_was_replaced_is_forgotten_on_request_alone() {
    let case = Case::of(&[gpu(), gpu()]);
    let daemon = case.start().await;
    daemon.hold(&case.driver, 0, 240.0).await;
    daemon.hold(&case.driver, 1, 200.0).await;
    daemon.kill();
    let uuids = [0, 1].map(FakeDriver::uuid);
    let [present, gone] = [uuids[0].as_str(), uuids[1].as_str()];
    let journal = case.journal();
    let refused = |gpus: &[&str], why: &[&str]| {
        let said = case.forget(gpus, 1);
        assert!(why.iter().all(|part| said.contains(*part)), "{said}");
        assert_eq!((case.journal(), case.driver.limit_w(0)), (journal.clone(), Some(240.0)), "{said}");
    };
    refused(&[gone], &["is present", gone]);
    // A GPU that does not even give its UUID may be this one.
    case.driver.set(1, json!({"lost": true}));
    refused(&[gone], &["nothing was forgotten", "GPU 1 cannot be used"]);
    case.driver.set(1, json!({"lost": false, "removed": true}));
    refused(&[gone, present], &["is present", present]);
    refused(&[gone, "GPU-9"], &["has no GPU GPU-9", present, gone]);
    let said = case.restore(1);
    assert!(said.contains(&format!("`wattune restore --forget {gone}`")), "{said}");
    assert!(case.driver.limit_w(0) == FOUND && case.holds(1) && !case.holds(0), "{}", case.journal());
    let daemon = case.start().await;
    assert!(daemon.problems().await.contains(gone));
    let said = case.forget(&[gone], 1);
    assert!(said.contains("stop it first") && case.holds(1), "{said}");
    assert_eq!(daemon.stop("TERM").await.code(), Some(1));
    let said = case.forget(&[gone], 0);
    assert!(said.contains(gone) && said.contains("forgotten") && said.contains("280 W"), "{said}");
    assert!(case.restore(0).contains("nothing to restore"));
    let said = case.forget(&[gone], 1);
    assert!(said.contains("it has none"), "{said}");
    let daemon = case.start().await;
    assert_eq!(daemon.problems().await, "");
    assert_eq!(daemon.stop("TERM").await.code(), Some(0));
}

/// Kills the daemon of a job whose GPU stands at `ours`, has somebody set `theirs`, and looks at the next daemon.
async fn left_alone_after_a_kill(case: Case, ours: f64, theirs: u32, restored_between: bool) {
    let daemon = case.start().await;
    let id = case.register(&daemon, &[0]).await;
    let training = case.train(&daemon, &id);
    daemon.phase(&id, "profiling").await;
    case.limit(0, ours).await;
    // A moment later the daemon has seen what it wrote.
    tokio::time::sleep(Duration::from_millis(400)).await;
    let ours = case.driver.limit_w(0).expect("known");
    daemon.kill();
    training.stop().await;
    case.driver.set_limit_as_somebody_else(0, theirs);
    let writes = case.driver.limits_written(0).len();
    if restored_between {
        case.restore(0);
    }
    let daemon = case.start().await;
    let view = state_of(&daemon, 0, "external").await;
    assert!(view["detail"].as_str().is_some_and(|d| d.contains(&format!("set it to {theirs} W"))), "{ours}: {view}");
    let training = case.train(&daemon, &id);
    daemon.phase(&id, "observing").await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    training.stop().await;
    assert_eq!(case.driver.limits_written(0).len(), writes, "{ours}: nothing is steered");
    assert!(!case.journal().contains("found_mw"), "nothing is to be restored over it");
    daemon.delete(&format!("/v1/jobs/{id}")).await.expect(200);
    state_of(&daemon, 0, "free").await;
    assert_eq!(daemon.stop("TERM").await.code(), Some(0));
    assert_eq!(case.driver.limit_w(0), Some(f64::from(theirs)), "{ours}");
}

#[tokio::test]
async fn a_limit_set_while_a_killed_daemon_was_down_is_somebody_elses() {
    left_alone_after_a_kill(Case::of(&[gpu()]), 230.0, 200, false).await;
}

#[tokio::test]
async fn so_is_one_that_wattune_had_set_before_the_last() {
    left_alone_after_a_kill(Case::of(&[gpu()]), 180.0, 230, false).await;
}

#[tokio::test]
async fn so_is_one_on_a_gpu_that_was_never_written() {
    left_alone_after_a_kill(Case::of(&[gpu()]), 280.0, 200, false).await;
}

#[tokio::test]
async fn so_is_one_that_restore_has_seen() {
    left_alone_after_a_kill(Case::of(&[gpu()]), 230.0, 200, true).await;
}

#[tokio::test]
async fn so_is_one_under_a_cap() {
    left_alone_after_a_kill(Case::of(&[gpu()]).with("[cap]\nlimit_w = 2000\n"), 230.0, 200, false).await;
}

#[tokio::test]
async fn a_gpu_that_was_lost_meanwhile_is_somebody_elses_once_it_is_back() {
    let case = Case::of(&[gpu()]);
    let daemon = case.start().await;
    let id = case.register(&daemon, &[0]).await;
    let training = case.train(&daemon, &id);
    case.limit(0, 230.0).await;
    daemon.kill();
    training.stop().await;
    case.driver.set_limit_as_somebody_else(0, 200);
    let broken =
        json!({"fail_calls": {"nvmlDeviceGetPowerManagementLimit": 999, "nvmlDeviceGetEnforcedPowerLimit": 999}});
    case.driver.set(0, broken);
    let daemon = case.start().await;
    assert!(case.holds(0));
    case.driver.set(0, json!({"fail_calls": {}}));
    state_of(&daemon, 0, "external").await;
    assert_eq!(case.driver.limit_w(0), Some(200.0));
}

/// A job whose GPU was never written, a reboot, and the next daemon.
async fn back_after_a_reboot(case: Case, how: &str) {
    let daemon = case.start().await;
    // The first rung is what was found; the other GPU waits for its job's first report.
    let id = case.register(&daemon, &[0, 1]).await;
    eventually("a look", LONG, async || (daemon.gpu(1).await["state"] == "job").then_some(())).await;
    tokio::time::sleep(Duration::from_millis(400)).await;
    assert!(case.driver.writes().is_empty());
    daemon.stop(how).await;
    case.reboot(2);
    let daemon = case.start().await;
    case.limit(0, 280.0).await;
    case.limit(1, 280.0).await;
    let view = daemon.gpu(0).await;
    assert_ne!(view["state"], "external", "{view}");
    let training = Training::start(daemon.base(), &id, &case.driver, vec![(0, CURVE), (1, CURVE)], 0.0);
    case.limit(0, 230.0).await;
    assert_eq!(daemon.gpu(0).await["power_limit_original_w"], 280.0);
    training.stop().await;
    daemon.delete(&format!("/v1/jobs/{id}")).await.expect(200);
    case.limit(0, 280.0).await;
    assert_eq!(daemon.stop("TERM").await.code(), Some(0));
    assert_eq!((case.driver.limit_w(0), case.driver.limit_w(1)), (FOUND, FOUND));
    assert!(!case.journal().contains("found_mw"));
}

#[tokio::test]
async fn a_gpu_that_was_never_written_comes_back_after_a_crash() {
    back_after_a_reboot(Case::of(&[gpu(), gpu()]), "KILL").await;
}

#[tokio::test]
async fn and_after_an_orderly_reboot() {
    back_after_a_reboot(Case::of(&[gpu(), gpu()]), "TERM").await;
}

#[tokio::test]
async fn limits_come_back_after_a_reboot_once_the_default_is_known() {
    let case = Case::of(&[gpu(), gpu()]);
    let fail = |calls: Value| (0..2).for_each(|gpu| case.driver.set(gpu, json!({ "fail_calls": calls })));
    let daemon = case.start().await;
    daemon.hold(&case.driver, 0, 150.0).await;
    // It reports no progress, so that its GPU is never written.
    case.register(&daemon, &[1]).await;
    eventually("a look", LONG, async || (daemon.gpu(1).await["state"] == "job").then_some(())).await;
    tokio::time::sleep(Duration::from_millis(400)).await;
    daemon.kill();
    case.reboot(2);
    fail(json!({"nvmlDeviceGetPowerManagementDefaultLimit": 999}));
    let daemon = case.start().await;
    // Several ticks, in which the limits could be taken for external ones.
    tokio::time::sleep(Duration::from_millis(500)).await;
    for gpu in [0, 1] {
        assert_eq!(daemon.gpu(gpu).await["state"], "observed");
        assert_eq!(case.driver.limit_w(gpu), Some(f64::from(DEFAULT_W)));
    }
    assert!(case.holds(0), "{}", case.journal());
    fail(json!({}));
    case.limit(0, 280.0).await;
    case.limit(1, 280.0).await;
    assert_eq!(daemon.stop("TERM").await.code(), Some(0));
}

#[tokio::test]
async fn restore_knows_of_a_reboot_too_and_of_nothing_else() {
    let case = Case::of(&[gpu()]);
    let daemon = case.start().await;
    case.register(&daemon, &[0]).await;
    tokio::time::sleep(Duration::from_millis(400)).await;
    assert_eq!(daemon.stop("TERM").await.code(), Some(0));
    assert!(case.restore(0).contains("nothing to restore"));
    case.driver.set_limit_as_somebody_else(0, 200);
    assert!(case.restore(0).contains("nothing to restore"));
    assert_eq!(case.driver.limit_w(0), Some(200.0));
    case.reboot(1);
    let said = case.restore(0);
    assert!(said.contains("restored to its original limit of 280 W"), "{said}");
    assert_eq!(case.driver.limit_w(0), FOUND);
}

#[tokio::test]
async fn a_limit_that_cannot_be_journalled_is_refused() {
    let case = Case::of(&[gpu()]);
    let daemon = case.start().await;
    let in_the_way = case.state.path().join("found-limits.json.new");
    std::fs::create_dir(&in_the_way).expect("made");
    let body = json!({"power_limit_w": 150, "ttl_s": 3600});
    let refused = daemon.put("/v1/gpus/0/power-limit", &body).await.problem(503);
    let why = refused["detail"].as_str().expect("a sentence");
    assert!(why.contains("cannot write the restore journal") && why.contains("found-limits.json"), "{why}");
    std::fs::remove_dir(&in_the_way).expect("removed");
    tokio::time::sleep(Duration::from_millis(500)).await;
    let view = daemon.gpu(0).await;
    assert!(view["state"] == "free" && view["override_until"].is_null(), "what was refused is forgotten: {view}");
    assert!(case.driver.writes().is_empty());
    assert_eq!(daemon.problems().await, "");
    daemon.hold(&case.driver, 0, 150.0).await;
    // The wish that stands stays when another one cannot be noted.
    let list = case.state.path().join("found-limits.json.writes");
    std::fs::create_dir(&in_the_way).expect("made");
    std::fs::remove_file(&list).expect("removed");
    std::fs::create_dir(&list).expect("made");
    daemon.put("/v1/gpus/0/power-limit", &json!({"power_limit_w": 200, "ttl_s": 3600})).await.problem(503);
    assert_eq!(daemon.gpu(0).await["power_limit_wanted_w"], 150.0);
    assert_eq!(case.driver.limit_w(0), Some(150.0));
    std::fs::remove_dir(&in_the_way).expect("removed");
    std::fs::remove_dir(&list).expect("removed");
    assert_eq!(daemon.stop("TERM").await.code(), Some(0));
}

/// A second limit is in the list of written limits only; a list that is lost cannot be guessed.
#[tokio::test]
async fn the_last_of_several_limits_is_known_after_a_kill() {
    let case = Case::of(&[gpu()]);
    let list = case.state.path().join("found-limits.json.writes");
    for is_lost in [false, true] {
        let daemon = case.start().await;
        for watts in [150.0, 180.0, 200.0] {
            daemon.hold(&case.driver, 0, watts).await;
        }
        daemon.kill();
        if is_lost {
            let kept = std::fs::read(&list).expect("readable");
            std::fs::remove_file(&list).expect("removed");
            let said = case.restore(1);
            assert!(said.contains("found-limits.json.writes") && said.contains("by hand"), "{said}");
            assert_eq!(case.driver.limit_w(0), Some(200.0), "left as it is");
            std::fs::write(&list, kept).expect("written");
        }
        let said = case.restore(0);
        assert!(said.contains("restored to its original limit of 280 W"), "{said}");
        assert_eq!(case.driver.limit_w(0), FOUND);
    }
}

#[tokio::test]
async fn a_driver_that_was_reloaded_meanwhile_has_set_nothing() {
    let case = Case::of(&[gpu(), gpu()]);
    let daemon = case.start().await;
    let id = case.register(&daemon, &[0, 1]).await;
    let ledger = LedgerFile::open(case.state.path());
    // Far enough for the counters not to have caught up when they are read.
    eventually("some energy", LONG, async || (ledger.total_j(1) > 1_000.0).then_some(())).await;
    assert!(case.driver.writes().is_empty());
    daemon.kill();
    for gpu in [0, 1] {
        case.driver.set(gpu, json!({"energy_resets": 1, "demand_w": 0}));
        case.driver.set_limit_as_somebody_else(gpu, DEFAULT_W);
    }
    let daemon = case.start().await;
    case.limit(0, 280.0).await;
    case.limit(1, 280.0).await;
    let views = [daemon.gpu(0).await, daemon.gpu(1).await];
    assert!(views.iter().all(|view| view["state"] == "job" && view["owner"] == json!(id)), "{views:?}");
    assert_eq!(daemon.stop("TERM").await.code(), Some(0));
}
