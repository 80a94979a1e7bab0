//! Rights of the users of one machine against each other: trials, processes, GPUs, places, keys.

use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

use futures_util::future::join_all;
use serde_json::{Value, json};

use crate::access::{ADA, BOB, is_root, request, start};
use crate::support::{Daemon, FakeDriver, LONG, eventually};

/// A process of a user that does nothing, until it is dropped.
struct Sleeper(Child);

impl Sleeper {
    fn of(user: u32) -> Self {
        Self(Command::new("sleep").arg("600").current_dir("/").uid(user).spawn().expect("sleep runs"))
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

async fn daemon(driver: &FakeDriver, state: &tempfile::TempDir) -> Daemon {
    start(driver, state.path(), "loopback_control = false").await
}

#[tokio::test]
async fn each_trial_belongs_to_who_began_it() {
    if !is_root() {
        return;
    }
    let (driver, state) = (FakeDriver::new(&[json!({})]), tempfile::tempdir().expect("a directory"));
    let daemon = daemon(&driver, &state).await;
    let none = Value::Null;
    let spec = json!({"batch_sizes": [8, 16], "default_batch_size": 8, "max_epochs": 9, "target_metric": 0.6, "max_power_w": 300});
    let of_zeus = json!({
        "max_power": 1000, "number_of_gpus": 1, "gpu_model": "A40", "job_id": "z", "job_id_prefix": "z", "batch_sizes": [8, 16],
        "default_batch_size": 8,
    });
    let begin = json!({});
    let table = [
        ("/v1/recurring/r", "PUT", "/v1/recurring/r", &spec, "POST", "/v1/recurring/r/trials", &begin),
        ("/jobs?job_id=z", "POST", "/jobs", &of_zeus, "GET", "/jobs/batch_size?job_id=z", &none),
    ];
    for (job, method, registration, spec, verb, trials, body) in table {
        let is_zeus = job != "/v1/recurring/r";
        assert_eq!(request(ADA, &daemon, method, registration, spec).0, 201);
        let batch_size = |trial: Value| trial["batch_size"].clone();
        let begun = |user| {
            let (status, trial) = request(user, &daemon, verb, trials, body);
            assert!(status < 300, "{trial}");
            batch_size(trial)
        };
        let first = begun(ADA);
        let (status, refusal) = request(BOB, &daemon, verb, trials, body);
        assert!(status == 403 && refusal.to_string().contains(&format!("belongs to user {ADA}")), "{refusal}");
        let report = |number: u32, batch_size: &Value| match is_zeus {
            false => {
                (format!("{registration}/trials/{number}/progress"), json!({"epochs": 1, "energy_j": 1, "time_s": 1}))
            }
            true => {
                let trial = json!({"job_id": "z", "batch_size": batch_size, "trial_number": number, "time": 1, "energy": 1,
                    "metric": 0, "current_epoch": 1});
                ("/report".to_owned(), trial)
            }
        };
        let end = |number: u32, batch_size: &Value| match is_zeus {
            false => ("POST", format!("{registration}/trials/{number}/end"), json!({"outcome": "not_reached"})),
            true => {
                let trial = json!({"job_id": "z", "batch_size": batch_size, "trial_number": number});
                ("PATCH", "/trials".to_owned(), trial)
            }
        };
        let sends = |user, number, batch_size: &Value| {
            let (path, body) = report(number, batch_size);
            let reported = request(user, &daemon, "POST", &path, &body);
            let (verb, path, body) = end(number, batch_size);
            (reported, request(user, &daemon, verb, &path, &body))
        };
        assert_eq!(request(BOB, &daemon, "POST", &report(1, &first).0, &report(1, &first).1).0, 403);
        // Who registers the same job takes part, with trials of their own.
        assert_eq!(request(BOB, &daemon, method, registration, spec).0, 200);
        let second = begun(BOB);
        let (reported, ended) = sends(BOB, 1, &first);
        assert_eq!((reported.0, ended.0), (403, 403), "{reported:?} {ended:?}");
        assert!(reported.1.to_string().contains("trial 1 of recurring job"), "{reported:?}");
        let (reported, ended) = sends(ADA, 2, &second);
        assert_eq!((reported.0, ended.0), (403, 403), "nor does the job's owner: {reported:?} {ended:?}");
        let (reported, ended) = sends(BOB, 2, &second);
        assert_eq!((reported.0, ended.0), (200, 200), "{reported:?} {ended:?}");
        let (reported, ended) = sends(ADA, 1, &first);
        assert_eq!((reported.0, ended.0), (200, 200), "{reported:?} {ended:?}");
        assert_eq!(request(BOB, &daemon, "DELETE", job, &none).0, 403, "only an owner deletes");
        assert_eq!(request(ADA, &daemon, "DELETE", job, &none).0, 200);
    }
}

#[tokio::test]
async fn a_trial_takes_neither_the_key_nor_the_training_run_of_others() {
    if !is_root() {
        return;
    }
    let (driver, state) = (FakeDriver::new(&[json!({})]), tempfile::tempdir().expect("a directory"));
    let daemon = daemon(&driver, &state).await;
    let spec =
        json!({"batch_sizes": [8], "default_batch_size": 8, "max_epochs": 9, "target_metric": 0.6, "max_power_w": 300});
    for user in [ADA, BOB] {
        assert!(request(user, &daemon, "PUT", "/v1/recurring/r", &spec).0 < 300);
    }
    let key = json!({"key": "nightly"});
    assert_eq!(request(ADA, &daemon, "POST", "/v1/recurring/r/trials", &key).0, 201);
    assert_eq!(request(ADA, &daemon, "POST", "/v1/recurring/r/trials", &key).0, 200);
    let (status, problem) = request(BOB, &daemon, "POST", "/v1/recurring/r/trials", &key);
    assert_eq!((status, &problem["field"]), (409, &json!("key")), "{problem}");
    assert_eq!(request(BOB, &daemon, "POST", "/v1/recurring/r/trials", &json!({})).0, 201);
    let (_, job) = request(ADA, &daemon, "POST", "/v1/jobs", &json!({"name": "r", "gpus": [0], "batch_size": 8}));
    let report = json!({"epochs": 0, "job_id": job["job_id"]});
    let progress =
        |user, number| request(user, &daemon, "POST", &format!("/v1/recurring/r/trials/{number}/progress"), &report);
    let (status, problem) = progress(BOB, 2);
    let detail = problem["detail"].as_str().unwrap_or_default();
    assert!(status == 403 && detail.contains(&format!("belongs to user {ADA}")), "{status} {problem}");
    let (status, answer) = progress(ADA, 1);
    assert_eq!(status, 200, "{answer}");
}

#[tokio::test]
async fn a_job_names_only_processes_of_its_user() {
    if !is_root() {
        return;
    }
    let (driver, state) = (FakeDriver::new(&[json!({})]), tempfile::tempdir().expect("a directory"));
    let of_ada = Sleeper::of(ADA);
    let job = json!({"name": "a", "gpus": [0], "pids": [of_ada.pid()]});
    {
        let daemon = daemon(&driver, &state).await;
        let (status, problem) = request(BOB, &daemon, "POST", "/v1/jobs", &job);
        assert_eq!((status, &problem["field"]), (403, &json!("pids")), "{problem}");
        let detail = problem["detail"].as_str().unwrap_or_default();
        assert!(detail.contains(&format!("is one of user {ADA}")) && detail.contains("Unix socket"), "{detail}");
        for user in [ADA, 0] {
            let (status, view) = request(user, &daemon, "POST", "/v1/jobs", &job);
            assert_eq!(status, 201, "{user}: {view}");
            let path = format!("/v1/jobs/{}", view["job_id"].as_str().expect("an id"));
            assert_eq!(request(user, &daemon, "DELETE", &path, &Value::Null).0, 200);
        }
        let first = json!({"name": "a", "gpus": [0], "priority": 1});
        let (status, problem) = request(ADA, &daemon, "POST", "/v1/jobs", &first);
        assert_eq!((status, &problem["field"]), (403, &json!("priority")), "{problem}");
        assert_eq!(request(0, &daemon, "POST", "/v1/jobs", &first).0, 201);
    }
    let state = tempfile::tempdir().expect("a directory");
    let daemon = start(&driver, state.path(), "loopback_control = true").await;
    assert_eq!(request(BOB, &daemon, "POST", "/v1/jobs", &job).0, 201, "with control");
}

#[tokio::test]
async fn a_gpu_with_only_the_processes_of_others_is_not_controlled() {
    if !is_root() {
        return;
    }
    let (driver, state) = (FakeDriver::new(&[json!({})]), tempfile::tempdir().expect("a directory"));
    let (of_ada, of_bob) = (Sleeper::of(ADA), Sleeper::of(BOB));
    driver.set(0, json!({"process_ids": [of_ada.pid()], "processes": 1}));
    let daemon = daemon(&driver, &state).await;
    let job = json!({"name": "b", "gpus": [0]});
    let held = json!({"name": "b", "gpus": [0], "start": {"within_s": 3600, "duration_s": 60}});
    let end = |user, view: &Value| {
        let path = format!("/v1/jobs/{}", view["job_id"].as_str().expect("an id"));
        assert_eq!(request(user, &daemon, "DELETE", &path, &Value::Null).0, 200);
    };
    // The processes are read with the GPU, about once a second.
    eventually("a refusal", LONG, async || {
        let (status, answer) = request(BOB, &daemon, "POST", "/v1/jobs", &job);
        if status == 201 {
            end(BOB, &answer);
            return None;
        }
        assert_eq!((status, &answer["field"]), (403, &json!("control")), "{answer}");
        let detail = answer["detail"].as_str().unwrap_or_default();
        assert!(detail.contains(&format!("such as one of user {ADA}")), "{detail}");
        Some(())
    })
    .await;
    let (status, view) =
        request(BOB, &daemon, "POST", "/v1/jobs", &json!({"name": "b", "gpus": [0], "control": false}));
    assert_eq!(status, 201, "{view}");
    end(BOB, &view);
    // A job that was held begins without control.
    let (status, view) = request(BOB, &daemon, "POST", "/v1/jobs", &held);
    assert_eq!(status, 201, "{view}");
    let path = format!("/v1/jobs/{}", view["job_id"].as_str().expect("an id"));
    assert_eq!(request(BOB, &daemon, "POST", &format!("{path}/begin"), &json!({})).0, 200);
    assert_eq!(daemon.gpu(0).await["owner"], Value::Null, "{view}");
    end(BOB, &view);
    for user in [ADA, 0] {
        let (status, view) = request(user, &daemon, "POST", "/v1/jobs", &job);
        assert_eq!(status, 201, "{user}: {view}");
        end(user, &view);
    }
    // A GPU that several users share is controlled by the first who asks.
    driver.set(0, json!({"process_ids": [of_ada.pid(), of_bob.pid()], "processes": 2}));
    eventually("control", LONG, async || (request(BOB, &daemon, "POST", "/v1/jobs", &job).0 == 201).then_some(()))
        .await;
}

#[tokio::test]
async fn refusals_of_what_belongs_to_others_are_recorded() {
    if !is_root() {
        return;
    }
    let (driver, state) = (FakeDriver::new(&[json!({})]), tempfile::tempdir().expect("a directory"));
    let daemon = daemon(&driver, &state).await;
    let (_, view) = request(ADA, &daemon, "POST", "/v1/jobs", &json!({"name": "a", "gpus": [0]}));
    let job = format!("/v1/jobs/{}", view["job_id"].as_str().expect("an id"));
    let spec =
        json!({"batch_sizes": [8], "default_batch_size": 8, "max_epochs": 9, "target_metric": 0.6, "max_power_w": 300});
    assert_eq!(request(ADA, &daemon, "PUT", "/v1/recurring/r", &spec).0, 201);
    let none = Value::Null;
    for (method, path, body) in [
        ("DELETE", job.as_str(), &none),
        ("POST", "/v1/recurring/r/trials", &json!({})),
        ("DELETE", "/jobs?job_id=r", &none),
    ] {
        assert_eq!(request(BOB, &daemon, method, path, body).0, 403, "{method} {path}");
    }
    let socket = state.path().join("wattune.sock");
    let client = reqwest::Client::builder().unix_socket(socket).tls_certs_only([]).build().expect("a client");
    let answer = client.get("http://localhost/v1/audit").send().await.expect("answered");
    let log: Value = answer.json().await.expect("JSON");
    let refused: Vec<(&str, &str)> = log["records"]
        .as_array()
        .expect("records")
        .iter()
        .filter(|record| record["action"] == "refuse_access" && record["outcome"] == "refused")
        .map(|record| (record["who"].as_str().unwrap_or_default(), record["reason"].as_str().unwrap_or_default()))
        .collect();
    let beginnings = [format!("DELETE {job}: job "), "POST /v1/recurring/r/trials: ".into(), "DELETE /jobs: ".into()];
    assert_eq!(refused.len(), beginnings.len(), "{log}");
    for ((who, reason), beginning) in refused.into_iter().zip(&beginnings) {
        assert_eq!(who, format!("user {BOB}"));
        assert!(reason.starts_with(beginning) && reason.contains(&format!("belongs to user {ADA}")), "{reason}");
    }
}

#[tokio::test]
async fn each_user_has_keys_of_their_own() {
    if !is_root() {
        return;
    }
    let (driver, state) = (FakeDriver::new(&[json!({})]), tempfile::tempdir().expect("a directory"));
    let daemon = daemon(&driver, &state).await;
    let job = json!({"name": "a", "gpus": [0], "control": false, "key": "nightly"});
    let for_bob = json!({"name": "a", "gpus": [0], "control": false, "key": "nightly", "uid": BOB});
    assert_eq!(request(ADA, &daemon, "POST", "/v1/jobs", &job).0, 201);
    let (status, view) = request(BOB, &daemon, "POST", "/v1/jobs", &job);
    assert_eq!(status, 201, "{view}");
    for (user, body) in [(ADA, &job), (BOB, &job), (0, &for_bob)] {
        let (status, problem) = request(user, &daemon, "POST", "/v1/jobs", body);
        assert_eq!((status, &problem["field"]), (409, &json!("key")), "{problem}");
    }
    assert_eq!(request(0, &daemon, "POST", "/v1/jobs", &job).0, 201);
}

#[tokio::test]
async fn who_changes_too_much_has_to_wait_and_others_have_not() {
    let (driver, state) = (FakeDriver::new(&[json!({})]), tempfile::tempdir().expect("a directory"));
    let daemon = daemon(&driver, &state).await;
    let url = format!("{}/v1/jobs/none", daemon.base());
    let refused = eventually("a refusal", LONG, async || {
        let answers = join_all((0..256).map(|_| daemon.client().delete(&url).send())).await;
        let answers = answers.into_iter().map(|answer| answer.expect("answered"));
        answers
            .inspect(|answer| assert!([404, 429, 503].contains(&answer.status().as_u16())))
            .find(|a| a.status() == 429)
    })
    .await;
    assert_eq!(refused.headers().get("retry-after").map(|value| value.as_bytes()), Some(&b"1"[..]));
    let problem: Value = refused.json().await.expect("JSON");
    assert!(
        problem["detail"].as_str().is_some_and(|detail| detail.contains("at most 200 times a second")),
        "{problem}"
    );
    assert_eq!(daemon.get("/v1/jobs").await.status, 200, "reading is not limited");
    if is_root() {
        assert_eq!(request(BOB, &daemon, "DELETE", "/v1/jobs/none", &Value::Null).0, 404);
    }
}
