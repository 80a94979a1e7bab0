//! `wattune run` that holds, suspends and resumes its command: once, and in time, whatever the daemon does.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::{Advisor, LONG, eventually, send_signal, wattune};

/// A stand-in for the daemon, and a folder in which the command writes down its starts and stops.
struct Scene {
    advisor: Advisor,
    folder: tempfile::TempDir,
}

/// Writes a line for each start, works until a stop is requested or its file `finish` exists, and writes a line for the end.
const COMMAND: &str = r#"
echo "start ${WATTUNE_RESUMED:-0}" >> "$FOLDER/lines"
trap 'echo saved >> "$FOLDER/lines"; exit 143' TERM
while ! [ -e "$FOLDER/finish" ]; do sleep 0.05; done
echo done >> "$FOLDER/lines"
exit 7
"#;

impl Scene {
    async fn new() -> Self {
        Self { advisor: Advisor::start().await, folder: tempfile::tempdir().expect("a directory") }
    }

    /// `wattune run` with these flags and [`COMMAND`].
    fn run(&self, flags: &[&str]) -> Command {
        self.run_script(flags, COMMAND)
    }

    fn run_script(&self, flags: &[&str], script: &str) -> Command {
        let mut command = run_at(&self.advisor.address(), self.folder.path(), flags);
        command.args(["--", "sh", "-c", script]);
        command
    }

    fn start(&self, flags: &[&str]) -> Running {
        Running::of(self.run(flags), self.path("err"))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// What the command has written.
    fn lines(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.path("lines")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    async fn line(&self, count: usize) {
        eventually(&format!("line {count}"), LONG, async || (self.lines().len() >= count).then_some(())).await;
    }

    async fn phase(&self, phase: &str) {
        eventually(phase, LONG, async || (self.advisor.phase() == phase).then_some(())).await;
    }

    fn finish(&self) {
        std::fs::write(self.path("finish"), "").expect("written");
    }
}

fn run_at(address: &str, folder: &Path, flags: &[&str]) -> Command {
    let mut command = wattune(&["run", "--listen", address]);
    for name in
        ["XDG_RUNTIME_DIR", "CUDA_VISIBLE_DEVICES", "LOCAL_RANK", "PYTHONPATH", "SLURM_JOB_ID", "WATTUNE_JOB_ID"]
    {
        command.env_remove(name);
    }
    command.env("TMPDIR", folder).env("FOLDER", folder).args(flags);
    command
}

/// A wrapper in the background. Killed when dropped.
struct Running {
    child: Child,
    err: PathBuf,
}

impl Running {
    fn of(mut command: Command, err: PathBuf) -> Self {
        let file = std::fs::File::create(&err).expect("a file");
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(file).spawn().expect("starts");
        Self { child, err }
    }

    fn err(&self) -> String {
        std::fs::read_to_string(&self.err).expect("readable")
    }

    async fn says(&self, part: &str) {
        eventually(part, LONG, async || self.err().contains(part).then_some(())).await;
    }

    fn kill(&self, signal: &str) {
        send_signal(&self.child, signal);
    }

    async fn code(&mut self) -> Option<i32> {
        eventually("the end", LONG, async || self.child.try_wait().expect("known")).await.code()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test]
async fn a_command_is_held_until_the_daemon_wants_it() {
    let scene = Scene::new().await;
    scene.advisor.want("hold", 3600.0);
    let mut run = scene.start(&["--within", "12h", "--duration", "8h", "--power", "250", "--name", "held"]);
    run.says("held until").await;
    let text = run.err();
    for part in ["12 % less carbon expected", "latest start", "Ctrl-C cancels"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let registration = &scene.advisor.requests("/v1/jobs")[0];
    assert_eq!(
        registration["start"],
        json!({"within_s": 43_200.0, "duration_s": 28_800.0, "power_w": 250.0}),
        "{registration}"
    );
    assert!(registration["key"].is_string(), "{registration}");
    // The lease is kept, and the plan may move.
    scene.advisor.want("hold", 7200.0);
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(scene.lines(), [""; 0], "it waits");
    scene.advisor.want("run", None);
    scene.line(1).await;
    scene.phase("planned").await;
    scene.finish();
    assert_eq!(run.code().await, Some(7));
    assert_eq!(scene.lines(), ["start 0", "done"]);
    assert_eq!(scene.advisor.requests("/begin"), [json!({"reason": "planned"})]);
    assert_eq!(scene.advisor.requests("/v1/jobs").len(), 1);
    let held = run.err().lines().find(|line| line.contains("held      ")).map(str::to_owned).unwrap_or_default();
    assert!(held.contains("before the start; 12 % less carbon was expected than at once"), "{held}");
}

#[tokio::test]
async fn a_hold_is_ended_by_the_user() {
    // The signal, the exit code, and whether the command ran.
    for (signal, code, lines) in [("TERM", 143, &[][..]), ("USR1", 7, &["start 0", "done"])] {
        let scene = Scene::new().await;
        scene.advisor.want("hold", 3600.0);
        scene.finish();
        let mut run = scene.start(&["--within", "12h", "--json", scene.path("json").to_str().expect("text")]);
        run.says("held until").await;
        run.kill(signal);
        assert_eq!(run.code().await, Some(code), "{signal}");
        assert_eq!(scene.lines(), lines, "{signal}");
        assert_eq!(scene.advisor.phase(), Value::Null, "the job has ended");
        let summary: Value = serde_json::from_slice(&std::fs::read(scene.path("json")).expect("there")).expect("JSON");
        let reason = if signal == "USR1" { json!("start_now") } else { Value::Null };
        assert_eq!((&summary["exit_code"], &summary["waits"]["start_reason"]), (&json!(code), &reason), "{summary}");
    }
}

#[tokio::test]
async fn a_repeated_signal_to_start_leaves_the_command_alone() {
    let scene = Scene::new().await;
    scene.advisor.want("hold", 3600.0);
    let mut run = scene.start(&["--within", "12h"]);
    run.says("held until").await;
    // The command does not start before the daemon has had time to answer.
    scene.advisor.freeze(true);
    run.kill("USR1");
    tokio::time::sleep(Duration::from_millis(700)).await;
    run.kill("USR1");
    scene.line(1).await;
    run.kill("USR1");
    tokio::time::sleep(Duration::from_millis(300)).await;
    scene.advisor.freeze(false);
    scene.finish();
    assert_eq!(run.code().await, Some(7), "{}", run.err());
    assert_eq!(scene.lines(), ["start 0", "done"]);
}

#[tokio::test]
async fn a_second_terminal_releases_a_held_command() {
    let scene = Scene::new().await;
    let release = |key: &str| {
        let command = run_at(&scene.advisor.address(), scene.folder.path(), &["--start-now", "--key", key]);
        Running::of(command, scene.path("second"))
    };
    scene.advisor.want("hold", 3600.0);
    scene.finish();
    let mut run = scene.start(&["--within", "12h", "--key", "k"]);
    run.says("held until").await;
    let mut wrong = release("other");
    assert_eq!(wrong.code().await, Some(1));
    assert!(wrong.err().contains("no job with the key other waits"), "{}", wrong.err());
    let mut second = release("k");
    assert_eq!(second.code().await, Some(0), "{}", second.err());
    assert!(second.err().contains("starts now"), "{}", second.err());
    assert_eq!(run.code().await, Some(7));
    assert_eq!(scene.lines(), ["start 0", "done"]);
}

#[tokio::test]
async fn flags_that_start_at_once() {
    for flags in [&["--within", "12h", "--start-now"][..], &["--within", "0"], &["--latest", "2021-07-01T00:00:00Z"]] {
        let scene = Scene::new().await;
        scene.advisor.want("hold", 3600.0);
        scene.finish();
        let mut run = scene.start(flags);
        assert_eq!(run.code().await, Some(7), "{flags:?}: {}", run.err());
        assert_eq!(scene.lines(), ["start 0", "done"], "{flags:?}");
        let reason = if flags.contains(&"--start-now") { "start_now" } else { "latest_start" };
        assert_eq!(scene.advisor.requests("/begin"), [json!({"reason": reason})], "{flags:?}");
    }
}

#[tokio::test]
async fn the_latest_start_counts_whatever_the_daemon_does() {
    for how in ["alive", "killed", "frozen", "restarted", "forgetful"] {
        let mut scene = Scene::new().await;
        scene.advisor.want("hold", 3600.0);
        let begun = tokio::time::Instant::now();
        let mut run = scene.start(&["--within", "9"]);
        run.says("held until").await;
        match how {
            "killed" => scene.advisor.kill().await,
            "frozen" => scene.advisor.freeze(true),
            "restarted" => scene.advisor.restart().await,
            "forgetful" => scene.advisor.forget(),
            _ => {}
        }
        scene.line(1).await;
        let held = begun.elapsed();
        // It begins to start a few seconds before.
        assert!(held >= Duration::from_secs(5), "{how}: {held:?}");
        assert!(how == "forgetful" || held < Duration::from_secs(60), "{how}: {held:?}");
        scene.advisor.freeze(false);
        scene.finish();
        assert_eq!(run.code().await, Some(7), "{how}");
        assert_eq!(scene.lines(), ["start 0", "done"], "{how}: {}", run.err());
        let text = run.err();
        assert!(how == "forgetful" || text.contains("starts the command: its latest start has come"), "{how}: {text}");
        assert!(how != "frozen" || text.contains("latest start has come; the daemon does not answer"), "{text}");
    }
}

#[tokio::test]
async fn a_latest_start_that_has_passed_is_said_so() {
    let scene = Scene::new().await;
    scene.finish();
    let mut run = scene.start(&["--latest", "2021-07-01T00:00:00Z"]);
    assert_eq!(run.code().await, Some(7));
    let text = run.err();
    assert!(
        text.contains("the latest start, 2021-0") && text.contains("has passed, so the command starts at once"),
        "{text}"
    );
    let mut date = scene.start(&["--latest", "2021-07-01"]);
    assert_eq!(date.code().await, Some(2));
    assert!(date.err().contains("give a time with its zone"), "{}", date.err());
    let mut none = scene.start(&["--within", "0"]);
    assert_eq!(none.code().await, Some(7));
    assert!(!none.err().contains("has passed"), "{}", none.err());
}

#[tokio::test]
async fn a_key_runs_once_at_a_time() {
    let scene = Scene::new().await;
    scene.advisor.want("hold", 3600.0);
    let flags = ["--within", "12h", "--key", "k"];
    let mut first = scene.start(&flags);
    first.says("held until").await;
    let mut second = Running::of(scene.run(&flags), scene.path("second"));
    assert_eq!(second.code().await, Some(2), "{}", second.err());
    let said = format!("its process runs on this machine (process {})", first.child.id());
    assert!(second.err().contains(&said), "{}", second.err());
    // Without its lock, the first one is as on another machine: only the lease shows that it lives.
    let is_lock =
        |path: &PathBuf| std::fs::read_to_string(path).is_ok_and(|text| text == format!("{}\n", first.child.id()));
    let mut locks = std::fs::read_dir("/tmp").expect("readable").flatten().map(|entry| entry.path());
    let lock = locks.find(|path| path.to_string_lossy().contains("wattune-key-") && is_lock(path));
    std::fs::remove_file(lock.expect("a lock")).expect("removed");
    let mut second = Running::of(scene.run(&flags), scene.path("second"));
    assert_eq!(second.code().await, Some(2), "{}", second.err());
    assert!(second.err().contains("renews the lease, so the command does not start here"), "{}", second.err());
    assert_eq!(scene.lines(), [""; 0]);
    scene.finish();
    scene.advisor.want("run", None);
    assert_eq!(first.code().await, Some(7));
    assert_eq!(scene.lines(), ["start 0", "done"]);
}

#[tokio::test]
async fn a_key_is_taken_while_processes_of_its_job_run() {
    // The first process id now belongs to another process, and the second to none.
    for (pid, running, code) in [(std::process::id(), 0, 7), (u32::MAX >> 1, 1, 2)] {
        let scene = Scene::new().await;
        scene.finish();
        scene.advisor.hold_key("k", "lease expired");
        scene.advisor.set_processes(json!({"pids": [pid], "running": running}));
        let mut run = scene.start(&["--key", "k"]);
        assert_eq!(run.code().await, Some(code), "{running} running: {}", run.err());
        let refused = run.err().contains("processes of that job still run, so the command does not start here");
        assert_eq!((refused, scene.lines().is_empty()), (code == 2, code == 2), "{running} running: {}", run.err());
        let replaces = scene.advisor.requests("/v1/jobs").last().map(|body| body["replaces"].clone());
        assert_eq!(replaces, Some(if code == 7 { json!("job-0") } else { Value::Null }), "{running} running");
    }
}

#[tokio::test]
async fn a_job_that_ends_while_another_waits_for_its_key_does_not_run_twice() {
    let scene = Scene::new().await;
    scene.finish();
    scene.advisor.hold_key("k", "ended by request");
    let mut second = scene.start(&["--key", "k", "--within", "12h"]);
    second.says("waits until that job's lease runs out").await;
    scene.advisor.forget();
    assert_eq!(second.code().await, Some(2), "{}", second.err());
    assert!(second.err().contains("has ended meanwhile (ended by request)"), "{}", second.err());
    assert_eq!(scene.lines(), [""; 0]);
}

#[tokio::test]
async fn the_last_planned_start_counts_while_the_daemon_is_silent() {
    let mut scene = Scene::new().await;
    scene.advisor.want("hold", 6.0);
    let mut run = scene.start(&["--within", "12h"]);
    run.says("held until").await;
    scene.advisor.kill().await;
    run.says("does not answer").await;
    scene.finish();
    assert_eq!(run.code().await, Some(7));
    assert_eq!(scene.lines(), ["start 0", "done"]);
}

#[tokio::test]
async fn the_last_planned_time_counts_while_the_daemon_refuses_messages() {
    for (status, detail) in [(401, "the token has expired"), (503, "the daemon is busy")] {
        for is_held in [true, false] {
            let scene = Scene::new().await;
            scene.advisor.want(if is_held { "hold" } else { "run" }, 6.0);
            let flags: &[&str] = if is_held { &["--within", "12h"] } else { &["--suspend=SIGTERM,1,1"] };
            let mut run = scene.start(flags);
            if is_held {
                run.says("held until").await;
            } else {
                scene.line(1).await;
                scene.advisor.want("suspend", 8.0);
                // The daemon does not know yet that the command has exited.
                scene.line(2).await;
            }
            scene.advisor.reject(json!({"status": status, "detail": detail}));
            let verb = if is_held { "starts" } else { "resumes" };
            let refusal = format!("refuses this job's messages: {detail}; the command {verb} at the time");
            run.says(&refusal).await;
            scene.finish();
            assert_eq!(run.code().await, Some(7), "{status}: {}", run.err());
            let lines: &[&str] = if is_held { &["start 0", "done"] } else { &["start 0", "saved", "start 1", "done"] };
            assert_eq!(scene.lines(), lines, "{status}");
            assert_eq!(run.err().matches(&refusal).count(), 1, "{}", run.err());
        }
    }
}

#[tokio::test]
async fn without_a_daemon_a_command_is_not_held() {
    let mut scene = Scene::new().await;
    scene.advisor.kill().await;
    scene.finish();
    let mut run = scene.start(&["--within", "12h", "--suspend"]);
    assert_eq!(run.code().await, Some(7));
    let text = run.err();
    assert!(text.contains("no daemon answers") && text.contains("starts at once"), "{text}");
    assert_eq!(scene.lines(), ["start 0", "done"]);
}

#[tokio::test]
async fn values_that_the_daemon_refuses_are_wrong_use() {
    let table = [
        (json!({"status": 422, "field": "start.duration_s", "detail": "start.duration_s: is missing"}), Some(2)),
        (json!({"status": 422, "field": "suspend.signal", "detail": "suspend.signal: is odd"}), Some(2)),
        (json!({"status": 422, "field": "gpus[0]", "detail": "gpus: are not known"}), Some(7)),
        (json!({"status": 409, "field": "key", "detail": "key: job x has it"}), Some(2)),
        (json!({"status": 503, "detail": "busy"}), Some(7)),
    ];
    for (problem, code) in table {
        let scene = Scene::new().await;
        scene.advisor.refuse(problem.clone());
        scene.finish();
        let mut run = scene.start(&["--within", "12h", "--key", "k"]);
        // Another job's key is waited for, as long as the lease of a job that was left behind.
        if problem["field"] == "key" {
            run.says("waits until that job's lease runs out").await;
            run.kill("TERM");
            assert_eq!(run.code().await, Some(143));
        } else {
            assert_eq!(run.code().await, code, "{problem}: {}", run.err());
            let detail = problem["detail"].as_str().expect("text").replace("start.duration_s", "--duration");
            assert!(run.err().contains(&detail), "{problem}: {}", run.err());
        }
        let ran = !scene.lines().is_empty();
        assert_eq!(ran, code == Some(7), "{problem}");
    }
}

#[tokio::test]
async fn a_command_is_stopped_and_resumed() {
    let scene = Scene::new().await;
    let summary = scene.path("json");
    let mut run = scene.start(&["--suspend=SIGTERM,1,1", "--json", summary.to_str().expect("text")]);
    for turn in 1..=2 {
        scene.phase("waiting").await;
        scene.line(2 * turn - 1).await;
        scene.advisor.want("suspend", None);
        scene.phase("suspended").await;
        scene.advisor.want("hold", 3600.0);
        run.says("suspended until").await;
        scene.advisor.want("run", None);
        eventually("the next start", LONG, async || {
            (scene.lines().len() > 2 * turn && scene.advisor.requests("/begin").len() == turn).then_some(())
        })
        .await;
        if turn == 1 {
            // A stand-in's phase for a job that runs.
            scene.advisor.set_phase("waiting");
        }
    }
    scene.finish();
    assert_eq!(run.code().await, Some(7));
    assert_eq!(scene.lines(), ["start 0", "saved", "start 1", "saved", "start 2", "done"]);
    assert_eq!(scene.advisor.requests("/v1/jobs").len(), 1, "one job");
    let summary: Value = serde_json::from_slice(&std::fs::read(summary).expect("there")).expect("JSON");
    let stops = summary["waits"]["stops"].as_array().expect("a list");
    assert_eq!(stops.len(), 2, "{summary}");
    assert!(stops.iter().all(|stop| stop["exit_code"] == 143 && stop["resumed_at"].is_string()), "{summary}");
    assert!(run.err().contains("stopped   2 times"), "{}", run.err());
}

#[tokio::test]
async fn a_user_ends_a_suspended_command_for_good() {
    let scene = Scene::new().await;
    let mut run = scene.start(&["--suspend"]);
    scene.line(1).await;
    scene.advisor.want("suspend", None);
    scene.phase("suspended").await;
    scene.advisor.want("hold", 3600.0);
    run.kill("INT");
    // Who starts the tests in the background of a shell ignores SIGINT, and so does the wrapper then.
    tokio::time::sleep(Duration::from_secs(1)).await;
    run.kill("TERM");
    assert!([Some(130), Some(143)].contains(&run.code().await));
    assert_eq!(scene.lines(), ["start 0", "saved"]);
    assert_eq!(scene.advisor.phase(), Value::Null);
}

#[tokio::test]
async fn a_user_ends_a_running_command_for_good() {
    let scene = Scene::new().await;
    let mut run = scene.start(&["--suspend"]);
    scene.line(1).await;
    run.kill("TERM");
    assert_eq!(run.code().await, Some(143));
    assert_eq!(scene.lines(), ["start 0", "saved"]);
    assert!(scene.advisor.requests("/suspended").is_empty());
}

#[tokio::test]
async fn a_command_that_is_done_when_it_is_asked_is_not_resumed() {
    let scene = Scene::new().await;
    // Its last step is the one with which it exits.
    let script = r#"
        echo start >> "$FOLDER/lines"; echo 'step 9/10'
        trap 'echo "step 10/10"; exit 0' TERM
        while :; do sleep 0.05; done"#;
    let mut run = Running::of(scene.run_script(&["--suspend", "--log-progress"], script), scene.path("err"));
    scene.line(1).await;
    eventually("progress", LONG, async || (!scene.advisor.requests("/progress").is_empty()).then_some(())).await;
    scene.advisor.want("suspend", None);
    assert_eq!(run.code().await, Some(0), "{}", run.err());
    assert_eq!(scene.lines(), ["start"]);
}

#[tokio::test]
async fn processes_that_a_shell_leaves_behind_are_stopped_too() {
    let scene = Scene::new().await;
    let inner = scene.path("inner.sh");
    std::fs::write(&inner, COMMAND).expect("written");
    // The shell dies of the signal; what it runs does not get one from it.
    let script = "sh \"$FOLDER/inner.sh\"; echo never >> \"$FOLDER/lines\"";
    let mut run = Running::of(scene.run_script(&["--suspend"], script), scene.path("err"));
    scene.line(1).await;
    scene.advisor.want("suspend", None);
    scene.phase("suspended").await;
    assert_eq!(scene.lines(), ["start 0", "saved"]);
    scene.advisor.want("run", None);
    scene.line(3).await;
    scene.finish();
    assert_eq!(run.code().await, Some(0));
    assert_eq!(scene.lines()[2..], ["start 1", "done", "never"]);
}

#[tokio::test]
async fn the_daemon_is_killed_frozen_and_restarted_at_every_stage() {
    for how in ["killed", "frozen", "forgetful"] {
        let mut scene = Scene::new().await;
        let disturb = async |scene: &mut Scene| match how {
            "killed" => {
                scene.advisor.kill().await;
                tokio::time::sleep(Duration::from_secs(2)).await;
                scene.advisor.restart().await;
            }
            "frozen" => {
                scene.advisor.freeze(true);
                tokio::time::sleep(Duration::from_secs(4)).await;
                scene.advisor.freeze(false);
            }
            _ => {
                scene.advisor.forget();
                eventually("the next registration", LONG, async || (!scene.advisor.phase().is_null()).then_some(()))
                    .await;
            }
        };
        scene.advisor.want("hold", 3600.0);
        let mut run = scene.start(&["--within", "12h", "--suspend"]);
        run.says("held until").await;
        disturb(&mut scene).await;
        assert_eq!(scene.lines(), [""; 0], "{how}: held");
        scene.advisor.want("run", None);
        scene.line(1).await;
        disturb(&mut scene).await;
        assert_eq!(scene.lines(), ["start 0"], "{how}: runs");
        scene.advisor.want("suspend", None);
        scene.line(2).await;
        disturb(&mut scene).await;
        scene.phase("suspended").await;
        scene.advisor.want("hold", 3600.0);
        disturb(&mut scene).await;
        scene.phase("suspended").await;
        assert_eq!(scene.lines(), ["start 0", "saved"], "{how}: suspended");
        scene.advisor.want("run", None);
        scene.line(3).await;
        disturb(&mut scene).await;
        scene.finish();
        assert_eq!(run.code().await, Some(7), "{how}");
        assert_eq!(scene.lines(), ["start 0", "saved", "start 1", "done"], "{how}: {}", run.err());
    }
}

/// A stand-in for `kubectl`, which writes down what it is asked. Its Job prints lines while it is resumed, until the file
/// `finish` exists. It refuses the first request to resume the Job, and the first to suspend it.
const KUBECTL: &str = r#"#!/bin/sh
[ "$1 $2" = "-n research" ] || { echo "not with its options: $*" >&2; exit 1; }
shift 2
refuse_first() { [ -e "$FOLDER/$1" ] || { touch "$FOLDER/$1"; exit 1; }; }
case "$*" in
    *'"suspend":false'*) refuse_first resume; echo resumed >> "$FOLDER/lines"; touch "$FOLDER/pods" ;;
    *'"suspend":true'*) refuse_first suspend; echo suspended >> "$FOLDER/lines"; rm -f "$FOLDER/pods" ;;
    wait*) [ -e "$FOLDER/pods" ] && exit 1; echo gone >> "$FOLDER/lines" ;;
    logs*) while [ -e "$FOLDER/pods" ] && ! [ -e "$FOLDER/finish" ]; do echo "step 1/9"; sleep 0.1; done ;;
    get*) printf 'train '; [ -e "$FOLDER/finish" ] && printf Complete ;;
    *) echo "an unknown request: $*" >> "$FOLDER/lines"; exit 1 ;;
esac
exit 0
"#;

#[tokio::test]
async fn a_kubernetes_job_is_resumed_and_suspended_by_its_script() {
    use std::os::unix::fs::PermissionsExt as _;

    let scene = Scene::new().await;
    let bin = scene.path("bin");
    std::fs::create_dir(&bin).expect("made");
    std::fs::write(bin.join("kubectl"), KUBECTL).expect("written");
    std::fs::set_permissions(bin.join("kubectl"), std::fs::Permissions::from_mode(0o755)).expect("set");
    let follow = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/kubernetes/follow-job.sh");
    let script = format!("PATH=\"$FOLDER/bin:$PATH\" exec {follow} train -n research");
    scene.advisor.want("hold", 3600.0);
    let flags = ["--within", "12h", "--suspend=SIGTERM,1,1", "--log-progress"];
    let mut run = Running::of(scene.run_script(&flags, &script), scene.path("err"));
    run.says("held until").await;
    assert_eq!(scene.lines(), [""; 0], "the Job stays suspended");
    scene.advisor.want("run", None);
    eventually("progress", LONG, async || (!scene.advisor.requests("/progress").is_empty()).then_some(())).await;
    scene.advisor.want("suspend", None);
    scene.phase("suspended").await;
    assert_eq!(scene.lines(), ["resumed", "suspended", "gone"]);
    scene.advisor.want("run", None);
    scene.line(4).await;
    scene.finish();
    assert_eq!(run.code().await, Some(0), "{}", run.err());
    assert_eq!(scene.lines(), ["resumed", "suspended", "gone", "resumed"]);
}
