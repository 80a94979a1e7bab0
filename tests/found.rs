//! Jobs that are found by their processes on GPUs: by Slurm job, pod, container and user, on a made-up tree of the
//! kernel's files, with a kubelet that answers over gRPC.

use std::path::Path;

use bytes::Bytes;
use serde_json::{Value, json};

use crate::support::{Daemon, FakeDriver, LONG, eventually};

const POD_UID: &str = "8f3c0a52-1d2e-4b7f-9c11-2233445566aa";
const CONTAINER: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

/// The kernel's files, below a directory.
struct Machine(tempfile::TempDir);

impl Machine {
    fn new() -> Self {
        let machine = Self(tempfile::tempdir().expect("a directory"));
        machine.write("proc/stat", "cpu  0 0 0 0 0 0 0 0 0 0\ncpu0 0\nbtime 1000");
        machine
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn write(&self, path: &str, text: impl AsRef<[u8]>) {
        let path = self.path().join(path);
        std::fs::create_dir_all(path.parent().expect("below")).expect("made");
        let next = path.with_extension("next");
        std::fs::write(&next, text).expect("written");
        std::fs::rename(next, path).expect("renamed");
    }

    fn process(&self, pid: u32, parent: u32, cgroup: &str, uid: u32, environ: &str) {
        self.write(&format!("proc/{pid}/cgroup"), cgroup);
        self.write(&format!("proc/{pid}/status"), format!("Uid:\t{uid}\t{uid}\t{uid}\t{uid}\n"));
        self.write(&format!("proc/{pid}/environ"), environ);
        self.write(
            &format!("proc/{pid}/stat"),
            format!("{pid} (train) S {parent} 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 500 0"),
        );
    }

    fn end(&self, pid: u32) {
        std::fs::remove_dir_all(self.path().join(format!("proc/{pid}"))).expect("removed");
    }

    fn settings(&self, discovery: &str) -> String {
        let root = self.path().display();
        format!(
            "{}[cpu]\nsample_s = 0.05\npowercap_root = \"{root}/powercap\"\nproc_root = \"{root}/proc\"\n[discovery]\npoll_s = \
             0.1\nafter_s = 0.5\nkubelet_socket = \"{root}/kubelet.sock\"\n{discovery}",
            Daemon::QUICK
        )
    }

    async fn daemon(&self, driver: &FakeDriver, state: &Path, discovery: &str) -> Daemon {
        Daemon::start(Daemon::command_set(driver, state, &self.settings(discovery)), state).await
    }
}

/// Waits for so many open jobs.
async fn jobs(daemon: &Daemon, count: usize) -> Vec<Value> {
    eventually(&format!("{count} jobs"), LONG, async || {
        let jobs = daemon.get("/v1/jobs").await.expect(200).as_array().expect("a list").clone();
        (jobs.len() == count).then_some(jobs)
    })
    .await
}

fn tags(job: &Value, keys: &[&str]) -> Vec<String> {
    keys.iter().map(|key| job["tags"][key].as_str().unwrap_or("-").to_owned()).collect()
}

/// Energy of a job that has ended.
async fn energy(daemon: &Daemon, job: &str) -> f64 {
    daemon.get(&format!("/v1/jobs/{job}/emissions")).await.expect(200)["energy_j"].as_f64().expect("known")
}

/// A kubelet that gives GPU 1 to a pod.
fn kubelet(socket: &Path) -> tokio::task::JoinHandle<()> {
    let field =
        |number: u8, value: &[u8]| [&[number << 3 | 2, u8::try_from(value.len()).expect("short")], value].concat();
    let devices = [field(1, b"nvidia.com/gpu"), field(2, FakeDriver::uuid(1).as_bytes())].concat();
    let container = [field(1, b"main"), field(2, &devices)].concat();
    let message = field(1, &[field(1, b"train-0"), field(2, b"ml"), field(3, &container)].concat());
    let length = u32::try_from(message.len()).expect("short").to_be_bytes();
    let answer = Bytes::from([&[0][..], &length, &message].concat());
    let listener = tokio::net::UnixListener::bind(socket).expect("bound");
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.expect("accepted");
            let mut connection = h2::server::handshake(stream).await.expect("HTTP/2");
            while let Some(Ok((request, mut respond))) = connection.accept().await {
                assert_eq!(request.uri().path(), "/v1.PodResourcesLister/List");
                assert_eq!(request.headers()["content-type"], "application/grpc");
                let head =
                    http::Response::builder().header("content-type", "application/grpc").body(()).expect("right");
                let mut body = respond.send_response(head, false).expect("sent");
                body.send_data(answer.clone(), false).expect("sent");
                let trailers = [("grpc-status", "0")]
                    .map(|(name, value)| (http::HeaderName::from_static(name), http::HeaderValue::from_static(value)));
                body.send_trailers(trailers.into_iter().collect()).expect("sent");
            }
        }
    })
}

#[tokio::test]
async fn processes_without_a_registration_are_recorded_under_what_they_belong_to() {
    let machine = Machine::new();
    let (driver, state) =
        (FakeDriver::new(&[json!({}), json!({}), json!({}), json!({})]), tempfile::tempdir().expect("a directory"));
    let kubelet = kubelet(&machine.path().join("kubelet.sock"));
    machine.process(
        100,
        1,
        "0::/system.slice/slurmstepd.scope/job_4711/step_0/user/task_0",
        0,
        "SLURM_JOB_ID=4711\0SLURM_JOB_ACCOUNT=vision\0SLURM_JOB_NAME=resnet\0",
    );
    machine.process(
        101,
        1,
        "0::/kubepods.slice/kubepods-pod8f3c0a52_1d2e_4b7f_9c11_2233445566aa.slice",
        0,
        "SLURM_JOB_ID=1\0",
    );
    machine.process(102, 1, &format!("0::/system.slice/docker-{CONTAINER}.scope"), 0, "");
    machine.process(103, 1, "0::/user.slice/user-4242.slice/session-1.scope", 4242, "");
    for gpu in 0..4 {
        // A process of another machine is beside each, as in a container without the host's process ids.
        driver.set(gpu, json!({"process_ids": [100 + gpu], "processes": 1}));
    }
    let daemon = machine.daemon(&driver, state.path(), "").await;
    let mut found = jobs(&daemon, 4).await;
    found.sort_by_key(|job| job["gpus"][0].as_str().map(str::to_owned));
    let [slurm, pod, container, user] = &found[..] else { panic!("{found:?}") };
    assert_eq!(slurm["name"], "resnet");
    assert_eq!(
        tags(slurm, &["found", "slurm_job_id", "account", "identity_from", "claimed"]),
        ["slurm", "4711", "vision", "cgroup", "account,name"]
    );
    assert_eq!(pod["name"], "ml/train-0");
    assert_eq!(
        tags(pod, &["found", "namespace", "pod", "container", "pod_uid"]),
        ["kubernetes", "ml", "train-0", "main", POD_UID]
    );
    assert_eq!(tags(container, &["found", "runtime", "container_id"]), ["container", "docker", CONTAINER]);
    assert_eq!(
        (tags(user, &["found", "uid", "user"]), &user["name"]),
        (vec!["user".into(), "4242".into(), "4242".into()], &json!("user 4242"))
    );
    for job in &found {
        assert_eq!((&job["control"], &job["phase"]), (&json!(false), &json!("observing")), "{job}");
        assert_eq!(job["processes"]["running"], 1, "{job}");
    }
    // It ends with its process, and has the GPU's energy until then.
    tokio::time::sleep(std::time::Duration::from_secs(2)).await;
    driver.set(0, json!({"process_ids": []}));
    machine.end(100);
    jobs(&daemon, 3).await;
    let joules = energy(&daemon, slurm["job_id"].as_str().expect("an id")).await;
    assert!(joules > 260.0, "{joules} J at 260 W");
    assert!(driver.limits_written(0).is_empty(), "a found job is never controlled");
    kubelet.abort();
}

#[tokio::test]
async fn a_found_job_survives_a_restart_and_is_joined_without_a_joule_lost_or_counted_twice() {
    let machine = Machine::new();
    let (driver, state) = (FakeDriver::new(&[json!({})]), tempfile::tempdir().expect("a directory"));
    machine.process(99, 1, "0::/", 0, "");
    machine.process(100, 99, "0::/", 0, "");
    driver.set(0, json!({"process_ids": [100]}));
    let daemon = machine.daemon(&driver, state.path(), "").await;
    let first = jobs(&daemon, 1).await.remove(0);
    daemon.kill();
    let daemon = machine.daemon(&driver, state.path(), "").await;
    tokio::time::sleep(std::time::Duration::from_secs(2)).await;
    assert_eq!(jobs(&daemon, 1).await[0]["job_id"], first["job_id"], "the same job goes on");
    // The launcher of the process is registered.
    let joined = daemon
        .post("/v1/jobs", &json!({"name": "explicit", "gpus": [0], "pids": [99], "tags": {"team": "a"}}))
        .await
        .expect(201);
    assert_eq!(joined["tags"]["joins"], first["job_id"]);
    assert_eq!(jobs(&daemon, 1).await[0]["job_id"], joined["job_id"], "the found job has ended");
    let path = format!("/v1/jobs/{}", first["job_id"].as_str().expect("an id"));
    let ended = daemon.get(&path).await.expect(200);
    assert_eq!(ended["reason"], format!("joined by job {}", joined["job_id"].as_str().expect("an id")));
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    daemon.delete(&format!("/v1/jobs/{}", joined["job_id"].as_str().expect("an id"))).await.expect(200);
    // All that the counter shows belongs to one of the two, or to the time before and after.
    assert!(daemon.stop("TERM").await.success());
    let verified = crate::support::Ended::of(&mut crate::support::wattune(&[
        "report",
        "verify",
        "--state-dir",
        state.path().to_str().expect("UTF-8"),
    ]));
    verified.done();
}

#[tokio::test]
async fn the_job_mapping_folder_is_read_and_written() {
    let machine = Machine::new();
    let (driver, state) =
        (FakeDriver::new(&[json!({"process_ids": [100]})]), tempfile::tempdir().expect("a directory"));
    machine.process(100, 1, "0::/", 4242, "");
    let folder = machine.path().join("mapping");
    machine.write("mapping/0", "4711\n");
    let setting = format!("job_mapping_dir = \"{}\"\n", folder.display());
    let daemon = machine.daemon(&driver, state.path(), &setting).await;
    let job = jobs(&daemon, 1).await.remove(0);
    assert_eq!(tags(&job, &["found", "slurm_job_id", "identity_from"]), ["slurm", "4711", "job_mapping"]);
    assert!(daemon.stop("TERM").await.success());
    assert_eq!(std::fs::read_to_string(folder.join("0")).expect("left alone"), "4711\n");
    let daemon = machine.daemon(&driver, state.path(), &format!("{setting}write_job_mapping = true\n")).await;
    let id = daemon.register(&json!({"name": "explicit", "gpus": [0], "lease_s": 600})).await;
    eventually("the mapping", LONG, async || {
        (std::fs::read_to_string(folder.join("0")).ok()? == format!("{id}\n")).then_some(())
    })
    .await;
    assert!(daemon.stop("TERM").await.success());
    assert!(!folder.join("0").exists(), "it is removed at the end");
}
