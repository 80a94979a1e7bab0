//! `wattune run`: the command runs as without wattune, and its job is registered, followed and ended.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use crate::nvml::gpu;
use crate::support::{Advisor, Daemon, Ended, FakeDriver, LONG, eventually, send_signal, wattune};

/// A daemon on fake GPUs, and what its commands need to reach it.
struct Scene {
    driver: FakeDriver,
    state: tempfile::TempDir,
    daemon: Option<Daemon>,
}

impl Scene {
    async fn new(gpus: usize) -> Self {
        let driver = FakeDriver::new(&vec![gpu(); gpus]);
        let state = tempfile::tempdir().expect("a directory");
        let daemon = Daemon::start_with(&driver, state.path(), &[]).await;
        Self { driver, state, daemon: Some(daemon) }
    }

    fn daemon(&self) -> &Daemon {
        self.daemon.as_ref().expect("it runs")
    }

    /// `wattune run` with these flags and this shell script.
    fn run(&self, flags: &[&str], script: &str) -> Command {
        let address = self.daemon().base().strip_prefix("http://").expect("an address");
        let mut command = run_at(address, self.state.path(), flags);
        command.args(["--", "sh", "-c", script]);
        command
    }

    /// The open job, once there is one that is as wanted.
    async fn job(&self, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        eventually(what, LONG, async || {
            let jobs = self.daemon().get("/v1/jobs").await.json();
            jobs.as_array()?.iter().find(|job| is_so(job)).cloned()
        })
        .await
    }

    async fn ended(&self) -> Vec<Value> {
        let jobs = self.daemon().get("/v1/jobs?state=ended").await.json();
        jobs.as_array().expect("a list").clone()
    }

    async fn open(&self) -> usize {
        self.daemon().get("/v1/jobs").await.json().as_array().expect("a list").len()
    }

    /// Folders of runs that are left.
    fn folders(&self) -> usize {
        let entries = std::fs::read_dir(self.state.path()).expect("a directory").flatten();
        entries.filter(|entry| entry.file_name().to_string_lossy().starts_with("wattune-run")).count()
    }
}

/// `wattune run` against a daemon at this address, with its folder below `temporary`.
fn run_at(address: &str, temporary: &Path, flags: &[&str]) -> Command {
    let mut command = wattune(&["run", "--listen", address]);
    for name in ["XDG_RUNTIME_DIR", "CUDA_VISIBLE_DEVICES", "LOCAL_RANK", "PYTHONPATH", "KUBEFLOW_TRAINER_SERVER_URL"] {
        command.env_remove(name);
    }
    command.env("TMPDIR", temporary).args(flags);
    command
}

async fn wait(child: &mut Child) -> Option<i32> {
    eventually("the end", LONG, async || child.try_wait().expect("known")).await.code()
}

#[tokio::test]
async fn a_command_runs_as_without_wattune() {
    let scene = Scene::new(1).await;
    let ended = Ended::of(&mut scene.run(&["--name", "echo"], "printf 'out\\0put'; printf err >&2; exit 3"));
    assert_eq!((ended.code, ended.out.as_str()), (Some(3), "out\0put"));
    assert!(ended.err.contains("err") && ended.err.contains("echo ran"), "{}", ended.err);
    let quiet = Ended::of(&mut scene.run(&["--quiet"], "exit 0"));
    assert_eq!((quiet.done(), quiet.err.as_str()), ("", ""));
    assert_eq!(Ended::of(&mut scene.run(&[], "kill -KILL $$")).code, Some(137));
    for (program, code) in [("no-such-program", 127), ("/etc/passwd", 126)] {
        let address = scene.daemon().base().replace("http://", "");
        let mut command = run_at(&address, scene.state.path(), &[]);
        let ended = Ended::of(command.args(["--", program]));
        assert!(ended.failed(code).contains(&format!("cannot run {program}")), "{ended:?}");
        assert!(!ended.err.contains(" ran "), "nothing ran: {ended:?}");
    }
    assert_eq!((scene.open().await, scene.folders()), (0, 0));
    assert_eq!(scene.ended().await.len(), 5);
}

#[tokio::test]
async fn signals_reach_the_command() {
    let scene = Scene::new(1).await;
    // Whoever starts the tests in the background of a shell ignores SIGINT, and so do all commands then.
    let status = std::fs::read_to_string("/proc/self/status").expect("readable");
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).expect("reported").trim();
    let ignored = u64::from_str_radix(mask, 16).expect("a mask");
    let is_ignored = |name: &str| ["HUP", "INT"].iter().zip([1, 2]).any(|(n, bit)| *n == name && ignored & bit != 0);
    // The shell's own answer to each signal, and what it does without one.
    for (signal, script, code) in [
        ("TERM", "trap 'exit 7' TERM; echo ready; while :; do sleep 0.05; done", 7),
        ("INT", "trap 'exit 8' INT; echo ready; while :; do sleep 0.05; done", 8),
        ("HUP", "trap 'exit 9' HUP; echo ready; while :; do sleep 0.05; done", 9),
        ("USR1", "trap 'exit 10' USR1; echo ready; while :; do sleep 0.05; done", 10),
        ("TERM", "echo ready; exec sleep 100", 143),
        ("HUP", "echo ready; exec sleep 100", 129),
    ] {
        if is_ignored(signal) {
            continue;
        }
        let mut command = scene.run(&["--quiet"], script);
        let mut child = command.stdout(Stdio::piped()).spawn().expect("starts");
        let mut ready = [0; 6];
        std::io::Read::read_exact(child.stdout.as_mut().expect("piped"), &mut ready).expect("ready");
        send_signal(&child, signal);
        assert_eq!(wait(&mut child).await, Some(code), "{signal}: {script}");
    }
    assert_eq!((scene.open().await, scene.folders()), (0, 0));
}

#[tokio::test]
async fn printed_lines_are_progress_and_the_job_has_its_facts() {
    let scene = Scene::new(2).await;
    let file = scene.state.path().join("summary.json");
    let flags = [
        "--log-progress",
        "--gpus",
        "1",
        "--batch-size",
        "4",
        "--tag",
        "team=vision",
        "--max-slowdown",
        "0.05",
        "--json",
        file.to_str().expect("UTF-8"),
    ];
    let script = "for i in $(seq 1 60); do echo \"step $i/60\"; sleep 0.05; done; sleep 1.5";
    let mut command = scene.run(&flags, script);
    command.env("SLURM_JOB_ID", "77").env("SLURM_JOB_USER", "ann").stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().expect("starts");
    let own = child.id();
    let job = scene.job("progress", |job| job["progress_source"] == "log_line" && job["samples"] == 240.0).await;
    assert_eq!(job["total_samples"], 240.0, "{job}");
    assert_eq!(job["tags"], json!({"team": "vision", "slurm_job_id": "77", "user": "ann"}), "{job}");
    assert_eq!((&job["objective"]["max_slowdown"], &job["batch_size"]), (&json!(0.05), &json!(4)), "{job}");
    assert_eq!(job["processes"]["pids"], json!([own]), "{job}");
    assert_eq!(scene.daemon().gpu(1).await["owner"], job["job_id"]);
    let output = child.wait_with_output().expect("ends");
    assert_eq!(output.stdout.iter().filter(|byte| **byte == b'\n').count(), 60, "every line has passed");
    let summary: Value = serde_json::from_slice(&std::fs::read(&file).expect("written")).expect("JSON");
    assert_eq!(summary["job_ids"], json!([job["job_id"]]), "{summary}");
    assert_eq!((&summary["exit_code"], &summary["progress_source"]), (&json!(0), &json!("log_line")), "{summary}");
    assert!(summary["account"]["energy_j"].as_f64().expect("known") > 0.0, "{summary}");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    for part in ["energy", "carbon", "saved", "time lost", "from lines that the command printed"] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[tokio::test]
async fn what_the_daemon_refuses_does_not_run() {
    let scene = Scene::new(1).await;
    let file = scene.state.path().join("job.toml");
    std::fs::write(&file, "batch_size = \"many\"\n").expect("written");
    let file = file.to_str().expect("text");
    for flags in
        [&["--gpus", "9"][..], &["--config", file], &["--deadline", "2040-01-01T00:00:00Z"], &["--within", "1h"]]
    {
        let ended = Ended::of(&mut scene.run(flags, "echo ran"));
        assert_eq!((ended.failed(2).lines().count(), ended.out.as_str()), (1, ""), "{flags:?}: {ended:?}");
    }
    assert_eq!(scene.open().await, 0);
    // A pipe without a reader is no reason to wait, and one with a reader gets the summary.
    let pipe = scene.state.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().expect("runs").success());
    let pipe = pipe.to_str().expect("text");
    assert!(Ended::of(&mut scene.run(&["--json", pipe], "exit 0")).err.contains("--json"));
    let reader = Command::new("cat").arg(pipe).stdout(Stdio::piped()).spawn().expect("starts");
    Ended::of(&mut scene.run(&["--json", pipe, "-q"], "exit 0")).done();
    let read = reader.wait_with_output().expect("ends").stdout;
    assert_eq!(serde_json::from_slice::<Value>(&read).expect("JSON")["exit_code"], 0);
}

#[tokio::test]
async fn the_daemon_may_come_and_go() {
    let mut scene = Scene::new(1).await;
    let address = scene.daemon().base().replace("http://", "");
    // Without a daemon the command runs, and the user is told once.
    scene.daemon.take().expect("it runs").stop("TERM").await;
    let mut alone = run_at(&address, scene.state.path(), &[]);
    let ended = Ended::of(alone.args(["--", "sh", "-c", "exit 4"]));
    assert_eq!(ended.failed(4).matches("no daemon answers").count(), 1, "{ended:?}");
    // One that comes later gets the job.
    let mut early = run_at(&address, scene.state.path(), &["--name", "early"]);
    let script = "for i in $(seq 1 1000); do sleep 0.1; [ -e \"$TMPDIR/stop\" ] && exit 5; done";
    let mut early = early.args(["--", "sh", "-c", script]).stderr(Stdio::null()).spawn().expect("starts");
    tokio::time::sleep(Duration::from_millis(500)).await;
    let restart = |scene: &Scene| Daemon::command_at(&scene.driver, scene.state.path(), &address);
    scene.daemon = Some(Daemon::start(restart(&scene), scene.state.path()).await);
    let job = scene.job("the registration", |job| job["name"] == "early").await;
    // It is killed and comes back: the job goes on.
    scene.daemon.take().expect("it runs").kill();
    assert_eq!(early.try_wait().expect("known"), None, "the command is unharmed");
    scene.daemon = Some(Daemon::start(restart(&scene), scene.state.path()).await);
    let again = scene.job("the same job", |job| job["name"] == "early").await;
    assert_eq!(again["job_id"], job["job_id"]);
    // It is killed for good: the command ends with its own code.
    scene.daemon.take().expect("it runs").kill();
    std::fs::write(scene.state.path().join("stop"), "").expect("written");
    assert_eq!(wait(&mut early).await, Some(5));
    assert_eq!(scene.folders(), 0);
}

#[tokio::test]
async fn a_daemon_that_refuses_for_a_while_gets_the_job_later() {
    let (advisor, folder) = (Advisor::start().await, tempfile::tempdir().expect("a directory"));
    advisor.refuse(json!({"status": 503, "detail": "the daemon is busy"}));
    let mut command = run_at(&advisor.address(), folder.path(), &["--name", "early"]);
    let script = "for i in $(seq 1 1000); do sleep 0.1; [ -e \"$TMPDIR/stop\" ] && exit 5; done";
    let mut early = command.args(["--", "sh", "-c", script]).stderr(Stdio::piped()).spawn().expect("starts");
    eventually("a refusal", LONG, async || (!advisor.requests("/v1/jobs").is_empty()).then_some(())).await;
    advisor.refuse(None);
    eventually("the registration", LONG, async || (!advisor.phase().is_null()).then_some(())).await;
    std::fs::write(folder.path().join("stop"), "").expect("written");
    assert_eq!(wait(&mut early).await, Some(5));
    let mut text = String::new();
    std::io::Read::read_to_string(early.stderr.as_mut().expect("piped"), &mut text).expect("read");
    let said = "the daemon is busy; the command runs without wattune until the daemon accepts it";
    assert_eq!(text.matches(said).count(), 1, "{text}");
}

#[tokio::test]
async fn a_frozen_daemon_delays_nothing_for_long() {
    let scene = Scene::new(1).await;
    scene.daemon().signal("STOP");
    let begun = tokio::time::Instant::now();
    let ended = Ended::of(&mut scene.run(&[], "exit 6"));
    let took = begun.elapsed();
    scene.daemon().signal("CONT");
    assert!(ended.failed(6).contains("the command runs without wattune"), "{ended:?}");
    // Two seconds before the start and five after the end, on a busy machine.
    assert!(took < Duration::from_secs(30), "{took:?}");
}

#[tokio::test]
async fn a_killed_wrapper_ends_its_job_with_the_lease() {
    let scene = Scene::new(1).await;
    let mut child = scene.run(&["--lease-s", "1", "--name", "killed"], "exec sleep 3").spawn().expect("starts");
    // The wrapper keeps the lease although nothing reports.
    tokio::time::sleep(Duration::from_millis(2500)).await;
    let job = scene.job("the job", |job| job["name"] == "killed").await;
    child.kill().expect("killed");
    child.wait().expect("gone");
    eventually("the end of the lease", LONG, async || (scene.open().await == 0).then_some(())).await;
    let ended = scene.ended().await;
    assert_eq!((&ended[0]["job_id"], &ended[0]["end_reason"]), (&job["job_id"], &json!("lease expired")));
    // The next run removes what is left.
    assert_eq!(scene.folders(), 1);
    Ended::of(&mut scene.run(&["--quiet"], "exit 0")).done();
    assert_eq!(scene.folders(), 0);
}

#[tokio::test]
async fn a_controlled_gpu_is_recorded_without_control() {
    let scene = Scene::new(1).await;
    let owner = scene.daemon().register(&json!({"name": "owner", "gpus": [0]})).await;
    let mut child = scene.run(&["--name", "second"], "exec sleep 100").stderr(Stdio::piped()).spawn().expect("starts");
    let job = scene.job("the second job", |job| job["name"] == "second").await;
    assert_eq!(job["control"], false);
    assert_eq!(scene.daemon().gpu(0).await["owner"], owner);
    send_signal(&child, "TERM");
    assert_eq!(wait(&mut child).await, Some(143));
    let mut text = String::new();
    std::io::Read::read_to_string(child.stderr.as_mut().expect("piped"), &mut text).expect("read");
    assert!(text.contains("recorded without control"), "{text}");
}

#[tokio::test]
async fn a_script_may_replace_the_registration() {
    let scene = Scene::new(1).await;
    let script = "echo $WATTUNE_JOB_ID; exec sleep 100";
    let mut child = scene.run(&["--lease-s", "1"], script).stdout(Stdio::null()).spawn().expect("starts");
    let first = scene.job("the job", |job| job["name"] == "sh").await;
    let body = json!({"name": "own", "gpus": [0], "batch_size": 64, "replaces": first["job_id"]});
    let own = scene.daemon().register(&body).await;
    assert_eq!(scene.daemon().gpu(0).await["owner"], own);
    let ended = scene.daemon().get(&format!("/v1/jobs/{}", first["job_id"].as_str().expect("an id"))).await.json();
    assert_eq!(ended["end_reason"], format!("replaced by job {own}"));
    // A job that has ended cannot be replaced again.
    let problem = scene.daemon().post("/v1/jobs", &body).await.problem(409);
    assert!(problem["detail"].as_str().expect("a sentence").contains("ended"), "{problem}");
    let unknown = json!({"name": "own", "gpus": [0], "replaces": "no-such-job"});
    scene.daemon().post("/v1/jobs", &unknown).await.problem(404);
    send_signal(&child, "TERM");
    assert_eq!(wait(&mut child).await, Some(143));
}

#[tokio::test]
async fn leases_are_renewed_and_totals_change_while_a_job_runs() {
    let scene = Scene::new(1).await;
    let id = scene.daemon().register(&json!({"name": "late", "gpus": [0], "lease_s": 2})).await;
    let (lease, progress) = (format!("/v1/jobs/{id}/lease"), format!("/v1/jobs/{id}/progress"));
    for _ in 0..4 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let answer = scene.daemon().post(&lease, &json!({})).await.expect(200);
        assert_eq!(answer["phase"], "waiting", "{answer}");
    }
    let report = json!({"samples": 40_000, "total_samples": 50_000, "source": "lightning"});
    scene.daemon().post(&progress, &report).await.expect(200);
    let job = scene.daemon().get(&format!("/v1/jobs/{id}")).await.json();
    assert_eq!((&job["total_samples"], &job["progress_source"]), (&json!(50_000.0), &json!("lightning")), "{job}");
    for (body, field) in [
        (json!({"samples": 40_001, "total_samples": 0}), "total_samples"),
        (json!({"samples": 40_001, "source": "x"}), "source"),
    ] {
        assert_eq!(scene.daemon().post(&progress, &body).await.problem(422)["field"], field);
    }
    scene.daemon().delete(&format!("/v1/jobs/{id}")).await.expect(200);
    let ended = scene.daemon().get(&format!("/v1/jobs/{id}")).await.json();
    assert_eq!(
        (&ended["total_samples"], &ended["progress_source"]),
        (&json!(50_000.0), &json!("lightning")),
        "{ended}"
    );
    scene.daemon().post(&lease, &json!({})).await.problem(409);
    scene.daemon().post("/v1/jobs/none/lease", &json!({})).await.problem(404);
}

#[tokio::test]
async fn output_that_is_read_slowly_is_whole() {
    let scene = Scene::new(1).await;
    let script = "head -c 300000 /dev/zero | tr '\\0' x; exit 3";
    let mut child = scene.run(&["--quiet", "--log-progress"], script).stdout(Stdio::piped()).spawn().expect("starts");
    // Longer than the wrapper waits for output that does not come.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let mut text = Vec::new();
    std::io::Read::read_to_end(child.stdout.as_mut().expect("piped"), &mut text).expect("read");
    assert_eq!((text.len(), wait(&mut child).await), (300_000, Some(3)));
}

#[tokio::test]
async fn the_environment_names_no_proxy_for_this_machine_and_no_other_job() {
    let scene = Scene::new(1).await;
    let other = scene.daemon().register(&json!({"name": "other", "gpus": [0], "control": false})).await;
    let mut command = scene.run(&["--quiet"], "echo \"$no_proxy $NO_PROXY $WATTUNE_JOB_ID\"");
    command.env("http_proxy", "http://127.0.0.1:9").env("NO_PROXY", "corp").env_remove("no_proxy");
    let ended = Ended::of(command.env("WATTUNE_JOB_ID", &other));
    let words: Vec<&str> = ended.done().split_whitespace().collect();
    assert_eq!(words[..2], ["corp,127.0.0.1", "corp,127.0.0.1"]);
    assert_ne!(words[2], other);
    let view = scene.daemon().get(&format!("/v1/jobs/{other}")).await.json();
    assert_eq!(view["ended_at"], Value::Null, "somebody else's job goes on: {view}");
}

#[tokio::test]
async fn control_begins_once_the_gpu_is_free() {
    let scene = Scene::new(1).await;
    let dead = scene.daemon().register(&json!({"name": "dead", "gpus": [0], "lease_s": 2})).await;
    let mut child = scene.run(&["--name", "next"], "exec sleep 100").stderr(Stdio::null()).spawn().expect("starts");
    let first = scene.job("the job", |job| job["name"] == "next").await;
    assert_eq!(first["control"], false);
    eventually("the end of the lease", LONG, async || {
        let view = scene.daemon().get(&format!("/v1/jobs/{dead}")).await.json();
        view["ended_at"].is_string().then_some(())
    })
    .await;
    let job = scene.job("control", |job| job["name"] == "next" && job["control"] == true).await;
    assert_eq!(scene.daemon().gpu(0).await["owner"], job["job_id"]);
    send_signal(&child, "TERM");
    assert_eq!(wait(&mut child).await, Some(143));
    assert_eq!(scene.open().await, 0);
}

#[tokio::test]
async fn control_is_withheld_from_a_slurm_job_for_good_only_by_the_site() {
    let scene = Scene::new(1).await;
    let start = async |tags: Value| {
        let prolog = json!({"name": "prolog", "gpus": [0], "control": false, "tags": tags});
        let prolog = scene.daemon().register(&prolog).await;
        let mut command = scene.run(&["--quiet", "--name", "train"], "exec sleep 100");
        let child = command.env("SLURM_JOB_ID", "7").env("WATTUNE_JOB_ID", &prolog).spawn().expect("starts");
        let job = scene.job("the job", |job| job["name"] == "train").await;
        let replaced = scene.daemon().get(&format!("/v1/jobs/{prolog}")).await.json();
        assert!(replaced["ended_at"].is_string(), "{replaced}");
        (child, job)
    };
    let by_site = json!({"slurm_job_id": "7"});
    let refused = json!({"slurm_job_id": "7", "control_refused": "conflict"});
    for (tags, control) in [(&by_site, false), (&refused, true)] {
        let (mut child, job) = start(tags.clone()).await;
        assert_eq!((&job["control"], &job["tags"]), (&json!(control), &by_site), "{job}");
        send_signal(&child, "TERM");
        assert_eq!(wait(&mut child).await, Some(143));
    }
    // The other job still controls the GPU.
    let other = scene.daemon().register(&json!({"name": "other", "gpus": [0]})).await;
    let (mut child, job) = start(refused.clone()).await;
    assert_eq!((&job["control"], &job["tags"]), (&json!(false), &refused), "{job}");
    scene.daemon().delete(&format!("/v1/jobs/{other}")).await.expect(200);
    scene.job("control", |job| job["name"] == "train" && job["control"] == true).await;
    send_signal(&child, "TERM");
    assert_eq!(wait(&mut child).await, Some(143));
    assert_eq!(scene.open().await, 0);
}

#[tokio::test]
async fn of_the_tasks_of_a_node_one_registers_the_job() {
    let scene = Scene::new(2).await;
    let step = [("SLURM_STEP_NUM_TASKS", "2"), ("SLURM_STEP_NUM_NODES", "1"), ("CUDA_VISIBLE_DEVICES", "0,1")];
    let key = ["--quiet", "--key", "nightly"];
    let mut first = scene.run(&key, "exec sleep 100");
    let mut first = first.envs(step).env("SLURM_LOCALID", "0").spawn().expect("starts");
    let job = scene.job("the job", |job| job["key"] == "nightly").await;
    assert_eq!(job["gpus"].as_array().map(Vec::len), Some(2), "for both tasks: {job}");
    let mut second = scene.run(&key, "exit 3");
    assert_eq!(Ended::of(second.envs(step).env("SLURM_LOCALID", "1")).code, Some(3));
    assert_eq!((scene.open().await, scene.ended().await.len()), (1, 0));
    send_signal(&first, "TERM");
    assert_eq!(wait(&mut first).await, Some(143));
    // A batch script is one process, however many tasks it asks for.
    let mut batch = scene.run(&["--quiet"], "exit 4");
    assert_eq!(Ended::of(batch.env("SLURM_LOCALID", "0").env("SLURM_NTASKS", "2")).code, Some(4));
    assert_eq!(scene.ended().await.len(), 2);
}

#[tokio::test]
async fn a_job_that_the_command_submits_to_slurm_is_no_part_of_the_run() {
    let scene = Scene::new(2).await;
    let (program, address) = (env!("CARGO_BIN_EXE_wattune"), scene.daemon().base().replace("http://", ""));
    let inner = format!(
        "'{program}' run --listen {address} --quiet --name inner --gpus 1 -- \
         sh -c 'echo $WATTUNE_RUN_SLURM_JOB ${{WATTUNE_RESUMED-none}}'"
    );
    for (slurm, printed, registered) in [("7", "7 1", 0), ("8", "8 none", 1)] {
        // As `sbatch` passes the environment on.
        let script = format!("WATTUNE_RESUMED=1 SLURM_JOB_ID={slurm} {inner}");
        let mut outer = scene.run(&["--quiet", "--name", "outer", "--gpus", "0"], &script);
        assert_eq!(Ended::of(outer.env("SLURM_JOB_ID", "7")).done().trim(), printed);
        let ended = scene.ended().await;
        assert_eq!(ended.iter().filter(|job| job["name"] == "inner").count(), registered, "{slurm}");
    }
}

#[test]
fn without_file_descriptors_the_command_runs_alone() {
    let mut limited = Command::new("sh");
    limited.args([
        "-c",
        "ulimit -n 8; exec \"$0\" \"$@\"",
        env!("CARGO_BIN_EXE_wattune"),
        "run",
        "--",
        "sh",
        "-c",
        "exit 4",
    ]);
    let ended = Ended::of(&mut limited);
    assert!(ended.failed(4).contains("the command runs without wattune"), "{ended:?}");
}

#[test]
fn wrong_use_is_refused_before_the_command_runs() {
    for (flags, expected) in [
        (&["--max-slowdown", "3"][..], "0.03 allows 3 %"),
        (&["--tag", "team"], "team=vision"),
        (&["--log-progress=("], "no regular expression"),
        (&["--config", "/no/such/file"], "cannot read /no/such/file"),
        (&["--json", "/no/such/file"], "/no/such/file"),
        (&["--batch-size", "0"], "batch-size"),
        (&["--deadline", "tomorrow"], "2026-12-24T18:00:00Z"),
        (&["--lease-s", "0"], "1 to 86400"),
        (&["--within", "soon"], "1h30m"),
        (&["--within", "1h", "--latest", "2026-12-24T18:00:00Z"], "cannot be used with"),
        (&["--latest", "2026-12-24"], "give a time with its zone"),
        (&["--duration", "1h"], "--within"),
        (&["--suspend=SIGKILL"], "SIGTERM"),
        (&["--config", "/dev/zero"], "larger than 1 MiB"),
    ] {
        let ended = Ended::of(wattune(&["run"]).args(flags).args(["--", "sh", "-c", "echo ran"]));
        assert!(ended.failed(2).contains(expected), "{ended:?}");
        assert_eq!(ended.out, "", "the command did not run");
    }
    assert!(Ended::of(&mut wattune(&["run"])).failed(2).contains("COMMAND"));
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(&file, "name = \"a\"\nbatch_size = = 8\n").expect("written");
    let path = file.path().to_str().expect("text");
    let ended = Ended::of(wattune(&["run", "--config", path]).args(["--", "true"]));
    assert!(ended.failed(2).contains("2 | batch_size = = 8\n"), "the mark is below its place: {ended:?}");
    let line = Ended::of(wattune(&["run", "--listen", "127.0.0.1:1", "-q"]).args(["--", "echo a | cat"]));
    assert!(line.failed(127).contains("sh -c"), "{line:?}");
}
