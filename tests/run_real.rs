//! `wattune run` against a real daemon that is frozen, with a key that another process has, and inside another one.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use crate::nvml::gpu;
use crate::support::{Daemon, Ended, FakeDriver, LONG, eventually, forecast_file, wattune};

/// A daemon whose grid is dirty for about ten seconds, and clean from then on.
struct Scene {
    state: tempfile::TempDir,
    daemon: Daemon,
}

impl Scene {
    async fn new() -> Self {
        let (driver, state) = (FakeDriver::new(&[gpu()]), tempfile::tempdir().expect("a directory"));
        let carbon = forecast_file(&state, 5, 100, |slot| if slot < 2 { 350.0 } else { 100.0 });
        let carbon = carbon.to_str().expect("text");
        let daemon = Daemon::start_with(&driver, state.path(), &["--carbon-file", carbon, "--zone", "DE"]).await;
        daemon.carbon_where("the file", |c| c["basis"] == "source").await;
        Self { state, daemon }
    }

    fn path(&self, name: &str) -> String {
        self.state.path().join(name).to_str().expect("text").to_owned()
    }

    fn run(&self, flags: &[&str], script: &str) -> Command {
        let address = self.daemon.base().strip_prefix("http://").expect("an address");
        let mut command = wattune(&["run", "--listen", address]);
        for name in ["XDG_RUNTIME_DIR", "CUDA_VISIBLE_DEVICES", "LOCAL_RANK", "PYTHONPATH", "WATTUNE_JOB_ID"] {
            command.env_remove(name);
        }
        command.env("TMPDIR", self.state.path()).args(flags).args(["--", "sh", "-c", script]);
        command
    }

    fn start(&self, flags: &[&str], script: &str, err: &str) -> Child {
        let err = std::fs::File::create(self.path(err)).expect("a file");
        let mut command = self.run(flags, script);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(err).spawn().expect("starts")
    }

    fn text(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    async fn says(&self, name: &str, part: &str) {
        eventually(part, LONG, async || self.text(name).contains(part).then_some(())).await;
    }

    async fn jobs(&self, query: &str) -> Vec<Value> {
        self.daemon.get(&format!("/v1/jobs{query}")).await.json().as_array().expect("a list").clone()
    }
}

async fn code(child: &mut Child) -> Option<i32> {
    eventually("the end", LONG, async || child.try_wait().expect("known")).await.code()
}

#[tokio::test]
async fn a_daemon_that_was_frozen_learns_of_the_end() {
    let scene = Scene::new().await;
    // The lease is long: only the messages of the wrapper can end the job.
    let flags = ["--within", "12", "--duration", "5", "--power", "200", "--lease-s", "3600", "--name", "frozen"];
    let mut run = scene.start(&flags, "exit 4", "err");
    scene.says("err", "held until").await;
    scene.daemon.signal("STOP");
    assert_eq!(code(&mut run).await, Some(4));
    let text = scene.text("err");
    scene.daemon.signal("CONT");
    for part in
        ["starts the command: ", "the daemon does not answer", "no summary: ", "the job ends when its lease expires"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
    eventually("the job's end", LONG, async || scene.jobs("").await.is_empty().then_some(())).await;
    let ended = scene.jobs("?state=ended").await;
    assert_eq!((ended.len(), &ended[0]["name"]), (1, &json!("frozen")), "{ended:?}");
    assert_ne!(ended[0]["end_reason"], "lease expired", "{ended:?}");
    scene.daemon.kill();
}

#[tokio::test]
async fn a_key_that_a_process_of_this_machine_has_is_refused_at_once() {
    let scene = Scene::new().await;
    let stop = scene.path("stop");
    let script = format!("while ! [ -e {stop} ]; do sleep 0.05; done; exit 3");
    let mut first = scene.start(&["--key", "nightly"], &script, "first");
    scene.says("first", "job ").await;
    let second = Ended::of(&mut scene.run(&["--key", "nightly"], "echo twice"));
    assert!(second.failed(2).contains("its process runs on this machine"), "{second:?}");
    assert_eq!(second.out, "");
    std::fs::write(Path::new(&stop), "").expect("written");
    assert_eq!(code(&mut first).await, Some(3));
    // What has ended may run again.
    assert_eq!(Ended::of(&mut scene.run(&["--key", "nightly"], "echo again")).done(), "again\n");
    scene.daemon.kill();
}

#[tokio::test]
async fn a_key_has_one_process_while_the_daemon_is_frozen() {
    let scene = Scene::new().await;
    scene.daemon.signal("STOP");
    let (stop, began) = (scene.path("stop"), scene.path("began"));
    let script = format!("touch {began}; while ! [ -e {stop} ]; do sleep 0.05; done; exit 3");
    let mut first = scene.start(&["--key", "nightly"], &script, "first");
    eventually("the first command", LONG, async || Path::new(&began).exists().then_some(())).await;
    for flags in [&["--key", "nightly"][..], &["--key", "nightly", "--within", "12", "--start-now"]] {
        let second = Ended::of(&mut scene.run(flags, "echo twice"));
        let said = format!("its process runs on this machine (process {})", first.id());
        assert!(second.failed(2).contains(&said), "{second:?}");
        assert_eq!(second.out, "");
    }
    std::fs::write(Path::new(&stop), "").expect("written");
    assert_eq!(code(&mut first).await, Some(3));
    // A killed process frees the key.
    let (script, runs) =
        (format!("touch {0}; while ! [ -e {stop}.2 ]; do sleep 0.05; done", scene.path("runs")), scene.path("runs"));
    let mut killed = scene.start(&["--key", "nightly"], &script, "killed");
    eventually("the command", LONG, async || Path::new(&runs).exists().then_some(())).await;
    killed.kill().expect("killed");
    std::fs::write(Path::new(&format!("{stop}.2")), "").expect("written");
    killed.wait().expect("gone");
    assert_eq!(Ended::of(&mut scene.run(&["--key", "nightly"], "echo again")).done(), "again\n");
    scene.daemon.kill();
}

#[tokio::test]
async fn a_run_inside_another_one_writes_its_summary_too() {
    let scene = Scene::new().await;
    let (inner, program) = (scene.path("inner.json"), env!("CARGO_BIN_EXE_wattune"));
    let script = format!("{program} run --json {inner} -- sh -c 'exit 5'");
    let outer = Ended::of(&mut scene.run(&[], &script));
    assert_eq!(outer.code, Some(5), "{outer:?}");
    let summary: Value = serde_json::from_str(&scene.text("inner.json")).expect("JSON");
    assert_eq!((&summary["exit_code"], &summary["job_ids"]), (&json!(5), &json!([])), "{summary}");
    assert!(summary["problem"].as_str().is_some_and(|why| why.contains("another `wattune run`")), "{summary}");
    assert_eq!(scene.jobs("?state=ended").await.len(), 1, "one job");
    scene.daemon.kill();
}
