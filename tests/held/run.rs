//! A real training under `wattune run`, against a daemon whose clock runs 600 times as fast: it starts in the clean hours,
//! is stopped and resumed, and its result is that of a training that was left alone.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use tokio_util::sync::CancellationToken;
use wattune::clock::SystemClock;
use wattune::controller::{Handle, Requests};
use wattune::http;
use wattune::recurring::Recurring;

use super::*;

/// Seconds of the daemon's clock in one of this machine's.
const SPEED: f64 = 600.0;
/// Samples of one step of the training, and its steps: four hours at the maximum limit.
const BATCH: f64 = 12_000.0;
const STEPS: u32 = 480;

/// Trains a regression in plain Python, as fast as the simulated GPU works; saves when it is asked to, and goes on from
/// there. Without the file `work` it does not wait for the GPU.
const TRAINING: &str = r#"
import os, pickle, random, signal, sys, time
folder, steps, batch = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
path = lambda name: os.path.join(folder, name)
def work():
    with open(path("work")) as file:
        return float(file.read() or 0)
stop = False
def ask(*_):
    global stop
    stop = True
signal.signal(signal.SIGTERM, ask)
done, weights, source = 0, [0.0] * 8, random.Random(1)
if os.path.exists(path("state")):
    with open(path("state"), "rb") as file:
        done, weights, state = pickle.load(file)
    source.setstate(state)
with open(path("starts"), "a") as file:
    file.write(f"{done} {os.environ.get('WATTUNE_RESUMED', 0)}\n")
is_paced = os.path.exists(path("work"))
open(path("running"), "w").close()
first, begun = done, work() if is_paced else 0
while done < steps and not stop:
    while is_paced and not stop and work() - begun < (done + 1 - first) * batch:
        time.sleep(0.002)
    row = [source.gauss(0, 1) for _ in weights]
    error = sum(w * x for w, x in zip(weights, row)) - sum(row)
    weights = [w - 0.05 * error * x for w, x in zip(weights, row)]
    done += 1
    print(f"step {done}/{steps}", flush=True)
    # Its checkpoints, also where nobody stops it.
    if stop or done % 50 == 0:
        with open(path("state.new"), "wb") as file:
            pickle.dump((done, weights, source.getstate()), file)
        os.replace(path("state.new"), path("state"))
os.remove(path("running"))
if done < steps:
    sys.exit(143)
with open(path("result"), "w") as file:
    file.write(repr(weights))
"#;

/// Dirty, clean from the second hour to the fifth, dirty, and clean from the tenth hour on.
fn stripes(h: i64) -> f64 {
    if (2..5).contains(&h) || h >= 10 { 150.0 } else { 600.0 }
}

/// The world behind its API.
struct Served {
    world: World,
    requests: Requests,
    address: String,
    cancel: CancellationToken,
}

impl Served {
    async fn start(world: World) -> Self {
        let (handle, requests) = Handle::queue();
        let settings = http::Settings { listen: Some(([127, 0, 0, 1], 0).into()), ..http::Settings::default() };
        let ready = http::Ready::default();
        let server = http::Server::bind(&settings, handle, ready.clone()).await.expect("listens");
        let address = server.tcp_address().expect("there").to_string();
        let recurring = Recurring::new(world.controller.store(), Arc::new(SystemClock::start()));
        let cancel = CancellationToken::new();
        tokio::spawn(server.serve(recurring, cancel.clone()));
        ready.set(true);
        Self { world, requests, address, cancel }
    }

    /// Lets a moment pass, with the GPU at work while the training runs.
    async fn step(&mut self, folder: &Path) {
        let is_running = folder.join("running").exists();
        self.world.train(0, is_running);
        self.world.pass(10.0).await;
        let new = folder.join("work.new");
        std::fs::write(&new, self.world.gpus[0].work_done().get().to_string()).expect("written");
        std::fs::rename(new, folder.join("work")).expect("renamed");
        while let Some(request) = self.requests.waiting() {
            request.answer(&mut self.world.controller).await;
        }
        tokio::time::sleep(Duration::from_secs_f64(10.0 / SPEED)).await;
    }
}

fn training(folder: &Path) -> Vec<String> {
    let script = folder.join("train.py");
    std::fs::write(&script, TRAINING).expect("written");
    let text = |path: &Path| path.to_str().expect("text").to_owned();
    vec!["python3".into(), text(&script), text(folder), STEPS.to_string(), BATCH.to_string()]
}

fn finish(child: &mut Child) -> Option<i32> {
    child.try_wait().expect("known").map(|status| status.code().expect("not killed"))
}

#[tokio::test]
async fn a_real_training_is_held_stopped_and_resumed_with_the_same_result() {
    let alone = tempfile::tempdir().expect("a directory");
    let whole = training(alone.path());
    assert!(Command::new(&whole[0]).args(&whole[1..]).stdout(Stdio::null()).status().expect("runs").success());

    let mut world = World::start(stripes).await;
    // An earlier run, from which the profile is known.
    let earlier = world.register(NewJob { batch_size: Some(BATCH as u64), ..support::job("lm", 0.1) }).await;
    world.train(0, true);
    world.train_until(&earlier, 0, Phase::Planned).await;
    world.controller.end(&earlier).await.expect("ended");
    world.train(0, false);

    let folder = tempfile::tempdir().expect("a directory");
    let mut served = Served::start(world).await;
    served.step(folder.path()).await;
    let summary = folder.path().join("summary.json");
    let mut command = support::wattune(&["run", "--listen", &served.address, "--name", "lm", "--gpus", "0"]);
    for name in ["XDG_RUNTIME_DIR", "PYTHONPATH", "SLURM_JOB_ID", "WATTUNE_JOB_ID", "LOCAL_RANK"] {
        command.env_remove(name);
    }
    let (batch, total) = (BATCH.to_string(), (BATCH * f64::from(STEPS)).to_string());
    command.args(["--within", "3h", "--duration", "4h", "--power", "280", "--suspend=SIGTERM,60,60", "--key", "lm"]);
    command.args(["--deadline", "2025-06-01T18:00:00Z", "--total-samples", &total, "--batch-size", &batch]);
    command.args(["--log-progress", "--lease-s", "86400", "--json"]).arg(&summary).arg("--");
    command.args(training(folder.path())).env("TMPDIR", folder.path());
    let err = std::fs::File::create(folder.path().join("err")).expect("a file");
    let mut child = command.stdout(Stdio::null()).stderr(err).spawn().expect("starts");
    let said = || std::fs::read_to_string(folder.path().join("err")).expect("readable");
    let mut begun = None;
    let code = loop {
        served.step(folder.path()).await;
        begun = begun.or_else(|| folder.path().join("starts").exists().then(|| served.world.clock.utc()));
        if let Some(code) = finish(&mut child) {
            break code;
        }
        if served.world.clock.utc() > hour(24) {
            let _ = child.kill();
            panic!("it does not end: {}", said());
        }
    };
    assert_eq!(code, 0, "{}", said());
    let begun = begun.expect("it ran");
    assert!((hour(2)..hour(3)).contains(&begun), "it starts in the clean hours, not at {begun}: {}", said());
    let text = |folder: &Path, name: &str| std::fs::read_to_string(folder.join(name)).expect("written");
    let starts = text(folder.path(), "starts");
    let starts: Vec<&str> = starts.lines().collect();
    assert!(starts.len() >= 2 && starts[0] == "0 0" && starts[1].ends_with(" 1"), "{starts:?}: {}", said());
    assert_eq!(text(folder.path(), "result"), text(alone.path(), "result"), "bit for bit");

    let summary: Value = serde_json::from_str(&text(folder.path(), "summary.json")).expect("JSON");
    assert_eq!(summary["job_ids"].as_array().map(Vec::len), Some(1), "one job, one account: {summary}");
    assert_eq!(summary["waits"]["start_reason"], "planned", "{summary}");
    let stops = summary["waits"]["stops"].as_array().expect("a list");
    assert_eq!(stops.len(), starts.len() - 1, "{summary}");
    served.cancel.cancel();
    served.world.verify().await;
}
